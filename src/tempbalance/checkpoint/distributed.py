"""Folders of ``torch.distributed.checkpoint``: a pickle of where each piece of each tensor is, and files of pieces."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tempbalance.checkpoint.archives import Archive
from tempbalance.checkpoint.contents import find_weights
from tempbalance.checkpoint.described import Described, dtype_of, load_values
from tempbalance.checkpoint.files import (
    inside,
    naming,
    num_elements,
    open_file,
    plain_record,
    read_index,
    shown,
    size_of,
)
from tempbalance.checkpoint.pickles import read_pickle
from tempbalance.checkpoint.tensors import StoredTensor, Weights
from tempbalance.errors import CheckpointError

METADATA = ".metadata"
_MOST_NESTED = 64


@dataclass(frozen=True)
class _Chunk:
    path: Path
    start: int
    num_bytes: int
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _Tensor:
    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: list[_Chunk]


def read_distributed(folder: Path) -> list[Weights]:
    """Read the mappings of a folder, whose tensors are put together from their pieces.

    Raises:
        CheckpointError: If the metadata is not what torch writes, or pieces are missing or lie outside.
    """
    content = io.BytesIO(read_index(inside(folder, METADATA)))
    with naming(METADATA):
        metadata = read_pickle(content)
    try:
        tree = _tree(folder, metadata)
    except (AttributeError, TypeError, LookupError) as err:
        raise CheckpointError(f"{METADATA} is not what torch.distributed.checkpoint writes") from err
    return find_weights(tree, _Tensor, _stored)


def _tree(folder: Path, metadata: Any) -> dict[str, Any]:
    """The state dict as it was before its names were joined, with tensors for its leaves."""
    places = {}
    for key, info in metadata.state["storage_data"].items():
        places[_place(key.state["fqn"], key.state.get("offset"))] = info.state
    paths = metadata.state.get("planner_data") or {}
    tree: dict[str, Any] = {}
    for name, entry in metadata.state["state_dict_metadata"].items():
        if entry.name.endswith(".TensorStorageMetadata"):
            *parents, leaf = _path(name, paths)
            branch = tree
            for part in parents:
                branch = branch.setdefault(part, {})
            branch[leaf] = _tensor(folder, name, entry.state, places)
    return tree


def _place(name: str, offsets: Any) -> tuple[str, str] | None:
    """A key for a piece; text, as numbers could be chosen to collide."""
    if offsets is None:
        return None
    num_elements(f"the place of a piece of {shown(name)}", offsets)
    return name, ",".join(map(str, offsets))


def _path(name: str, paths: Mapping[str, Any]) -> list[str]:
    path = paths.get(name, (name,))
    is_plain = isinstance(path, tuple) and all(isinstance(part, str | int) for part in path)
    if not is_plain or not 0 < len(path) <= _MOST_NESTED:
        raise CheckpointError(f"{METADATA} has no path for {shown(name)}")
    return [part if isinstance(part, str) else shown(part) for part in path]


def _tensor(folder: Path, name: str, state: Any, places: Mapping[Any, Any]) -> _Tensor:
    """A tensor whose pieces have the right size in total, each at an offset of its own."""
    shape, dtype = state["size"], dtype_of(state["properties"].state[0])
    count = num_elements(f"tensor {shown(name)}", shape)
    pieces = {_place(name, chunk.state["offsets"]): chunk.state for chunk in state["chunks"]}
    chunks = [_chunk(folder, name, shape, piece, places) for piece in pieces.values()]
    num_covered = sum(math.prod(chunk.shape) for chunk in chunks)
    if dtype is None or len(chunks) != len(state["chunks"]) or num_covered != count:
        raise CheckpointError(f"the pieces of {shown(name)} do not make up the whole tensor")
    return _Tensor(dtype, shape, chunks)


def _chunk(folder: Path, name: str, whole: tuple[int, ...], state: Any, places: Mapping[Any, Any]) -> _Chunk:
    offsets, shape = state["offsets"], state["sizes"]
    num_elements(f"a piece of {shown(name)}", shape)
    num_elements(f"a piece of {shown(name)}", offsets)
    fits = len(offsets) == len(shape) == len(whole)
    if not fits or any(low + side > limit for low, side, limit in zip(offsets, shape, whole, strict=True)):
        raise CheckpointError(f"a piece of {shown(name)} reaches beyond the tensor")
    place = places.get(_place(name, offsets))
    if place is None or place.get("transform_descriptors"):
        raise CheckpointError(f"a piece of {shown(name)} is in no file, or in one that is transformed")
    start, num_bytes = place["offset"], place["length"]
    if not (isinstance(start, int) and isinstance(num_bytes, int) and start >= 0 and 0 <= start + num_bytes < 2**62):
        raise CheckpointError(f"a piece of {shown(name)} is at no place in a file")
    return _Chunk(inside(folder, place["relative_path"]), start, num_bytes, offsets, shape)


def _stored(name: str, tensor: Any) -> StoredTensor:
    for path in {chunk.path for chunk in tensor.chunks}:
        with naming(shown(path.name)), open_file(path) as file:
            size = size_of(file)
        for chunk in tensor.chunks:
            if chunk.path == path and chunk.start + chunk.num_bytes > size:
                raise CheckpointError(f"a piece of {shown(name)} reaches beyond {shown(path.name)}")
    return StoredTensor(name, tensor.shape, tensor.dtype, partial(_load, name, tensor))


def _load(name: str, tensor: _Tensor) -> Tensor:
    if len(tensor.chunks) == 1:
        return _load_chunk(name, tensor.chunks[0], tensor.dtype)
    whole = torch.zeros(tensor.shape, dtype=tensor.dtype)
    for chunk in tensor.chunks:
        spans = tuple(slice(low, low + side) for low, side in zip(chunk.offsets, chunk.shape, strict=True))
        whole[spans] = _load_chunk(name, chunk, tensor.dtype)
    return whole


def _load_chunk(name: str, chunk: _Chunk, dtype: torch.dtype) -> Tensor:
    """A piece is a file of ``torch.save`` with one tensor, inside a larger file."""
    data = plain_record(partial(open_file, chunk.path), chunk.start, chunk.num_bytes).read(0, chunk.num_bytes)
    content = data.numpy().tobytes()
    piece = Archive(lambda: io.BytesIO(content)).pickled()
    if not isinstance(piece, Described) or piece.storage is None or piece.quantizer:
        raise CheckpointError(f"a piece of {shown(name)} is not a dense tensor")
    if (piece.dtype, piece.shape) != (dtype, chunk.shape):
        raise CheckpointError(f"a piece of {shown(name)} is not what {METADATA} says")
    return load_values(piece)
