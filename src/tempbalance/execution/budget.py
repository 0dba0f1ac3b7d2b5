"""Score within a share of the training time.

Time that passes earns credit, and scoring spends it. Layers are refreshed while their predicted cost fits the credit,
in turn the layer that has changed most since it was scored and the layer that was scored longest ago. So no layer waits
for more than twice as many refreshes as there are layers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from tempbalance.execution.distributed import Choose, find_ranks
from tempbalance.execution.inline import Outcome, Request
from tempbalance.model.layers import Layer
from tempbalance.model.sharded import is_dtensor

_NUM_SAMPLED = 4096  # entries of a parameter, by which its change is measured
_SCATTER = 2654435761  # a prime: its multiples lie all over a weight, whatever the sizes of that
_MEMORY = 0.8  # what an earlier scoring counts beside the next when costs are predicted


def clock() -> float:
    """Seconds on a clock; nothing else in this module reads the time."""
    return time.perf_counter()


@dataclass(frozen=True)
class Spending:
    """The time that scoring took under a budget, and the age of the scores.

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
        """The largest age."""
        return max(self.ages.values(), default=0)


class Budgeted:
    """Refreshes as many layers as there is credit for; the others keep their rows.

    Args:
        budget: The share of the time that scoring may take.
        share: As in `Execution`.
    """

    def __init__(self, budget: float, share: Any) -> None:
        self.budget, self.share = budget, share
        self._ledger = Ledger(budget)

    def rows_at(self, request: Request, *, is_due: bool) -> Outcome:
        """Refresh the layers that there is credit for, by the clock of rank 0."""
        ledger, call = self._ledger, request.call
        if not is_due or call < ledger.books.ask_at:
            request.check()
            return Outcome()
        ranks = find_ranks(self.share)
        answer = partial(ledger.answer, call, is_alone=ranks.size == 1)
        has_credit, ask_at = ranks.exchange(f"{request.name}, budget", answer)[0]
        if has_credit:
            _synchronize(request.device)
        entry = Entry(ledger, call, ask_at)
        if has_credit:
            return self._refresh(request, entry, entry.choose)
        request.check()
        return Outcome(commit=entry.book)

    def rows_now(self, request: Request) -> Outcome:
        """Refresh every layer; the time counts as spent."""
        _synchronize(request.device)
        return self._refresh(request, Entry(self._ledger, request.call), None)

    def _refresh(self, request: Request, entry: Entry, choose: Choose | None) -> Outcome:
        scoring = request.scoring(choose)
        entry.plan(scoring.costs)
        if choose is not None and not scoring.layers and request.earlier:
            return Outcome(commit=entry.book)
        rows = scoring.rows(earlier=request.earlier)
        entry.finish(scoring.layers, chooses=scoring.ranks.rank == 0)
        return Outcome(rows, entry.book)

    def spending(self, call: int) -> Spending:
        """The time spent until a call of ``step``."""
        return self._ledger.spending(call)

    def wait(self) -> None:
        """Nothing is ever under way."""

    def close(self) -> None:
        """Nothing is ever under way."""

    def state(self) -> dict[str, Any]:
        """The accounts."""
        return self._ledger.state()

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Continue with saved accounts."""
        self._ledger = Ledger(self.budget, state)


def _synchronize(device: str) -> None:
    """Wait for work that is queued on an accelerator: the clock must not count it as scoring."""
    if device not in ("cpu", "meta"):
        torch.accelerator.synchronize()


@dataclass
class _Books:
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
        """Seconds that a solve of this cost takes."""
        return cost * self.solving / self.solved if self.solved else 0.0


class Ledger:
    """The accounts of one scheduler.

    Args:
        budget: The share of the time that scoring may take.
        state: From `state`, to continue where it was saved.
    """

    def __init__(self, budget: float, state: Mapping[str, Any] | None = None) -> None:
        self.budget, self.books = budget, _Books(**(state or {}))
        self.samples: dict[str, list[Tensor]] = {}
        self._since = clock()

    def state(self) -> dict[str, Any]:
        """Plain values; samples are not saved, and a layer without one counts as changed."""
        return asdict(replace(self.books, elapsed=self.elapsed()))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "books": _Books(**self.state())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Continue to count from now: the clock of another process starts elsewhere."""
        self.__dict__.update(state, _since=clock())

    def elapsed(self) -> float:
        """Seconds since the scheduler was built, without those between saving and loading."""
        return self.books.elapsed + clock() - self._since

    def credit(self) -> float:
        """Seconds that scoring may take now; negative if it has taken too many."""
        return self.budget * self.elapsed() - self.books.spent

    def spending(self, call: int) -> Spending:
        """The time spent until a call of ``step``."""
        ages = {name: call - at for name, at in self.books.refreshed_at.items()}
        return Spending(self.books.spent, self.elapsed(), self.books.num_refreshed, ages)

    def answer(self, call: int, *, is_alone: bool) -> tuple[bool, int]:
        """Whether there is credit for the layer that comes next, and at which call to ask again.

        Args:
            call: Of ``step``.
            is_alone: Whether asking costs nothing. Several processes exchange the answer, so they ask again when there
                should be enough credit, judged by the time of the calls since the last answer, and after twice as many
                calls at the latest.
        """
        books = self.books
        missing = books.overhead + books.predict(books.awaited_cost) - self.credit()
        if books.awaited is None or missing <= 0 or is_alone:
            return books.awaited is None or missing <= 0, call + 1
        num_calls = max(call - books.last_call, 1)
        gain = self.budget * (self.elapsed() - books.last_elapsed) / num_calls
        return False, call + (2 * num_calls if missing >= 2 * num_calls * gain else math.ceil(missing / gain))


