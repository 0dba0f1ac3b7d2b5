"""Read one file by its first bytes: safetensors, a zip archive or pickles."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from numpy.lib import format as npy
from torch import Tensor

from tempbalance.checkpoint.pickles import array, read_pickle, read_stream
from tempbalance.checkpoint.tensors import (
    MOST_INDEX_BYTES,
    MOST_PICKLE_BYTES,
    File,
    Storage,
    StoredTensor,
    available_memory,
    natural_order,
    num_elements,
    parse_json,
    read_tensor,
    view,
)
from tempbalance.errors import CheckpointError, quoted

SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npz", ".pkl", ".pickle", ".pt2")
_READABLE = f"{', '.join(SUFFIXES)} files with tensors by name are, and folders of them"
_OTHERS = (  # bytes of formats that are not read, and where they stand
    (b"GGUF", 0, "a file of GGUF"),
    (b"\x89HDF\r\n\x1a\n", 0, "a file of HDF5"),
    (b"\x1f\x8b", 0, "a file of gzip"),
    (b"\x93NUMPY", 0, "a file of NumPy with one array"),
    (b"ustar", 257, "a tar archive (torch wrote them before 0.4)"),
)
_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I16": torch.int16,
    "U32": torch.uint32, "I32": torch.int32, "U64": torch.uint64, "I64": torch.int64, "F16": torch.float16,
    "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}  # fmt: skip
# members of an archive take 50 bytes of its directory at least; zipfile reads 50,000 a second
MOST_DIRECTORY = 6 << 20
# of an archive: how many times its size it may unfold to, or how many bytes in any case
_MOST_UNFOLDED, _SMALL_UNFOLDED = 100, 16 << 20
_STEP_BYTES, _MOST_NPY_HEADER, _MOST_ARRAYS = 1 << 20, 10_000, 10_000
_LOCAL_HEADER = struct.Struct("<26xHH")  # of a member: the lengths of its name and of what follows the name
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, ValueError, OverflowError,
           NotImplementedError)  # fmt: skip
_EXPORTED = "data/weights/model_weights_config.json"
_SCALAR_TYPES = {  # the numbers that torch.export gives to dtypes
    1: torch.uint8, 2: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.int64, 6: torch.float16, 7: torch.float32,
    8: torch.float64, 10: torch.complex64, 11: torch.complex128, 12: torch.bool, 13: torch.bfloat16,
}  # fmt: skip


def read_content(path: Path) -> Any:
    """Read the content of a file: objects, which hold tensors in mappings from names."""
    file, suffix = File(path), path.suffix.lower()
    head = file.read(512)
    file.seek(0)
    if not head:
        raise CheckpointError("is empty")
    if head.startswith(b"PK"):
        return read_archive(File(path, most=MOST_DIRECTORY))
    if head[8:9] != b"{":
        _refuse_others(head, suffix)
    if head[8:9] == b"{" or (suffix == ".safetensors" and not head.startswith(b"\x80")):
        return _read_safetensors(file)
    if head.startswith(b"\x80"):
        return read_stream(file)
    if suffix in SUFFIXES:  # a pickle of protocol 0 or 1, or any file under a wrong name
        try:
            return read_stream(file)
        except CheckpointError as err:
            raise CheckpointError(f"does not begin like a file of torch.save: {err}") from err
    raise CheckpointError(f"is not in a format that is read: {_READABLE}")


def _refuse_others(head: bytes, suffix: str) -> None:
    """Refuse a file of another format and say which format it is."""
    if suffix == ".onnx" or (head[:1] == b"\x08" and head[2:3] in (b"\x12", b":")):
        raise CheckpointError("is ONNX, a program: save the state_dict() of the PyTorch model that it was made from")
    for magic, start, what in _OTHERS:
        if head[start:].startswith(magic):
            raise CheckpointError(f"is {what}, which is not read: {_READABLE}")
    if head.startswith(b"version https://git-lfs"):
        raise CheckpointError("is a pointer of Git LFS, not the weights: fetch them with git lfs pull")
    if suffix == ".json":
        raise CheckpointError("is an index or a configuration: hand over the folder that it is in")


# safetensors


def _read_safetensors(file: File) -> dict[str, StoredTensor]:
    """Read the header of a safetensors file, whose size and repeated names the package does not check."""
    length = int.from_bytes(file.read(8), "little")
    most = min(MOST_INDEX_BYTES, file.num_bytes - 8)
    if length > most:
        raise CheckpointError(f"the safetensors header claims {length:,} bytes, it may have {max(most, 0):,}")
    header = parse_json(file.read(length), "the safetensors header")
    header.pop("__metadata__", None)
    with _opened(file):
        return {name: _described(file, 8 + length, name, header[name]) for name in sorted(header, key=natural_order)}


def _described(file: File, start: int, name: str, entry: Any) -> StoredTensor:
    match entry:
        case {"dtype": str() as kind, "shape": list() as shape, "data_offsets": [begin, end]} if len(entry) == 3:
            num_elements(f"tensor {quoted(name)}", shape)
            problem = "" if kind in _DTYPES else f"{quoted(kind)}, a dtype that is not read"
            dtype = _DTYPES.get(kind, torch.uint8)
            load = partial(_load, file, start + begin, end - begin, shape, dtype)
            return StoredTensor(name, tuple(shape), dtype, load, problem=problem)
    raise CheckpointError(f"tensor {quoted(name)} needs dtype, shape and data_offsets in the header, and nothing else")


def _load(file: File, start: int, num_bytes: int, shape: list[int], dtype: torch.dtype) -> Tensor:
    """Read a tensor at a place that the package has checked; it would parse the whole header again for each."""
    return file.tensor(start, num_bytes).view(dtype).reshape(shape)


@contextmanager
def _opened(file: File) -> Iterator[Any]:
    """Open a file with the package; the file must not change meanwhile."""
    from safetensors import SafetensorError, safe_open  # not needed for other formats

    file.check()
    try:
        with safe_open(file.path, framework="pt") as opened:
            yield opened
    except (SafetensorError, OSError, RuntimeError) as err:
        if file.num_bytes > (available := available_memory()):  # torch maps all of the file
            raise CheckpointError(
                f"has {file.num_bytes:,} bytes, {available:,} bytes of memory are available: opening it failed"
            ) from err
        said = " ".join(str(err).split())
        raise CheckpointError(f"the safetensors file is broken or cut off: {quoted(said)[1:-1]}") from err
    file.check()


# zip archives: torch.save, TorchScript, torch.export, NumPy


def read_archive(file: File) -> Any:
    """Read the content of an archive; that of TorchScript without its program."""
    archive, members = _members(file)
    names = [name for name in members if name.split("/")[1:] in (["data.pkl"], _EXPORTED.split("/"))]
    if len(names) == 1:
        root, _, kind = names[0].partition("/")
        held = {name.removeprefix(f"{root}/"): each for name, each in members.items() if name.startswith(f"{root}/")}
        if b"big" in _content(held, "byteorder", MOST_INDEX_BYTES)[:16]:
            raise CheckpointError("it was written on a big-endian machine: load and save it there as safetensors")
        return _read_pickled(held) if kind == "data.pkl" else dict(_exported(held))
    if not members or names or not all(name.endswith(".npy") for name in members):
        raise CheckpointError(f"it is a zip archive of none of the kinds that are read: {_READABLE}")
    if len(members) > _MOST_ARRAYS:
        raise CheckpointError(f"the archive has {len(members):,} arrays, more than {_MOST_ARRAYS:,}")
    return {name.removesuffix(".npy"): _npy(archive, name, each) for name, each in members.items()}


def _members(file: File) -> tuple[zipfile.ZipFile, dict[str, Storage]]:
    """Return an archive and its members, which must be as torch.save or NumPy write them."""
    with _broken_is_refused():
        archive = zipfile.ZipFile(file)
    infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
    for info, after in zip_longest(infos, infos[1:]):
        if flaw := _flaw(info, after, file.num_bytes):
            raise CheckpointError(f"the archive {flaw}")
    unfolded = sum(info.file_size for info in infos)
    if unfolded > max(_SMALL_UNFOLDED, _MOST_UNFOLDED * file.num_bytes):
        size = f"{file.num_bytes:,} bytes"
        raise CheckpointError(f"the archive of {size} unfolds to {unfolded:,}, more than a hundredfold")
    members = {info.filename: _member(file, archive, info) for info in archive.infolist()}
    if len(members) < len(infos):
        raise CheckpointError("the archive has two members of one name")
    return archive, members


def _flaw(info: zipfile.ZipInfo, after: zipfile.ZipInfo | None, num_bytes: int) -> str:
    """Return how a member differs from those that ``torch.save`` writes, given the next one; empty if it does not."""
    path = PurePosixPath(info.filename)
    end = info.header_offset + _LOCAL_HEADER.size + len(info.filename) + info.compress_size
    if path.is_absolute() or ".." in path.parts or "\\" in info.orig_filename or info.orig_filename != info.filename:
        return f"has a member called {quoted(info.orig_filename)}"
    if info.flag_bits & 1:
        return "is encrypted"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "is compressed in a way that torch does not read"
    if not 0 <= info.header_offset < end < num_bytes:
        return f"is broken: {quoted(info.filename)} lies outside of it"
    if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
        return f"gives two sizes for {quoted(info.filename)}"
    if after is not None and end > after.header_offset:
        return f"has {quoted(after.filename)} inside {quoted(info.filename)}"
    return ""


def _member(file: File, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Storage:
    """Return the bytes of a member; zipfile compares their checksum when it reads the last one."""
    is_packed = info.compress_type != zipfile.ZIP_STORED

    @cache
    def start_once_checked() -> int:
        # torch.serialization.set_crc32_options(False) writes 0 for the checksum
        if info.CRC:
            with archive.open(info) as member:
                while member.read(_STEP_BYTES):
                    pass
        front = file.tensor(info.header_offset, _LOCAL_HEADER.size).numpy().tobytes()
        return int(info.header_offset + len(front) + sum(_LOCAL_HEADER.unpack(front)))

    def read(start: int, count: int) -> Tensor:
        file.check()
        with _broken_is_refused():
            if not is_packed:
                return file.tensor(start_once_checked() + start, count)
            with archive.open(info) as member:
                member.seek(start)
                data = read_tensor(member, count)
                while member.read(_STEP_BYTES):
                    pass
            return data

    return Storage(info.file_size, read, is_packed=is_packed)


@contextmanager
def _broken_is_refused() -> Iterator[None]:
    try:
        yield
    except _BROKEN as err:
        said = quoted(f"{type(err).__name__}: {err}")[1:-1]
        raise CheckpointError(f"the archive is broken or cut off ({said})") from err


def _content(members: Mapping[str, Storage], name: str, most: int) -> bytes:
    """Read all of a member that describes others; empty if it is not there."""
    held = members.get(name) or Storage.of(b"")
    if held.num_bytes > most:
        raise CheckpointError(f"{name} has {held.num_bytes:,} bytes, more than {most:,}")
    return held.read(0, held.num_bytes).numpy().tobytes()


def _read_pickled(members: Mapping[str, Storage]) -> Any:
    """Read the pickle of an archive, with the archive's storages in it."""
    storages: dict[tuple[str, torch.dtype], Storage] = {}

    def storage_of(key: str, dtype: torch.dtype, num_bytes: int) -> Storage:
        held = members.get(f"data/{key}")
        if held is None or held.num_bytes != num_bytes:
            has = "lacks it" if held is None else f"has {held.num_bytes:,}"
            raise CheckpointError(f"storage {quoted(key)} should have {num_bytes:,} bytes, the archive {has}")
        return storages.setdefault((key, dtype), replace(held, dtype=dtype))

    return read_pickle(_content(members, "data.pkl", MOST_PICKLE_BYTES), storage_of)


