"""Folders: one file among others, or shards and their index as Hugging Face writes them."""

from __future__ import annotations

import os
from pathlib import Path

from tempbalance.checkpoint.adapters import CONFIG, read_adapter
from tempbalance.checkpoint.distributed import METADATA, read_distributed
from tempbalance.checkpoint.files import SUFFIXES, inside, naming, parse_json, read_index, shown
from tempbalance.checkpoint.formats import read_file
from tempbalance.checkpoint.tensors import StoredTensor, Weights, choose, natural_order
from tempbalance.errors import CheckpointError

_MOST_SHARDS = 10_000
_SINGLE = ("model.safetensors", "pytorch_model.bin")
_INDICES = tuple(f"{name}.index.json" for name in _SINGLE)
# what trainers put beside the weights under a suffix of theirs
_BESIDE = (
    "optim",
    "scheduler",
    "scaler",
    "rng_state",
    "training_args",
    "random_states",
    "sampler",
    "custom_checkpoint",
)


def read_folder(folder: Path) -> tuple[list[Weights], tuple[str, ...]]:
    """Read a folder: an adapter, shards with an index, a distributed checkpoint, or one file.

    Returns:
        Its mappings of names to tensors, and what a reader should know.

    Raises:
        CheckpointError: If there are none, or it is not clear which are meant, or something in it lies elsewhere.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as err:
        raise CheckpointError(f"cannot be listed: {err.strerror}") from err
    if CONFIG in names:
        return read_adapter(folder)
    if (index := _only(names, _INDICES, ".index.json")) is not None:
        return _read_shards(folder, index)
    if METADATA in names:
        return read_distributed(folder), ()
    weights = [name for name in names if name.endswith(SUFFIXES) and not any(part in name for part in _BESIDE)]
    safe = [name for name in weights if name.endswith(".safetensors")]
    if (single := _only(safe or weights, _SINGLE, SUFFIXES)) is not None:
        others = [name for name in safe if name != single]
        notes = (f"also has {', '.join(map(shown, others[:4]))}: hand over the file",) if others else ()
        with naming(shown(single)):
            return read_file(inside(folder, single)), notes
    if not weights:
        raise CheckpointError(f"has no weights: no file ends in {', '.join(SUFFIXES)} and none is an index")
    raise CheckpointError(f"has {len(weights)} files of weights and no index: hand over one, say {shown(weights[0])}")


def _only(names: list[str], preferred: tuple[str, ...], suffixes: str | tuple[str, ...]) -> str | None:
    """The first of the preferred names that is there, or the only one with a suffix."""
    candidates = [name for name in names if name.endswith(suffixes)]
    usual = [name for name in preferred if name in names]
    return usual[0] if usual else candidates[0] if len(candidates) == 1 else None


def _read_shards(folder: Path, index: str) -> tuple[list[Weights], tuple[str, ...]]:
    shard_of = _weight_map(folder, index)
    shards = sorted(set(shard_of.values()), key=natural_order)
    if len(shards) > _MOST_SHARDS:
        raise CheckpointError(f"{shown(index)} names {len(shards):,} shards, more than {_MOST_SHARDS:,}")
    paths = {shard: inside(folder, shard) for shard in shards}
    _check_distinct(index, list(paths.values()))
    tensors: list[StoredTensor] = []
    num_extra = 0
    for shard, path in paths.items():
        with naming(shown(shard)):
            held = choose(read_file(path), None)[0].tensors
        listed = [tensor for tensor in held if shard_of.get(tensor.name) == shard]
        num_extra += len(held) - len(listed)
        tensors += listed
    if len(tensors) < len(shard_of):
        missing = min(set(shard_of) - {tensor.name for tensor in tensors})
        raise CheckpointError(f"{shown(index)} says that {shown(missing)} is in {shown(shard_of[missing])}: it is not")
    tensors.sort(key=lambda tensor: natural_order(tensor.name))  # shards are not in the model's order
    notes = (f"{num_extra} tensors of its shards are not in the index",) if num_extra else ()
    return [Weights(tensors)], notes


def _check_distinct(index: str, paths: list[Path]) -> None:
    """One file under a thousand names would be read a thousand times."""
    files = [path.stat() for path in paths if os.path.exists(path)]
    if len({(file.st_dev, file.st_ino) for file in files}) < len(files):
        raise CheckpointError(f"{shown(index)} names one file as two shards")


def _weight_map(folder: Path, index: str) -> dict[str, str]:
    """Which shard each tensor is in."""
    content = parse_json(read_index(inside(folder, index)), shown(index))
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{shown(index)} has no weight_map of names to files")
    if not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CheckpointError(f"{shown(index)} has a weight_map whose files are not all strings")
    return weight_map
