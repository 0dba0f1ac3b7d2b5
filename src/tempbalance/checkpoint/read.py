"""Read a checkpoint: a mapping, a file, or a folder with shards, an adapter or a distributed checkpoint."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tempbalance.checkpoint.derived import derive_weights, lora_products
from tempbalance.checkpoint.formats import MOST_DIRECTORY, SUFFIXES, read_archive, read_content
from tempbalance.checkpoint.pickles import dtype_of, read_stream
from tempbalance.checkpoint.tensors import (
    File,
    StoredTensor,
    available_memory,
    check_unfolding,
    inside,
    naming,
    natural_order,
    num_elements,
    read_json,
    require,
)
from tempbalance.checkpoint.weights import Weights, choose, find_weights, without_wrappers
from tempbalance.errors import CheckpointError, WeightError, quoted

_MOST_SHARDS, _MOST_NESTED = 10_000, 64
_SINGLE = ("model.safetensors", "pytorch_model.bin")
_INDICES = tuple(f"{name}.index.json" for name in _SINGLE)
_ADAPTER, _ADAPTERS = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")
_METADATA = ".metadata"
# files that trainers save beside the weights with the same suffix
_BESIDE = re.compile(
    r"(^|[._-])(optim(izer)?s?|scheduler|scaler|rng_state|training_args|random_states|sampler|custom_checkpoint)([._-]|$)"
)

Found = tuple[list[Weights], list[str]]  # mappings and notes


@dataclass(frozen=True)
class Checkpoint:
    """The weights of a file, a folder or a mapping."""

    name: str
    tensors: tuple[StoredTensor, ...]  # in the file's order; of safetensors files, in natural order of their names
    key: str = ""  # where in the file they were, such as "state_dict"
    notes: tuple[str, ...] = ()
    others: tuple[Weights, ...] = ()  # mappings that were not chosen


def read_checkpoint(source: str | os.PathLike[str] | Mapping[str, Tensor], *, key: str | None = None) -> Checkpoint:
    """Find the weights in a file, a folder or a mapping, without reading their values yet.

    Args:
        source: A file of safetensors, of ``torch.save`` (state dict, checkpoint or whole module), TorchScript,
            ``torch.export``, NumPy (``.npz``) or pickle; a folder of them with its index, of a LoRA adapter, of
            accelerate, or of ``torch.distributed.checkpoint``; or names with tensors.
        key: Which mapping of names to tensors to take, such as ``ema`` or ``netG``; without it the largest that is not
            an optimizer's.

    Raises:
        CheckpointError: If there is nothing to read, or the file is broken or malicious. One line.
    """
    if isinstance(source, Mapping):
        return _checkpoint("mapping", lambda: (find_weights(source), []), key, None)
    path = Path(source)
    if os.path.isdir(path):
        return _checkpoint(path.resolve().name, lambda: _read_folder(path), key, path)
    return _checkpoint(path.name, lambda: (find_weights(read_content(path)), []), key, path.parent)


def _checkpoint(name: str, find: Callable[[], Found], key: str | None, folder: Path | None) -> Checkpoint:
    with naming(quoted(name)):
        found, notes = find()
        taken, others, choice = choose(found, key)
        check_unfolding(taken.tensors)
        bare = derive_weights(without_wrappers(taken.tensors), folder)
    tensors = [replace(tensor, load=partial(_load, name, tensor)) for tensor in bare]
    return Checkpoint(name, tuple(tensors), taken.key, (*choice, *notes), tuple(others))


def _load(name: str, tensor: StoredTensor) -> Tensor:
    with naming(f"{quoted(tensor.name)} of {quoted(name)}"):
        # twice for the matrix that is solved; the product of LoRA factors itself is never computed
        is_whole = tensor.rank is None and not tensor.problem
        needed = 2 * max(tensor.num_bytes, 4 * math.prod(tensor.shape)) if is_whole else 0
        available = available_memory()
        require(needed <= available, f"needs at least {needed:,} bytes of memory, {available:,} are available")
        try:
            return tensor.load()
        except WeightError as err:
            raise WeightError(f"{quoted(tensor.name)} is {err}") from err
        except (OSError, MemoryError) as err:
            raise CheckpointError(f"{tensor.num_bytes:,} bytes cannot be read: {type(err).__name__}") from err
        except (RuntimeError, ValueError, LookupError, TypeError) as err:
            raise WeightError(f"{quoted(tensor.name)} cannot be computed: {type(err).__name__}") from err


# folders


def _read_folder(folder: Path) -> Found:
    """Read a folder: an adapter, shards with an index, a distributed checkpoint, or one file."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as err:
        raise CheckpointError(f"cannot be listed: {err.strerror}") from err
    if _ADAPTER in names:
        return _read_adapter(folder, names)
    if (index := _only(names, _INDICES, ".index.json")) is not None:
        return _read_shards(folder, index)
    if _METADATA in names:
        return _read_distributed(folder), []
    weights = [name for name in names if name.endswith(SUFFIXES) and not _BESIDE.search(name)]
    safe = [name for name in weights if name.endswith(".safetensors")]
    if (single := _only(safe or weights, _SINGLE, SUFFIXES)) is not None:
        others = [name for name in safe if name != single]
        notes = [f"also has {', '.join(map(quoted, others[:4]))}: hand over the file"] if others else []
        return _read_part(folder, single), notes
    require(weights, f"has no weights: no file ends in {', '.join(SUFFIXES)} and none is an index")
    raise CheckpointError(f"has {len(weights)} files of weights and no index: hand over one, say {quoted(weights[0])}")


