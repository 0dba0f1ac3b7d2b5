"""Train a run on a node of a Ray cluster, and carry its files there and back."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tempbalance.lab.executors.local import Pool
from tempbalance.lab.jobs import ASKED, FAILURE, Ended, Job, Settings
from tempbalance.runlog import write_whole

Files = dict[str, bytes]

_LOGS = ("recipe.json", "metrics.jsonl", "layers.jsonl", "steps.jsonl", "output.txt", FAILURE, "best.ckpt")


def pack(folder: Path) -> Files:
    """The files of a run, under way or not, as a kill at this moment could have left them.

    A run writes the logs before the checkpoint, and the result last. They are read the other way round: a result comes
    with all that belongs to it, and the logs reach at least as far as the checkpoint, which has its name only when it
    is whole.
    """
    return _read(folder, "result.json") | _read(folder, "last.ckpt") | _read(folder, *_LOGS)


def _read(folder: Path, *names: str) -> Files:
    files = {}
    for name in names:
        with suppress(FileNotFoundError):
            files[name] = (folder / name).read_bytes()
    return files


def unpack(files: Files, folder: Path) -> None:
    """Write a run's files so that it can resume from them, whenever this process is killed."""
    for name in (*_LOGS, "last.ckpt", "result.json"):
        if name in files:
            write_whole(folder / name, files[name])


_PAUSE = 0.1  # seconds between two looks at the process that trains

# Those of this process of Ray, by their settings. One that has loaded its libraries serves the next run too, and goes
# with this process: at the end of the driver, or of the task if that has a GPU.
_pools: dict[str, Pool] = {}


@dataclass(frozen=True)
class Task:
    """What is to be trained.

    Attributes:
        job: The run, with its folder on the machine that asks for it.
        settings: Of the process that trains.
        directory: Where relative paths start, on a node that has it.
        files: Of the run as it stands if it is to be fetched; ``None`` where the folder is shared.
        name: Of the folder on the node if it is to be fetched.
        every: Seconds between two times that the files of a run under way are sent.
    """

    job: Job
    settings: Settings
    directory: Path
    files: Files | None = None
    name: str = ""
    every: float = 0


@dataclass(frozen=True)
class Part:
    """What a node sends.

    Attributes:
        node: Who sends it.
        files: Of a run that is fetched.
        ended: How the run's process has ended, with its folder on the node; ``None`` while it has not.
    """

    node: str
    files: Files
    ended: Ended | None = None


def train_run(task: Task) -> Iterator[Part]:
    """Train a run.

    Yields:
        An empty part when the node begins, now and then the files of a run that is to be fetched, and at last how it
        has ended.

    Raises:
        FileNotFoundError: If the folder should be shared and is not.
    """
    import ray

    if task.directory.is_dir():
        os.chdir(task.directory)
    job = _shared(task.job) if task.files is None else _settled(task.job, task.files, task.name)
    node = ray.get_runtime_context().get_node_id()
    yield Part(node, {})
    key = json.dumps(task.settings)
    pool = _pools.setdefault(key, Pool(1, task.settings))
    try:
        pool.start(job)
        sent, due = job.num_finished, time.monotonic() + task.every
        while not (ended := pool.ended()):
            time.sleep(_PAUSE)
            if task.files is not None and time.monotonic() > due and job.num_finished != sent:
                sent, due = job.num_finished, time.monotonic() + task.every
                yield Part(node, pack(job.folder))
        yield Part(node, {} if task.files is None else pack(job.folder), ended[0])
    except BaseException:
        _pools.pop(key).close()
        raise


def _shared(job: Job) -> Job:
    """A job whose folder this node sees.

    Raises:
        FileNotFoundError: If it does not.
    """
    asked = job.folder / ASKED
    if not asked.exists():
        raise FileNotFoundError(
            f"{asked} is not there on {socket.gethostname()}: all nodes must share the runs' folder, or runs be fetched"
        )
    return job


def _settled(job: Job, files: Files, name: str) -> Job:
    """A job in a folder of this node, as it stands here or as it was sent, whichever is further."""
    job = replace(job, folder=Path(tempfile.gettempdir()) / name)
    if not job.run.is_begun or job.num_finished < files.get("metrics.jsonl", b"").count(b"\n"):
        unpack(files, job.folder)
    job.ask()
    return job


def remove_run(folder: Path) -> None:
    """Remove the folder of a run that was fetched."""
    shutil.rmtree(folder)
