"""What every format gives: named tensors that are read when asked for."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tempbalance.errors import CheckpointError
from tempbalance.stored.files import shown

# where training programs put the weights, in the order of preference
WEIGHT_KEYS = ("state_dict", "model_state_dict", "model", "net", "module", "ema")
_MOST_NESTED = 4
_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file.

    Attributes:
        name: Its name, without what wrappers put in front.
        shape: Its shape; of the product, for a pair of LoRA factors.
        dtype: Its dtype.
        load: Reads it, anew each time.
        tie: Equal for tensors that are the same bytes of a file or of memory; None where that is not known.
        rank: Of a product of LoRA factors its rank r: ``load`` then gives an r x r matrix with the r eigenvalues of the
            product that are not zero. None for ordinary tensors.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    load: Callable[[], Tensor] = field(repr=False)
    tie: Hashable | None = None
    rank: int | None = None

    @property
    def num_bytes(self) -> int:
        """The size of the tensor in memory."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Weights:
    """The tensors of a file or folder, where in it they were, and what else a reader should know."""

    tensors: list[StoredTensor]
    under: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """The mapping of names to tensors inside something larger."""

    tensors: dict[str, object]
    under: str = ""
    notes: tuple[str, ...] = ()


def find_weights(top: object, kind: type) -> Found:
    """Look for a mapping of names to tensors, at the top or under the usual keys.

    Args:
        top: What a file or a caller holds.
        kind: The type that counts as a tensor.

    Raises:
        CheckpointError: If there is none. An optimizer's state is never taken for one.
    """
    if not isinstance(top, Mapping):
        raise CheckpointError(f"holds {shown(top)} where a mapping of names to tensors was expected")
    found = _find(top, kind, depth=0)
    if found is None:
        held = ", ".join(shown(key) for key in list(top)[:8]) or "nothing"
        raise CheckpointError(f"has no tensors by name at its top or under {', '.join(WEIGHT_KEYS)}; it holds {held}")
    return found


def _find(value: object, kind: type, depth: int) -> Found | None:
    if not isinstance(value, Mapping) or depth > _MOST_NESTED:
        return None
    candidates = [(key, _find(value.get(key), kind, depth + 1)) for key in WEIGHT_KEYS]
    nested = [(key, found) for key, found in candidates if found is not None]
    if nested:
        key, found = nested[0]
        under = f"{key}.{found.under}" if found.under else key
        return Found(found.tensors, under, found.notes + tuple(f'also holds "{other}"' for other, _ in nested[1:]))
    return _named_tensors(value, kind)


def _named_tensors(value: Mapping[object, object], kind: type) -> Found | None:
    tensors = {name: item for name, item in value.items() if isinstance(name, str) and isinstance(item, kind)}
    others = {name for name in value if name not in tensors}
    nested = [name for name in others if isinstance(value[name], Mapping) and value[name]]
    if not tensors or not all(str(name).endswith("_extra_state") for name in nested):
        return None
    notes = (f"{len(others)} entries that are not tensors are left out",) if others else ()
    return Found(tensors, "", notes)


def without_wrappers(tensors: Sequence[StoredTensor]) -> tuple[StoredTensor, ...]:
    """The tensors under the names that the bare model gives them.

    Names stay as they are where two would become one.
    """
    names = [".".join(part for part in tensor.name.split(".") if part not in _WRAPPERS) for tensor in tensors]
    for _ in range(_MOST_NESTED):
        if all(name.startswith("module.") for name in names):
            names = [name.removeprefix("module.") for name in names]
    if len(set(names)) < len(names):
        return tuple(tensors)
    return tuple(replace(tensor, name=name) for tensor, name in zip(tensors, names, strict=True))


def natural_order(name: str) -> list[tuple[int, str]]:
    """A key by which ``layers.2`` comes before ``layers.10``."""
    parts = re.split("([0-9]+)", name)
    return [(len(part.lstrip("0")), part.lstrip("0")) if index % 2 else (0, part) for index, part in enumerate(parts)]
