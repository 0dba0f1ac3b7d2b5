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
    """Return the files of a run in a state from which it can resume, even while it trains.

    A run writes the logs before the checkpoint, and the result last. They are read in reverse order, so that a result
    comes with its checkpoint and logs, and the logs reach at least as far as the checkpoint.
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

# Pools of this Ray process by their settings, reused because loading the libraries is slow. They end with the process:
# at the end of the driver, or of a task that has a GPU.
_pools: dict[str, Pool] = {}


@dataclass(frozen=True)
class Task:
    """A run to train on a node.

    Attributes:
        job: The run, with its folder on the driver's machine.
        settings: Settings of the process that trains.
        directory: Base of relative paths, on a node that has it.
        files: Present files of a run that is fetched; ``None`` if the folder is shared.
        name: Name of the folder on the node for a run that is fetched.
        every: Seconds between transfers of the files of a running job.
    """

    job: Job
    settings: Settings
    directory: Path
    files: Files | None = None
    name: str = ""
    every: float = 0


@dataclass(frozen=True)
class Part:
    """Message of a node.

    Attributes:
        node: Name of the node.
        files: Files of a run that is fetched.
        ended: How the run's process ended, with its folder on the node; ``None`` while it runs.
    """

    node: str
    files: Files
    ended: Ended | None = None


def train_run(task: Task) -> Iterator[Part]:
    """Train a run.

    Yields:
        An empty part when the node begins, every ``task.every`` seconds the files of a run that is fetched, and at last
        how the run ended.

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
    """Return a job whose folder is shared with this node; raise FileNotFoundError if it is not."""
    asked = job.folder / ASKED
    if not asked.exists():
        raise FileNotFoundError(
            f"{asked} is not there on {socket.gethostname()}: all nodes must share the runs' folder, or runs be fetched"
        )
    return job


def _settled(job: Job, files: Files, name: str) -> Job:
    """Return a job in a folder of this node, from the local files or the sent ones, whichever are further."""
    job = replace(job, folder=Path(tempfile.gettempdir()) / name)
    if not job.run.is_begun or job.num_finished < files.get("metrics.jsonl", b"").count(b"\n"):
        unpack(files, job.folder)
    job.ask()
    return job


def remove_run(folder: Path) -> None:
    """Remove the folder of a run that was fetched."""
    shutil.rmtree(folder)