class Entry:
    """One call of ``step``; it counts once it is booked.

    Args:
        ledger: The books.
        call: Which.
        ask_at: At which the credit is looked at again; as before if it is not given.
    """

    def __init__(self, ledger: Ledger, call: int, ask_at: int | None = None) -> None:
        self._ledger, self._call = ledger, call
        self._ask_at = ledger.books.ask_at if ask_at is None else ask_at
        self._start = self._planned = self._end = clock()
        self._credit = ledger.credit()
        self._awaited: tuple[str | None, int] = (ledger.books.awaited, ledger.books.awaited_cost)
        self._costs: Mapping[str, int] | None = None
        self._samples: dict[str, list[Tensor]] = {}

    def choose(self, layers: Sequence[Layer], costs: Mapping[str, int]) -> list[str]:
        """The layers to refresh: those that were never scored, and as many others as there is credit for.

        Args:
            layers: Those that can be scored.
            costs: Of each, by its name.
        """
        books = self._ledger.books
        chosen = [name for name in costs if name not in books.refreshed_at]
        left = self._credit - books.overhead - books.predict(sum(costs[name] for name in chosen))
        self._awaited = ("", min(costs.values(), default=0))
        for name in self._in_turn([layer for layer in layers if layer.name in books.refreshed_at]):
            left -= books.predict(costs[name])
            if left < 0:
                self._awaited = (name, costs[name])
                break
            chosen.append(name)
        return chosen

    def _in_turn(self, layers: Sequence[Layer]) -> Iterable[str]:
        """All layers: the one that is waited for, then in turn the most changed and the longest unrefreshed."""
        books, samples = self._ledger.books, self._ledger.samples
        changes = {layer.name: change(sample(layer), samples.get(layer.name)) for layer in layers}
        by_change = sorted(changes, key=lambda name: (-changes[name], books.refreshed_at[name]))
        by_age = sorted(changes, key=lambda name: (books.refreshed_at[name], -changes[name]))
        both = (by_age, by_change) if books.num_refreshed % 2 else (by_change, by_age)
        awaited = [name for name in changes if name == books.awaited]
        return dict.fromkeys([*awaited, *chain.from_iterable(zip(*both, strict=True))])

    def plan(self, costs: Mapping[str, int]) -> None:
        """Note that it is settled what to refresh.

        Args:
            costs: Of all layers that can be scored.
        """
        self._costs = costs
        self._planned = self._end = clock()

    def finish(self, layers: Sequence[Layer], *, chooses: bool) -> None:
        """Note that layers are refreshed.

        Args:
            layers: Which.
            chooses: Whether this process chooses, for which it keeps samples of them.
        """
        self._samples = {layer.name: sample(layer) if chooses else [] for layer in layers}
        self._end = clock()

    def book(self) -> None:
        """Have it count."""
        ledger, books = self._ledger, self._ledger.books
        books.spent += self._end - self._start
        books.ask_at = self._ask_at
        books.last_call, books.last_elapsed = self._call, ledger.elapsed()
        if self._costs is None:
            return
        costs, overhead = self._costs, self._planned - self._start
        books.overhead = _MEMORY * books.overhead + (1 - _MEMORY) * overhead if books.overhead else overhead
        if self._samples:
            books.solving = _MEMORY * books.solving + self._end - self._planned
            books.solved = _MEMORY * books.solved + sum(costs[name] for name in self._samples)
        books.awaited, books.awaited_cost = self._awaited
        books.num_refreshed += len(self._samples)
        refreshed_at = books.refreshed_at | dict.fromkeys(self._samples, self._call)
        books.refreshed_at = {name: at for name, at in refreshed_at.items() if name in costs}
        ledger.samples = {name: each for name, each in (ledger.samples | self._samples).items() if name in costs}


def sample(layer: Layer) -> list[Tensor]:
    """Some entries of what is trained of a layer's weight, always the same; of sharded ones, those that are here."""
    return [_sample(each.detach()) for each in layer.parameters if each.requires_grad]


def _sample(weight: Any) -> Tensor:
    here: Tensor = weight.to_local() if is_dtensor(weight) else weight
    number = min(here.numel(), _NUM_SAMPLED)
    places = torch.arange(number, device=here.device) * _SCATTER % max(here.numel(), 1)
    return here[torch.unravel_index(places, here.shape)].float()


def change(now: list[Tensor], before: list[Tensor] | None) -> float:
    """The relative distance of two samples; infinite where it is not known or not a number."""
    if before is None or [each.shape for each in now] != [each.shape for each in before]:
        return math.inf
    distance = math.hypot(*(float((new - old.to(new.device)).norm()) for new, old in zip(now, before, strict=True)))
    size = math.hypot(*(float(old.norm()) for old in before))
    if distance == 0:
        return 0.0
    return distance / size if size > 0 and math.isfinite(distance) else math.inf
