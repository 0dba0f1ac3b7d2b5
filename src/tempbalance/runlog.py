"""Write and read the folder of a run.

    recipe.json      all options, with versions
    metrics.jsonl    a line per epoch
    layers.jsonl     a line per layer and scoring
    steps.jsonl      a line per layer and logged step, if the recipe asks for it
    last.ckpt        the newest checkpoint, signed; the optimizer's state is removed when the run is complete
    best.ckpt        the network with the best test accuracy so far, signed
    result.json      only when the run is complete; signs itself and the logs
    run.lock         held by the process that trains

If the process is killed, each file is complete or missing. A signed file is a torch archive whose comment is the
SHA-256 of everything before it.
"""

from __future__ import annotations

import glob
import hashlib
import io
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from filelock import BaseFileLock

Line = dict[str, Any]

LOGS = ("metrics.jsonl", "layers.jsonl", "steps.jsonl")
_SIGNATURE, _MARK = "signature", b"sha256 "
_COMMENT_SIZE = len(_MARK) + 64
_STALE = 3600.0  # seconds after which nobody writes a temporary file any more


class RunFolderError(Exception):
    """A file of a run is damaged or was changed."""


class BusyRunError(RunFolderError):
    """Another process trains in the folder."""


class RunFolder:
    """The files of one run; the folder is created by the first write."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def is_begun(self) -> bool:
        """Whether the folder has anything to resume from."""
        return any((self.path / name).exists() for name in ("metrics.jsonl", "result.json", "last.ckpt"))

    @property
    def recipe(self) -> Line | None:
        """Recipe of the run; ``None`` before the run starts."""
        return _read_json(self.path / "recipe.json")

    @property
    def result(self) -> Line | None:
        """Result of the run; ``None`` until it is complete."""
        content = _read_json(self.path / "result.json")
        if content is not None and _SIGNATURE in content:
            signature = content.pop(_SIGNATURE)
            if not isinstance(signature, dict) or signature.get("result") != _digest(_json(content)):
                raise RunFolderError(f"{self.path / 'result.json'}: was changed after the run was complete")
        return content

    @property
    def metrics(self) -> list[Line]:
        """Lines of the epochs, counted from 1."""
        lines = self._log("metrics.jsonl")
        for number, line in enumerate(lines, 1):
            if line["epoch"] != number:
                where = f"{self.path / 'metrics.jsonl'}, line {number}"
                raise RunFolderError(f"{where}: must be of epoch {number}, got {line['epoch']}")
        return lines

    @property
    def layers(self) -> list[Line]:
        """Lines of the layers, one per layer and scoring."""
        return self._log("layers.jsonl")

    @property
    def steps(self) -> list[Line]:
        """Lines of the steps, one per layer and logged step."""
        return self._log("steps.jsonl")

    def _log(self, name: str) -> list[Line]:
        """Return the lines of a log; refuse a log that was changed or removed after the run was complete."""
        path, content = self.path / name, self._content(name)
        signature = (_read_json(self.path / "result.json") or {}).get(_SIGNATURE)
        if isinstance(signature, dict) and signature.get(name, _digest(content)) != _digest(content):
            raise RunFolderError(f"{path}: was changed or removed after the run was complete")
        found = []
        for number, text in enumerate(content.rpartition(b"\n")[0].splitlines(), 1):  # a kill may cut off the last
            line = _parse(text, where := f"{path}, line {number}")
            if not isinstance(line.get("epoch"), int):
                raise RunFolderError(f"{where}: must have an epoch, got {str(line)[:80]}")
            found.append(line)
        return found

    def _content(self, name: str) -> bytes:
        path = self.path / name
        return _read_bytes(path) if path.exists() else b""

    def check_logs(self) -> None:
        """Read all logs, which raises for one that was changed or removed after the run was complete."""
        for name in LOGS:
            self._log(name)

    def write_recipe(self, recipe: Line) -> None:
        """Start the run."""
        write_whole(self.path / "recipe.json", _json(recipe))

    def write_result(self, result: Line) -> None:
        """End the run; the result and the logs are signed."""
        logs = {name: digest for name, (_, digest) in self.marks().items()}
        signature = {"result": _digest(_json(result)), **logs}
        write_whole(self.path / "result.json", _json({**result, _SIGNATURE: signature}))

    def append(self, metrics: Iterable[Line] = (), layers: Iterable[Line] = (), steps: Iterable[Line] = ()) -> None:
        """Add lines to the logs; if a write fails, remove the partial lines."""
        for name, lines in zip(LOGS, (metrics, layers, steps), strict=True):
            text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()
            if text:
                self.path.mkdir(parents=True, exist_ok=True)
                with (self.path / name).open("ab", buffering=0) as file:
                    end = file.tell()
                    try:
                        while text:
                            text = text[file.write(text) :]
                    except OSError:
                        file.truncate(end)
                        raise

    def marks(self) -> dict[str, list[Any]]:
        """Return the size and the checksum of each log, for `rewind`."""
        contents = {name: self._content(name) for name in LOGS}
        return {name: [len(content), _digest(content)] for name, content in contents.items()}

    def rewind(self, marks: Mapping[str, Sequence[Any]], *, only_check: bool = False) -> None:
        """Truncate the logs to earlier `marks`, for epochs that will be trained again; a log without one is emptied."""
        for name in LOGS:
            size, digest = marks.get(name, (0, _digest(b"")))
            path, content = self.path / name, self._content(name)
            if _digest(content[:size]) != digest:
                raise RunFolderError(
                    f"{path}: was changed or removed since the checkpoint was written: put it back, or remove the "
                    "folder to start again"
                )
            if len(content) > size and not only_check:
                write_whole(path, content[:size])

    def save_checkpoint(self, content: Line, *, keep: bool = False) -> None:
        """Replace the checkpoint, and with ``keep`` write a copy named after the epoch."""
        if keep:
            write_signed(self.path / f"epoch-{content['epoch']}.ckpt", content)
        write_signed(self.path / "last.ckpt", content)

    def checkpoint(self) -> Line | None:
        """Return the content of the checkpoint; ``None`` if there is none or it is damaged."""
        path = self.path / "last.ckpt"
        try:
            return read_signed(path) if path.exists() else None
        except RunFolderError:
            return None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for training, and remove files that a killed process left half written."""
        self.path.mkdir(parents=True, exist_ok=True)
        if (lock := take_lock(self.path / "run.lock", patience=0.5)) is None:
            raise BusyRunError(f"another process trains in {self.path}")
        try:
            for name in ("*.ckpt", "recipe.json", "result.json", *LOGS):
                for path in self.path.glob(f".{name}.*.new"):
                    path.unlink()
            yield
        finally:
            lock.release()


