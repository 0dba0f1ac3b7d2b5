"""Training a recipe with Lightning, in a folder that a killed run goes on from."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities.exceptions import SIGTERMException

from tempbalance.lab.errors import InterruptedRunError
from tempbalance.lab.images.data import load_data
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.module import RecipeModule, check_batches
from tempbalance.lab.record import Recorder, StraightIO
from tempbalance.lab.resume import check_run, finished
from tempbalance.runlog import Line, RunFolder


def train(
    recipe: ImageRecipe,
    folder: Path,
    *,
    cache: Path | None = None,
    callbacks: list[Callback] | None = None,
    tell: Callable[[str], None] = lambda _: None,
    precision: str = "32-true",
    **trainer_options: Any,
) -> Line:
    """Train a recipe to its end, from where the folder stands.

    Args:
        recipe: What to train.
        folder: Where the run is kept. A folder with this recipe goes on where it stopped.
        cache: Where datasets are kept.
        callbacks: Of Lightning, such as a progress bar.
        tell: Is given sentences for a person: that the run is complete already, or where it goes on.
        precision: Of Lightning's Trainer; a run goes on in the one it was started with.
        trainer_options: More for Lightning's Trainer: ``accelerator``, ``devices``, ``num_nodes``, ``logger``.

    Returns:
        The run's result.

    Raises:
        ValueError: If the recipe does not fit the data or the devices, or Lightning cannot do what is asked of it.
        OtherRunError: If the folder holds a run of another recipe or of other data.
        RunFolderError: If another process trains there, or a file there is damaged.
        TrainingError: If the loss is not finite, or the disk is full.
        InterruptedRunError: On Ctrl-C or SIGTERM.
    """
    run = RunFolder(folder)
    check_run(run, recipe, precision=precision)
    result = finished(run, recipe)
    if result is None or recipe.is_own_data:
        data = load_data(recipe.dataset, cache=cache, limit=recipe.limit, test_limit=recipe.test_limit)
        digest = data.digest()
        check_run(run, recipe, precision=precision, digest=digest)
    if result is not None:
        tell(f"{folder} is complete already")
        return result
    module = RecipeModule(recipe, data)
    try:
        trainer = Trainer(
            max_epochs=recipe.num_epochs,
            callbacks=[Recorder(run, digest=digest, tell=tell), *(callbacks or [])],
            precision=precision,  # type: ignore[arg-type]
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            deterministic="warn" if torch.cuda.is_available() else False,
            **{"logger": False, "plugins": [StraightIO()], **trainer_options},
        )
    except MisconfigurationException as err:
        raise ValueError(" ".join(str(err).split())) from err
    check_batches(module, trainer.world_size)
    with run.locked() if trainer.is_global_zero else nullcontext():
        return _fit(trainer, module, run, tell)


def _fit(trainer: Trainer, module: RecipeModule, run: RunFolder, tell: Callable[[str], None]) -> Line:
    """Train from the newest checkpoint to the end, and write the result.

    Raises:
        InterruptedRunError: On Ctrl-C or SIGTERM.
    """
    if (done := finished(run, module.recipe)) is not None:  # by the process that had the lock
        return done
    epochs, checkpoint = module.recipe.num_epochs, run.checkpoint()
    if checkpoint is None and run.damaged:
        tell(f"{' and '.join(run.damaged)} in {run.path} damaged: starting again")
    try:
        trainer.fit(module, module.training_batches(), module.test_batches(), ckpt_path=checkpoint, weights_only=True)
    except (SystemExit, SIGTERMException) as err:  # SystemExit is Lightning's answer to Ctrl-C
        raise InterruptedRunError(
            f"stopped with {len(run.metrics)} of {epochs} epochs finished and kept in {run.path}: "
            "the same command goes on from there"
        ) from err
    # the accuracy after the last epoch, as the paper reports; from the log, for a run that was killed right before this
    result = {"test_accuracy": run.metrics[-1]["test_accuracy"], **module.result(), "epochs": epochs}
    if trainer.is_global_zero:
        run.write_result(result)
    return result
