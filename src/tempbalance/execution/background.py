"""Score in a thread while training continues: weights are copied, and the scales take effect when they are due.

Processes exchange results in the thread that trains, when the scoring starts and when it is due. In between, each
process has only the results that it solved itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from threading import Event, Thread, main_thread
from typing import Any

import torch
from torch import Tensor

from tempbalance.execution.distributed import SharedScoring, describe, rebuild
from tempbalance.execution.inline import Outcome, Request
from tempbalance.model.layers import Layer
from tempbalance.ranking.table import LayerRow
from tempbalance.spectral.workers import multiplies_in_full


class Background:
    """Starts a scoring in a thread where one is due; its rows take effect ``lag`` calls of ``step`` later.

    Args:
        lag: The number of those calls.
    """

    def __init__(self, lag: int) -> None:
        self.lag = lag
        self._pending: Pending | None = None

    def rows_at(self, request: Request, *, is_due: bool) -> Outcome:
        """The rows of the scoring that is due, and the start of the next; a failed scoring raises once."""
        if not is_due:
            request.check()
        rows = None
        if self._pending is not None and request.call >= self._pending.due:
            try:
                rows = self._pending.rows()
            except Exception:
                self._pending = None
                raise
        if is_due:
            started = Pending(request.scoring(), request.call + self.lag)
            return Outcome(rows, partial(self._replace, started), started.cancel)
        return Outcome() if rows is None else Outcome(rows, self.close)

    def rows_now(self, request: Request) -> Outcome:
        """Score in this thread, and give up the scoring that is under way."""
        return Outcome(request.scoring().rows(), self.close)

    def wait(self) -> None:
        """Wait for the scoring that is under way, which the processes that share must do together."""
        if self._pending is not None:
            self._pending.finish()

    def close(self) -> None:
        """Give up the scoring that is under way."""
        self._replace(None)

    def state(self) -> dict[str, Any] | None:
        """The outcome of the scoring that is under way."""
        return None if self._pending is None else self._pending.state()

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Continue with the outcome of a scoring."""
        self._replace(None if state is None else Pending.from_state(dict(state)))

    def _replace(self, pending: Pending | None) -> None:
        if self._pending is not None:
            self._pending.cancel()
        self._pending = pending


class Pending:
    """A scoring that is under way. After copying, pickling or saving, its outcome is known.

    Args:
        scoring: Planned and agreed on by all processes.
        due: The call of ``step`` at which its scales take effect.
    """

    def __init__(self, scoring: SharedScoring, due: int) -> None:
        self.due = due
        self._work: _Work | None = _Work(scoring)
        self._rows: list[LayerRow] = []
        self._error: Exception | None = None

    def finish(self) -> None:
        """Wait for the outcome, which the processes that share must do together."""
        if self._work is None:
            return
        try:
            self._rows = self._work.scoring.rows(self._work.wait)
        except Exception as err:
            self._error = err
        self._work = None

    def rows(self) -> list[LayerRow]:
        """A row for each layer, without scales.

        Raises:
            TempBalanceError: If a weight had no spectrum, or a score was not finite; it names the layer.
        """
        self.finish()
        if self._error is not None:
            raise self._error
        return self._rows

    def cancel(self) -> None:
        """End the thread before its next layer."""
        if self._work is not None:
            self._work.is_unwanted = True

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Pending:
        """A scoring whose outcome is known."""
        pending = cls.__new__(cls)
        pending.__setstate__(state)
        return pending

    def state(self) -> dict[str, Any]:
        """Plain values, for which this process solves the shares of the others too.

        Raises:
            RuntimeError: If it cannot, because weights are sharded or the process is a fork.
        """
        rows, error = self._rows, self._error
        if self._work is not None:
            if self._work.scoring.is_sharded:
                raise RuntimeError(
                    "a scoring of sharded weights is under way: call wait() on every process before saving or copying"
                )
            self._work.check_process()
            try:
                rows = self._work.rows_alone()
            except Exception as err:
                error = err
        return {
            "due": self.due,
            "rows": [row.to_dict() for row in rows],
            "error": None if error is None else list(describe(error)),
        }

    __getstate__ = state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the values of `state`."""
        self.due, self._work = state["due"], None
        self._rows = [LayerRow.from_dict(row) for row in state["rows"]]
        self._error = None if state["error"] is None else rebuild(tuple(state["error"]))


class _UnwantedError(Exception):
    """The outcome is no longer wanted."""


class _Work:
    """Copies of the weights, and the thread that solves this process' share of them."""

    def __init__(self, scoring: SharedScoring) -> None:
        self.scoring, self.is_unwanted = scoring, False
        self._copies = scoring.copy_weights()
        # full precision of products is a setting of the process, and training may rely on another one
        self._double = not multiplies_in_full()
        self._failed: Exception | None = None
        self._process = os.getpid()
        self._is_done = self._is_done_for_others = False
        # Each thread has its own number of threads, but a thread that has never read it takes the last number set
        # anywhere: so both read it before the other sets its own, and here it is set again.
        num_threads = torch.get_num_threads()
        is_set = Event()
        self._thread = Thread(target=self._run, args=(is_set,), name="tempbalance")
        self._thread.start()
        is_set.wait()
        torch.set_num_threads(num_threads)

    def wait(self) -> None:
        """Wait for this process' share.

        Raises:
            Exception: What went wrong with it.
            RuntimeError: If the process is a fork, in which the thread does not run.
        """
        self._thread.join()
        if self._failed is not None:
            raise self._failed
        self.check_process()

    def check_process(self) -> None:
        """Refuse a fork, in which the thread does not run.

        Raises:
            RuntimeError: If the process is one.
        """
        if os.getpid() != self._process and not self._is_done:
            raise RuntimeError("a scoring was under way when the process was forked: go on in the one that started it")

    def rows_alone(self) -> list[LayerRow]:
        """The rows, without help from the other processes."""
        self.wait()
        if not self._is_done_for_others:
            self.scoring.solve_copies(self._load, mine=False, double=self._double)
            self._is_done_for_others = True
        return self.scoring.plan.rows()

    def _run(self, is_set: Event) -> None:
        torch.get_num_threads()
        torch.set_num_threads(1)
        is_set.set()
        try:
            self.scoring.solve_copies(self._load, mine=True, double=self._double)
            self._is_done = True
        except Exception as err:
            self._failed = err

    def _load(self, layer: Layer) -> Tensor:
        """The copy of a weight while the outcome is wanted; at its end the process waits for threads."""
        if self.is_unwanted or not main_thread().is_alive():
            raise _UnwantedError
        return self._copies[layer.name]
