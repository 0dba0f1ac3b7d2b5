"""Starting a run for the command line: threads, progress, loggers."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from tempbalance.lab.recipe import Recipe
from tempbalance.lab.show import ShowProgress
from tempbalance.lab.training import check_recipe, train
from tempbalance.runlog import Line, RunFolder


def start(
    recipe: Recipe,
    folder: Path,
    *,
    cache: Path | None,
    threads: int | None,
    console: Console,
    log_every: int,
    tensorboard: bool,
    **trainer_options: Any,
) -> Line:
    """Train a recipe and show how it goes; say so if the folder's run is complete already."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")
    if threads is not None:
        torch.set_num_threads(threads)
    run = RunFolder(folder)
    check_recipe(run, recipe)
    if run.result is not None:
        console.print(f"{folder} is complete already", highlight=False)
        return run.result
    if run.metrics:
        console.print(f"going on after epoch {len(run.metrics)} in {folder}", highlight=False)
    logger: Any = False
    if tensorboard:
        from lightning.pytorch.loggers import TensorBoardLogger

        logger = TensorBoardLogger(folder, name="", version="tensorboard")
    show = ShowProgress(console, log_every=log_every)
    return train(
        recipe, folder, cache=cache, callbacks=[show], logger=logger, log_every_n_steps=log_every, **trainer_options
    )
