"""Named tensors that are read when asked for, and the mappings of them that a file holds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tempbalance.checkpoint.files import shown
from tempbalance.errors import CheckpointError

_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_MOST_WRAPPED = 4
_MOST_NAMED = 8
_AVERAGE = re.compile(r"ema|shadow|average|swa|teacher", re.IGNORECASE)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file.

    Attributes:
        name: Its name, without the parts that wrappers add.
        shape: Its shape; of the product, for a pair of LoRA factors; dequantised, for a quantised weight.
        dtype: The dtype that ``load`` returns.
        load: Reads it, anew each time.
        tie: Equal for tensors that are the same bytes of a file or of memory; None where that is not known.
        rank: Of a product of LoRA factors its rank r: ``load`` then gives an r x r matrix with the r eigenvalues of the
            product that are not zero. None for ordinary tensors.
        problem: Why it cannot be scored; empty if nothing is known against it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    load: Callable[[], Tensor] = field(repr=False)
    tie: Hashable | None = None
    rank: int | None = None
    problem: str = ""

    @property
    def num_bytes(self) -> int:
        """The size of the tensor in memory."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Weights:
    """One mapping of names to tensors in a file or folder.

    Attributes:
        tensors: The tensors.
        key: Its place in the file, such as ``state_dict`` or ``ema.module``; empty for the top.
        is_optimizer: Whether it is the state of an optimizer.
        num_others: How many entries are no tensors.
    """

    tensors: Sequence[StoredTensor]
    key: str = ""
    is_optimizer: bool = False
    num_others: int = 0

    @property
    def size(self) -> tuple[int, int]:
        """The number of elements in matrices and kernels, and in all tensors."""
        counts = [(len(each.shape) > 1, math.prod(each.shape)) for each in self.tensors]
        return sum(count for is_matrix, count in counts if is_matrix), sum(count for _, count in counts)


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a file, a folder or a mapping.

    Attributes:
        name: What to call it: the name of the file or folder.
        tensors: Its weights, in the file's order; those of safetensors files in natural order of their names.
        key: Where in the file the weights were, such as ``"state_dict"``; empty for the top.
        notes: What a reader should know, such as that other weights are there too.
        others: The mappings that were not taken.
    """

    name: str
    tensors: tuple[StoredTensor, ...]
    key: str = ""
    notes: tuple[str, ...] = ()
    others: tuple[Weights, ...] = ()


def choose(found: Sequence[Weights], key: str | None) -> tuple[Weights, list[Weights], list[str]]:
    """Choose a mapping: by its key, or the largest that is not an optimizer's.

    Returns:
        The mapping, the others, and notes on the choice.

    Raises:
        CheckpointError: If there is none, or none under the key.
    """
    if key is not None:
        return _under(found, key)
    weights = [each for each in found if not each.is_optimizer and each.tensors]
    if not weights:
        what = "only the state of an optimizer" if any(each.tensors for each in found) else "no tensors by name"
        raise CheckpointError(f"holds {what}")
    taken = max(weights, key=_preference)
    others = [each for each in found if each is not taken]
    notes = []
    if taken.key:
        notes.append(f"weights found under {taken.key!r}")
    if names := [each.key for each in weights if each is not taken]:
        notes.append(f"also holds {_listed(names)}: --key chooses, --list shows all")
    if taken.num_others:
        notes.append(f"{taken.num_others} entries that are not tensors are skipped")
    return taken, others, notes


def _preference(weights: Weights) -> tuple[int, bool, int]:
    """Return what the weights to take are largest in; of two of one size, those that are no average of the other."""
    in_matrices, in_all = weights.size
    return in_matrices, not _AVERAGE.search(weights.key), in_all


def _under(found: Sequence[Weights], key: str) -> tuple[Weights, list[Weights], list[str]]:
    """Choose the mapping with a key, or all those below it as one."""
    exact = [each for each in found if each.key == key]
    below = exact[:1] or [each for each in found if each.key.startswith(f"{key}.") or key in ("", ".")]
    if not any(each.tensors for each in below):
        raise CheckpointError(f"has no tensors under {shown(key)}; it has {_listed([each.key for each in found])}")
    others = [each for each in found if each not in below]
    if exact:
        return exact[0], others, []
    cut = len(key) + 1 if key not in ("", ".") else 0
    tensors = [
        replace(tensor, name=f"{each.key[cut:]}.{tensor.name}".lstrip(".")) for each in below for tensor in each.tensors
    ]
    return Weights(tensors, key), others, []


def _listed(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
    return (", ".join(shown(key) for key in keys[:_MOST_NAMED]) or "nothing") + more


def without_wrappers(tensors: Sequence[StoredTensor]) -> tuple[StoredTensor, ...]:
    """Return the tensors under the names that the bare model gives them.

    Names stay as they are where two would become one.
    """
    names = [".".join(part for part in tensor.name.split(".") if part not in _WRAPPERS) for tensor in tensors]
    for _ in range(_MOST_WRAPPED):
        if all(name.startswith("module.") for name in names):
            names = [name.removeprefix("module.") for name in names]
    if len(set(names)) < len(names):
        return tuple(tensors)
    return tuple(replace(tensor, name=name) for tensor, name in zip(tensors, names, strict=True))


def natural_order(name: str) -> list[tuple[int, str]]:
    """A key by which ``layers.2`` comes before ``layers.10``."""
    parts = re.split("([0-9]+)", name)
    return [(len(part.lstrip("0")), part.lstrip("0")) if index % 2 else (0, part) for index, part in enumerate(parts)]
