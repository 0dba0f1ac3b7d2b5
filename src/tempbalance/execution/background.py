"""Score in a thread while training continues: weights are copied, and the scales take effect when they are due.

Processes exchange results in the thread that trains, when the scoring starts and when it is due. In between, each
process has only the results that it solved itself.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from threading import Event, Thread, main_thread
from typing import Any

import torch
from torch import Tensor

from tempbalance.execution.distributed import SharedScoring, describe, rebuild
from tempbalance.execution.inline import Inline
from tempbalance.model.layers import Layer
from tempbalance.ranking.table import LayerRow, from_plain
from tempbalance.spectral.workers import multiplies_in_full


class Background(Inline):
    """Starts a scoring in a thread where one is due; its rows take effect ``lag`` calls of ``step`` later."""

    def __init__(self, lag: int) -> None:
        super().__init__()
        self.lag = lag
        self._pending: Pending | None = None
        self._next: Pending | None = None  # replaces it once the call counts

    def rows_at(self, scoring: SharedScoring, *, is_due: bool) -> list[LayerRow] | None:
        """Return the rows of a scoring whose lag is over, and start the next; a failed scoring raises once."""
        if not is_due:
            scoring.check()
        rows, self._next = None, self._pending
        if self._pending is not None and scoring.call >= self._pending.due:
            self._next = None
            try:
                rows = self._pending.rows()
            except Exception:
                self._pending = None
                raise
        if is_due:
            scoring.plan()
            self._next = Pending(scoring, scoring.call + self.lag)
        return rows

    def rows_now(self, scoring: SharedScoring) -> list[LayerRow] | None:
        """Score in this thread, and give up the scoring that is under way."""
        self._next = None
        return super().rows_now(scoring)

    def commit(self) -> None:
        """Replace the scoring that is under way by the one that was started."""
        if self._pending is not None and self._pending is not self._next:
            self._pending.cancel()
        self._pending, self._next = self._next, None

    def cancel(self) -> None:
        """Give up the scoring that was started."""
        if self._next is not None and self._next is not self._pending:
            self._next.cancel()
        self._next = None

    def wait(self) -> None:
        """Wait for the scoring that is under way, which the processes that share must do together."""
        if self._pending is not None:
            self._pending.finish()

    def close(self) -> None:
        """Give up the scoring that is under way."""
        self._next = None
        self.commit()

    def state(self) -> dict[str, Any] | None:
        """Return the outcome of the scoring that is under way."""
        return None if self._pending is None else self._pending.__getstate__()

    def load(self, state: dict[str, Any] | None) -> None:
        """Continue with the outcome of a scoring."""
        if state is not None:
            self._pending = Pending.__new__(Pending)
            self._pending.__setstate__(state)


class _UnwantedError(Exception):
    """The outcome is no longer wanted."""


@dataclass(frozen=True)
class _Outcome:
    """A scoring that is done, as it is saved."""

    due: int
    rows: tuple[LayerRow, ...]
    error: tuple[str, ...] | None


class Pending:
    """Copies of the weights, and the thread that solves this process' share. Once copied or saved, it is solved."""

    def __init__(self, scoring: SharedScoring, due: int) -> None:
        self.due = due
        self._scoring: SharedScoring | None = scoring  # None once the outcome is known
        self._rows: list[LayerRow] = []
        self._error: Exception | None = None
        self._copies = scoring.copy_weights()
        # full precision of products is a setting of the process, and training may rely on another one
        self._double = not multiplies_in_full()
        self._process = os.getpid()
        self._is_unwanted = self._is_done = self._is_done_for_others = False
        # Each thread has its own number of threads, but a thread that has never read it takes the last number set
        # anywhere: so both read it before the other sets its own, and here it is set again.
        num_threads = torch.get_num_threads()
        is_set = Event()
        self._thread = Thread(target=self._run, args=(scoring, is_set), name="tempbalance")
        self._thread.start()
        is_set.wait()
        torch.set_num_threads(num_threads)

    def rows(self) -> list[LayerRow]:
        """Wait for the rows, without scales; raise what went wrong with them."""
        self.finish()
        if self._error is not None:
            raise self._error
        return self._rows

    def finish(self) -> None:
        """Wait for the outcome, which the processes that share must do together."""
        if self._scoring is None:
            return
        try:
            self._rows = self._scoring.rows(self._join)
        except Exception as err:
            self._error = err
        self._scoring, self._copies = None, {}

    def cancel(self) -> None:
        """End the thread before its next layer."""
        self._is_unwanted = True

    def __getstate__(self) -> dict[str, Any]:
        """Return the outcome as plain values, for which this process solves the shares of the others too."""
        rows, error, scoring = self._rows, self._error, self._scoring
        if scoring is not None:
            if scoring.is_sharded:
                raise RuntimeError(
                    "a scoring of sharded weights is under way: call wait() on every process before saving or copying"
                )
            self._check_process()
            try:
                self._join()
                if not self._is_done_for_others:
                    scoring.solve_copies(self._load, mine=False, double=self._double)
                    self._is_done_for_others = True
                rows = scoring.planned.rows()
            except Exception as err:
                error = err
        return asdict(_Outcome(self.due, tuple(rows), None if error is None else describe(error)))

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = from_plain(_Outcome, state, "the state's scoring")
        self.due, self._scoring, self._rows = saved.due, None, list(saved.rows)
        self._error = None if saved.error is None else rebuild(saved.error)

    def _join(self) -> None:
        """Wait for this process' share; raise what went wrong with it."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        self._check_process()

    def _check_process(self) -> None:
        """Refuse a fork, in which the thread does not run."""
        if os.getpid() != self._process and not self._is_done:
            raise RuntimeError(
                "a scoring was under way when the process was forked: continue in the process that started it"
            )

    def _run(self, scoring: SharedScoring, is_set: Event) -> None:
        torch.get_num_threads()
        torch.set_num_threads(1)
        is_set.set()
        try:
            scoring.solve_copies(self._load, mine=True, double=self._double)
            self._is_done = True
        except Exception as err:
            self._error = err

    def _load(self, layer: Layer) -> Tensor:
        """Return the copy of a weight while the outcome is wanted; at its end the process waits for threads."""
        if self._is_unwanted or not main_thread().is_alive():
            raise _UnwantedError
        return self._copies[layer.name]