def take_lock(path: Path, *, patience: float = 0) -> BaseFileLock | None:
    """Take a file lock, held until it is released or this process ends; ``None`` if another process has it.

    ``patience`` is in seconds, because `is_locked` takes the lock for a moment.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=patience, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    return lock


def is_locked(path: Path) -> bool:
    """Whether a process holds a file lock; needs no write permission."""
    if not path.is_file():  # a pipe would be waited for
        return False
    try:
        import fcntl
    except ImportError:  # Windows
        lock = take_lock(path) if path.exists() else None
        if lock is not None:
            lock.release()
        return path.exists() and lock is None
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file that replaces a path once it is flushed to disk; after an error the old file stays.

    Files that killed processes left half written are removed when they are an hour old.
    """
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is not a regular file: it is not replaced")
    path.parent.mkdir(parents=True, exist_ok=True)
    for each in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 16}.new"):
        with suppress(FileNotFoundError):  # another process has moved or removed it
            if time.time() - each.lstat().st_mtime > _STALE:
                each.unlink()
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)  # which follows no link
    try:
        with os.fdopen(os.open(new, flags, 0o666), "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file atomically by new content."""
    with replacing(path) as file:
        file.write(content)


class _Hashed:
    """Writable file with its SHA-256 and its first error, which torch would hide behind another."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.digest = file, hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            self.file.write(data)
        except OSError as err:
            self.error = self.error or err
            raise
        self.digest.update(data)
        return len(data)

    def flush(self) -> None:
        self.file.flush()


def write_signed(path: Path, content: Any) -> None:
    """Write tensors and plain values in torch's format, with their checksum as the archive's comment."""
    import torch

    with replacing(path) as file:
        hashed: Any = _Hashed(file)
        try:
            torch.save(content, hashed)
        except Exception as err:
            raise (hashed.error or err) from None
        file.seek(-2, os.SEEK_END)  # the length of the comment, 0 until now
        file.write(_comment(hashed.digest.hexdigest()))


def read_signed(path: Path) -> Any:
    """Return the tensors, on the CPU, and values of a signed file whose checksum is right."""
    import torch

    content = _read_bytes(path)
    digest = hashlib.sha256(memoryview(content)[: -_COMMENT_SIZE - 2])
    digest.update(b"\0\0")
    if content[-_COMMENT_SIZE - 2 :] != _comment(digest.hexdigest()):
        raise RunFolderError(f"{path}: damaged, its checksum is wrong")
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _comment(digest: str) -> bytes:
    return _COMMENT_SIZE.to_bytes(2, "little") + _MARK + digest.encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _json(content: Line) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def _read_json(path: Path) -> Line | None:
    return _parse(_read_bytes(path), str(path)) if path.exists() else None


def _read_bytes(path: Path) -> bytes:
    if not path.is_file():
        raise RunFolderError(f"{path}: must be a regular file")
    return path.read_bytes()


def _parse(text: bytes, where: str) -> Line:
    try:
        content = json.loads(text.decode())
    except (ValueError, RecursionError) as err:
        raise RunFolderError(f"{where}: damaged, not JSON: {err}") from err
    if not isinstance(content, dict):
        raise RunFolderError(f"{where}: must be a JSON object, got {str(content)[:80]}")
    return content
