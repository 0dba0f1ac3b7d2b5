"""Score layers on all processes together: each solves a share of the spectra, and only fits and scores are exchanged.

Every process knows all layers by name and shape. Where each process holds all weights, it solves its share of them.
Sharded weights are gathered one after the other, and a process keeps those of its share until they are solved.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, TypeVar

import torch
from torch import Tensor

from tempbalance.errors import ScoreError, TailError, TempBalanceError, WeightError
from tempbalance.model.layers import Layer
from tempbalance.ranking.scoring import Job, Scoring, naming, plan_layers, solve
from tempbalance.ranking.table import LayerRow
from tempbalance.spectral.eigenvalues import check_weight
from tempbalance.spectral.tail import TailFit

T = TypeVar("T")
_KNOWN: tuple[type[Exception], ...] = (
    ScoreError, TailError, TempBalanceError, WeightError, RuntimeError, TypeError, ValueError
)  # fmt: skip


@dataclass(frozen=True)
class Ranks:
    """This process among those that share the work; without a group they are those of torch's default one."""

    rank: int = 0
    size: int = 1
    group: Any = None

    def exchange(self, call: str, work: Callable[[], T]) -> list[T]:
        """Return the plain values that ``work`` returns on each process; an error in one is raised on all."""
        if self.size == 1:
            return [work()]
        value, caught = None, None
        try:
            value = work()
        except Exception as err:
            caught = err
        answers: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(answers, (call, caught and describe(caught), value), group=self.group)
        check_equal([call for call, _, _ in answers], "the processes must make the same calls in the same order")
        for rank, (_, error, _) in enumerate(answers):
            if error is not None:
                raise caught if rank == self.rank and caught is not None else rebuild(error)
        return [value for _, _, value in answers]


def find_ranks(share: Any) -> Ranks:
    """Return the processes that share the work now; one if nothing is shared or torch.distributed is not in use."""
    distributed = torch.distributed
    if share is False or not distributed.is_available() or not distributed.is_initialized():
        return Ranks()
    group = None if share is True else share
    return Ranks(distributed.get_rank(group), distributed.get_world_size(group), group)


def check_share(share: Any) -> None:
    """Refuse an option ``share`` that is neither a bool nor a process group that this process is in."""
    distributed = torch.distributed
    is_group = distributed.is_available() and isinstance(share, distributed.ProcessGroup)
    is_other = distributed.is_available() and share is distributed.GroupMember.NON_GROUP_MEMBER
    if is_other or (is_group and distributed.get_rank(share) < 0):
        raise ValueError("share must be a process group that this process is in")
    if not is_group and not isinstance(share, bool):
        raise TypeError(f"share must be True, False or a process group, got {share!r}")


def share_out(costs: Sequence[int], num_ranks: int) -> list[int]:
    """Assign jobs to ranks: the longest first, each to the rank with the least work so far.

    Example:
        >>> share_out([1, 5, 3, 3], 2)
        [0, 0, 1, 1]
    """
    loads = [(0, rank) for rank in range(num_ranks)]
    owners = [0] * len(costs)
    for index in sorted(range(len(costs)), key=lambda index: -costs[index]):
        load, owners[index] = loads[0]
        heapq.heapreplace(loads, (load + costs[index], owners[index]))
    return owners


def check_equal(values: Sequence[str], rule: str) -> None:
    """Refuse values that differ from those of rank 0."""
    for rank, value in enumerate(values):
        if value != values[0]:
            raise RuntimeError(f"{rule}: rank 0 has {values[0]}, rank {rank} has {value}")


def describe(error: Exception) -> tuple[str, str]:
    """Return the type and the sentence of an error."""
    return type(error).__name__, str(error)


def rebuild(described: Sequence[str]) -> Exception:
    """Return a described error; one of another type than ours and a few of Python's becomes a RuntimeError."""
    name, sentence = described
    kind = {each.__name__: each for each in _KNOWN}.get(name)
    return kind(sentence) if kind is not None else RuntimeError(f"{name}: {sentence}")


# Replicas may drift apart by rounding; the sums of two unrelated weights differ by about their norm.
_DRIFT = 1e-3
_SAME = "the processes must hold the same model with the same options (share=False lets each score its own)"

Choose = Callable[[Sequence[Layer], Mapping[str, int]], list[str]]
_Sums = tuple[float, float]  # of a weight's entries, and their norm


