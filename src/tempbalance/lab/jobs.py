"""Runs that are to be trained: which folder is whose, where each stands, and who trains them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from tempbalance.lab.recipe import BaseRecipe, recipe_dict
from tempbalance.lab.runs import finished
from tempbalance.runlog import Line, RunFolder, RunFolderError, is_locked, write_whole

ASKED, CLAIM, FAILURE = "asked.json", "claim.lock", "failure.txt"
State = Literal["done", "running", "failed", "left"]


@dataclass(frozen=True)
class Job:
    """A recipe and the folder in which it is trained."""

    recipe: BaseRecipe
    folder: Path

    @property
    def run(self) -> RunFolder:
        """The folder's content."""
        return RunFolder(self.folder)

    def ask(self) -> None:
        """Leave the recipe in the folder for the process that is to train it there."""
        write_whole(self.folder / ASKED, json.dumps(recipe_dict(self.recipe), indent=2).encode())

    @property
    def result(self) -> Line | None:
        """How the run ended; ``None`` while it is not complete."""
        return finished(self.run, self.recipe)

    @property
    def is_done(self) -> bool:
        """Whether the run is complete."""
        return self.result is not None

    @property
    def damage(self) -> str:
        """What is wrong with the files of the run; empty if nothing is."""
        if self.folder.exists() and not self.folder.is_dir():
            return f"{self.folder} must be a folder"
        try:
            _ = self.result, self.run.recipe, self.run.metrics
        except (RunFolderError, OSError) as err:
            return str(err)
        return ""

    @property
    def state(self) -> State:
        """Where the run stands, as anybody can see from its folder."""
        if self.damage:
            return "failed"
        if self.is_done:
            return "done"
        if is_locked(self.folder / CLAIM) or is_locked(self.folder / "run.lock"):
            return "running"
        return "failed" if (self.folder / FAILURE).exists() else "left"

    @property
    def num_finished(self) -> int:
        """How many epochs are finished."""
        return len(self.run.metrics)

    @property
    def failure(self) -> str:
        """What a failed run said last, or what is wrong with its files."""
        if damage := self.damage:
            return damage
        text = ""
        with suppress(FileNotFoundError):  # no failure, or another process has just begun it again
            text = (self.folder / FAILURE).read_text(encoding="utf-8", errors="replace").strip()
        return text.rpartition("\n")[2]


@dataclass(frozen=True)
class Ended:
    """How a process' work on a job has ended.

    Attributes:
        job: Which.
        state: ``done``; ``failed``, with a traceback in the folder; ``busy`` where another process trains it; ``died``
            if the process did.
        message: What it said.
    """

    job: Job
    state: Literal["done", "failed", "busy", "died"]
    message: str = ""


class Executor(Protocol):
    """Trains jobs, several at a time, in other processes or on other machines."""

    @property
    def num_slots(self) -> int:
        """How many at a time."""

    def start(self, job: Job) -> None:
        """Begin, or go on with, a job."""

    def ended(self) -> Sequence[Ended]:
        """The jobs that have ended since the last call; does not wait."""

    def close(self) -> None:
        """Stop whatever is running."""


Settings = dict[str, Any]  # of a process that trains: device, precision, threads, cache, log_every, tensorboard
