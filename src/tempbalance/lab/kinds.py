"""The kinds of runs: what each is described by and what runs it. Neither is loaded before it is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from tempbalance.lab.methods import unknown
from tempbalance.lab.options import read_options
from tempbalance.lab.task import Task
from tempbalance.runlog import Line, write_whole

# the recipe of each kind, and the module whose `run` trains it
_KINDS = {
    "images": ("recipe.Recipe", "start"),
    "language": ("language.recipe.LanguageRecipe", "language.training"),
    "matrices": ("matrices.recipe.MatricesRecipe", "matrices.training"),
    "operator": ("operator.recipe.OperatorRecipe", "operator.training"),
    "detection": ("detection.recipe.DetectionRecipe", "detection.training"),
}
ASKED = "asked.json"


def find_kind(name: str) -> type[Task]:
    """The recipe of a kind.

    Raises:
        ValueError: If there is no such kind; it names the closest.
    """
    if name not in _KINDS:
        raise ValueError(unknown("kind", name, _KINDS))
    module, _, attribute = _KINDS[name][0].rpartition(".")
    found: type[Task] = getattr(import_module(f"tempbalance.lab.{module}"), attribute)
    return found


def make_task(options: Mapping[str, Any]) -> Task:
    """A recipe from its options, of images where ``kind`` does not say otherwise.

    Raises:
        ValueError: If the kind is not known, or an option is not as it should be.
    """
    kind = options.get("kind", "images")
    return find_kind(str(kind)).from_dict({name: value for name, value in options.items() if name != "kind"})


def task_options(task: Task) -> dict[str, Any]:
    """A recipe as `make_task` takes it."""
    return task.to_dict() if task.kind == "images" else {"kind": task.kind, **task.to_dict()}


def ask(folder: Path, task: Task) -> None:
    """Leave a recipe in a folder for the process that is to train it there."""
    write_whole(folder / ASKED, json.dumps(task_options(task), indent=2).encode())


def run_asked(folder: Path, console: Console, settings: Mapping[str, Any]) -> Line | None:
    """Train what a folder's ``asked.json`` asks for; the rest is as for `run_task`."""
    return run_task(make_task(read_options(folder / ASKED)), folder, console, settings)


def run_task(task: Task, folder: Path, console: Console, settings: Mapping[str, Any]) -> Line | None:
    """Train a recipe to its end.

    Args:
        task: What to train.
        folder: The run's.
        console: Where it says how it goes.
        settings: ``device``, ``precision``, ``threads``, ``cache``, ``log_every`` and ``tensorboard``.

    Returns:
        The run's result.

    Raises:
        ValueError: If something asked for does not exist; other errors are those of the kind.
    """
    run = import_module(f"tempbalance.lab.{_KINDS[task.kind][1]}").run
    cache = Path(settings["cache"]) if settings["cache"] else None
    result: Line | None = run(task, folder, console=console, **{**settings, "cache": cache})
    return result