@dataclass(eq=False)
class SharedScoring:
    """The scoring of a call: `plan` finds the layers, and all processes agree on it; `rows` solves it."""

    name: str  # of the call, which must be the same on all processes
    call: int  # number of calls of ``step``, this one included
    check: Callable[[], None]  # raises if the call cannot be made
    find: Callable[[], tuple[list[Layer], Mapping[str, Any]]]  # layers, and options that all processes must share
    scoring: Scoring
    share: Any  # as in `Execution`
    device: str | None
    earlier: Sequence[LayerRow]  # of the scoring before
    placed: str  # type of the device that the model is on

    def plan(self, choose: Choose | None = None) -> None:
        """Find the layers, and agree with the other processes on those to solve: all, or the choice of rank 0."""
        self.ranks = ranks = find_ranks(self.share)
        answers = ranks.exchange(f"{self.name}, plan", partial(self._plan, choose))
        del self.find, self.check  # a scoring in the background must not hold the scheduler
        if len({digest for digest, *_ in answers}) > 1:
            all_lines = ranks.exchange(f"{self.name}, lines", lambda: self.lines)
            for lines in zip_longest(*all_lines, fillvalue="nothing more"):
                check_equal(lines, _SAME)
        all_sums = [sums for _, sums, _ in answers]
        if choose is not None:
            chosen = set(answers[0][2])
            self._take([name for name in self.costs if name in chosen])
            all_sums = ranks.exchange(f"{self.name}, weights", self._sums) if self.jobs else []
        for layer, *sums in zip(self._replicas(), *all_sums, strict=True):
            with naming(layer):
                for of_parameter in zip(*sums, strict=True):
                    _check_replicas(of_parameter)

    def rows(self, solve_mine: Callable[[], None] | None = None) -> list[LayerRow]:
        """Return a row for each layer, the same on every process; layers that were not chosen keep the earlier ones.

        ``solve_mine`` waits for this process' share of a scoring under way; without it, the share is solved now.
        """
        if self.ranks.size > 1:
            self._share_results(solve_mine or self._solve)
        elif solve_mine is not None:
            solve_mine()
        else:
            solve(self._jobs(self.layers), self.scoring, load=Layer.gather, device=self.device)
        kept = {row.name: row for row in self.earlier if row.name in self.costs and row.name not in self.jobs}
        return [kept.get(row.name, row) for row in self.planned.rows()]

    @property
    def layers(self) -> list[Layer]:
        """Layers to solve, the most expensive first."""
        return [jobs[0].layer for jobs in self.jobs.values()]

    @property
    def is_sharded(self) -> bool:
        """Whether processes hold parts of weights, so that none can score the model alone."""
        return self.ranks.size > 1 and any(layer.sharded for layer in self.layers)

    def copy_weights(self) -> dict[str, Tensor]:
        """Copy the weights to the CPU, by layer; of sharded weights those that this process solves."""
        copies = {}
        for layer in self.layers:
            with naming(layer):
                weight = layer.gather()
                check_weight(weight)
                if not layer.sharded or self._is_mine(layer):
                    copies[layer.name] = weight.to("cpu", copy=True)
                del weight
        return copies

    def solve_copies(self, load: Callable[[Layer], Tensor], *, mine: bool, double: bool) -> None:
        """Solve copies in the calling thread: those of this process' share, or of the others'."""
        solve(self._jobs(self.layers, mine=mine), self.scoring, load=load, beside=mine, double=double)

    def _plan(self, choose: Choose | None) -> tuple[str, list[list[_Sums]], list[str]]:
        """Plan the scoring; return a digest and sums that must agree on all processes, and the chosen layers."""
        self.check()
        layers, options = self.find()
        self.planned = plan = plan_layers(layers, self.scoring)
        costs = {name: sum(job.cost for job in each if not job.reason) for name, each in plan.jobs.items()}
        self.costs = {name: cost for name, cost in costs.items() if cost}
        self._take(list(self.costs))
        for layer in self.layers:
            for each in layer.sharded:
                with naming(layer):
                    check_weight(each.stand_in())
        self.lines = [f"option {name} {value}" for name, value in options.items()]
        for layer in plan.layers:
            kind = plan.reasons[layer.name] or ("sharded" if layer.sharded else "whole")
            self.lines.append(f"layer {layer.name!r}, weight {layer.shape}, {kind}")
        digest = hashlib.sha256("\n".join(self.lines).encode()).hexdigest()
        if choose is None:
            return digest, self._sums(), []
        return digest, [], choose(self.layers, self.costs) if self.ranks.rank == 0 else []

    def _take(self, names: Sequence[str]) -> None:
        """Set which layers are solved, and which rank solves each."""
        by_cost = sorted(names, key=lambda name: -self.costs[name])
        self.jobs = {name: [job for job in self.planned.jobs[name] if not job.reason] for name in by_cost}
        self.owner = dict(zip(names, share_out([self.costs[name] for name in names], self.ranks.size), strict=True))

    def _replicas(self) -> list[Layer]:
        """Return the layers whose weights must be the same on all processes."""
        return [layer for layer in self.layers if not layer.sharded] if self.ranks.size > 1 else []

    def _sums(self) -> list[list[_Sums]]:
        return [[_sums(each) for each in layer.parameters] for layer in self._replicas()]

    def _is_mine(self, layer: Layer) -> bool:
        return self.owner[layer.name] == self.ranks.rank

    def _jobs(self, layers: list[Layer], *, mine: bool = True) -> list[Job]:
        return [job for layer in layers if self._is_mine(layer) is mine for job in self.jobs[layer.name]]

    def _share_results(self, solve_mine: Callable[[], None]) -> None:
        """Solve this process' share, and fill in the jobs of all processes."""

        def results() -> list[tuple[Any, ...]]:
            solve_mine()
            return [
                (job.layer.name, job.index, job.reason, job.score, job.fit and astuple(job.fit))
                for job in self._jobs(self.layers)
            ]

        answers = self.ranks.exchange(f"{self.name}, results", results)
        for name, index, reason, score, fit in (result for each in answers for result in each):
            job = self.planned.jobs[name][index]
            job.reason, job.score, job.fit = reason, score, fit and TailFit(*fit)

    def _solve(self) -> None:
        """Solve this process' share; after an error it still takes part in gathering."""
        failed: Exception | None = None
        for layers in self._rounds():
            held = {}  # the gathered layers that this process solves
            for layer in layers:
                if layer.sharded:
                    whole = layer.gather()
                    if self._is_mine(layer):
                        held[layer.name] = whole
                    del whole
            try:
                if failed is None:
                    solve(self._jobs(layers), self.scoring, load=partial(_load, held), device=self.device)
            except Exception as err:
                failed = err
            del held
        if failed is not None:
            raise failed

    def _rounds(self) -> Iterator[list[Layer]]:
        """Yield layers that are solved together: no process holds more gathered bytes than the largest layer has."""
        sizes = [sum(each.shape.numel() * each.parameter.dtype.itemsize for each in one.sharded) for one in self.layers]
        held = [0] * self.ranks.size
        together: list[Layer] = []
        for layer, size in zip(self.layers, sizes, strict=True):
            owner = self.owner[layer.name]
            if held[owner] + size > max(sizes):
                yield together
                held, together = [0] * self.ranks.size, []
            held[owner] += size
            together.append(layer)
        yield together


def _load(held: Mapping[str, Tensor], layer: Layer) -> Tensor:
    return held[layer.name] if layer.name in held else layer.weight()


def _sums(weight: Tensor) -> _Sums:
    """Return two sums that differ for different weights; zeros for a weight that is refused later."""
    if weight.is_meta or weight.layout != torch.strided or not weight.is_floating_point():
        return 0.0, 0.0
    weight = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
    return float(weight.sum()), float(torch.linalg.vector_norm(weight))


def _check_replicas(sums: Sequence[_Sums]) -> None:
    """Refuse weights that differ between processes, or are not finite on some of them."""
    bad = [rank for rank, (_, norm) in enumerate(sums) if not math.isfinite(norm)]
    if 0 < len(bad) < len(sums):  # if on all, the process that solves it raises
        raise WeightError(f"must be finite, has an entry that is NaN or infinite on ranks {bad}")
    for rank, (total, norm) in enumerate(sums):
        if abs(total - sums[0][0]) > _DRIFT * max(norm, sums[0][1]):
            where = f"the entries add up to {sums[0][0]:.6g} on rank 0, to {total:.6g} on rank {rank}"
            raise WeightError(f"{_SAME}: {where}")
