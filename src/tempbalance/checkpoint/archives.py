"""Zip archives, trusted in nothing: what ``torch.save``, TorchScript, ``torch.export`` and NumPy write."""

from __future__ import annotations

import ast
import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import torch
from torch import Tensor

from tempbalance.checkpoint.contents import find_weights
from tempbalance.checkpoint.described import Described, Storage, array_of, stored, view_of
from tempbalance.checkpoint.files import (
    MOST_INDEX_BYTES,
    MOST_PICKLE_BYTES,
    READABLE,
    Bounded,
    Opener,
    Record,
    parse_json,
    plain_record,
    shown,
    size_of,
)
from tempbalance.checkpoint.pickles import read_pickle
from tempbalance.checkpoint.tensors import Weights
from tempbalance.errors import CheckpointError

_MOST_UNFOLDED = 100
_LOCAL_HEADER_BYTES = 30
_IS_UTF8 = 0x800
_STEP_BYTES = 1 << 20
_MOST_NPY_HEADER = 10_000
_MOST_ARRAYS = 10_000
_BROKEN = (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, OverflowError, struct.error, OSError)
_EXPORTED = "data/weights/model_weights_config.json"
_SCALAR_TYPES = {  # the numbers that torch.export gives to dtypes
    1: torch.uint8, 2: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.int64, 6: torch.float16, 7: torch.float32,
    8: torch.float64, 10: torch.complex64, 11: torch.complex128, 12: torch.bool, 13: torch.bfloat16,
}  # fmt: skip


def read_archive(opener: Opener) -> list[Weights]:
    """Read the mappings of an archive; those of TorchScript without its program.

    Raises:
        CheckpointError: If the archive is broken, is not one of tensors, or is made to do harm.
    """
    archive = Archive(opener)
    if archive.has("data.pkl"):
        return find_weights(archive.pickled(), Described, stored)
    if archive.has(_EXPORTED):
        return find_weights(dict(_exported(archive)), Described, stored)
    if archive.members and all(name.endswith(".npy") for name in archive.members):
        if len(archive.members) > _MOST_ARRAYS:
            raise CheckpointError(f"the archive has {len(archive.members):,} arrays, more than {_MOST_ARRAYS:,}")
        arrays = {name.removesuffix(".npy"): _npy(archive.record(name)) for name in archive.members}
        return find_weights(arrays, Described, stored)
    raise CheckpointError(f"it is a zip archive of none of the kinds that are read: {READABLE}")


class Archive:
    """The members of an archive.

    Raises:
        CheckpointError: If the archive is broken, is not one of tensors, or has what ``torch.save`` never writes: two
            members of one name, encryption, names that lead elsewhere, or contents that unfold more than a
            hundredfold.
    """

    def __init__(self, opener: Opener) -> None:
        self.opener = opener
        with opener() as file:
            self.num_bytes = size_of(file)
            self.members = {info.filename: info for info in _checked(_directory(file), self.num_bytes)}
        self.root = _root(list(self.members))
        self.storages: dict[tuple[str, torch.dtype], Storage] = {}
        if self.has("byteorder") and b"big" in self.small("byteorder", MOST_INDEX_BYTES)[:16]:
            raise CheckpointError("it was written on a big-endian machine: load and save it there as safetensors")

    def has(self, name: str) -> bool:
        """Return whether there is a member of this name."""
        return self.root + name in self.members

    def small(self, name: str, most: int) -> bytes:
        """Read all of a member that describes others."""
        record = self.record(name)
        if record.num_bytes > most:
            raise CheckpointError(f"{name} has {record.num_bytes:,} bytes, more than {most:,}")
        return record.read(0, record.num_bytes).numpy().tobytes()

    def pickled(self) -> Any:
        """Read the pickle, with the archive's storages in it."""
        return read_pickle(io.BytesIO(self.small("data.pkl", MOST_PICKLE_BYTES)), self._storage)

    def _storage(self, storage: Storage) -> Storage:
        """Return a storage with its bytes, of which there must be as many as the pickle says."""
        if (storage.key, storage.dtype) not in self.storages:
            record = self.record(f"data/{storage.key}")
            if record.num_bytes != storage.num_bytes:
                raise CheckpointError(
                    f"storage {shown(storage.key)} should have {storage.num_bytes:,} bytes, "
                    f"the archive has {record.num_bytes:,}"
                )
            self.storages[storage.key, storage.dtype] = replace(storage, record=record)
        return self.storages[storage.key, storage.dtype]

    def record(self, name: str) -> Record:
        """Return the bytes of a member."""
        info = self.members.get(self.root + name)
        if info is None:
            raise CheckpointError(f"the archive lacks {shown(name)}")
        start = self._start(info)
        if info.compress_type == zipfile.ZIP_STORED:
            return plain_record(self.opener, start, info.file_size)
        return Record(info.file_size, partial(_read_packed, self.opener, start, info.compress_size))

    def _start(self, info: zipfile.ZipInfo) -> int:
        """Return where the bytes of a member begin: after its own header, which must be there."""
        with self.opener() as file:
            file.seek(info.header_offset)
            header = file.read(_LOCAL_HEADER_BYTES)
            name_bytes, extra_bytes = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
            name = file.read(name_bytes)
        start = info.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes
        is_whole = len(header) == _LOCAL_HEADER_BYTES and start + info.compress_size <= self.num_bytes
        known_name = info.filename.encode("utf-8" if info.flag_bits & _IS_UTF8 else "cp437")
        if not is_whole or header[:4] != b"PK\3\4" or name != known_name:
            raise CheckpointError(f"the archive is broken at {shown(info.filename)}")
        return start


