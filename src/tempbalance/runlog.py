"""A run's folder: what is written in it, and reading it back.

    recipe.json      all options, with versions
    metrics.jsonl    a line an epoch
    layers.jsonl     a line per layer and scoring
    last.ckpt        the state after the last epoch, previous.ckpt that before it, each with its SHA-256 beside it
    best.ckpt        the network with the best test accuracy so far
    result.json      only when the run is complete

A file is there whole or not at all, whenever the process is killed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Line = dict[str, Any]


class RunFolder:
    """The files of one run.

    Args:
        path: The folder; made when something is first written.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

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

    def write_recipe(self, recipe: Line) -> None:
        """Start the run."""
        _write_json(self.path / "recipe.json", recipe)

    def write_result(self, result: Line) -> None:
        """End the run."""
        _write_json(self.path / "result.json", result)

    def append(self, metrics: Iterable[Line] = (), layers: Iterable[Line] = ()) -> None:
        """Add lines to the logs."""
        for name, lines in (("metrics.jsonl", metrics), ("layers.jsonl", layers)):
            text = "".join(json.dumps(line) + "\n" for line in lines)
            if text:
                self.path.mkdir(parents=True, exist_ok=True)
                with (self.path / name).open("a", encoding="utf-8") as file:
                    file.write(text)

    def rewind(self, epoch: int) -> None:
        """Forget what the logs say of epochs after this one, which will be trained again."""
        for name in ("metrics.jsonl", "layers.jsonl"):
            kept = [line for line in _read_lines(self.path / name) if line["epoch"] <= epoch]
            if (self.path / name).exists():
                write_whole(self.path / name, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def save_checkpoint(self, save: Callable[[Path], None]) -> None:
        """Keep a new last checkpoint, and the one before it.

        Args:
            save: Writes the checkpoint to the path it is given.
        """
        last, previous, new = (self.path / name for name in ("last.ckpt", "previous.ckpt", "new.ckpt"))
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            save(new)
            digest = _digest(new)
            _sync(new)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        if last.exists():
            os.replace(last, previous)
            if _sidecar(last).exists():
                os.replace(_sidecar(last), _sidecar(previous))
        os.replace(new, last)
        write_whole(_sidecar(last), f"{digest}  last.ckpt\n".encode())

    def checkpoint(self) -> Path | None:
        """The newest checkpoint that is whole; ``None`` if there is none.

        A checkpoint counts if its checksum is on record beside it or beside the other one: between two renames a
        checksum may still lie at the place that its checkpoint has left.
        """
        candidates = [self.path / name for name in ("last.ckpt", "previous.ckpt")]
        known = {_sidecar(path).read_text().split()[0] for path in candidates if _sidecar(path).exists()}
        return next((path for path in candidates if path.exists() and _digest(path) in known), None)


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file by new content, all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    try:
        new.write_bytes(content)
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


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _write_json(path: Path, content: Line) -> None:
    write_whole(path, (json.dumps(content, indent=2) + "\n").encode())


def _read_json(path: Path) -> Line | None:
    if not path.exists():
        return None
    content: Line = json.loads(path.read_text(encoding="utf-8"))
    return content


def _read_lines(path: Path) -> list[Line]:
    """The lines of a log; one that was cut off when the process was killed is left out."""
    if not path.exists():
        return []
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]
