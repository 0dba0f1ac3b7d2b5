"""Score in a thread while training continues: weights are copied, and the scales take effect when they are due.

Processes exchange results in the thread that trains, when the scoring starts and when it is due. In between, each
process has only the results that it solved itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from threading import Event, Thread, main_thread
from typing import Any

import torch
from torch import Tensor

from tempbalance.execution.distributed import SharedScoring, describe, rebuild
from tempbalance.execution.inline import Answer, Inline
from tempbalance.model.layers import Layer
from tempbalance.ranking.table import LayerRow, from_plain


class Background(Inline):
    """Starts a scoring in a thread where one is due; its rows take effect ``lag`` calls of ``step`` later."""

    def __init__(self, lag: int, pending: Pending | None = None) -> None:
        super().__init__()
        self.lag, self._pending = lag, pending

    def acts_at(self, call: int, *, is_due: bool) -> bool:
        return is_due or (self._pending is not None and call >= self._pending.due)

    def rows_at(self, scoring: SharedScoring, *, is_due: bool, now: bool = False) -> Answer:
        """Return the rows of a scoring whose lag is over, and start the next; a failed scoring raises once."""
        if now:
            return super().rows_at(scoring, is_due=True)[0], Background(self.lag)
        rows, pending = None, self._pending
        if pending is not None and scoring.call >= pending.due:
            pending.finish()
            if pending.error is not None:
                self._pending = None
                raise pending.error
            rows, pending = pending.rows, None
        if is_due:
            scoring.plan()
            pending = Pending(scoring.call + self.lag, work=_Work(scoring))
        return rows, Background(self.lag, pending)

    def wait(self) -> None:
        if self._pending is not None:
            self._pending.finish()

    def state(self) -> dict[str, Any] | None:
        return None if self._pending is None else asdict(self._pending.outcome())

    def load(self, state: dict[str, Any] | None) -> None:
        if state is not None:
            saved = from_plain(_Outcome, state, "the state's scoring")
            error = None if saved.error is None else rebuild(saved.error)
            self._pending = Pending(saved.due, saved.rows, error)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_pending": self.state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _pending=None)
        self.load(state["_pending"])


@dataclass(frozen=True)
class _Outcome:
    """A scoring that is done, as it is saved."""

    due: int
    rows: tuple[LayerRow, ...]
    error: tuple[str, ...] | None


@dataclass(eq=False)
class Pending:
    """A scoring whose rows take effect at a later call: its outcome, or the thread that works on it.

    When nothing refers to it any more, the thread ends before its next layer.
    """

    due: int
    rows: Sequence[LayerRow] = ()
    error: Exception | None = None
    work: _Work | None = None

    def __del__(self) -> None:
        if self.work is not None:
            self.work.is_unwanted = True

    def finish(self) -> None:
        """Wait for the outcome, which the processes that share must do together."""
        if self.work is not None:
            try:
                self.rows = self.work.scoring.rows(self.work.finish)
            except Exception as err:  # which is raised at the call at which the rows are due
                self.error = err
            self.work = None

    def outcome(self) -> _Outcome:
        """Return the outcome without asking other processes: this one solves their shares too."""
        rows, error = self.rows, self.error
        if self.work is not None:
            if self.work.scoring.is_sharded:
                raise RuntimeError("a scoring of sharded weights is under way: call wait() on every process first")
            self.work.check_process()
            try:
                self.work.finish()
                self.work.solve(mine=False)
                rows = self.work.scoring.planned.rows()
            except Exception as err:  # which is saved
                error = err
        return _Outcome(self.due, tuple(rows), None if error is None else describe(error))


class _Work(Thread):
    """Copies of the weights, and the thread that solves this process' share of them."""

    def __init__(self, scoring: SharedScoring) -> None:
        super().__init__(name="tempbalance")
        self.scoring, self.copies = scoring, scoring.hold(scoring.layers, copy=True)
        self.process = os.getpid()
        self.is_unwanted = self.is_done = False
        self.error: Exception | None = None
        # Each thread has its own number of threads, but a thread that has never read it takes the last number set
        # anywhere: so both read it before the other sets its own, and here it is set again.
        num_threads = torch.get_num_threads()
        self.has_set = Event()
        self.start()
        self.has_set.wait()
        torch.set_num_threads(num_threads)

    def run(self) -> None:
        torch.get_num_threads()
        torch.set_num_threads(1)
        self.has_set.set()
        try:
            self.solve(mine=True)
            self.is_done = True
        except Exception as err:  # which `finish` raises in the thread that trains
            self.error = err

    def solve(self, *, mine: bool) -> None:
        self.scoring.solve_copies(self.load, mine=mine)

    def load(self, layer: Layer) -> Tensor:
        """Return the copy of a weight while the outcome is wanted; at its end the process waits for threads."""
        if self.is_unwanted or not main_thread().is_alive():
            raise RuntimeError("the scoring is not wanted any more")
        return self.copies[layer.name]

    def finish(self) -> None:
        """Wait for this process' share; raise what went wrong with it."""
        self.join()
        if self.error is not None:
            raise self.error
        self.check_process()

    def check_process(self) -> None:
        if os.getpid() != self.process and not self.is_done:  # in a fork the thread does not run
            raise RuntimeError("a scoring is under way in the process that was forked: continue there")
