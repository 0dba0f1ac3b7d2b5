"""A run's files as one value, with which the run goes on in a folder of another machine."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tempbalance.lab.jobs import FAILURE
from tempbalance.runlog import RunFolder, write_whole

Files = dict[str, bytes]

_LOGS = ("recipe.json", "metrics.jsonl", "layers.jsonl", "steps.jsonl", "output.txt", FAILURE, "best.ckpt")


def pack(folder: Path) -> Files:
    """The files of a run, under way or not, as a kill at this moment could have left them.

    A run writes the logs before the checkpoint, and the result last. They are read the other way round: a result comes
    with all that belongs to it, and the logs reach at least as far as the checkpoint. These two checkpoints have their
    names only when they are whole; where the last one is just becoming the previous one, that is taken.
    """
    files = _read(folder, "result.json")
    for content in (_read(folder, "last.ckpt") or _read(folder, "previous.ckpt")).values():
        files["last.ckpt"] = content
    return files | _read(folder, *_LOGS)


def _read(folder: Path, *names: str) -> Files:
    files = {}
    for name in names:
        with suppress(FileNotFoundError):
            files[name] = (folder / name).read_bytes()
    return files


def unpack(files: Files, folder: Path) -> None:
    """Write a run's files so that it can go on from them, whenever this process is killed."""
    for name in _LOGS:
        if name in files:
            write_whole(folder / name, files[name])
    if "last.ckpt" in files:
        RunFolder(folder).save_checkpoint(lambda path: _write(path, files["last.ckpt"]))
    if "result.json" in files:
        write_whole(folder / "result.json", files["result.json"])


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