def _exported(members: Mapping[str, Storage]) -> Iterator[tuple[str, StoredTensor]]:
    """Iterate over the weights of ``torch.export``."""
    config = parse_json(_content(members, _EXPORTED, MOST_INDEX_BYTES), _EXPORTED).get("config")
    for name, entry in config.items() if isinstance(config, dict) else ():
        match entry:
            case {"path_name": str() as file, "use_pickle": False, "tensor_meta": {
                "dtype": int() as kind, "sizes": list() as sizes, "strides": list() as strides,
                "storage_offset": {"as_int": int() as offset},
            }} if kind in _SCALAR_TYPES:  # fmt: skip
                shape, stride = (
                    [each.get("as_int") if isinstance(each, dict) else None for each in sides]
                    for sides in (sizes, strides)
                )
                yield name, view(members.get(f"data/weights/{file}"), offset, shape, stride, _SCALAR_TYPES[kind])
            case _:
                raise CheckpointError(f"{_EXPORTED} describes {quoted(name)} in a way that is not read")


def _npy(archive: zipfile.ZipFile, name: str, held: Storage) -> StoredTensor:
    """Describe an array of NumPy by its header."""
    with _broken_is_refused(), archive.open(name) as member:
        front = io.BytesIO(member.read(_MOST_NPY_HEADER))
    try:
        read_header = npy.read_array_header_1_0 if npy.read_magic(front) == (1, 0) else npy.read_array_header_2_0
        shape, is_fortran, dtype = read_header(front)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError) as err:
        raise CheckpointError("an array has a header that NumPy never writes") from err
    start = front.tell()
    data = replace(held, num_bytes=held.num_bytes - start, read=lambda *span: held.read(start + span[0], span[1]))
    return array(data, dtype.str, shape, is_fortran=is_fortran)
