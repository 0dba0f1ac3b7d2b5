"""Safe reading of untrusted files, and stored tensors that are loaded on demand.

A file, or a part of it, that cannot be read or is refused raises `CheckpointError`; one tensor, `WeightError`.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import stat
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

import torch
from torch import Tensor

from tempbalance.errors import CheckpointError, WeightError, quoted

# headers and indices that describe tensors (the largest in use, of 140,000 tensors, has 14 MB); pickles with arrays
MOST_INDEX_BYTES, MOST_PICKLE_BYTES = 20 << 20, 64 << 20
# an expanded tensor claims more elements than the file has; small ones do no harm
_MOST_EXPANDED, _SMALL_BYTES = 16, 1 << 20
_MOST_FOLDERS = 32
_INTEGERS = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}
_KINDS = {"d": "a folder", "p": "a FIFO", "s": "a socket", "c": "a device", "b": "a device"}


def natural_order(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return a key by which ``layers.2`` comes before ``layers.10``, as far as the first thousand characters differ."""
    parts = [part.lstrip("0") if index % 2 else part for index, part in enumerate(re.split("([0-9]+)", name[:1000]))]
    return [(len(part), part) if index % 2 else (0, part) for index, part in enumerate(parts)], name


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Put a name in front of the message of each `CheckpointError`."""
    try:
        yield
    except CheckpointError as err:
        raise CheckpointError(f"{what}: {err}") from err


def require(is_fine: object, otherwise: str) -> None:
    """Refuse a file, in one line, unless something holds for it."""
    if not is_fine:
        raise CheckpointError(otherwise)


class File(io.RawIOBase):
    """Some or all bytes of a regular file that must not change, of which at most ``most`` are read at once.

    It is opened for each read, because a folder may have more files than a process may open.
    """

    def __init__(self, path: Path, *, most: int = MOST_PICKLE_BYTES, start: int = 0, num_bytes: int | None = None):
        self.path, self.most, self.start, self.position = path, most, start, 0
        self.identity: tuple[int, int, int, int] | None = None
        self.check()
        size = self.identity[2] if self.identity else 0
        self.num_bytes = size if num_bytes is None else num_bytes
        require(start + self.num_bytes <= size, f"{quoted(path.name)} ends before one of its tensors")

    def open(self) -> io.FileIO:
        """Open the file, which must be the one of the first time; a FIFO or device could block or act."""
        try:
            mode = self.path.stat().st_mode
            if stat.S_ISREG(mode):
                file = io.FileIO(
                    self.path, opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))
                )
                found = os.fstat(file.fileno())
                identity = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
                self.identity = self.identity or identity
                if identity == self.identity and stat.S_ISREG(found.st_mode):
                    return file
                file.close()
                raise CheckpointError("was replaced or changed while it was read")
        except OSError as err:
            raise CheckpointError(f"cannot be read: {err.strerror or type(err).__name__}") from err
        raise CheckpointError(f"is {_KINDS.get(stat.filemode(mode)[0], 'something else')}, not a file")

    def check(self) -> None:
        """Refuse a file that changed since it was first opened, of which some bytes may be in a buffer."""
        self.open().close()

    def tensor(self, start: int, count: int) -> Tensor:
        """Read bytes into a tensor, wherever other threads are reading."""
        with self.open() as file:
            file.seek(self.start + start)
            return read_tensor(file, count)

    def read(self, count: int | None = -1, /) -> bytes:
        left = max(0, self.num_bytes - self.position)
        wanted = left if count is None or count < 0 else min(count, left)
        require(wanted <= self.most, f"has {wanted:,} bytes where at most {self.most:,} describe tensors")
        return super().read(wanted) or b""

    def readinto(self, buffer: Any, /) -> int:
        with self.open() as file:
            file.seek(self.start + self.position)
            count = file.readinto(memoryview(buffer)[: max(0, self.num_bytes - self.position)]) or 0
        self.position += count
        return count

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self.position = max(0, offset + (0, self.position, self.num_bytes)[whence])
        return self.position

    def readable(self) -> bool:
        return True

    seekable = readable


def read_tensor(file: IO[bytes] | io.FileIO, count: int) -> Tensor:
    """Read the next bytes of a file into a tensor."""
    data = torch.empty(count, dtype=torch.uint8)
    target: Any = memoryview(data.numpy())  # type: ignore[arg-type]
    for first in range(0, count, 1 << 20):
        step = target[first : first + (1 << 20)]
        require(file.readinto(step) == len(step), "the file ends too early")  # type: ignore[union-attr]
    return data


def read_json(path: Path) -> dict[str, object]:
    """Read a small JSON file that describes others."""
    with naming(quoted(path.name)):
        return parse_json(File(path, most=MOST_INDEX_BYTES).read(), "its content")


def parse_json(text: bytes, what: str) -> dict[str, object]:
    """Parse a JSON object in which no key may stand twice, and that does not nest or branch beyond reason."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        items = dict(pairs)
        require(len(items) == len(pairs), f"{what} has a key twice")
        return items

    # a header has one brace and two brackets for each tensor; more is made to fill memory
    num_brackets = text.count(b"{") + text.count(b"[")
    require(num_brackets <= 64 + len(text) // 8, f"{what} has more brackets than tensors could need")
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as err:
        raise CheckpointError(f"{what} is not JSON: {type(err).__name__}") from err
    require(isinstance(value, dict), f"{what} is not a JSON object")
    return value  # type: ignore[no-any-return]


def inside(folder: Path, name: str) -> Path:
    """Return a file of a folder by the name that something in the folder gives it.

    Links are followed as long as they stay in the folder. In a Hugging Face cache, whose snapshots are folders of links
    to ``../../blobs``, they may lead anywhere in the cache folder of the same model.
    """
    home = Path(os.path.realpath(folder))
    is_snapshot = home.parent.name == "snapshots" and home.parent.parent.name.startswith("models--")
    limit = home.parent.parent if is_snapshot else home
    is_name = isinstance(name, str) and "\0" not in name and name == name.encode("utf-8", "replace").decode()
    # each folder of a path is looked up, for each piece of each tensor
    require(
        is_name and name.count("/") < _MOST_FOLDERS, f"something in it names {quoted(name)}, which no file is called"
    )
    named = Path(os.path.normpath(home / name))
    is_inside = home in named.parents and limit in Path(os.path.realpath(named)).parents
    require(is_inside, f"something in it names {quoted(name)}, which lies outside of it")
    return named


def available_memory() -> int:
    """Return the bytes that this process can still allocate without swapping; outside Linux, all memory."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with suppress(OSError, ValueError):  # another system, or a group without a limit
        with open("/proc/meminfo", encoding="ascii") as file:
            limits += [1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable")]
        most, current = (Path(f"/sys/fs/cgroup/memory.{name}").read_text("ascii") for name in ("max", "current"))
        limits.append(int(most) - int(current))
    return min(limits)


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor in a file, or a weight made of several; ``load`` reads it anew at each call.

    The product of a pair of LoRA factors has a rank r: ``load`` then gives an r x r matrix with those r eigenvalues of
    the product that are not zero.
    """

    name: str  # without the parts that wrappers add
    shape: tuple[int, ...]
    dtype: torch.dtype
    load: Callable[[], Tensor] = field(repr=False)
    tie: Hashable | None = None  # equal for tensors that share their bytes
    rank: int | None = None
    problem: str = ""  # why it cannot be scored

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Storage:
    """The bytes behind tensors; ``read`` takes a start and a count; packed bytes are unpacked for each read."""

    num_bytes: int
    read: Callable[[int, int], Tensor]
    dtype: torch.dtype = torch.uint8
    is_packed: bool = False

    @classmethod
    def of(cls, content: bytes) -> Storage:
        return cls(len(content), lambda start, count: read_tensor(io.BytesIO(content[start : start + count]), count))


def num_elements(what: str, shape: object) -> int:
    """Return the product of a shape that comes from a file; refuse one that no tensor can have."""
    is_shape = isinstance(shape, tuple | list) and len(shape) <= 64 and all(map(_is_length, shape))
    sides: Any = shape if is_shape else [2**62]
    require(math.prod(max(side, 1) for side in sides) < 2**62, f"{what} has a shape that no tensor can have")
    return math.prod(sides)


def _is_length(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**62


def unreadable(shape: Sequence[int], problem: str, dtype: torch.dtype = torch.uint8, name: str = "") -> StoredTensor:
    """Describe a tensor that can be listed but not read."""
    return StoredTensor(name, tuple(shape), dtype, partial(refuse, problem), problem=problem)


def refuse(problem: str) -> NoReturn:
    raise WeightError(problem)


def view(storage: object, offset: Any, shape: Any, stride: Any, dtype: torch.dtype | None = None) -> StoredTensor:
    """Describe a dense tensor, which must lie within the storage that it is a view of."""
    if not isinstance(storage, Storage):
        raise CheckpointError("a tensor has no storage")
    dtype = _INTEGERS.get(dtype or storage.dtype, dtype or storage.dtype)
    claimed = num_elements("a tensor", shape) * dtype.itemsize
    if not isinstance(stride, tuple | list) or len(stride) != len(shape) or not all(map(_is_length, (offset, *stride))):
        raise CheckpointError("a tensor has an offset or strides that do not fit its shape")
    # the elements of the storage from the first to the last
    span = 0 if 0 in shape else 1 + sum((side - 1) * step for side, step in zip(shape, stride, strict=True))
    if (offset + span) * dtype.itemsize > storage.num_bytes:
        sides = " x ".join(str(side) for side in shape[:8])
        raise CheckpointError(f"a tensor of shape {sides} reaches beyond its storage")
    if claimed > _SMALL_BYTES and claimed > _MOST_EXPANDED * storage.num_bytes:
        return unreadable(shape, f"expanded to {claimed:,} bytes from a storage of {storage.num_bytes:,}", dtype)

    def load() -> Tensor:
        data = storage.read(offset * dtype.itemsize, span * dtype.itemsize)
        return data.view(dtype).as_strided(shape, stride)

    # a stride along which there is one element can be any number, and many numbers have one hash
    steps = tuple(step if side > 1 and span else 0 for side, step in zip(shape, stride, strict=True))
    return StoredTensor("", tuple(shape), dtype, load, (storage, offset, tuple(shape), steps))


def check_unfolding(tensors: Iterable[StoredTensor]) -> None:
    """Refuse views that claim many times the bytes of their storages together; of packed ones each unpacks them all."""
    views = {each.tie: each.num_bytes for each in tensors if isinstance(each.tie, tuple)}
    storages = {tie: tie[0] for tie in views if isinstance(tie, tuple) and isinstance(tie[0], Storage)}
    claimed = sum(storages[tie].num_bytes if storages[tie].is_packed else views[tie] for tie in storages)
    held = sum(storage.num_bytes for storage in set(storages.values()))
    is_fine = claimed <= _MOST_EXPANDED * (held + _SMALL_BYTES)
    require(is_fine, f"its tensors claim {claimed:,} bytes, their storages have {held:,}")
