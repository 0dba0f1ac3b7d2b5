"""Score layers on all processes together: each solves a share of the spectra, and only fits and scores are exchanged.

One process alone is a group of one. Every process knows all layers by name and shape. Where each process holds all
weights, it solves its share of them. Sharded weights are gathered one after the other, and a process keeps those of its
share until they are solved.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, distributed

from tempbalance.errors import ScoreError, TailError, TempBalanceError, WeightError
from tempbalance.model.layers import Layer
from tempbalance.ranking.scoring import Job, Scoring, naming, plan_layers, solve
from tempbalance.ranking.table import LayerRow
from tempbalance.spectral.eigenvalues import check_weight
from tempbalance.spectral.tail import TailFit

Choose = Callable[[Sequence[Layer], Mapping[str, int]], list[str]]

_KNOWN = (ScoreError, TailError, TempBalanceError, WeightError, RuntimeError, TypeError, ValueError)
_DRIFT = 1e-3  # replicas may drift apart by rounding; the sums of two unrelated weights differ by about their norm
_SAME = "the processes must hold the same model with the same options (share=False lets each score its own)"


@dataclass(frozen=True)
class Ranks:
    """This process among those that share the work; without a group they are those of torch's default one."""

    rank: int = 0
    size: int = 1
    group: Any = None

    @contextmanager
    def exchange(self, call: str) -> Iterator[list[Any]]:
        """Yield a list for the plain value of this process; then it has those of all. An error in one is one in all."""
        answers: list[Any] = []
        caught: Exception | None = None
        try:
            yield answers
        except Exception as err:
            caught = err
        if self.size > 1:
            found: list[Any] = [None] * self.size
            distributed.all_gather_object(found, (call, caught and describe(caught), answers), group=self.group)
            check_equal([call for call, *_ in found], "the processes must make the same calls in the same order")
            for rank, (_, error, _) in enumerate(found):
                if error is not None:
                    raise caught if rank == self.rank and caught is not None else rebuild(error)
            answers[:] = [each for *_, values in found for each in values]
        elif caught is not None:
            raise caught


def find_ranks(share: Any) -> Ranks:
    if share is False or not distributed.is_available() or not distributed.is_initialized():
        return Ranks()
    group = None if share is True else share
    return Ranks(distributed.get_rank(group), distributed.get_world_size(group), group)


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
    for rank, value in enumerate(values):
        if value != values[0]:
            raise RuntimeError(f"{rule}: rank 0 has {values[0]}, rank {rank} has {value}")


def describe(error: Exception) -> tuple[str, str]:
    return type(error).__name__, str(error)


def rebuild(described: Sequence[str]) -> Exception:
    """Return a described error; one of another type than ours and a few of Python's becomes a RuntimeError."""
    name, sentence = described
    kind = {each.__name__: each for each in _KNOWN}.get(name)
    return kind(sentence) if kind is not None else RuntimeError(f"{name}: {sentence}")