def _only(names: list[str], preferred: tuple[str, ...], suffixes: str | tuple[str, ...]) -> str | None:
    """Return the first of the preferred names that is there, or the only one with a suffix."""
    candidates = [name for name in names if name.endswith(suffixes)]
    usual = [name for name in preferred if name in names]
    return usual[0] if usual else candidates[0] if len(candidates) == 1 else None


def _read_part(folder: Path, name: str) -> list[Weights]:
    """Read the mappings of a file of a folder."""
    path = inside(folder, name)
    with naming(quoted(name)):
        return find_weights(read_content(path))


def _read_adapter(folder: Path, names: list[str]) -> Found:
    config = read_json(inside(folder, _ADAPTER))
    present = [name for name in _ADAPTERS if name in names]
    require(present, f"has {_ADAPTER} but neither {' nor '.join(_ADAPTERS)}")
    found, _, notes = choose(_read_part(folder, present[0]), None)
    notes += ["the magnitudes of DoRA are not part of the products"] if config.get("use_dora") else []
    return [replace(found, tensors=lora_products(found.tensors, config))], notes


def _read_shards(folder: Path, index: str) -> Found:
    shard_of: Any = read_json(inside(folder, index)).get("weight_map")
    is_map = isinstance(shard_of, dict) and shard_of and all(isinstance(each, str) for each in shard_of.values())
    require(is_map, f"{quoted(index)} has no weight_map of names to files")
    shards = sorted(set(shard_of.values()), key=natural_order)
    require(len(shards) <= _MOST_SHARDS, f"{quoted(index)} names {len(shards):,} shards, more than {_MOST_SHARDS:,}")
    files = [path.stat() for shard in shards if os.path.exists(path := inside(folder, shard))]
    # one file under a thousand names would be read a thousand times
    are_distinct = len({(file.st_dev, file.st_ino) for file in files}) == len(files)
    require(are_distinct, f"{quoted(index)} names one file as two shards")
    tensors: list[StoredTensor] = []
    num_held = 0
    for shard in shards:
        held = choose(_read_part(folder, shard), None)[0].tensors
        num_held += len(held)
        tensors += [tensor for tensor in held if shard_of.get(tensor.name) == shard]
    for missing in sorted(set(shard_of) - {tensor.name for tensor in tensors})[:1]:
        where = f"{quoted(missing)} is in {quoted(shard_of[missing])}"
        raise CheckpointError(f"{quoted(index)} says that {where}: it is not")
    tensors.sort(key=lambda tensor: natural_order(tensor.name))  # shards are not in the model's order
    num_extra = num_held - len(tensors)
    return [Weights(tensors)], [f"{num_extra} tensors of its shards are not in the index"] if num_extra else []


# torch.distributed.checkpoint: a pickle of where each piece of each tensor is, and files of pieces


