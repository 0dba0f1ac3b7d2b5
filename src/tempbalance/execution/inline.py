"""Which rows take effect at a call of ``step``: the question that `Inline`, `Background` and `Budgeted` answer.

A scheduler asks with the `SharedScoring` of the call. The answer has a source for the next call beside the rows, which
the scheduler keeps if the call succeeds: so a call that fails changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import distributed
from torch.distributed import ProcessGroup

from tempbalance.errors import check_count, check_flag, check_fraction, warn
from tempbalance.execution.distributed import SharedScoring
from tempbalance.ranking.table import LayerRow

_MUCH = 0.2  # share of the time above which scoring is worth a warning
_LONG = 10.0  # seconds that scoring must have taken by then


@dataclass(frozen=True)
class Execution:
    """When and where layers are scored.

    Attributes:
        share: Whether the processes of torch.distributed, where it is in use, share the spectra among them. All of them
            then build the scheduler and step it together. A process group shares among its own processes; False lets
            each process score its own model.
        background: Copy the weights to the CPU and score them in a thread while training continues. The new scales take
            effect ``lag`` calls of ``step`` later, which waits for them if it must, so that a run stays reproducible.
        lag: With ``background``, the number of those calls, at most ``interval``.
        budget: Share of the training time that scoring may take, 0 < budget < 1: at 0.02, each scoring refreshes as
            many layers as 2 % of the time so far pay for. With None every scoring refreshes every layer.
        device: Where weights are solved: None for the device they are on, ``cpu`` to copy them to the CPU first.
    """

    share: bool | ProcessGroup = True
    background: bool = False
    lag: int = 1
    budget: float | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        is_group = distributed.is_available() and isinstance(self.share, distributed.ProcessGroup)
        is_other = distributed.is_available() and self.share is distributed.GroupMember.NON_GROUP_MEMBER
        if is_other or (is_group and distributed.get_rank(self.share) < 0):  # type: ignore[arg-type]
            raise ValueError("share must be a process group that this process is in")
        if not is_group and not isinstance(self.share, bool):
            raise TypeError(f"share must be True, False or a process group, got {self.share!r}")
        check_flag("background", self.background)
        check_count("lag", self.lag, least=1)
        if self.lag != 1 and not self.background:
            raise ValueError(f"lag goes with background=True, got lag={self.lag} without it")
        if self.device not in (None, "cpu"):
            raise ValueError(f"device must be 'cpu' or None, got {self.device!r}")
        if self.budget is not None:
            check_fraction("budget", self.budget)
            if self.background:
                raise ValueError(f"with background=True training does not wait: got budget={self.budget!r} too")

    def __deepcopy__(self, _: dict[int, Any]) -> Execution:
        return self  # which cannot change, and whose process group cannot be copied

    def __getstate__(self) -> dict[str, Any]:
        if not isinstance(self.share, bool):
            raise TypeError("a TempBalance with a process group as share cannot be pickled: save its state_dict()")
        return self.__dict__


Answer = tuple[Sequence[LayerRow] | None, "Inline"]  # rows without scales, and the source to ask at the next call


class Inline:
    """Scores all layers when a scoring is due; warns once if that takes much of the time after the first scoring."""

    def __init__(self) -> None:
        self._since: float | None = None  # the end of the first scoring
        self._spent, self._has_warned = 0.0, False

    def acts_at(self, call: int, *, is_due: bool) -> bool:
        """Whether there is anything to ask at a call."""
        return is_due

    def rows_at(self, scoring: SharedScoring, *, is_due: bool, now: bool = False) -> Answer:
        """Return the rows that take effect at a call of ``step``; with ``now`` all are scored, whatever is due."""
        start = time.perf_counter()
        scoring.plan()
        rows, end = scoring.rows(), time.perf_counter()
        if self._since is None:
            self._since = end
            return rows, self
        self._spent += end - start
        share = self._spent / (end - self._since)
        if share > _MUCH and self._spent > _LONG and not self._has_warned:
            self._has_warned = True
            advice = "raise `interval`, the calls of step() between scorings, or bound it with `Execution(budget=0.02)`"
            warn(f"scoring has taken {share:.0%} of the time so far: {advice}")
        return rows, self

    def wait(self) -> None:
        pass

    def state(self) -> dict[str, Any] | None:
        return None

    def load(self, state: dict[str, Any] | None) -> None:
        pass

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_since": None, "_spent": 0.0}  # the clock of another process starts elsewhere
