"""Files that ``torch.save`` wrote: a pickle that describes tensors, and their storages beside it."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from torch import Tensor

from tempbalance.errors import CheckpointError, WeightError
from tempbalance.stored.archives import Archive
from tempbalance.stored.described import VOCABULARY, PickledTensor, Storage, load, storage_of
from tempbalance.stored.files import MOST_INDEX_BYTES, Opener, Record, open_file, plain_record, shown, size_of
from tempbalance.stored.opcodes import read_pickle
from tempbalance.stored.tensors import StoredTensor, Weights, find_weights

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_FEW = 1000  # instructions of the pickles around the one that describes tensors


def read_zip(opener: Opener) -> tuple[object, dict[str, Record]]:
    """What the pickle of an archive holds, and the archive's storages, each as long as the pickle says."""
    archive = Archive(opener)
    storages: dict[str, Record] = {}

    def persistent(saved_id: object) -> object:
        storage = storage_of(saved_id)
        record = storages.get(storage.key) or archive.record(f"data/{storage.key}")
        if record.num_bytes != storage.num_bytes:
            raise CheckpointError(
                f"storage {shown(storage.key)} should have {storage.num_bytes:,} bytes, "
                f"the archive has {record.num_bytes:,}"
            )
        storages[storage.key] = record
        return storage

    return read_pickle(io.BytesIO(archive.small("data.pkl")), VOCABULARY, persistent), storages


def read_stream(opener: Opener) -> tuple[object, dict[str, Record]]:
    """The same of the format before torch 1.6: pickles one after the other, then the storages."""
    declared: dict[str, Storage] = {}

    def persistent(saved_id: object) -> object:
        storage = storage_of(saved_id)
        if declared.setdefault(storage.key, storage) != storage:
            raise CheckpointError(f"its pickle describes storage {shown(storage.key)} in two ways")
        return storage

    with opener() as file:
        size = size_of(file)
        file.seek(0)
        front = io.BytesIO(file.read(MOST_INDEX_BYTES))
        read = partial(read_pickle, front, VOCABULARY, persistent)
        if read(most=_FEW) != _MAGIC or read(most=_FEW) != _PROTOCOL:
            raise CheckpointError("it is a pickle, but not one that torch.save wrote")
        read(most=_FEW)  # sizes of C types, of no use
        top, keys = read(), read(most=_FEW + 3 * len(declared))
        if not isinstance(keys, list):
            raise CheckpointError("its pickle does not list its storages")
        storages = [declared.get(key) if isinstance(key, str) else None for key in keys]
        return top, _records(opener, file, front.tell(), size, storages)


def _records(
    opener: Opener, file: io.BufferedIOBase, start: int, size: int, storages: list[Storage | None]
) -> dict[str, Record]:
    """Where in the file each storage stands; in front of each is its number of elements."""
    records = {}
    for storage in storages:
        file.seek(start)
        count = int.from_bytes(file.read(8), "little")
        if storage is None or count * storage.dtype.itemsize != storage.num_bytes or storage.key in records:
            raise CheckpointError("its storages are not those that its pickle describes")
        if start + 8 + storage.num_bytes > size:
            raise CheckpointError(f"storage {shown(storage.key)} is cut off")
        records[storage.key] = plain_record(opener, start + 8, storage.num_bytes)
        start += 8 + storage.num_bytes
    return records


def weights_of(path: Path, reader: Callable[[Opener], tuple[object, dict[str, Record]]]) -> Weights:
    """The tensors of a file that ``torch.save`` wrote, in its order."""
    top, records = reader(partial(open_file, path))
    found = find_weights(top, PickledTensor)
    tensors = [_stored(name, tensor, records) for name, tensor in found.tensors.items()]
    return Weights(tensors, found.under, found.notes)


def _stored(name: str, tensor: object, records: Mapping[str, Record]) -> StoredTensor:
    """A described tensor with the way to read it."""
    assert isinstance(tensor, PickledTensor)
    storage = tensor.storage
    if storage is None:
        return StoredTensor(name, tensor.shape, tensor.dtype, partial(_unreadable, name, tensor.problem))
    if storage.key not in records:
        raise CheckpointError(f"the storage of {shown(name)} is missing")
    record = records[storage.key]
    tie = (record.read, tensor.offset, tensor.shape, tensor.stride)
    return StoredTensor(name, tensor.shape, tensor.dtype, partial(load, tensor, record), tie)


def _unreadable(name: str, problem: str) -> Tensor:
    raise WeightError(f"{shown(name)} is {problem}")
