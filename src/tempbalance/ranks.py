"""The processes that share the work: who does what, and telling the others."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from tempbalance.errors import ScoreError, TailError, TempBalanceError, WeightError

T = TypeVar("T")
Told = tuple[str, str]  # an error's type and sentence
_KNOWN: tuple[type[Exception], ...] = (
    ScoreError, TailError, TempBalanceError, WeightError, RuntimeError, TypeError, ValueError
)  # fmt: skip


class Team:
    """A process group as an option that can be copied: a copy is in the same group."""

    def __init__(self, group: Any) -> None:
        self.group = group

    def __deepcopy__(self, _: dict[int, Any]) -> Team:
        return self

    def __reduce__(self) -> str:
        raise TypeError("a TempBalance with a process group as share cannot be pickled: save its state_dict()")


@dataclass(frozen=True)
class Ranks:
    """This process among those that share the work.

    Attributes:
        rank: Which one it is.
        size: How many there are.
        group: Their process group, ``None`` for torch's default one.
    """

    rank: int = 0
    size: int = 1
    group: Any = None

    def exchange(self, call: str, work: Callable[[], T]) -> list[T]:
        """What each process' work gives, in the order of their ranks.

        Args:
            call: What the processes are doing, which has to be the same on all.
            work: Gives plain values; an error in it is raised on every process.

        Raises:
            RuntimeError: If the processes do different things, or one has an error of a type unknown here.
            Exception: The error of the first process that has one.
        """
        if self.size == 1:
            return [work()]
        value, caught = None, None
        try:
            value = work()
        except Exception as err:
            caught = err
        told: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(told, (call, caught and describe(caught), value), group=self.group)
        check_equal([call for call, _, _ in told], "the processes must make the same calls in the same order")
        for rank, (_, error, _) in enumerate(told):
            if error is not None:
                raise caught if rank == self.rank and caught is not None else rebuild(error)
        return [value for _, _, value in told]


def find_ranks(share: bool | Team) -> Ranks:
    """The processes that there are now; alone if nothing is to be shared or torch.distributed is not in use."""
    distributed = torch.distributed
    if share is False or not distributed.is_available() or not distributed.is_initialized():
        return Ranks()
    group = share.group if isinstance(share, Team) else None
    return Ranks(distributed.get_rank(group), distributed.get_world_size(group), group)


def check_share(share: Any) -> bool | Team:
    """The option ``share``, checked.

    Raises:
        TypeError: If it is neither a bool nor a process group.
        ValueError: If it is a group that this process is not in.
    """
    if isinstance(share, bool | Team):
        return share
    distributed = torch.distributed
    if not distributed.is_available():
        raise TypeError(f"share must be True or False, got {share!r}")
    if share is distributed.GroupMember.NON_GROUP_MEMBER or (
        isinstance(share, distributed.ProcessGroup) and distributed.get_rank(share) < 0
    ):
        raise ValueError("share must be a process group that this process is in")
    if not isinstance(share, distributed.ProcessGroup):
        raise TypeError(f"share must be True, False or a process group, got {share!r}")
    return Team(share)


def share_out(costs: Sequence[int], num_ranks: int) -> list[int]:
    """Who does which job: the longest first, each to the rank that has least to do so far.

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
    """Refuse values that are not those of rank 0.

    Raises:
        RuntimeError: If one is different.
    """
    for rank, value in enumerate(values):
        if value != values[0]:
            raise RuntimeError(f"{rule}: rank 0 has {values[0]}, rank {rank} has {value}")


def describe(error: Exception) -> Told:
    """An error as plain strings."""
    return type(error).__name__, str(error)


def rebuild(told: Told) -> Exception:
    """The error again; one of a type that is not known here is a RuntimeError with its name."""
    name, sentence = told
    kind = {each.__name__: each for each in _KNOWN}.get(name)
    return kind(sentence) if kind is not None else RuntimeError(f"{name}: {sentence}")
