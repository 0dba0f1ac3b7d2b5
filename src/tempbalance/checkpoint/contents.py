"""A file's content -> its mappings of names to tensors, found by what they hold and not by how they are called."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import NoneType
from typing import Any

from tempbalance.checkpoint.described import Described, Inert, numpy_array
from tempbalance.checkpoint.files import shown
from tempbalance.checkpoint.tensors import StoredTensor, Weights
from tempbalance.errors import CheckpointError

_MOST_NESTED, _MOST_KEY, _MOST_NAMES, _MOST_MAPPINGS = 16, 200, 200_000, 10_000
_OPTIMIZER = re.compile(r"optim|param_groups|^opt(_|$)", re.IGNORECASE)
# how torch's optimizers call what they keep for a parameter
_SLOTS = frozenset({
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "exp_avg_sq_row", "exp_avg_sq_col", "momentum_buffer",
    "momentum", "square_avg", "grad_avg", "acc_delta", "sum", "step", "prev", "step_size", "mu", "eta", "ax",
    "mu_product",
})  # fmt: skip
_PACKED = "._packed_params._packed_params"  # a quantised linear layer of torch
_PLAIN = (int, float, complex, str, bytes, bytearray, set, frozenset, NoneType)

Path = tuple[str, ...]


def find_weights(top: object, kind: type, make: Callable[[str, Any], StoredTensor]) -> list[Weights]:
    """Find every mapping of names to tensors, those nearest to the top first.

    Args:
        top: The content of a file.
        kind: The type that counts as a tensor.
        make: Makes a stored tensor of a name and one of that type.

    Raises:
        CheckpointError: If there is none, or modules hold each other beyond reason.
    """
    found: list[tuple[Path, dict[str, Any], int]] = []
    seen: set[int] = set()
    queue: deque[tuple[Path, object]] = deque([((), {"tensor": top} if isinstance(top, kind) else top)])
    while queue and len(found) < _MOST_MAPPINGS:
        path, value = queue.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if is_module(value):
            found.append((path, dict(_module_tensors(value, kind)), 0))
            continue
        items = dict(entries(value))
        tensors = dict(_named_tensors(items, kind))
        if tensors:
            found.append((path, tensors, len(items) - len(tensors)))
        if len(path) < _MOST_NESTED:
            queue += [((*path, key), each) for key, each in items.items() if len(key) <= _MOST_KEY and _holds(each)]
    if not any(tensors for _, tensors, _ in found):
        raise CheckpointError(f"has no tensors by name; it holds {_summary(top)}")
    named = [(path, {name: make(name, each) for name, each in held.items()}, num) for path, held, num in found]
    return _join_tree(_merge_optimizers(named))


def _holds(value: object) -> bool:
    if isinstance(value, Inert):
        return bool(value.args or value.state or value.pairs or value.elements)
    return isinstance(value, Mapping | list | tuple) and len(value) > 0


def _summary(top: object) -> str:
    if isinstance(top, Inert):
        return f"an object {shown(top.name)}"
    return (", ".join(shown(key) for key in list(top)[:8]) or "nothing") if isinstance(top, Mapping) else shown(top)


def entries(value: object) -> Iterator[tuple[str, object]]:
    """Iterate over what a value holds by name: items of a mapping, attributes of an object, positions in a list."""
    pairs: list[tuple[object, object]] = []
    if isinstance(value, Mapping):
        pairs += value.items()
    elif isinstance(value, list | tuple):
        pairs += _numbered(value)
    elif isinstance(value, Inert):
        pairs += [pair for held in value.args for pair in _pairs_of_argument(held)]
        pairs += value.pairs or []
        pairs += _numbered(value.elements or [])
        if not pairs:  # attributes of a mapping, such as the versions in a state dict, hold no weights
            parts = value.state if isinstance(value.state, tuple) else (value.state,)
            pairs += [pair for part in parts if isinstance(part, dict) for pair in part.items()]
    for key, each in pairs:
        if isinstance(key, str) or (type(key) is int and key.bit_length() < 64):
            yield str(key), each


def _numbered(values: Sequence[object]) -> Iterator[tuple[int, object]]:
    """Iterate over what may hold tensors in a list, which may have a million numbers."""
    for index, each in enumerate(values):
        if not isinstance(each, _PLAIN) and not (isinstance(each, Mapping | list | tuple) and len(each) == 0):
            yield index, each


def _pairs_of_argument(held: object) -> list[tuple[object, object]]:
    """Items of a mapping or of a list of pairs that an object was made from, as Python 2 wrote an OrderedDict."""
    if isinstance(held, dict):
        return list(held.items())
    if isinstance(held, list) and all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in held):
        return [(pair[0], pair[1]) for pair in held]
    return []


def _named_tensors(items: Mapping[str, object], kind: type) -> Iterator[tuple[str, Any]]:
    for name, value in items.items():
        tensor = numpy_array(value) if kind is Described and isinstance(value, Inert) else value
        if isinstance(tensor, kind):
            yield name, tensor
        elif name.endswith(_PACKED) and isinstance(value, tuple):
            parts = zip(("weight", "bias"), value, strict=False)
            yield from (
                (f"{name.removesuffix(_PACKED)}.{part}", each) for part, each in parts if isinstance(each, kind)
            )


# modules


def _state(value: object) -> dict[Any, Any]:
    return value.state if isinstance(value, Inert) and isinstance(value.state, dict) else {}


def is_module(value: object) -> bool:
    """Return whether an object is a module: a pickled one, or one of TorchScript."""
    state = _state(value)
    is_pickled = "_parameters" in state and "_modules" in state
    return is_pickled or (bool(state) and isinstance(value, Inert) and value.name.startswith("__torch__."))


def _module_tensors(module: object, kind: type) -> Iterator[tuple[str, Any]]:
    """Iterate over a module's parameters, persistent buffers and modules, in the order of its state dict."""
    left = [_MOST_NAMES]
    yield from _own_tensors("", module, kind, left, depth=0)


