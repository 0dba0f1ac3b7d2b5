"""Find the mappings of names to tensors in a file's content, and choose one."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from tempbalance.checkpoint.pickles import Inert, numpy_array
from tempbalance.checkpoint.tensors import StoredTensor, in_memory
from tempbalance.errors import CheckpointError, quoted

_MOST_NESTED, _MOST_KEY, _MOST_NAMES, _MOST_MAPPINGS = 16, 200, 200_000, 10_000
_MOST_WRAPPED, _MOST_LISTED, _MOST_ENTRIES = 4, 8, 2_000_000
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


@dataclass(frozen=True)
class Weights:
    """One mapping of names to tensors in a file or folder.

    Attributes:
        tensors: The tensors.
        path: Its place in the file, such as ``("ema", "module")``; empty for the top.
        is_optimizer: Whether it is the state of an optimizer.
        num_others: How many entries are no tensors.
    """

    tensors: Sequence[StoredTensor]
    path: tuple[str, ...] = ()
    is_optimizer: bool = False
    num_others: int = 0

    @property
    def key(self) -> str:
        """The path as ``--key`` takes it."""
        return ".".join(self.path)


class _Walk:
    """A walk over a file's content, which may visit a number of entries: one mapping can be part of many objects."""

    def __init__(self) -> None:
        self.left = _MOST_ENTRIES

    def count(self, parts: Sized) -> None:
        """Count the entries of a mapping or list, and refuse those beyond the limit."""
        self.left -= len(parts)
        if self.left < 0:
            raise CheckpointError("its objects share their entries beyond reason")


def find_weights(top: object) -> list[Weights]:
    """Find every mapping of names to tensors, those nearest to the top first."""
    found: list[Weights] = []
    walk = _Walk()
    seen: set[int] = set()
    queue: deque[tuple[tuple[str, ...], object]] = deque(
        [((), {"tensor": top} if isinstance(top, Tensor | StoredTensor) else top)]
    )
    while queue and len(found) < _MOST_MAPPINGS:
        path, value = queue.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        is_module = _is_module(value)
        items = {} if is_module else dict(_entries(value, walk))
        tensors = _module_tensors(value, walk) if is_module else list(_named_tensors(items))
        if tensors:
            names = {tensor.name for tensor in tensors}
            is_optimizer = bool(path and names <= _SLOTS) or any(_OPTIMIZER.search(part) for part in path)
            found.append(Weights(tensors, path, is_optimizer, max(0, len(items) - len(tensors))))
        if len(path) < _MOST_NESTED:
            short = [(key, each) for key, each in items.items() if len(key) <= _MOST_KEY and not key.endswith(_PACKED)]
            queue += [((*path, key), each) for key, each in short if _holds(each)]
    if not found:
        raise CheckpointError(f"has no tensors by name; it holds {_summary(top)}")
    return _join_tree(_merge_optimizers(found))


def _holds(value: object) -> bool:
    if isinstance(value, Inert):
        return bool(value.args or value.state or value.items)
    return isinstance(value, Mapping | list | tuple) and len(value) > 0


def _summary(top: object) -> str:
    if isinstance(top, Inert):
        return f"an object {quoted(top.name)}"
    return (", ".join(quoted(key) for key in list(top)[:8]) or "nothing") if isinstance(top, Mapping) else quoted(top)


def _entries(value: object, walk: _Walk) -> Iterator[tuple[str, object]]:
    """Iterate over the items of a mapping, the attributes of an object or the entries of a list, with their names."""
    pairs: list[tuple[object, object]] = []
    if isinstance(value, Mapping | list | tuple):
        walk.count(value)
        pairs += value.items() if isinstance(value, Mapping) else enumerate(value)
    elif isinstance(value, Inert):
        walk.count(value.args)
        for held in value.args:
            walk.count(held if isinstance(held, dict | list) else ())
            if isinstance(held, dict):
                pairs += held.items()
            elif isinstance(held, list) and all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in held):
                pairs += [(pair[0], pair[1]) for pair in held]  # as Python 2 wrote an OrderedDict
        walk.count(value.items)
        pairs += value.items.items()
        if not pairs:  # attributes of a mapping, such as the versions in a state dict, hold no weights
            parts = value.state if isinstance(value.state, tuple) else (value.state,)
            walk.count(parts)
            for part in parts:
                if isinstance(part, dict):
                    walk.count(part)
                    pairs += part.items()
    for key, each in pairs:
        if isinstance(key, str) or (type(key) is int and key.bit_length() < 64):
            yield str(key), each