def _read_distributed(folder: Path) -> list[Weights]:
    """Read the mappings of a distributed checkpoint: the state dict as it was before its names were joined."""
    with naming(_METADATA):
        metadata = read_stream(File(inside(folder, _METADATA)))
    try:
        state = metadata.state
        places = {
            _place(key.state["fqn"], key.state["offset"]): info.state
            for key, info in state["storage_data"].items()
            if key.state.get("offset") is not None
        }
        paths = state.get("planner_data") or {}
        tree: dict[str, Any] = {}
        for name, entry in state["state_dict_metadata"].items():
            if entry.name.endswith(".TensorStorageMetadata"):
                path = paths.get(name, (name,))
                is_plain = isinstance(path, tuple) and all(isinstance(part, str | int) for part in path)
                is_fine = is_plain and 0 < len(path) <= _MOST_NESTED
                require(is_fine, f"{_METADATA} has no path for {quoted(name)}")
                *parents, leaf = (part if isinstance(part, str) else quoted(part) for part in path)
                branch = tree
                for part in parents:
                    branch = branch.setdefault(part, {})
                branch[leaf] = _distributed_tensor(folder, name, entry.state, places)
        return find_weights(tree)
    except (AttributeError, TypeError, LookupError) as err:
        raise CheckpointError(f"{_METADATA} is not what torch.distributed.checkpoint writes") from err


def _place(name: object, offsets: Any) -> tuple[str, str]:
    """Return a key for a piece as text, because a file could choose numbers or tuples that are slow to hash."""
    if not isinstance(name, str):
        raise CheckpointError(f"{_METADATA} has {quoted(name)} for the name of a tensor")
    num_elements(f"the place of a piece of {quoted(name)}", offsets)
    return name, ",".join(map(str, offsets))


def _distributed_tensor(folder: Path, name: str, state: Any, places: Mapping[Any, Any]) -> StoredTensor:
    """Describe a tensor whose pieces have the right size in total, each at another offset."""
    shape, dtype = state["size"], dtype_of(state["properties"].state[0])
    count, what = num_elements(f"tensor {quoted(name)}", shape), f"a piece of {quoted(name)}"
    pieces: dict[tuple[str, str], tuple[tuple[slice, ...], File]] = {}
    for chunk in state["chunks"]:
        offsets, sides = chunk.state["offsets"], chunk.state["sizes"]
        place = _place(name, offsets)
        count -= num_elements(what, sides)
        require(len(offsets) == len(sides) == len(shape), f"{what} has other dimensions")
        spans = tuple(slice(low, low + side) for low, side in zip(offsets, sides, strict=True))
        is_within = all(span.stop <= side for span, side in zip(spans, shape, strict=True))
        require(is_within and place not in pieces, f"{what} reaches beyond the tensor, or is there twice")
        pieces[place] = (spans, _section(folder, what, places.get(place)))
    if dtype is None or count:
        raise CheckpointError(f"the pieces of {quoted(name)} do not make up the whole tensor")
    return StoredTensor(name, shape, dtype, partial(_load_pieces, shape, dtype, list(pieces.values())))


def _section(folder: Path, what: str, place: Any) -> File:
    """Return the part of a file that a piece is in."""
    require(place and not place.get("transform_descriptors"), f"{what} is in no file, or in one that is transformed")
    start, num_bytes = place["offset"], place["length"]
    are_places = all(isinstance(each, int) and 0 <= each < 2**62 for each in (start, num_bytes))
    require(are_places, f"{what} is at no place in a file")
    path = inside(folder, place["relative_path"])
    with naming(quoted(path.name)):
        return File(path, most=MOST_DIRECTORY, start=start, num_bytes=num_bytes)


def _load_pieces(shape: tuple[int, ...], dtype: torch.dtype, pieces: list[tuple[tuple[slice, ...], File]]) -> Tensor:
    """Join the pieces of a tensor; each piece is a ``torch.save`` archive with one tensor inside a larger file."""
    whole, is_filled = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=torch.bool)
    for spans, file in pieces:
        piece, sides = read_archive(file), tuple(span.stop - span.start for span in spans)
        if not isinstance(piece, StoredTensor) or piece.problem or (piece.dtype, piece.shape) != (dtype, sides):
            raise CheckpointError(f"a piece is not the tensor that {_METADATA} describes")
        if len(pieces) == 1:
            return piece.load()
        require(not is_filled[spans].any(), "its pieces overlap")
        whole[spans], is_filled[spans] = piece.load(), True
    return whole
