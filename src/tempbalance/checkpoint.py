"""Weights from files, read while nothing that a file contains is run.

Formats are told by what a file contains, not by what it is called. Tensors are read one at a time when asked for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch import Tensor

from tempbalance.errors import CheckpointError
from tempbalance.stored.files import naming, shown
from tempbalance.stored.folders import read_folder
from tempbalance.stored.formats import read_file
from tempbalance.stored.tensors import StoredTensor, Weights, find_weights, without_wrappers

__all__ = ["Checkpoint", "StoredTensor", "read_checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a file, a folder or a mapping.

    Attributes:
        name: What to call it: the name of the file or folder.
        tensors: Its tensors, in the file's order; those of safetensors files in natural order of their names.
        found_under: Where in the file the weights were, such as ``"state_dict"``; empty for the top.
        notes: What a reader should know, such as that other weights are there too.
    """

    name: str
    tensors: tuple[StoredTensor, ...]
    found_under: str = ""
    notes: tuple[str, ...] = ()


def read_checkpoint(source: str | os.PathLike[str] | Mapping[str, Tensor]) -> Checkpoint:
    """Find the weights in a file, a folder or a mapping, without reading their values yet.

    Args:
        source: A ``.safetensors``, ``.pt``, ``.pth``, ``.bin`` or ``.ckpt`` file; a folder of them with its index, of a
            LoRA adapter, or of ``torch.distributed.checkpoint``; or names with tensors.

    Raises:
        CheckpointError: If there is nothing to read, or reading it would mean to trust it. One line.
    """
    if isinstance(source, Mapping):
        return _from_mapping(source)
    path = Path(source)
    if not os.path.isdir(path):
        return _checkpoint(path.name, read_file(path))
    with naming(shown(path.resolve().name)):
        return _checkpoint(path.resolve().name, read_folder(path))


def _checkpoint(name: str, weights: Weights) -> Checkpoint:
    if not weights.tensors:
        raise CheckpointError(f"{shown(name)}: holds no tensors")
    tensors = [replace(tensor, load=partial(_load, name, tensor)) for tensor in without_wrappers(weights.tensors)]
    return Checkpoint(name, tuple(tensors), weights.under, weights.notes)


def _load(name: str, tensor: StoredTensor) -> Tensor:
    with naming(f"{shown(tensor.name)} of {shown(name)}"):
        try:
            return tensor.load()
        except (OSError, RuntimeError, MemoryError) as err:
            raise CheckpointError(f"{tensor.num_bytes:,} bytes cannot be read: {type(err).__name__}") from err


def _from_mapping(source: Mapping[str, Tensor]) -> Checkpoint:
    with naming("the mapping"):
        found = find_weights(source, Tensor)
    tensors = [_in_memory(name, tensor) for name, tensor in found.tensors.items() if isinstance(tensor, Tensor)]
    return _checkpoint("mapping", Weights(tensors, found.under, found.notes))


def _in_memory(name: str, tensor: Tensor) -> StoredTensor:
    return StoredTensor(name, tuple(tensor.shape), tensor.dtype, partial(_itself, tensor), _region(tensor))


def _itself(tensor: Tensor) -> Tensor:
    return tensor.detach()


def _region(tensor: Tensor) -> tuple[object, ...] | None:
    """The memory of a dense tensor, as something to compare."""
    try:
        return (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) if tensor.numel() else None
    except (RuntimeError, NotImplementedError):
        return None
