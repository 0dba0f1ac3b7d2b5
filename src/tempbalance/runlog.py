"""A run's folder: what is written in it, and reading it back.

    recipe.json      all options, with versions
    metrics.jsonl    a line an epoch
    layers.jsonl     a line per layer and scoring
    steps.jsonl      a line per layer and noted step, where the recipe asks for it
    last.ckpt        the state after the last epoch, previous.ckpt that before it, each with its SHA-256 beside it
    best.ckpt        the network with the best test accuracy so far
    result.json      only when the run is complete
    run.lock         held by the process that trains

A file is there whole or not at all, whenever the process is killed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from filelock import BaseFileLock

Line = dict[str, Any]

_CHECKPOINTS = ("new.ckpt", "last.ckpt", "previous.ckpt")  # the newest first


class RunFolderError(Exception):
    """A file of a run that is not what it should be."""


class BusyRunError(RunFolderError):
    """A folder that another process has."""


class RunFolder:
    """The files of one run.

    Args:
        path: The folder; made when something is first written.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def is_begun(self) -> bool:
        """Whether there is anything that a run would go on from."""
        names = ("metrics.jsonl", "result.json", *_CHECKPOINTS)
        return any((self.path / name).exists() for name in names)

    @property
    def recipe(self) -> Line | None:
        """What the run was started with; ``None`` before it was."""
        return _read_json(self.path / "recipe.json")

    @property
    def result(self) -> Line | None:
        """How the run ended; ``None`` while it is not complete."""
        return _read_json(self.path / "result.json")

    @property
    def metrics(self) -> list[Line]:
        """A line for each epoch."""
        return _read_lines(self.path / "metrics.jsonl")

    @property
    def layers(self) -> list[Line]:
        """A line for each layer and scoring."""
        return _read_lines(self.path / "layers.jsonl")

    @property
    def steps(self) -> list[Line]:
        """A line for each layer and noted step."""
        return _read_lines(self.path / "steps.jsonl")

    def write_recipe(self, recipe: Line) -> None:
        """Start the run."""
        _write_json(self.path / "recipe.json", recipe)

    def write_result(self, result: Line) -> None:
        """End the run."""
        _write_json(self.path / "result.json", result)

    def append(self, metrics: Iterable[Line] = (), layers: Iterable[Line] = (), steps: Iterable[Line] = ()) -> None:
        """Add lines to the logs."""
        for name, lines in (("metrics.jsonl", metrics), ("layers.jsonl", layers), ("steps.jsonl", steps)):
            text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
            if text:
                self.path.mkdir(parents=True, exist_ok=True)
                with (self.path / name).open("a", encoding="utf-8") as file:
                    file.write(text)

    def rewind(self, epoch: int) -> None:
        """Forget what the logs say of epochs after this one, which will be trained again."""
        for path in (self.path / f"{name}.jsonl" for name in ("metrics", "layers", "steps")):
            if path.exists():
                kept = [text for text, line in _read_texts(path) if line["epoch"] <= epoch]
                write_whole(path, b"".join(text + b"\n" for text in kept))

    def save_checkpoint(self, save: Callable[[Path], None]) -> None:
        """Keep a new last checkpoint, and the one before it.

        Args:
            save: Writes the checkpoint to the path it is given.
        """
        new = self.path / "new.ckpt"
        self.path.mkdir(parents=True, exist_ok=True)
        if _sidecar(new).exists():
            self._finish_moves(new)
        try:
            save(new)
            _sync(new)
            digest = _digest(new)
            _sign(new, digest)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        self._promote(new, digest)

    def _finish_moves(self, new: Path) -> None:
        """Do what a kill has left undone, before the checksum of the new checkpoint is written over."""
        if digest := self._signed(new):
            self._promote(new, digest)
            return
        paths = [self.path / name for name in ("previous.ckpt", "last.ckpt")]
        for path, found in [(path, self._signed(path)) for path in paths]:
            if found:
                _sign(path, found)

    def _promote(self, new: Path, digest: str) -> None:
        """Make a whole and signed checkpoint the last one.

        The last one before becomes the previous one if it is whole, otherwise that stays. All checksums on record count
        for all checkpoints (`_signed`), so at every moment each that is whole has its own somewhere.
        """
        last, previous = self.path / "last.ckpt", self.path / "previous.ckpt"
        if before := self._signed(last):
            os.replace(last, previous)
        else:
            before = self._signed(previous)
        os.replace(new, last)
        if before:
            _sign(previous, before)
        _sign(last, digest)
        _sidecar(new).unlink()

    def checkpoint(self) -> Path | None:
        """The newest checkpoint that is whole; ``None`` if there is none."""
        return next((path for name in _CHECKPOINTS if self._signed(path := self.path / name)), None)

    @property
    def damaged(self) -> list[str]:
        """Which of the last two checkpoints are there and not whole."""
        paths = [self.path / name for name in _CHECKPOINTS[1:]]
        return [path.name for path in paths if path.exists() and not self._signed(path)]

    def _signed(self, path: Path) -> str | None:
        """The checksum of a checkpoint if it is on record, beside it or beside another one; otherwise ``None``."""
        sidecars = self.path.glob("*.ckpt.sha256")
        known = {word for each in sidecars for word in each.read_text(encoding="utf-8", errors="replace").split()}
        digest = _digest(path) if path.exists() else ""
        return digest if digest in known else None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training in this folder.

        Raises:
            BusyRunError: If another one does.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if (lock := take_lock(self.path / "run.lock", patience=0.5)) is None:
            raise BusyRunError(f"another process trains in {self.path}")
        try:
            yield
        finally:
            lock.release()


