"""A path or a mapping -> a `Checkpoint`: the format by what a file contains, the weights by what they are.

Tensors are read one at a time when asked for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import Tensor

from tempbalance.checkpoint.contents import find_weights
from tempbalance.checkpoint.files import naming, shown
from tempbalance.checkpoint.folders import read_folder
from tempbalance.checkpoint.formats import read_file
from tempbalance.checkpoint.quantized import dequantize
from tempbalance.checkpoint.tensors import Checkpoint, StoredTensor, Weights, choose, without_wrappers
from tempbalance.errors import CheckpointError, TempBalanceError


def read_checkpoint(source: str | os.PathLike[str] | Mapping[str, Tensor], *, key: str | None = None) -> Checkpoint:
    """Find the weights in a file, a folder or a mapping, without reading their values yet.

    Args:
        source: A file of safetensors, of ``torch.save`` (state dict, checkpoint or whole module), TorchScript,
            ``torch.export``, NumPy (``.npz``) or pickle; a folder of them with its index, of a LoRA adapter, of
            accelerate, or of ``torch.distributed.checkpoint``; or names with tensors.
        key: Which mapping of names to tensors to take, such as ``ema`` or ``netG``; without it the largest that is not
            an optimizer's.

    Raises:
        CheckpointError: If there is nothing to read, or it is broken or made to do harm. One line.
    """
    if isinstance(source, Mapping):
        with naming("the mapping"):
            return _checkpoint("mapping", find_weights(source, Tensor, _in_memory), (), key)
    path = Path(source)
    if not os.path.isdir(path):
        with naming(shown(path.name)):
            return _checkpoint(path.name, read_file(path), (), key, path.parent)
    name = path.resolve().name
    with naming(shown(name)):
        found, notes = read_folder(path)
        return _checkpoint(name, found, notes, key, path)


def _checkpoint(
    name: str, found: list[Weights], notes: tuple[str, ...], key: str | None, folder: Path | None = None
) -> Checkpoint:
    taken, others, choice = choose(found, key)
    bare = dequantize(without_wrappers(taken.tensors), folder)
    tensors = [replace(tensor, load=partial(_load, name, tensor)) for tensor in bare]
    return Checkpoint(name, tuple(tensors), taken.key, (*choice, *notes), tuple(others))


def _load(name: str, tensor: StoredTensor) -> Tensor:
    with naming(f"{shown(tensor.name)} of {shown(name)}"):
        try:
            return tensor.load()
        except TempBalanceError:
            raise
        except (OSError, RuntimeError, MemoryError, ValueError) as err:
            raise CheckpointError(f"{tensor.num_bytes:,} bytes cannot be read: {type(err).__name__}") from err


def _in_memory(name: str, tensor: Tensor) -> StoredTensor:
    return StoredTensor(name, tuple(tensor.shape), tensor.dtype, tensor.detach, _region(tensor))


def _region(tensor: Tensor) -> tuple[object, ...] | None:
    """Return the memory of a dense tensor, as something to compare."""
    try:
        return (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) if tensor.numel() else None
    except (RuntimeError, NotImplementedError):
        return None
