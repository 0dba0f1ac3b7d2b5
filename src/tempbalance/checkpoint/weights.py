"""Find the mappings of names to tensors in a file's content, and choose one."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from tempbalance.checkpoint.pickles import Inert, numpy_array
from tempbalance.checkpoint.tensors import StoredTensor, in_memory
from tempbalance.errors import CheckpointError, quoted

_MOST_NESTED, _MOST_KEY, _MOST_NAMES, _MOST_MAPPINGS = 16, 200, 200_000, 10_000
_OPTIMIZER = re.compile(r"(^|[_.])(optim(izer)?s?|opt)([_.]|$)|param_groups", re.IGNORECASE)
# how torch's optimizers call what they keep for a parameter
_SLOTS = frozenset({
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "exp_avg_sq_row", "exp_avg_sq_col", "momentum_buffer",
    "momentum", "square_avg", "grad_avg", "acc_delta", "sum", "step", "prev", "step_size", "mu", "eta", "ax",
    "mu_product",
})  # fmt: skip
_PACKED = "._packed_params._packed_params"  # a quantised linear layer of torch

_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_MOST_WRAPPED = 4
_MOST_LISTED = 8
_AVERAGE = re.compile(r"ema|shadow|average|swa|teacher", re.IGNORECASE)

Path = tuple[str, ...]


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


def find_weights(top: object) -> list[Weights]:
    """Find every mapping of names to tensors, those nearest to the top first.

    Raises:
        CheckpointError: If there is none, or modules hold each other beyond reason.
    """
    found: list[tuple[Path, dict[str, StoredTensor], int]] = []
    seen: set[int] = set()
    queue: deque[tuple[Path, object]] = deque(
        [((), {"tensor": top} if isinstance(top, Tensor | StoredTensor) else top)]
    )
    while queue and len(found) < _MOST_MAPPINGS:
        path, value = queue.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if _is_module(value):
            found.append((path, dict(_module_tensors("", value, [_MOST_NAMES], depth=0)), 0))
            continue
        items = dict(_entries(value))
        tensors = dict(_named_tensors(items))
        if tensors:
            found.append((path, tensors, len(items) - len(tensors)))
        if len(path) < _MOST_NESTED:
            queue += [((*path, key), each) for key, each in items.items() if len(key) <= _MOST_KEY and _holds(each)]
    if not any(tensors for _, tensors, _ in found):
        raise CheckpointError(f"has no tensors by name; it holds {_summary(top)}")
    return _join_tree(_merge_optimizers(found))


def _tensor_of(value: object) -> StoredTensor | None:
    if isinstance(value, Tensor):
        return in_memory(value)
    return value if isinstance(value, StoredTensor) else numpy_array(value) if isinstance(value, Inert) else None


def _holds(value: object) -> bool:
    if isinstance(value, Inert):
        return bool(value.args or value.state or value.items)
    return isinstance(value, Mapping | list | tuple) and len(value) > 0


def _summary(top: object) -> str:
    if isinstance(top, Inert):
        return f"an object {quoted(top.name)}"
    return (", ".join(quoted(key) for key in list(top)[:8]) or "nothing") if isinstance(top, Mapping) else quoted(top)


def _entries(value: object) -> Iterator[tuple[str, object]]:
    """Iterate over the items of a mapping, the attributes of an object or the entries of a list, with their names."""
    pairs: list[tuple[object, object]] = []
    if isinstance(value, Mapping):
        pairs += value.items()
    elif isinstance(value, list | tuple):
        pairs += enumerate(value)
    elif isinstance(value, Inert):
        pairs += [pair for held in value.args for pair in _pairs_of_argument(held)]
        pairs += value.items
        if not pairs:  # attributes of a mapping, such as the versions in a state dict, hold no weights
            parts = value.state if isinstance(value.state, tuple) else (value.state,)
            pairs += [pair for part in parts if isinstance(part, dict) for pair in part.items()]
    for key, each in pairs:
        if isinstance(key, str) or (type(key) is int and key.bit_length() < 64):
            yield str(key), each


def _pairs_of_argument(held: object) -> list[tuple[object, object]]:
    """Return the items of an object built from a mapping or from pairs, as Python 2 wrote an OrderedDict."""
    if isinstance(held, dict):
        return list(held.items())
    if isinstance(held, list) and all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in held):
        return [(pair[0], pair[1]) for pair in held]
    return []


def _named_tensors(items: Mapping[str, object]) -> Iterator[tuple[str, StoredTensor]]:
    for name, value in items.items():
        if (tensor := _tensor_of(value)) is not None:
            yield name, tensor
        elif name.endswith(_PACKED) and isinstance(value, tuple):
            for part, each in zip(("weight", "bias"), value, strict=False):
                if isinstance(each, StoredTensor):
                    yield f"{name.removesuffix(_PACKED)}.{part}", each


# modules


def _state(value: object) -> dict[Any, Any]:
    return value.state if isinstance(value, Inert) and isinstance(value.state, dict) else {}


def _is_module(value: object) -> bool:
    """Return whether an object is a module: a pickled one, or one of TorchScript."""
    state = _state(value)
    is_script = isinstance(value, Inert) and value.name.startswith("__torch__.")
    return ("_parameters" in state and "_modules" in state) or (bool(state) and is_script)


def _elements(names: object) -> set[str]:
    """Return the names in a set, which protocol 2 writes as a call with a list."""
    if isinstance(names, Inert):
        names = [each for _, each in names.items] or (names.args[0] if names.args else None)
    return {each for each in names if isinstance(each, str)} if isinstance(names, set | frozenset | list) else set()


def _module_tensors(prefix: str, module: object, left: list[int], depth: int) -> Iterator[tuple[str, StoredTensor]]:
    """Iterate over a module's parameters, persistent buffers and modules, in the order of its state dict."""
    left[0] -= 1
    if left[0] < 0 or depth > 4 * _MOST_NESTED:
        raise CheckpointError("its modules hold each other beyond reason")
    state = _state(module)
    transient = _elements(state.get("_non_persistent_buffers_set"))
    is_pickled = "_parameters" in state
    parts = [state.get(part) for part in ("_parameters", "_buffers")] if is_pickled else [state]
    for name, value in ((name, value) for part in parts for name, value in _entries(part)):
        if isinstance(value, StoredTensor) and name not in transient and len(name) <= _MOST_KEY:
            left[0] -= 1
            yield f"{prefix}{name}", value
    for name, value in _entries(state.get("_modules") if is_pickled else state):
        if _is_module(value) and len(name) <= _MOST_KEY:
            yield from _module_tensors(f"{prefix}{name}.", value, left, depth + 1)


