"""The safetensors format: a length, a JSON header, and the bytes of all tensors without holes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from tempbalance.errors import CheckpointError
from tempbalance.stored.files import (
    MOST_INDEX_BYTES,
    Record,
    num_elements,
    open_file,
    parse_json,
    plain_record,
    shown,
    size_of,
)
from tempbalance.stored.tensors import StoredTensor, natural_order

_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I16": torch.int16,
    "U32": torch.uint32, "I32": torch.int32, "U64": torch.uint64, "I64": torch.int64, "F16": torch.float16,
    "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}  # fmt: skip


def read_safetensors(path: Path) -> list[StoredTensor]:
    """The tensors of a file, in natural order of their names, as the header has them in none.

    Raises:
        CheckpointError: If the file is not in every way what the format asks for.
    """
    header, start, size = _read_header(path)
    spans = []
    tensors = []
    for name, entry in header.items():
        dtype, shape, begin, end = _checked(name, entry, size)
        spans.append((begin, end))
        record = plain_record(partial(open_file, path), start + begin, end - begin)
        tensors.append(StoredTensor(name, shape, dtype, partial(_load, record, dtype, shape)))
    _check_no_holes(spans, size)
    return sorted(tensors, key=lambda tensor: natural_order(tensor.name))


def _read_header(path: Path) -> tuple[dict[str, object], int, int]:
    """The entries of the header, where the data starts, and its length."""
    with open_file(path) as file:
        size = size_of(file)
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise CheckpointError(f"the safetensors header claims {length:,} bytes, the file has {size:,} (cut off?)")
        if length > MOST_INDEX_BYTES:
            raise CheckpointError(f"the safetensors header has {length:,} bytes, more than {MOST_INDEX_BYTES:,}")
        header = parse_json(file.read(length), "the safetensors header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError("the safetensors header has a __metadata__ that does not map strings to strings")
    return header, 8 + length, size - 8 - length


def _checked(name: str, entry: object, size: int) -> tuple[torch.dtype, tuple[int, ...], int, int]:
    what = f"tensor {shown(name)}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{what} needs dtype, shape and data_offsets in the safetensors header, and nothing else")
    dtype = _DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise CheckpointError(f"{what} has dtype {shown(entry['dtype'])}, which is not one that is read")
    if not isinstance(entry["shape"], list):
        raise CheckpointError(f"{what} has a shape that is not a list")
    num_bytes = num_elements(what, entry["shape"]) * dtype.itemsize
    match entry["data_offsets"]:
        case [int() as begin, int() as end] if 0 <= begin <= end <= size and end - begin == num_bytes:
            return dtype, tuple(entry["shape"]), begin, end
    raise CheckpointError(f"{what} has data_offsets that do not fit its {num_bytes:,} bytes or the file's {size:,}")


def _check_no_holes(spans: list[tuple[int, int]], size: int) -> None:
    reached = 0
    for begin, end in sorted(spans):
        if begin != reached:
            raise CheckpointError(f"tensors in the safetensors file overlap or leave a hole at byte {reached:,}")
        reached = end
    if reached != size:
        raise CheckpointError(f"the safetensors header describes {reached:,} bytes of tensors, the file has {size:,}")


def _load(record: Record, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return record.read(0, record.num_bytes).view(dtype).reshape(shape)