@dataclass(eq=False)
class SharedScoring:
    """The scoring of a call: `plan` finds the layers, and all processes agree on them; `rows` solves them."""

    name: str  # of the call, which must be the same on all processes
    call: int  # number of calls of ``step``, this one included
    find: Callable[[], tuple[list[Layer], Mapping[str, Any]]]  # layers, and options that all processes must share
    scoring: Scoring
    share: Any  # as in `Execution`
    device: str | None
    earlier: Sequence[LayerRow]  # of the scoring before
    placed: str  # type of the device that the model is on
    is_planned: bool = False

    def plan(self, choose: Choose | None = None) -> None:
        """Find the layers, and agree with the other processes on those to solve: all, or the choice of rank 0."""
        self.is_planned, self.ranks = True, find_ranks(self.share)
        with self.ranks.exchange(f"{self.name}, plan") as answers:
            layers, options = self.find()
            self.planned = plan_layers(layers, self.scoring)
            self.to_solve = {name: [x for x in jobs if not x.reason] for name, jobs in self.planned.jobs.items()}
            self.costs = {name: sum(job.cost for job in jobs) for name, jobs in self.to_solve.items() if jobs}
            by_cost = sorted((each for each in layers if each.name in self.costs), key=lambda x: -self.costs[x.name])
            for layer in by_cost:
                for each in layer.sharded:
                    with naming(layer):
                        check_weight(each.stand_in())
            lines = [f"option {name} {value}" for name, value in options.items()]
            for layer in layers:
                kind = self.planned.reasons[layer.name] or ("sharded" if layer.sharded else "whole")
                lines.append(f"layer {layer.name!r}, weight {layer.shape}, {kind}")
            choice = choose(by_cost, self.costs) if choose is not None and self.ranks.rank == 0 else []
            answers.append((hashlib.sha256("\n".join(lines).encode()).hexdigest(), choice))
        del self.find  # a scoring in the background must not hold the scheduler
        if len({digest for digest, _ in answers}) > 1:
            with self.ranks.exchange(f"{self.name}, lines") as all_lines:
                all_lines.append(lines)
            for line in zip_longest(*all_lines, fillvalue="nothing more"):
                check_equal(line, _SAME)
        chosen = set(answers[0][1])
        names = [name for name in self.costs if choose is None or name in chosen]
        self.owner = dict(zip(names, share_out([self.costs[name] for name in names], self.ranks.size), strict=True))
        self.layers = [layer for layer in by_cost if layer.name in self.owner]

    def rows(self, wait: Callable[[], None] | None = None) -> list[LayerRow]:
        """Return a row for each layer, the same on every process; layers that were not chosen keep the earlier ones.

        ``wait`` waits for this process' share of a scoring under way; without it, the share is solved now.
        """
        with self.ranks.exchange(f"{self.name}, results") as answers:
            failed: Exception | None = None
            for layers in [] if wait is not None else self._rounds():
                held = self.hold([layer for layer in layers if layer.sharded])
                load = partial(_load, held)
                try:
                    if failed is None:
                        solve(self._jobs(layers), self.scoring, load=load, device=self.device)
                except Exception as err:  # the others still wait for this process to take part in gathering
                    failed = err
                del held, load
            if failed is not None:
                raise failed
            if wait is not None:
                wait()
            mine = self._jobs(self.layers)
            results = [(job.layer.name, job.index, job.reason, job.score, job.fit and astuple(job.fit)) for job in mine]
            answers.append((results, [[_sums(each) for each in layer.parameters] for layer in self._replicas()]))
        for layer, *sums in zip(self._replicas(), *(sums for _, sums in answers), strict=True):
            with naming(layer):
                for of_parameter in zip(*sums, strict=True):
                    _check_replicas(of_parameter)
        for name, index, reason, score, fit in (result for results, _ in answers for result in results):
            job = self.planned.jobs[name][index]
            job.reason, job.score, job.fit = reason, score, fit and TailFit(*fit)
        kept = {row.name: row for row in self.earlier if row.name in self.costs and row.name not in self.owner}
        return [kept.get(row.name, row) for row in self.planned.rows()]

    @property
    def is_sharded(self) -> bool:
        """Whether processes hold parts of weights, so that none can score the model alone."""
        return self.ranks.size > 1 and any(layer.sharded for layer in self.layers)

    def _jobs(self, layers: Sequence[Layer], *, mine: bool = True) -> list[Job]:
        return [job for layer in layers if self._is_mine(layer) is mine for job in self.to_solve[layer.name]]

    def hold(self, layers: Sequence[Layer], *, copy: bool = False) -> dict[str, Tensor]:
        """Gather the weights of layers, and keep them or copies on the CPU; of sharded ones those of this process."""
        held = {}
        for layer in layers:
            with naming(layer):
                weight = layer.gather()
                check_weight(weight)
                if not layer.sharded or self._is_mine(layer):
                    held[layer.name] = weight.to("cpu", copy=True) if copy else weight
                del weight
        return held

    def solve_copies(self, load: Callable[[Layer], Tensor], *, mine: bool) -> None:
        """Solve copies in float64: those of this process' share in the calling thread, or those of the others."""
        solve(self._jobs(self.layers, mine=mine), self.scoring, load=load, beside=mine, double=True)

    def _is_mine(self, layer: Layer) -> bool:
        return self.owner[layer.name] == self.ranks.rank

    def _replicas(self) -> list[Layer]:
        return [layer for layer in self.layers if not layer.sharded] if self.ranks.size > 1 else []

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
    return held[layer.name] if layer.sharded else layer.weight()


def _sums(weight: Tensor) -> tuple[float, float]:
    """Return the sum of a weight's entries and their norm; zeros for a weight that is refused later."""
    if weight.is_meta or weight.layout != torch.strided or not weight.is_floating_point():
        return 0.0, 0.0
    weight = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
    return float(weight.sum()), float(torch.linalg.vector_norm(weight))


def _check_replicas(sums: Sequence[tuple[float, float]]) -> None:
    """Refuse weights that differ between processes, or are not finite on some of them."""
    bad = [rank for rank, (_, norm) in enumerate(sums) if not math.isfinite(norm)]
    if 0 < len(bad) < len(sums):  # if on all, the process that solves it raises
        raise WeightError(f"must be finite, has an entry that is NaN or infinite on ranks {bad}")
    for rank, (total, norm) in enumerate(sums):
        if abs(total - sums[0][0]) > _DRIFT * max(norm, sums[0][1]):
            where = f"the entries add up to {sums[0][0]:.6g} on rank 0, to {total:.6g} on rank {rank}"
            raise WeightError(f"{_SAME}: {where}")