# optimizers, and trees of names


def _merge_optimizers(found: list[tuple[Path, dict[str, StoredTensor], int]]) -> list[tuple[Path, Weights]]:
    """Give each optimizer one mapping, instead of one for each parameter."""
    merged: dict[tuple[Path, bool], tuple[list[StoredTensor], int]] = {}
    for path, tensors, num_others in found:
        is_optimizer = bool(path and set(tensors) <= _SLOTS) or any(_OPTIMIZER.search(part) for part in path)
        cut = path.index("state") if is_optimizer and "state" in path else len(path)
        place = path[:cut] or path[:1]
        prefix = "".join(f"{part}." for part in path[len(place) :])
        held, num_before = merged.get((place, is_optimizer), ([], 0))
        held += [replace(each, name=prefix + name) for name, each in tensors.items()]
        merged[place, is_optimizer] = held, num_before + num_others
    return [
        (place, Weights(held, ".".join(place), is_optimizer, num_others))
        for (place, is_optimizer), (held, num_others) in merged.items()
    ]


def _join_tree(found: list[tuple[Path, Weights]]) -> list[Weights]:
    """Join the mappings of nested modules, ``{"encoder": {"dense": {"kernel": ...}}}``, into one with dotted names."""
    weights = [(path, each) for path, each in found if not each.is_optimizer]
    names = [tensor.name for _, each in weights for tensor in each.tensors]
    is_tree = len(weights) > 2 and any(len(path) > 1 for path, _ in weights) and not any("." in each for each in names)
    if not is_tree:
        return [each for _, each in found]
    by_top: dict[str, list[tuple[Path, Weights]]] = {}
    for path, each in weights:
        by_top.setdefault(path[0] if path else "", []).append((path, each))
    trees = list(by_top.values())
    # such as weights and their average
    are_copies = len(trees) > 1 and len(trees[0]) > 1 and all(_names(tree) == _names(trees[0]) for tree in trees)
    joined = [_join(tree) for tree in trees] if are_copies else [_join(weights)]
    return [*joined, *(each for _, each in found if each.is_optimizer)]


