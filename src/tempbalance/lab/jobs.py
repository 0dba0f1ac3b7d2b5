"""Runs of a sweep: the folder and state of each, how one ended, and why it failed."""

from __future__ import annotations

import errno
import json
import re
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from tempbalance.lab.recipe import BaseRecipe, recipe_dict
from tempbalance.lab.runs import finished
from tempbalance.runlog import Line, RunFolder, RunFolderError, is_locked, write_whole

ASKED, CLAIM, FAILURE, OUTPUT = "asked.json", "claim.lock", "failure.txt", "output.txt"
QUEUED = "queued"  # file in the folder of a run that a cluster has accepted but not started
State = Literal["done", "running", "waiting", "failed", "left"]
Settings = dict[str, Any]  # of a process that trains, as `tempbalance.lab.train.train` takes them


@dataclass(frozen=True)
class Job:
    """A recipe and the folder in which it is trained."""

    recipe: BaseRecipe
    folder: Path

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.folder)

    def ask(self) -> None:
        """Write the recipe to the folder for the process that will train it."""
        write_whole(self.folder / ASKED, json.dumps(recipe_dict(self.recipe), indent=2).encode())

    @property
    def result(self) -> Line | None:
        """Result of the run; ``None`` until it is complete."""
        return finished(self.run, self.recipe)

    @property
    def is_done(self) -> bool:
        return self.result is not None

    @property
    def damage(self) -> str:
        """Why the files of the run are damaged; empty if they are not."""
        if self.folder.exists() and not self.folder.is_dir():
            return f"{self.folder} must be a folder"
        try:
            _ = self.result, self.run.recipe, self.run.metrics
        except (RunFolderError, OSError) as err:
            return str(err)
        return ""

    @property
    def state(self) -> State:
        """State of the run, read from its folder."""
        if self.damage:
            return "failed"
        if self.is_done:
            return "done"
        if is_locked(self.folder / CLAIM) or is_locked(self.folder / "run.lock"):
            return "waiting" if self.is_queued else "running"
        return "failed" if (self.folder / FAILURE).exists() else "left"

    @property
    def is_queued(self) -> bool:
        """Whether a sweep has given the run to a cluster, which has not started it."""
        return (self.folder / QUEUED).exists()

    @property
    def num_finished(self) -> int:
        """Number of finished epochs."""
        return len(self.run.metrics)

    @property
    def failure(self) -> str:
        """Last line of a failed run's traceback, or why its files are damaged."""
        if damage := self.damage:
            return damage
        text, path = "", self.folder / FAILURE
        with suppress(FileNotFoundError):  # another process has just begun it again
            text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        return text.strip().rpartition("\n")[2]


@dataclass(frozen=True)
class Ended:
    """How a process ended its work on a job, with its message."""

    job: Job
    # failed has a traceback in the folder, retry is after a transient failure; busy: another process trains the job
    state: Literal["done", "failed", "retry", "busy", "died"]
    message: str = ""


class Executor(Protocol):
    """Trains jobs, several at a time, in other processes or on other machines."""

    @property
    def num_slots(self) -> int:
        """Number of jobs that train at a time."""

    @property
    def num_ahead(self) -> int:
        """Number of further jobs to start, which wait for a slot."""

    @property
    def place_text(self) -> str:
        """Description of the machines and their resources."""

    def start(self, job: Job) -> None:
        """Begin or resume a job."""

    def ended(self) -> Sequence[Ended]:
        """Return the jobs that have ended since the last call, without waiting."""

    def close(self) -> None:
        """Stop all jobs."""


# Causes of failures that are not the run's own, with how often to try again in the same epoch. A run that needs too
# much memory will again, unless another one had taken it.
MEMORY, DISK = "out of memory", "the disk is full"
DOWNLOAD, STALE = "a download failed", "a network file is stale"
RETRIES = {MEMORY: 1, DISK: 0, DOWNLOAD: 3, STALE: 3}
_ERRNOS = {errno.ENOSPC: DISK, errno.EDQUOT: DISK, errno.ENOMEM: MEMORY}
_ERRNOS |= dict.fromkeys((errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EREMOTEIO, errno.ENOTCONN), STALE)
_NO_MEMORY = re.compile(r"out of memory|can't allocate memory|cannot allocate memory", re.IGNORECASE)


def find_cause(error: BaseException) -> str | None:
    """Return the cause of a failure that is not the run's own, from the error and those that led to it."""
    from tempbalance.lab.download import DownloadError

    each: BaseException | None = error
    seen: set[int] = set()
    while each is not None and id(each) not in seen:
        if isinstance(each, DownloadError):
            return DOWNLOAD
        if isinstance(each, OSError) and each.errno in _ERRNOS:
            return _ERRNOS[each.errno]
        if isinstance(each, MemoryError) or (isinstance(each, RuntimeError) and _NO_MEMORY.search(str(each))):
            return MEMORY
        seen.add(id(each))
        each = each.__cause__ or each.__context__
    return None


def failure_of(folder: Path, error: Exception) -> tuple[Literal["failed", "retry"], str]:
    """Return the state and the message of a run that ends with an error; keep the traceback of one that failed."""
    cause = find_cause(error)
    message = " ".join(str(error).split()) or type(error).__name__
    if cause is not None:
        where = "" if str(folder) in message else f" ({folder})"
        message = f"{cause}: {message}{where}"
        if RETRIES[cause]:
            return "retry", message
    trace = "".join(traceback.format_exception(error))
    with suppress(OSError):  # a full disk does not take it; the message is returned all the same
        write_whole(folder / FAILURE, f"{trace}{message if cause else ''}".encode())
    return "failed", message


def check_gpus(gpus: float) -> None:
    """Refuse a number of GPUs for each run that is neither a whole number nor a fraction of one."""
    if gpus < 0 or (gpus > 1 and gpus != int(gpus)):
        raise ValueError(f"gpus must be a fraction of one GPU or a whole number, got {gpus:g}")


def with_gpus(settings: Settings, gpus: float) -> Settings:
    """Return the settings of a run that has this number of GPUs."""
    if not gpus:
        return {**settings, "device": "cpu" if settings["device"] == "auto" else settings["device"]}
    return {**settings, "devices": int(gpus)} if gpus > 1 else settings