def _read_packed(opener: Opener, start: int, num_packed: int, offset: int, count: int) -> Tensor:
    """Read some bytes of a compressed member, unfolded from its beginning."""
    data = torch.empty(count, dtype=torch.uint8)
    position = -offset
    with opener() as file:
        file.seek(start)
        for chunk in _unfolded(file, num_packed):
            filled = max(0, position)
            part = bytearray(chunk[max(0, -position) :][: count - filled])
            if part:
                data[filled : filled + len(part)] = torch.frombuffer(part, dtype=torch.uint8)
            position += len(chunk)
            if position >= count:
                return data
    raise CheckpointError("the archive is broken: a member is shorter than it should be")


def _unfolded(file: io.BufferedIOBase, num_packed: int) -> Iterator[bytes]:
    unfolding = zlib.decompressobj(-zlib.MAX_WBITS)
    while num_packed > 0 and (packed := file.read(min(num_packed, _STEP_BYTES))):
        num_packed -= len(packed)
        while packed:
            try:
                yield unfolding.decompress(packed, _STEP_BYTES)
            except zlib.error as err:
                raise CheckpointError("the archive is broken: what was compressed cannot be unfolded") from err
            packed = unfolding.unconsumed_tail


def _directory(file: io.BufferedIOBase) -> list[zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(Bounded(file, MOST_INDEX_BYTES)) as archive:
            return archive.infolist()
    except CheckpointError:
        raise
    except _BROKEN as err:
        raise CheckpointError(f"the archive is broken or cut off ({type(err).__name__})") from err


def _checked(members: list[zipfile.ZipInfo], num_bytes: int) -> list[zipfile.ZipInfo]:
    names = {info.filename for info in members}
    if len(names) < len(members):
        raise CheckpointError("the archive has two members of one name")
    for info in members:
        if not _is_plain(info):
            raise CheckpointError(f"the archive has a member called {shown(info.orig_filename)}")
        if info.flag_bits & 1:
            raise CheckpointError("the archive is encrypted")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise CheckpointError("the archive is compressed in a way that torch does not read")
        if not 0 <= info.header_offset < num_bytes:
            raise CheckpointError("the archive is broken: a member begins outside of it")
        if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
            raise CheckpointError(f"the archive gives two sizes for {shown(info.filename)}")
    if (unfolded := sum(info.file_size for info in members)) > _MOST_UNFOLDED * num_bytes:
        raise CheckpointError(f"the archive of {num_bytes:,} bytes unfolds to {unfolded:,}, more than a hundredfold")
    return members


def _is_plain(info: zipfile.ZipInfo) -> bool:
    path = PurePosixPath(info.filename)
    is_relative = not path.is_absolute() and ".." not in path.parts and "\\" not in info.orig_filename
    return is_relative and info.orig_filename == info.filename


def _root(names: list[str]) -> str:
    """Return the folder in the archive that holds everything, with its slash; arrays of NumPy stand at the top."""
    roots = [name.partition("/")[0] for name in names if name.split("/")[1:] in (["data.pkl"], _EXPORTED.split("/"))]
    if len(roots) > 1:
        raise CheckpointError(f"it is a zip archive with two pickles, which is not read: {READABLE}")
    return f"{roots[0]}/" if roots else ""


def _exported(archive: Archive) -> Iterator[tuple[str, Described]]:
    """Iterate over the weights of ``torch.export``."""
    config = parse_json(archive.small(_EXPORTED, MOST_INDEX_BYTES), _EXPORTED).get("config")
    for name, entry in config.items() if isinstance(config, dict) else ():
        match entry:
            case {"path_name": str() as file, "use_pickle": False, "tensor_meta": {
                "dtype": int() as kind, "sizes": list() as sizes, "strides": list() as strides,
                "storage_offset": {"as_int": int() as offset},
            }} if kind in _SCALAR_TYPES:  # fmt: skip
                record = archive.record(f"data/weights/{file}")
                storage = Storage(file, _SCALAR_TYPES[kind], record.num_bytes, record)
                shape, stride = ([_side(each) for each in sides] for sides in (sizes, strides))
                yield name, view_of(storage, offset, shape, stride, storage.dtype)
            case _:
                raise CheckpointError(f"{_EXPORTED} describes {shown(name)} in a way that is not read")


def _side(described: object) -> object:
    return described.get("as_int") if isinstance(described, dict) else None


def _npy(record: Record) -> Described:
    """Describe an array of NumPy: a magic number, the length of the header, and a dictionary as Python writes it."""
    front = record.read(0, min(record.num_bytes, _MOST_NPY_HEADER)).numpy().tobytes()
    long = 2 if front[6:7] == b"\x01" else 4
    start = 8 + long + int.from_bytes(front[8 : 8 + long], "little")
    try:
        header = ast.literal_eval(front[8 + long : start].decode("latin-1")) if start <= len(front) else None
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError) as err:
        raise CheckpointError("an array has a header that NumPy never writes") from err
    match header:
        case {"descr": kind, "fortran_order": bool() as is_fortran, "shape": tuple() as shape}:
            data = Record(record.num_bytes - start, lambda offset, count: record.read(start + offset, count))
            return array_of(data, kind if isinstance(kind, str) else "", shape, is_fortran=is_fortran)
    raise CheckpointError("an array has a header that NumPy never writes")