def _names(tree: list[tuple[Path, Weights]]) -> list[tuple[str, ...]]:
    return sorted((*path[1:], tensor.name) for path, each in tree for tensor in each.tensors)


def _join(tree: list[tuple[Path, Weights]]) -> Weights:
    """Join mappings into one under the words that their paths begin with."""
    low, high = min(path for path, _ in tree), max(path for path, _ in tree)
    common = low[: next((index for index, part in enumerate(low) if high[index : index + 1] != (part,)), len(low))]
    tensors = [
        replace(tensor, name=".".join((*path[len(common) :], tensor.name)))
        for path, each in tree
        for tensor in each.tensors
    ]
    return Weights(tensors, ".".join(common))


# which mapping is taken


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
    # a mapping that is only called like an optimizer's
    weights = weights or [
        each for each in found if any(_last_word(tensor.name) not in _SLOTS for tensor in each.tensors)
    ]
    if not weights:
        what = "only the state of an optimizer" if any(each.tensors for each in found) else "no tensors by name"
        raise CheckpointError(f"holds {what}")
    taken = max(weights, key=_preference)
    notes = [f"weights found under {taken.key!r}"] if taken.key else []
    if names := [each.key for each in weights if each is not taken]:
        notes.append(f"also holds {_listed(names)}: --key chooses, --list shows all")
    if taken.num_others:
        notes.append(f"{taken.num_others} entries that are not tensors are skipped")
    return taken, [each for each in found if each is not taken], notes


def _last_word(name: str) -> str:
    return name.rpartition(".")[2]


def _preference(weights: Weights) -> tuple[int, bool, int]:
    """Return a sort key: elements in matrices and kernels, whether it is not an average, all elements."""
    counts = [(len(each.shape) > 1, math.prod(each.shape)) for each in weights.tensors]
    in_matrices = sum(count for is_matrix, count in counts if is_matrix)
    return in_matrices, not _AVERAGE.search(weights.key), sum(count for _, count in counts)


def _under(found: Sequence[Weights], key: str) -> tuple[Weights, list[Weights], list[str]]:
    """Choose the mapping with a key, or all those below it as one."""
    exact = [each for each in found if each.key == key]
    below = exact[:1] or [each for each in found if each.key.startswith(f"{key}.") or key in ("", ".")]
    if not any(each.tensors for each in below):
        raise CheckpointError(f"has no tensors under {quoted(key)}; it has {_listed([each.key for each in found])}")
    others = [each for each in found if each not in below]
    if exact:
        return exact[0], others, []
    cut = len(key) + 1 if key not in ("", ".") else 0
    tensors = [
        replace(tensor, name=f"{each.key[cut:]}.{tensor.name}".lstrip(".")) for each in below for tensor in each.tensors
    ]
    return Weights(tensors, key), others, []


def _listed(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _MOST_LISTED} more" if len(keys) > _MOST_LISTED else ""
    return (", ".join(quoted(key) for key in keys[:_MOST_LISTED]) or "nothing") + more


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