def _named_tensors(items: Mapping[str, object]) -> Iterator[StoredTensor]:
    for name, value in items.items():
        tensor = in_memory(value) if isinstance(value, Tensor) else value
        tensor = numpy_array(tensor) if isinstance(tensor, Inert) else tensor
        if isinstance(tensor, StoredTensor):
            yield replace(tensor, name=name)
        elif name.endswith(_PACKED) and isinstance(value, tuple):
            for part, each in zip(("weight", "bias"), value, strict=False):
                if isinstance(each, StoredTensor):
                    yield replace(each, name=f"{name.removesuffix(_PACKED)}.{part}")


def _state(value: object) -> dict[Any, Any]:
    return value.state if isinstance(value, Inert) and isinstance(value.state, dict) else {}


def _is_module(value: object) -> bool:
    """Return whether an object is a module: a pickled one, or one of TorchScript."""
    state = _state(value)
    is_script = isinstance(value, Inert) and value.name.startswith("__torch__.")
    return ("_parameters" in state and "_modules" in state) or (bool(state) and is_script)


def _elements(names: object, walk: _Walk) -> set[str]:
    """Return the names in a set, which protocol 2 writes as a call with a list."""
    if isinstance(names, Inert):
        names = list(names.items.values()) or (names.args[0] if names.args else None)
    if not isinstance(names, list):
        return set()
    walk.count(names)
    return {each for each in names if isinstance(each, str)}


def _module_tensors(top: object, walk: _Walk) -> list[StoredTensor]:
    """List a module's parameters, persistent buffers and modules, in the order of its state dict."""
    found: list[StoredTensor] = []
    pending = [("", top)]
    for _ in range(_MOST_NAMES):
        if not pending:
            return found
        prefix, module = pending.pop()
        state = _state(module)
        is_pickled = "_parameters" in state
        parts = [state.get("_parameters"), state.get("_buffers")] if is_pickled else [state]
        transient = _elements(state.get("_non_persistent_buffers_set"), walk)
        found += [
            replace(each, name=prefix + name)
            for part in parts
            for name, each in _entries(part, walk)
            if isinstance(each, StoredTensor) and name not in transient and len(name) <= _MOST_KEY
        ]
        held = _entries(state.get("_modules") if is_pickled else state, walk)
        children = [each for each in held if _is_module(each[1])]
        pending += [(f"{prefix}{name}.", each) for name, each in reversed(children) if len(name) <= _MOST_KEY]
        if prefix.count(".") > 4 * _MOST_NESTED or len(found) > _MOST_NAMES:
            break
    raise CheckpointError("its modules hold each other beyond reason")


# several mappings that are one


def _merge(parts: Sequence[Weights], path: tuple[str, ...]) -> Weights:
    """Make one mapping of those below a path, with the rest of their paths in the names of the tensors."""
    tensors = [
        replace(tensor, name=".".join((*each.path[len(path) :], tensor.name)))
        for each in parts
        for tensor in each.tensors
    ]
    return Weights(tensors, path, parts[0].is_optimizer, sum(each.num_others for each in parts))


def _merge_optimizers(found: Sequence[Weights]) -> list[Weights]:
    """Give each optimizer one mapping, instead of one for each parameter."""
    groups: dict[tuple[tuple[str, ...], bool], list[Weights]] = {}
    for each in found:
        cut = each.path.index("state") if each.is_optimizer and "state" in each.path else len(each.path)
        groups.setdefault((each.path[:cut] or each.path[:1], each.is_optimizer), []).append(each)
    return [_merge(parts, path) for (path, _), parts in groups.items()]


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
    low, high = min(each.path for each in parts), max(each.path for each in parts)
    return low[: next((index for index, word in enumerate(low) if high[index : index + 1] != (word,)), len(low))]


# which mapping is taken


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
    counts = [(len(each.shape) > 1, math.prod(each.shape)) for each in weights.tensors]
    in_matrices = sum(count for is_matrix, count in counts if is_matrix)
    return in_matrices, not _AVERAGE.search(weights.key), sum(count for _, count in counts)


def _under(found: Sequence[Weights], key: str) -> tuple[Weights, list[Weights], list[str]]:
    """Choose the mapping with a key, or all those below it as one."""
    chosen = [each for each in found if each.key == key][:1]
    chosen = chosen or [each for each in found if not key or each.key.startswith(f"{key}.")]
    if not chosen:
        raise CheckpointError(f"has no tensors under {quoted(key)}; it has {_listed([each.key for each in found])}")
    starts = [chosen[0].path[:length] for length in range(len(chosen[0].path) + 1)]
    path = next((start for start in starts if ".".join(start) == key), ())
    return _merge(chosen, path), [each for each in found if each not in chosen], []


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
