"""Score within a share of the training time.

Time that passes earns credit, and scoring spends it. Layers are refreshed while their predicted cost fits the credit,
in turn the layer that has changed most since it was scored and the layer that was scored longest ago. So no layer waits
for more than twice as many refreshes as there are layers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from tempbalance.errors import check_finite
from tempbalance.execution.distributed import Choose, SharedScoring, find_ranks
from tempbalance.execution.inline import Answer, Inline
from tempbalance.model.layers import Layer
from tempbalance.model.sharded import is_dtensor
from tempbalance.ranking.table import LayerRow, from_plain

_NUM_SAMPLED = 4096  # entries of a parameter, by which its change is measured
_SCATTER = 2654435761  # a prime: its multiples lie all over a weight, whatever the sizes of that
_MEMORY = 0.8  # weight of an earlier scoring against the next when costs are predicted
_STATE = "the state's budget"
clock = time.perf_counter
Samples = dict[str, list[Tensor]]  # by layer


@dataclass(frozen=True)
class Spending:
    """Time that scoring took under a budget, and age of the scores.

    Attributes:
        seconds: Time spent on scoring, the first scoring included.
        elapsed: Time since the scheduler was built; a resumed run continues to count.
        num_refreshed: How often a layer was scored, over all layers.
        ages: Calls of ``step`` since a layer was scored, by its name.
    """

    seconds: float
    elapsed: float
    num_refreshed: int
    ages: Mapping[str, int]

    @property
    def share(self) -> float:
        """Share of the time spent on scoring, 0 to 1."""
        return self.seconds / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def oldest(self) -> int:
        return max(self.ages.values(), default=0)


@dataclass
class Books:
    """Accounts of the scorings so far, as plain values."""

    elapsed: float = 0.0  # seconds, before the clock was started
    spent: float = 0.0
    overhead: float = 0.0  # seconds that it takes to find out which layers to refresh
    solving: float = 0.0  # seconds, of late
    solved: float = 0.0  # the cost of what they solved
    awaited: str | None = None  # the layer that comes next
    awaited_cost: int = 0
    ask_at: int = 0  # the call of `step` at which the credit is looked at again
    last_call: int = 0  # at which it was looked at, and when
    last_elapsed: float = 0.0
    num_refreshed: int = 0
    refreshed_at: dict[str, int] = field(default_factory=dict)

    def predict(self, cost: float) -> float:
        return cost * self.solving / self.solved if self.solved else 0.0


class Budgeted(Inline):
    """Refreshes as many layers as a share of the time, ``budget``, pays for; the others keep their rows."""

    def __init__(
        self, budget: float, books: Books | None = None, samples: Samples | None = None, started: float | None = None
    ) -> None:
        super().__init__()
        self.budget, self._books, self._samples = budget, books or Books(), samples or {}
        self._started = clock() if started is None else started

    def acts_at(self, call: int, *, is_due: bool) -> bool:
        return is_due and call >= self._books.ask_at

    def rows_at(self, scoring: SharedScoring, *, is_due: bool, now: bool = False) -> Answer:
        """Refresh the layers that there is credit for, by the clock of rank 0; with ``now``, every layer."""
        following = Budgeted(self.budget, replace(self._books), self._samples, self._started)
        if now:
            return following._refresh(scoring, None), following
        ranks = find_ranks(scoring.share)
        with ranks.exchange(f"{scoring.name}, budget") as answers:
            answers.append(self.answer(scoring.call, is_alone=ranks.size == 1))
        has_credit, following._books.ask_at = answers[0]
        if has_credit:
            return following._refresh(scoring, following._choose), following
        following._books.last_call, following._books.last_elapsed = scoring.call, self.elapsed()
        return None, following

    def answer(self, call: int, *, is_alone: bool) -> tuple[bool, int]:
        """Return whether there is credit for the layer that comes next, and at which call to ask again.

        If asking costs an exchange between processes, they ask again when there should be enough credit, judged by the
        time of the calls since the last answer, and after twice as many calls at the latest.
        """
        books = self._books
        missing = books.overhead + books.predict(books.awaited_cost) - self.credit()
        if books.awaited is None or missing <= 0 or is_alone:
            return books.awaited is None or missing <= 0, call + 1
        num_calls = max(call - books.last_call, 1)
        gain = self.budget * (self.elapsed() - books.last_elapsed) / num_calls
        return False, call + (2 * num_calls if missing >= 2 * num_calls * gain else math.ceil(missing / gain))

    def elapsed(self) -> float:
        """Return the seconds since the scheduler was built, without those between saving and loading."""
        return self._books.elapsed + clock() - self._started

    def credit(self) -> float:
        return self.budget * self.elapsed() - self._books.spent

    def spending(self, call: int) -> Spending:
        ages = {name: call - at for name, at in self._books.refreshed_at.items()}
        return Spending(self._books.spent, self.elapsed(), self._books.num_refreshed, ages)

    def state(self) -> dict[str, Any]:
        """Return the accounts; samples are not saved, and a layer without one counts as changed."""
        return asdict(replace(self._books, elapsed=self.elapsed()))

    def load(self, state: dict[str, Any] | None) -> None:
        self._books = Books() if state is None else from_plain(Books, check_finite(state, _STATE), _STATE)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_books": Books(**self.state())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _started=clock())  # the clock of another process starts elsewhere

    def _refresh(self, scoring: SharedScoring, choose: Choose | None) -> list[LayerRow] | None:
        if scoring.placed not in ("cpu", "meta"):
            torch.accelerator.synchronize()  # work that is queued on the device is no scoring
        start, rows, books = clock(), None, self._books
        samples: Samples = {}
        scoring.plan(choose)
        planned = clock()
        if choose is None or scoring.layers or not scoring.earlier:
            rows = scoring.rows()
            chooses = scoring.ranks.rank == 0  # and keeps samples for it
            samples = {layer.name: sample(layer) if chooses else [] for layer in scoring.layers}
        end, overhead = clock(), planned - start
        books.spent += end - start
        books.overhead = _MEMORY * books.overhead + (1 - _MEMORY) * overhead if books.overhead else overhead
        if samples:
            books.solving = _MEMORY * books.solving + end - planned
            books.solved = _MEMORY * books.solved + sum(scoring.costs[name] for name in samples)
        books.num_refreshed += len(samples)
        refreshed_at = books.refreshed_at | dict.fromkeys(samples, scoring.call)
        books.refreshed_at = {name: at for name, at in refreshed_at.items() if name in scoring.costs}
        books.last_call, books.last_elapsed = scoring.call, self.elapsed()
        kept = self._samples | samples
        self._samples = {name: each for name, each in kept.items() if name in books.refreshed_at}
        return rows

    def _choose(self, layers: Sequence[Layer], costs: Mapping[str, int]) -> list[str]:
        """Return the layers to refresh: those that were never scored, and as many others as there is credit for."""
        books = self._books
        chosen = [name for name in costs if name not in books.refreshed_at]
        left = self.credit() - books.overhead - books.predict(sum(costs[name] for name in chosen))
        in_turn = self._in_turn([layer for layer in layers if layer.name in books.refreshed_at])
        books.awaited, books.awaited_cost = "", min(costs.values(), default=0)
        for name in in_turn:
            left -= books.predict(costs[name])
            if left < 0:
                books.awaited, books.awaited_cost = name, costs[name]
                break
            chosen.append(name)
        return chosen

    def _in_turn(self, layers: Sequence[Layer]) -> list[str]:
        """Return all layers: the one that is waited for, then in turn the most changed and the longest unrefreshed."""
        books = self._books
        changes = {layer.name: change(sample(layer), self._samples.get(layer.name)) for layer in layers}
        by_change = sorted(changes, key=lambda name: (-changes[name], books.refreshed_at[name]))
        by_age = sorted(changes, key=lambda name: (books.refreshed_at[name], -changes[name]))
        both = (by_age, by_change) if books.num_refreshed % 2 else (by_change, by_age)
        awaited = [name for name in changes if name == books.awaited]
        return list(dict.fromkeys([*awaited, *chain.from_iterable(zip(*both, strict=True))]))


def sample(layer: Layer) -> list[Tensor]:
    """Return some entries of each trained parameter of a weight, always the same; of sharded ones, local entries."""
    found = []
    for parameter in layer.parameters:
        if parameter.requires_grad:
            weight: Any = parameter.detach()
            here: Tensor = weight.to_local() if is_dtensor(weight) else weight
            number = min(here.numel(), _NUM_SAMPLED)
            places = torch.arange(number, device=here.device) * _SCATTER % max(here.numel(), 1)
            found.append(here[torch.unravel_index(places, here.shape)].float())
    return found


def change(now: list[Tensor], before: list[Tensor] | None) -> float:
    """Return the relative distance of two samples; infinite where it is not known or not a number."""
    if before is None or [each.shape for each in now] != [each.shape for each in before]:
        return math.inf
    distance = math.hypot(*(float((new - old.to(new.device)).norm()) for new, old in zip(now, before, strict=True)))
    size = math.hypot(*(float(old.norm()) for old in before))
    if distance == 0:
        return 0.0
    return distance / size if size > 0 and math.isfinite(distance) else math.inf
