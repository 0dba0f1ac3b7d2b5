"""Find the mappings of names to tensors in a file's content, and choose one."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from torch import Tensor

from tempbalance.checkpoint.pickles import Inert, numpy_array
from tempbalance.checkpoint.tensors import StoredTensor
from tempbalance.errors import CheckpointError, quoted

_MOST_NESTED, _MOST_MODULES, _MOST_KEY, _MOST_WRAPPED, _MOST_LISTED = 16, 64, 200, 4, 8
_MOST_MAPPINGS, _MOST_ENTRIES, _MOST_CHARACTERS = 10_000, 2_000_000, 32 << 20
_OPTIMIZER = re.compile(r"(^|[_.])(optim(izer)?s?|opt)([_.]|$)|param_groups", re.IGNORECASE)
# how torch's optimizers call what they keep for a parameter
_SLOTS = frozenset({
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "exp_avg_sq_row", "exp_avg_sq_col", "momentum_buffer",
    "momentum", "square_avg", "grad_avg", "acc_delta", "sum", "step", "prev", "step_size", "mu", "eta", "ax",
    "mu_product",
})  # fmt: skip
_PACKED = "._packed_params._packed_params"  # a quantised linear layer of torch
_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_AVERAGE = re.compile(r"ema|shadow|average|swa|teacher", re.IGNORECASE)


@dataclass
class Weights:
    """One mapping of names to tensors: its path in the file, such as ``("ema", "module")``, and entries beside them."""

    tensors: list[StoredTensor]
    path: tuple[str, ...] = ()
    is_optimizer: bool = False
    num_others: int = 0
    num_characters: int = 0

    @property
    def key(self) -> str:
        """The path as ``--key`` takes it."""
        return ".".join(self.path)

    def add(self, tensors: Sequence[StoredTensor], prefix: Sequence[str]) -> None:
        """Add tensors whose names get a prefix."""
        start = "".join(f"{word}." for word in prefix)
        self.num_characters += len(start) * len(tensors)
        _check_names(self.num_characters)
        self.tensors += [replace(tensor, name=start + tensor.name) for tensor in tensors] if start else tensors


def _check_names(num_characters: int) -> None:
    if num_characters > _MOST_CHARACTERS:
        raise CheckpointError(f"the names of its tensors would have {num_characters:,} characters")


def find_weights(top: object) -> list[Weights]:
    """Find every mapping of names to tensors, those nearest to the top first."""
    found: dict[tuple[tuple[str, ...], bool], Weights] = {}
    walk = _Walk()
    seen: set[int] = set()
    queue: deque[tuple[tuple[str, ...], bool, object]] = deque(
        [((), False, {"tensor": top} if isinstance(top, Tensor | StoredTensor) else top)]
    )
    while queue and len(found) < _MOST_MAPPINGS:
        path, is_optimizer, value = queue.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        items = {} if _is_module(value) else dict(walk.entries(value))
        tensors = list(walk.module_tensors(value) if _is_module(value) else _named_tensors(items))
        if tensors:
            # each optimizer has one mapping, instead of one for each parameter
            is_state = is_optimizer or bool(path and {tensor.name for tensor in tensors} <= _SLOTS)
            root = path[: path.index("state")] or path[:1] if is_state and "state" in path else path
            weights = found.setdefault((root, is_state), Weights([], root, is_state))
            weights.add(tensors, path[len(root) :])
            weights.num_others += max(0, len(items) - len(tensors))
        for key, each in items.items() if len(path) < _MOST_NESTED else ():
            is_held = isinstance(each, Inert | Mapping | list | tuple)
            if is_held and len(key) <= _MOST_KEY and not key.endswith(_PACKED):
                queue.append(((*path, key), is_optimizer or bool(_OPTIMIZER.search(key)), each))
    if not found:
        keys = ", ".join(quoted(key) for key in list(top)[:8]) or "nothing" if isinstance(top, Mapping) else ""
        held = f"an object {quoted(top.name)}" if isinstance(top, Inert) else keys or quoted(top)
        raise CheckpointError(f"has no tensors by name; it holds {held}")
    return _join_tree(list(found.values()))


def _is_module(value: object) -> bool:
    """Return whether an object is a module: a pickled one, or one of TorchScript."""
    state = value.state if isinstance(value, Inert) and isinstance(value.state, dict) else {}
    is_script = isinstance(value, Inert) and value.name.startswith("__torch__.")
    return ("_parameters" in state and "_modules" in state) or (bool(state) and is_script)


def _named_tensors(items: Mapping[str, object]) -> Iterator[StoredTensor]:
    for name, value in items.items():
        tensor = _in_memory(value) if isinstance(value, Tensor) else value
        tensor = numpy_array(tensor) if isinstance(tensor, Inert) else tensor
        if isinstance(tensor, StoredTensor):
            yield replace(tensor, name=name)
        elif name.endswith(_PACKED) and isinstance(value, tuple):
            for part, each in zip(("weight", "bias"), value, strict=False):
                if isinstance(each, StoredTensor):
                    yield replace(each, name=f"{name.removesuffix(_PACKED)}.{part}")


def _in_memory(tensor: Tensor) -> StoredTensor:
    try:
        place = (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) if tensor.numel() else None
    except (RuntimeError, NotImplementedError):  # sparse, meta
        place = None
    return StoredTensor("", tuple(tensor.shape), tensor.dtype, tensor.detach, place)


class _Walk:
    """A walk over a file's content, which may visit a number of entries: one mapping can be part of many objects."""

    def __init__(self) -> None:
        self.num_entries = self.num_characters = 0

    def _count(self, num_entries: int) -> None:
        self.num_entries += num_entries
        if self.num_entries > _MOST_ENTRIES:
            raise CheckpointError("its objects share their entries beyond reason")

    def entries(self, value: object) -> Iterator[tuple[str, object]]:
        """Iterate over the items of a mapping, the attributes of an object or the entries of a list, by name."""
        parts: list[Any] = [value] if isinstance(value, Mapping | list | tuple) else []
        if isinstance(value, Inert):
            self._count(len(value.args))
            parts = [each for each in (*value.args, value.items) if isinstance(each, dict | list) and each]
            # attributes of a mapping, such as the versions in a state dict, hold no weights
            if not any(isinstance(each, dict) for each in parts):
                parts += value.state if isinstance(value.state, tuple) else [value.state]
        for part in parts:
            self._count(1)
            if isinstance(part, Mapping | list | tuple):
                self._count(len(part))
                for key, each in _pairs(part):
                    if isinstance(key, str) or (type(key) is int and key.bit_length() < 64):
                        yield str(key), each

    def module_tensors(self, module: Any, prefix: str = "") -> Iterator[StoredTensor]:
        """Iterate over a module's parameters, persistent buffers and modules, in the order of its state dict."""
        self._count(10)
        if prefix.count(".") > _MOST_MODULES:
            raise CheckpointError("its modules hold each other beyond reason")
        state, is_pickled = module.state, "_parameters" in module.state
        names = self.entries(state.get("_non_persistent_buffers_set"))
        transient = {name for _, name in names if isinstance(name, str)}
        for part in (state["_parameters"], state.get("_buffers")) if is_pickled else (state,):
            for name, each in self.entries(part):
                if isinstance(each, StoredTensor) and len(name) <= _MOST_KEY and name not in transient:
                    self.num_characters += len(prefix)
                    _check_names(self.num_characters)
                    yield replace(each, name=prefix + name)
        for name, each in self.entries(state["_modules"] if is_pickled else state):
            if _is_module(each) and len(name) <= _MOST_KEY:
                yield from self.module_tensors(each, f"{prefix}{name}.")