def take_lock(path: Path, *, patience: float = 0) -> BaseFileLock | None:
    """The lock that a file is, until it is released or this process ends; ``None`` if another one has it.

    Args:
        path: The file; made if it is not there, and without meaning of its own.
        patience: Seconds to wait: somebody may just be looking whether the lock is held.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=patience, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    return lock


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock that a file is; asks no right to write."""
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


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file by new content, all of it or none.

    Raises:
        OSError: If what is at the path is no regular file.
    """
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is no regular file: it is not replaced")
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)  # of a process that was killed, or a link that waits for us
    try:
        with open(new, "xb") as file:  # which follows no link
            file.write(content)
        _sync(new)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    os.replace(new, path)


def _sync(path: Path) -> None:
    """Have the file's content on the disk before its name."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sidecar(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _sign(path: Path, digest: str) -> None:
    write_whole(_sidecar(path), f"{digest}  {path.name}\n".encode())


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _write_json(path: Path, content: Line) -> None:
    write_whole(path, (json.dumps(content, indent=2) + "\n").encode())


def _read_json(path: Path) -> Line | None:
    return _parse(_read_bytes(path), str(path)) if path.exists() else None


def _read_bytes(path: Path) -> bytes:
    if not path.is_file():
        raise RunFolderError(f"{path}: must be a regular file")
    return path.read_bytes()


def _read_lines(path: Path) -> list[Line]:
    return [line for _, line in _read_texts(path)] if path.exists() else []


def _read_texts(path: Path) -> list[tuple[bytes, Line]]:
    """The lines of a log, as written and as read; one that was cut off when the process was killed is left out.

    Raises:
        RunFolderError: If a line is damaged or has no epoch; it tells which.
    """
    whole, _, _ = _read_bytes(path).rpartition(b"\n")
    found = []
    for number, text in enumerate(whole.splitlines(), 1):
        line = _parse(text, where := f"{path}, line {number}")
        if not isinstance(line.get("epoch"), int):
            raise RunFolderError(f"{where}: must have an epoch, got {str(line)[:80]}")
        found.append((text, line))
    return found


def _parse(text: bytes, where: str) -> Line:
    """A JSON object.

    Raises:
        RunFolderError: If it is damaged or something else; it tells where.
    """
    try:
        content = json.loads(text.decode())
    except (ValueError, RecursionError) as err:
        raise RunFolderError(f"{where}: damaged, not JSON: {err}") from err
    if not isinstance(content, dict):
        raise RunFolderError(f"{where}: must be a JSON object, got {str(content)[:80]}")
    return content
