"""One file -> its mappings of names to tensors, in the format that its first bytes show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tempbalance.checkpoint.archives import read_archive
from tempbalance.checkpoint.files import (
    MOST_INDEX_BYTES,
    READABLE,
    SUFFIXES,
    num_elements,
    open_file,
    parse_json,
    shown,
    size_of,
)
from tempbalance.checkpoint.pickles import read_stream
from tempbalance.checkpoint.tensors import StoredTensor, Weights, natural_order
from tempbalance.errors import CheckpointError

_HEAD_BYTES = 512
_ONNX_ADVICE = "load it where it was made and save the state_dict() of the PyTorch model"
# the first bytes of formats that are not read
_OTHERS = ((b"GGUF", "GGUF"), (b"\x89HDF\r\n\x1a\n", "HDF5"), (b"\x1f\x8b", "gzip"), (b"\x93NUMPY", "NumPy"))
_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I16": torch.int16,
    "U32": torch.uint32, "I32": torch.int32, "U64": torch.uint64, "I64": torch.int64, "F16": torch.float16,
    "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}  # fmt: skip


def read_file(path: Path) -> list[Weights]:
    """Read the mappings of a file.

    Raises:
        CheckpointError: If it is of no format that is read, is broken, or is made to do harm.
    """
    with open_file(path) as file:
        head = file.read(_HEAD_BYTES)
    if not head:
        raise CheckpointError("is empty")
    if head[8:9] == b"{":
        return [Weights(_read_safetensors(path))]
    if head.startswith(b"PK"):
        return read_archive(partial(open_file, path))
    suffix = path.suffix.lower()
    _refuse_others(head, suffix)
    if suffix == ".safetensors" and not head.startswith(b"\x80"):
        return [Weights(_read_safetensors(path))]
    if head.startswith(b"\x80") or suffix in SUFFIXES:
        return read_stream(partial(open_file, path))
    raise CheckpointError(f"is not in a format that is read: {READABLE}")


def _refuse_others(head: bytes, suffix: str) -> None:
    """Say what a file of another format is, and what to do."""
    if suffix == ".onnx" or (head[:1] == b"\x08" and head[2:3] in (b"\x12", b":")):
        raise CheckpointError(f"is ONNX, a program with its weights: {_ONNX_ADVICE}")
    if head[257:262] == b"ustar":
        raise CheckpointError(f"is a tar archive (torch wrote them before 0.4), which is not read: {READABLE}")
    for magic, name in _OTHERS:
        if head.startswith(magic):
            raise CheckpointError(f"is a file of {name}, which is not read: {READABLE}")
    if head.startswith(b"version https://git-lfs"):
        raise CheckpointError("is a pointer of Git LFS, not the weights: fetch them with git lfs pull")
    if suffix == ".json":
        raise CheckpointError("is an index or a configuration: hand over the folder that it is in")


def _read_safetensors(path: Path) -> list[StoredTensor]:
    """Read the tensors of a safetensors file, in natural order of their names, as the header has them in none.

    The package checks everything but two things: how large a header may be, and that no name stands in it twice.
    """
    with open_file(path) as file:
        size = size_of(file)
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise CheckpointError(f"the safetensors header claims {length:,} bytes, the file has {size:,} (cut off?)")
        if length > MOST_INDEX_BYTES:
            raise CheckpointError(f"the safetensors header has {length:,} bytes, more than {MOST_INDEX_BYTES:,}")
        header = parse_json(file.read(length), "the safetensors header")
    header.pop("__metadata__", None)
    with _opened(path):
        tensors = [_described(path, name, entry) for name, entry in header.items()]
    return sorted(tensors, key=lambda tensor: natural_order(tensor.name))


def _described(path: Path, name: str, entry: object) -> StoredTensor:
    """Describe a tensor of a header that the package has found to be right."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(
            f"tensor {shown(name)} needs dtype, shape and data_offsets in the header, and nothing else"
        )
    num_elements(f"tensor {shown(name)}", entry["shape"])
    dtype, problem = _DTYPES.get(entry["dtype"]), ""
    if dtype is None:
        dtype, problem = torch.uint8, f"{shown(entry['dtype'])}, a dtype that is not read"
    return StoredTensor(name, tuple(entry["shape"]), dtype, partial(_load, path, name), problem=problem)


def _load(path: Path, name: str) -> Tensor:
    """Read a tensor; the file is closed with it, as the pages of an open one would add up."""
    with _opened(path) as file:
        tensor: Tensor = file.get_tensor(name)
        return tensor


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open  # not needed for other formats

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as err:
        said = " ".join(str(err).split())
        raise CheckpointError(f"the safetensors file is broken or cut off: {shown(said)[1:-1]}") from err