def _elements(names: object) -> set[str]:
    """Return the names in a set, which protocol 2 writes as a call with a list."""
    if isinstance(names, Inert):
        names = names.elements or (names.args[0] if names.args else None)
    return {each for each in names if isinstance(each, str)} if isinstance(names, set | frozenset | list) else set()


def _own_tensors(prefix: str, module: object, kind: type, left: list[int], depth: int) -> Iterator[tuple[str, Any]]:
    left[0] -= 1
    if left[0] < 0 or depth > 4 * _MOST_NESTED:
        raise CheckpointError("its modules hold each other beyond reason")
    state = _state(module)
    transient = _elements(state.get("_non_persistent_buffers_set"))
    is_pickled = "_parameters" in state
    parts = [state.get(part) for part in ("_parameters", "_buffers")] if is_pickled else [state]
    for name, value in ((name, value) for part in parts for name, value in entries(part)):
        if isinstance(value, kind) and name not in transient and len(name) <= _MOST_KEY:
            left[0] -= 1
            yield f"{prefix}{name}", value
    for name, value in entries(state.get("_modules") if is_pickled else state):
        if is_module(value) and len(name) <= _MOST_KEY:
            yield from _own_tensors(f"{prefix}{name}.", value, kind, left, depth + 1)


# optimizers, and trees of names


def _merge_optimizers(found: list[tuple[Path, dict[str, StoredTensor], int]]) -> list[tuple[Path, Weights]]:
    """Give each optimizer one mapping, instead of one for each parameter."""
    merged: dict[tuple[Path, bool], Weights] = {}
    for path, tensors, num_others in found:
        is_optimizer = set(tensors) <= _SLOTS or any(_OPTIMIZER.search(part) for part in path)
        cut = path.index("state") if is_optimizer and "state" in path else len(path)
        place = path[:cut] or path[:1]
        prefix = "".join(f"{part}." for part in path[len(place) :])
        before = merged.get((place, is_optimizer), Weights([]))
        held = [*before.tensors, *(replace(each, name=prefix + each.name) for each in tensors.values())]
        merged[place, is_optimizer] = Weights(held, ".".join(place), is_optimizer, before.num_others + num_others)
    return [(place, each) for (place, _), each in merged.items()]


def _join_tree(found: list[tuple[Path, Weights]]) -> list[Weights]:
    """Join the mappings of nested modules, ``{"encoder": {"dense": {"kernel": ...}}}``, into one with dotted names."""
    weights = [(path, each) for path, each in found if not each.is_optimizer]
    names = [tensor.name for _, each in weights for tensor in each.tensors]
    is_tree = len(weights) > 2 and any(len(path) > 1 for path, _ in weights) and not any("." in each for each in names)
    if not is_tree:
        return [each for _, each in found]
    low, high = min(path for path, _ in weights), max(path for path, _ in weights)
    common = low[: next((index for index, part in enumerate(low) if high[index : index + 1] != (part,)), len(low))]
    joined = [
        replace(tensor, name=".".join((*path[len(common) :], tensor.name)))
        for path, each in weights
        for tensor in each.tensors
    ]
    return [Weights(joined, ".".join(common)), *(each for _, each in found if each.is_optimizer)]
