"""Starting a run for the command line: threads, progress, loggers."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console

from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.loop import say
from tempbalance.lab.show import ShowProgress
from tempbalance.lab.training import train
from tempbalance.runlog import Line


def start(
    recipe: ImageRecipe,
    folder: Path,
    *,
    cache: Path | None,
    threads: int | None,
    console: Console,
    log_every: int,
    tensorboard: bool,
    **trainer_options: Any,
) -> Line | None:
    """Train a recipe and show how it goes.

    Returns:
        The run's result; ``None`` in all processes of several but the first, which alone tells anything.
    """
    is_first = rank_zero_only.rank == 0  # type: ignore[attr-defined]
    console = console if is_first else Console(quiet=True)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")
    warnings.showwarning = lambda message, *_: say(console, f"warning: {message}")
    if threads is not None:
        torch.set_num_threads(threads)
    logger: Any = False
    if tensorboard:
        from lightning.pytorch.loggers import TensorBoardLogger

        logger = TensorBoardLogger(folder, name="", version="tensorboard")
    result = train(
        recipe,
        folder,
        cache=cache,
        callbacks=[ShowProgress(console, log_every=log_every)],
        tell=lambda text: say(console, text),
        logger=logger,
        log_every_n_steps=log_every,
        **trainer_options,
    )
    return result if is_first else None


def run(recipe: ImageRecipe, folder: Path, *, device: str, **options: Any) -> Line | None:
    """Train a recipe for a sweep; ``options`` as for `start`."""
    return start(recipe, folder, accelerator=device, **options)
