"""The plain loop for runs that Lightning does not train: epochs in a folder that a killed run goes on from."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from rich.console import Console

from tempbalance.lab.errors import InterruptedRunError, TrainingError
from tempbalance.lab.recipe import BaseRecipe, recipe_dict
from tempbalance.lab.resume import check_run, finished
from tempbalance.lab.versions import versions
from tempbalance.runlog import Line, RunFolder, RunFolderError


class Data(Protocol):
    """What is trained on."""

    def digest(self) -> str:
        """Its checksum."""


D = TypeVar("D", bound=Data)


class Training(Protocol):
    """What a kind of run gives to the loop. Randomness follows from the seed and the epoch alone."""

    @property
    def task(self) -> BaseRecipe:
        """What is trained."""

    def first_lines(self) -> list[Line]:
        """Lines of layers before the first epoch, with epoch 0."""

    def epoch(self, number: int) -> tuple[Line, list[Line]]:
        """Train an epoch, the first being 1.

        Returns:
            Its metrics, and lines of layers; all of them have the epoch.

        Raises:
            TrainingError: If it cannot go on.
        """

    def result(self) -> Line:
        """What the run came to beside its seconds and epochs; numbers."""

    def state_dict(self) -> dict[str, Any]:
        """All that it needs to go on; plain values and tensors."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""


def train_in(folder: Path, training: Training, *, digest: str, say: Callable[[str], None]) -> Line:
    """Train to the end, from where the folder stands.

    Args:
        folder: Where the run is kept.
        training: What is trained.
        digest: Checksum of the data.
        say: Is given sentences for a person.

    Returns:
        The run's result.

    Raises:
        OtherRunError: If the folder holds a run of another recipe or of other data.
        RunFolderError: If another process trains there, or a file there is damaged.
        TrainingError: If the training cannot go on, or the disk is full.
        InterruptedRunError: On Ctrl-C.
    """
    run, task = RunFolder(folder), training.task
    check_run(run, task, digest=digest)
    with run.locked():
        if (result := finished(run, task)) is not None:
            say(f"{folder} is complete already")
            return result
        done, seconds = _go_on(run, training, digest, say)
        try:
            for number in range(done + 1, task.num_epochs + 1):
                started = time.monotonic()
                metrics, layers = training.epoch(number)
                seconds += time.monotonic() - started
                _keep(run, training, metrics, layers, seconds)
                say(_told(task, metrics))
        except KeyboardInterrupt as err:
            raise InterruptedRunError(
                f"stopped with {len(run.metrics)} of {task.num_epochs} epochs finished and kept in {folder}: "
                "the same command goes on from there"
            ) from err
        result = {**training.result(), "seconds": seconds, "epochs": task.num_epochs}
        run.write_result(result)
        return result


def run_plainly(
    task: BaseRecipe,
    folder: Path,
    load: Callable[[Path | None], D],
    build: Callable[[D, torch.device], Training],
    *,
    console: Console,
    device: str = "auto",
    precision: str = "32-true",
    threads: int | None = None,
    cache: Path | None = None,
    **_: Any,
) -> Line:
    """Train with the settings of a sweep, those that the plain loop has no use for left aside.

    Args:
        task: What is trained.
        folder: Where the run is kept.
        load: Gives the data, from the folder in which downloads are kept.
        build: Makes of them, and of a device, what is trained.
        console: Where it says how it goes.
        device: ``cpu``, ``gpu`` (or ``cuda``), or ``auto``.
        precision: Only ``32-true``.
        threads: How many torch may use; ``None`` for its own choice.
        cache: Where downloads are kept.

    Raises:
        ValueError: If the data are not as they should be, or a setting is of no use here; others as of `train_in`.
    """
    if precision not in ("32", "32-true"):
        raise ValueError(f"precision must be 32-true for {task.kind}, got {precision!r}")
    if threads is not None:
        torch.set_num_threads(threads)
    data = load(cache)
    return train_in(folder, build(data, find_device(device)), digest=data.digest(), say=partial(say, console))


def _go_on(run: RunFolder, training: Training, digest: str, say: Callable[[str], None]) -> tuple[int, float]:
    """Load the newest checkpoint, or begin; how many epochs are trained, and their seconds."""
    checkpoint = run.checkpoint()
    if checkpoint is not None:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        training.load_state_dict(state["training"])
        run.rewind(state["epoch"])
        if (noted := [line["epoch"] for line in run.metrics]) != [*range(1, state["epoch"] + 1)]:
            raise RunFolderError(
                f"{run.path / 'metrics.jsonl'}: must have a line for each of the {state['epoch']} finished epochs, got "
                f"{noted[:9]}: put it back, or remove the folder to start again"
            )
        say(f"going on after epoch {state['epoch']} in {run.path}")
        return state["epoch"], state["seconds"]
    if run.damaged:
        say(f"{' and '.join(run.damaged)} in {run.path} damaged: starting again")
    run.rewind(-1)
    run.write_recipe({"recipe": recipe_dict(training.task), "versions": versions(), "data": digest})
    run.append(layers=training.first_lines())
    return 0, 0.0


def _keep(run: RunFolder, training: Training, metrics: Line, layers: list[Line], seconds: float) -> None:
    state = {"epoch": metrics["epoch"], "seconds": seconds, "training": training.state_dict()}
    try:
        run.append([metrics], layers)
        run.save_checkpoint(partial(_save, state))
    except OSError as err:
        raise TrainingError(f"epoch {metrics['epoch']} cannot be written to {run.path}: {err}") from err


def _save(state: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:  # a file that torch opens itself would hide what the disk says
        torch.save(state, file)


def _told(task: BaseRecipe, metrics: Line) -> str:
    value = metrics.get(task.measure.name)
    return f"epoch {metrics['epoch']} of {task.num_epochs}" + ("" if value is None else f": {task.measure.text(value)}")


def find_device(name: str) -> torch.device:
    """A device of torch by Lightning's name.

    Raises:
        ValueError: If it is not there.
    """
    has_gpu = torch.cuda.is_available()
    if name not in ("cpu", "gpu", "cuda", "auto") or (name in ("gpu", "cuda") and not has_gpu):
        raise ValueError(f"device must be cpu, auto, or gpu where there is one, got {name!r}")
    return torch.device("cuda", torch.cuda.current_device()) if has_gpu and name != "cpu" else torch.device("cpu")


def say(console: Console, text: str) -> None:
    """A sentence in a line of its own, as it is."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)