def _pairs(part: Mapping[Any, Any] | Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    if isinstance(part, Mapping):
        return part.items()
    are_items = all(isinstance(each, tuple | list) and len(each) == 2 and isinstance(each[0], str) for each in part)
    return part if are_items else enumerate(part)  # Python 2 wrote an OrderedDict as a list of its items


def _join_tree(found: list[Weights]) -> list[Weights]:
    """Join the mappings of nested modules, ``{"encoder": {"dense": {"kernel": ...}}}``, into one with dotted names."""
    weights = [each for each in found if not each.is_optimizer]
    has_dots = any("." in tensor.name for each in weights for tensor in each.tensors)
    if len(weights) < 3 or has_dots or not any(len(each.path) > 1 for each in weights):
        return found
    by_top: dict[tuple[str, ...], list[Weights]] = {}
    for each in weights:
        by_top.setdefault(each.path[:1], []).append(each)
    trees = list(by_top.values())
    names = [sorted((*each.path[1:], tensor.name) for each in tree for tensor in each.tensors) for tree in trees]
    # such as weights and their average
    are_copies = len(trees) > 1 and len(trees[0]) > 1 and all(each == names[0] for each in names)
    joined = [_merge(tree, _common_path(tree)) for tree in (trees if are_copies else [weights])]
    return [*joined, *(each for each in found if each.is_optimizer)]


def _common_path(parts: Sequence[Weights]) -> tuple[str, ...]:
    levels = zip(*(each.path for each in parts), strict=False)
    return tuple(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels))


