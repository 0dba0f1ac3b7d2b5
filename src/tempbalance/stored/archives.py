"""Zip archives as ``torch.save`` writes them, trusted in nothing."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import PurePosixPath

import torch
from torch import Tensor

from tempbalance.errors import CheckpointError
from tempbalance.stored.files import MOST_INDEX_BYTES, READABLE, Opener, Record, plain_record, shown, size_of

_MOST_UNFOLDED = 100
_LOCAL_HEADER_BYTES = 30
_IS_UTF8 = 0x800
_STEP_BYTES = 1 << 20
_BROKEN = (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError, OverflowError, struct.error, OSError)


class _Sparing(io.BufferedIOBase):
    """A file that gives no more at a time than a directory may need, whatever an archive claims it has."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        self.file, self.num_bytes = file, size_of(file)

    def read(self, count: int | None = -1, /) -> bytes:
        left = max(0, self.num_bytes - self.file.tell())
        wanted = left if count is None or count < 0 else min(count, left)
        if wanted > MOST_INDEX_BYTES:
            raise CheckpointError(f"the archive claims a directory of {wanted:,} bytes")
        return self.file.read(wanted)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()

    def seekable(self) -> bool:
        return True


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
        if "big" in self._text("byteorder"):
            raise CheckpointError("it was written on a big-endian machine: load and save it there as safetensors")

    def _text(self, name: str) -> str:
        return self.small(name)[:16].decode("latin-1") if f"{self.root}/{name}" in self.members else ""

    def small(self, name: str) -> bytes:
        """All of a member that describes others."""
        record = self.record(name)
        if record.num_bytes > MOST_INDEX_BYTES:
            raise CheckpointError(f"{name} has {record.num_bytes:,} bytes, more than {MOST_INDEX_BYTES:,}")
        return record.read(0, record.num_bytes).numpy().tobytes()

    def record(self, name: str) -> Record:
        """The bytes of a member."""
        info = self.members.get(f"{self.root}/{name}")
        if info is None:
            raise CheckpointError(f"the archive lacks {shown(name)}")
        start = self._start(info)
        if info.compress_type == zipfile.ZIP_STORED:
            return plain_record(self.opener, start, info.file_size)
        return Record(info.file_size, partial(_read_packed, self.opener, start, info.compress_size))

    def _start(self, info: zipfile.ZipInfo) -> int:
        """Where the bytes of a member begin: after its own header, which must be there."""
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
    """Some bytes of a compressed member, unfolded from its beginning."""
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
        with zipfile.ZipFile(_Sparing(file)) as archive:
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
    """The folder in the archive that holds everything."""
    roots = [name.removesuffix("/data.pkl") for name in names if name.count("/") == 1 and name.endswith("/data.pkl")]
    if any(name.endswith("/constants.pkl") for name in names):
        raise CheckpointError(
            "it is TorchScript, a program with its weights: "
            "load it where you trust it with torch.jit.load and save its state_dict()"
        )
    if len(roots) != 1:
        raise CheckpointError(f"it is a zip archive that torch.save did not write, which is not read: {READABLE}")
    return roots[0]
