"""Leaving a recipe in a folder, and training it there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from tempbalance.lab.options import read_options
from tempbalance.lab.recipe import BaseRecipe, make_recipe, recipe_dict
from tempbalance.runlog import Line, write_whole

_RUN = {
    "images": "start",
    "language": "language.training",
    "matrices": "matrices.training",
    "operator": "operators.training",
    "detection": "detection.training",
}
ASKED = "asked.json"


def ask(folder: Path, task: BaseRecipe) -> None:
    """Leave a recipe in a folder for the process that is to train it there."""
    write_whole(folder / ASKED, json.dumps(recipe_dict(task), indent=2).encode())


def run_asked(folder: Path, console: Console, settings: Mapping[str, Any]) -> Line | None:
    """Train what a folder's ``asked.json`` asks for; the rest is as for `run_task`."""
    return run_task(make_recipe(read_options(folder / ASKED)), folder, console, settings)


def run_task(task: BaseRecipe, folder: Path, console: Console, settings: Mapping[str, Any]) -> Line | None:
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
    run = import_module(f"tempbalance.lab.{_RUN[task.kind]}").run
    cache = Path(settings["cache"]) if settings["cache"] else None
    result: Line | None = run(task, folder, console=console, **{**settings, "cache": cache})
    return result