def _merge(parts: Sequence[Weights], path: tuple[str, ...]) -> Weights:
    """Make one mapping of those below a path, with the rest of their paths in the names of the tensors."""
    merged = Weights([], path, parts[0].is_optimizer, sum(each.num_others for each in parts))
    for each in parts:
        merged.add(each.tensors, each.path[len(path) :])
    return merged


def choose(found: Sequence[Weights], key: str | None) -> tuple[Weights, list[Weights], list[str]]:
    """Choose a mapping, by its key or the largest that is not an optimizer's; return the others and notes too."""
    if key is not None:
        return _under(found, key.strip("."))
    weights = [each for each in found if not each.is_optimizer]
    # a mapping that is only called like an optimizer's
    weights = weights or [
        each for each in found if any(tensor.name.rpartition(".")[2] not in _SLOTS for tensor in each.tensors)
    ]
    if not weights:
        raise CheckpointError("holds only the state of an optimizer")
    taken = max(weights, key=_preference)
    notes = [f"weights found under {taken.key!r}"] if taken.key else []
    if names := [each.key for each in weights if each is not taken]:
        notes.append(f"also holds {_listed(names)}: --key chooses, --list shows all")
    if taken.num_others:
        notes.append(f"{taken.num_others} entries that are not tensors are skipped")
    return taken, [each for each in found if each is not taken], notes


def _preference(weights: Weights) -> tuple[int, bool, int]:
    """Return a sort key: elements in matrices and kernels, whether it is not an average, all elements."""
    in_matrices = sum(math.prod(each.shape) for each in weights.tensors if len(each.shape) > 1)
    return in_matrices, not _AVERAGE.search(weights.key), sum(math.prod(each.shape) for each in weights.tensors)


def _under(found: Sequence[Weights], key: str) -> tuple[Weights, list[Weights], list[str]]:
    """Choose the mapping with a key, or all those below it as one."""
    chosen = [each for each in found if each.key == key][:1]
    chosen = chosen or [each for each in found if not key or each.key.startswith(f"{key}.")]
    if not chosen:
        raise CheckpointError(f"has no tensors under {quoted(key)}; it has {_listed([each.key for each in found])}")
    starts = [chosen[0].path[:length] for length in range(len(chosen[0].path) + 1)]
    path = next((start for start in starts if ".".join(start) == key), ())
    others = [each for each in found if not any(each is taken for taken in chosen)]
    return _merge(chosen, path), others, []


def _listed(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _MOST_LISTED} more" if len(keys) > _MOST_LISTED else ""
    return (", ".join(quoted(key) for key in keys[:_MOST_LISTED]) or "nothing") + more


def without_wrappers(tensors: Sequence[StoredTensor]) -> list[StoredTensor]:
    """Return the tensors under the names that the bare model gives them, unless two names would become one."""
    names = [".".join(part for part in tensor.name.split(".") if part not in _WRAPPERS) for tensor in tensors]
    for _ in range(_MOST_WRAPPED):
        if all(name.startswith("module.") for name in names):
            names = [name.removeprefix("module.") for name in names]
    if len(set(names)) < len(names):
        return list(tensors)
    return [replace(tensor, name=name) for tensor, name in zip(tensors, names, strict=True)]
