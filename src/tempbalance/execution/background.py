"""A scoring beside the training: the weights are copied, a thread works, and the scales take effect when they are due.

Processes talk to each other in the thread that trains, when the scoring starts and when it is due. In between, each
knows its own share of the results only.
"""

from __future__ import annotations

import os
from threading import Event, Thread, main_thread
from typing import Any

import torch
from torch import Tensor

from tempbalance.execution.distributed import SharedScoring, describe, rebuild
from tempbalance.model.layers import Layer
from tempbalance.ranking.table import LayerRow
from tempbalance.spectral.workers import multiplies_in_full


class Pending:
    """A scoring that is under way; copied, pickled or saved, it is one whose outcome is known.

    Args:
        scoring: Planned and agreed upon.
        due: The call of ``step`` at which its scales take effect.
    """

    def __init__(self, scoring: SharedScoring, due: int) -> None:
        self.due = due
        self._work: _Work | None = _Work(scoring)
        self._rows: list[LayerRow] = []
        self._error: Exception | None = None

    def finish(self) -> None:
        """Wait for the outcome, which the processes that share have to do together."""
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
        """Have the thread end before its next layer."""
        if self._work is not None:
            self._work.is_unwanted = True

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Pending:
        """One of which the outcome is known."""
        pending = cls.__new__(cls)
        pending.__setstate__(state)
        return pending

    def state(self) -> dict[str, Any]:
        """Plain values, for which this process works out the others' shares as well.

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
        """Take what `state` gave."""
        self.due, self._work = state["due"], None
        self._rows = [LayerRow.from_dict(row) for row in state["rows"]]
        self._error = None if state["error"] is None else rebuild(tuple(state["error"]))


class _UnwantedError(Exception):
    """Nobody waits for the outcome any more."""


class _Work:
    """The copies of the weights and the thread that solves this process' share of them."""

    def __init__(self, scoring: SharedScoring) -> None:
        self.scoring, self.is_unwanted = scoring, False
        self._copies = scoring.copy_weights()
        # to multiply in full precision is a setting of the process, and the training may rely on another one
        self._double = not multiplies_in_full()
        self._failed: Exception | None = None
        self._process = os.getpid()
        self._is_done = self._is_done_for_others = False
        # The number of threads is each thread's own, but one that was never asked for it takes the last number that
        # was set anywhere when it is: so both are asked before the other sets its own, and here it is set again.
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
        """The rows without the other processes' help."""
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
        """The copy of a weight, as long as somebody wants the outcome: at its end, the process waits for threads."""
        if self.is_unwanted or not main_thread().is_alive():
            raise _UnwantedError
        return self._copies[layer.name]
