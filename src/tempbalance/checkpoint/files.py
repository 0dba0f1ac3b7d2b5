"""Files as places to read bytes from: what may be opened, and how much is read at a time."""

from __future__ import annotations

import io
import json
import math
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor

from tempbalance.errors import CheckpointError

Opener = Callable[[], io.BufferedIOBase]

# headers and indices that describe tensors; the largest in use, of 140,000 tensors, has 14 MB
MOST_INDEX_BYTES = 20 << 20
# pickles, which may hold arrays of NumPy
MOST_PICKLE_BYTES = 64 << 20
SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npz", ".pkl", ".pickle", ".pt2")
READABLE = f"{', '.join(SUFFIXES)} files with tensors by name are, and folders of them"
_MOST_SHOWN = 80
# a header has one brace and two brackets for each tensor; more is made to fill memory
_FEWEST_BYTES_A_BRACKET = 8
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def shown(value: object) -> str:
    """Something that stands in a file, for a message: quoted, control characters escaped, cut."""
    if isinstance(value, str):
        return repr(value if len(value) <= _MOST_SHOWN else value[: _MOST_SHOWN - 3] + "...")
    if isinstance(value, int) and abs(value) < 2**63:
        return str(value)
    return f"a {type(value).__name__}"


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Put a name in front of what is refused inside."""
    try:
        yield
    except CheckpointError as err:
        raise CheckpointError(f"{what}: {err}") from err


def open_file(path: Path) -> io.BufferedReader:
    """Open a regular file; a FIFO, a socket or a device is refused before it could block or act."""
    try:
        _check_regular(path.stat().st_mode)
        file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115  (handed to the caller)
        _check_regular(os.fstat(file.fileno()).st_mode)
        return file
    except OSError as err:
        raise CheckpointError(f"cannot be read: {err.strerror or type(err).__name__}") from err


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
        raise CheckpointError(f"is {kind}, not a file")


class Bounded(io.BufferedIOBase):
    """A file that gives no more than it has, and no more at a time than a description may need."""

    def __init__(self, file: io.BufferedIOBase, most: int) -> None:
        self.file, self.most, self.num_bytes = file, most, size_of(file)
        file.seek(0)

    def read(self, count: int | None = -1, /) -> bytes:
        """Read some bytes, or all that are left.

        Raises:
            CheckpointError: If that is more than may be read at a time.
        """
        left = max(0, self.num_bytes - self.file.tell())
        wanted = left if count is None or count < 0 else min(count, left)
        if wanted > self.most:
            raise CheckpointError(f"has {wanted:,} bytes where at most {self.most:,} describe tensors")
        return self.file.read(wanted)

    def readline(self, limit: int | None = -1, /) -> bytes:
        """Read up to the end of a line, or a thousand bytes."""
        return self.file.readline(1000)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Go to a position."""
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        """Return the position."""
        return self.file.tell()

    def seekable(self) -> bool:
        """Return whether it can go to a position, which it can."""
        return True


def size_of(file: io.BufferedIOBase) -> int:
    """The number of bytes of an open file."""
    return file.seek(0, os.SEEK_END)


def read_index(path: Path) -> bytes:
    """All of a small file that describes others."""
    with naming(shown(path.name)), open_file(path) as file:
        if (size := size_of(file)) > MOST_INDEX_BYTES:
            raise CheckpointError(f"has {size:,} bytes, more than {MOST_INDEX_BYTES:,} for an index")
        file.seek(0)
        return file.read()


def parse_json(text: bytes, what: str) -> dict[str, object]:
    """A JSON object from a file, in which no key may stand twice.

    Raises:
        CheckpointError: If it is not JSON, not an object, repeats a key, or nests or branches beyond reason.
    """
    if text.count(b"{") + text.count(b"[") > 64 + len(text) // _FEWEST_BYTES_A_BRACKET:
        raise CheckpointError(f"{what} has more brackets than tensors could need")
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=partial(_unique, what))
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as err:
        raise CheckpointError(f"{what} is not JSON: {type(err).__name__}") from err
    if not isinstance(value, dict):
        raise CheckpointError(f"{what} is not a JSON object")
    return value


def _unique(what: str, pairs: list[tuple[str, object]]) -> dict[str, object]:
    items = dict(pairs)
    if len(items) < len(pairs):
        raise CheckpointError(f"{what} has a key twice")
    return items


@dataclass(frozen=True)
class Record:
    """A run of bytes in a file, read anew each time.

    Attributes:
        num_bytes: How many there are.
        read: Gives some of them as a uint8 tensor, from a start and a count.
    """

    num_bytes: int
    read: Callable[[int, int], Tensor]


def plain_record(opener: Opener, start: int, num_bytes: int) -> Record:
    """The bytes of a file from ``start`` on."""

    def read(offset: int, count: int) -> Tensor:
        with opener() as file:
            file.seek(start + offset)
            return read_into_tensor(file, count)

    return Record(num_bytes, read)


def read_into_tensor(file: io.BufferedIOBase | IO[bytes], count: int) -> Tensor:
    """The next bytes of a file."""
    data = torch.empty(count, dtype=torch.uint8)
    view = memoryview(cast("Any", data.numpy()))
    done = 0
    while done < count:
        if not (got := cast("Any", file).readinto(view[done:])):
            raise CheckpointError(f"the file ends {count - done:,} bytes too early")
        done += got
    return data


def num_elements(what: str, shape: object) -> int:
    """The product of a shape that comes from a file.

    Raises:
        CheckpointError: If it is no tuple or list of lengths that a tensor could have.
    """
    if isinstance(shape, tuple | list) and len(shape) <= 64 and all(type(side) is int for side in shape):
        sides = [side for side in shape if isinstance(side, int)]
        if all(0 <= side < 2**62 for side in sides) and math.prod(max(side, 1) for side in sides) < 2**62:
            return math.prod(sides)
    raise CheckpointError(f"{what} has a shape that no tensor can have")


def inside(folder: Path, name: str) -> Path:
    """A file that belongs to a folder, by the name that something in the folder gives it.

    Links are followed as long as they stay in the folder. In a Hugging Face cache, whose snapshots are folders of links
    to ``../../blobs``, they may lead anywhere in the cache folder of the same model.

    Raises:
        CheckpointError: If it lies, or its link leads, outside.
    """
    home = Path(os.path.realpath(folder))
    is_snapshot = home.parent.name == "snapshots" and home.parent.parent.name.startswith("models--")
    limit = home.parent.parent if is_snapshot else home
    if "\0" in name or name != name.encode("utf-8", "replace").decode():
        raise CheckpointError(f"something in it names {shown(name)}, which no file is called")
    named = Path(os.path.normpath(home / name))
    if home not in named.parents or limit not in Path(os.path.realpath(named)).parents:
        raise CheckpointError(f"something in it names {shown(name)}, which lies outside of it")
    return named
