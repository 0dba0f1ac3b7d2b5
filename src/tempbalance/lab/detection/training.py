"""Training a detection with ultralytics, through callbacks, in a folder that a killed run goes on from.

ultralytics is under the AGPL: it is loaded by its name when a run starts, and nothing of it is subclassed. Its own
files are in the folder ``ultralytics``. A run goes on from a copy of its last checkpoint, kept as other runs keep
theirs; that has averaged weights in half precision, so that a run which was stopped does not end at the same numbers
as one that was not.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Container, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from tempbalance.lab.detection.data import ReadyData, find_weights, ready_data
from tempbalance.lab.detection.recipe import PRETRAINED, DetectionRecipe, check_installed
from tempbalance.lab.detection.record import Recorder, go_on
from tempbalance.lab.errors import InterruptedRunError
from tempbalance.lab.loop import say
from tempbalance.lab.methods import find_method
from tempbalance.lab.recipe import recipe_dict
from tempbalance.lab.resume import check_run, finished
from tempbalance.lab.versions import versions
from tempbalance.runlog import Line, RunFolder

OWN_FILES = "ultralytics"
_DEVICES = {"auto": "", "gpu": "", "cuda": "", "cpu": "cpu", "mps": "mps"}
_AMP = {"32-true": False, "32": False, "16-mixed": True, "16": True, "bf16-mixed": "bf16", "bf16": "bf16"}
# neither questions to servers, nor packages installed on the way, nor bars in a log
_QUIET = {"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "YOLO_VERBOSE": "false"}


def run(
    recipe: DetectionRecipe,
    folder: Path,
    *,
    console: Console,
    device: str = "auto",
    precision: str = "32-true",
    threads: int | None = None,
    cache: Path | None = None,
    **_: Any,
) -> Line:
    """Train a recipe to its end, from where the folder stands.

    Args:
        recipe: What to train.
        folder: Where the run is kept.
        console: Where it says how it goes.
        device: ``cpu``, ``mps``, or a GPU if there is one; one process trains on one device.
        precision: ``32-true``, ``16-mixed`` or ``bf16-mixed``.
        threads: Of torch; ``None`` for what ultralytics takes.
        cache: Where data and weights are kept.

    Returns:
        The run's result.

    Raises:
        ModuleNotFoundError: If ultralytics is not installed.
        ValueError: If the device, the precision or the data are not as they should be.
        OtherRunError: If the folder holds a run of another recipe or of other data.
        RunFolderError: If another process trains there, or a file there is damaged.
        TrainingError: If the loss is not finite, the memory too small for a batch, or the disk full.
        InterruptedRunError: On Ctrl-C or SIGTERM.
    """
    options = _settings(device, precision, threads)
    package, run_folder = load_ultralytics(), RunFolder(folder)
    data = ready_data(recipe.dataset, cache=cache, limit=recipe.limit, test_limit=recipe.test_limit)
    check_run(run_folder, recipe, precision=precision, digest=data.digest)

    tell = partial(say, console)
    with run_folder.locked():
        if (result := finished(run_folder, recipe)) is not None:
            tell(f"{folder} is complete already")
            return result
        made_with = {"versions": {**versions(), OWN_FILES: package.__version__}, "data": data.digest}
        begun = {"recipe": recipe_dict(recipe), **made_with, "precision": precision}
        progress = go_on(run_folder, folder / OWN_FILES, begun, tell)
        recorder = Recorder(recipe, run_folder, progress, say=tell, threads=threads)
        if progress.epoch < recipe.num_epochs:
            with _interruptible(recipe, run_folder):
                _train(package, recipe, data, recorder, folder, options, cache)
        result = recorder.result()
        run_folder.write_result(result)
        return result


def load_ultralytics() -> Any:
    """The package, told to keep to itself.

    Raises:
        ModuleNotFoundError: If it is not installed.
    """
    check_installed()
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    return import_module("ultralytics")


def _settings(device: str, precision: str, threads: int | None) -> dict[str, Any]:
    """Where and how precisely, in ultralytics' options.

    Raises:
        ValueError: If it cannot be done.
    """
    for name, value, known in (("device", device, _DEVICES), ("precision", precision, _AMP)):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)} for detection, got {value!r}")
    if device in ("gpu", "cuda") and not torch.cuda.is_available():
        raise ValueError(f"device must be cpu or mps, or auto, without a GPU that torch can use, got {device!r}")
    return {"device": _DEVICES[device], "amp": _AMP[precision], "workers": min(8, threads or 8)}


def _train(
    package: Any,
    recipe: DetectionRecipe,
    data: ReadyData,
    recorder: Recorder,
    folder: Path,
    settings: dict[str, Any],
    cache: Path | None,
) -> None:
    """Have ultralytics train all epochs that are left."""
    source: Path | str = recipe.model
    if recorder.progress.checkpoint is not None:
        source = recorder.progress.checkpoint
    elif recipe.model in PRETRAINED:
        source = find_weights(recipe.model, cache=cache)
    model = package.YOLO(str(source), task="detect")
    recorder.attach(model)
    model.train(
        resume=recorder.progress.checkpoint is not None,
        data=str(data.description),
        save_dir=str((folder / OWN_FILES).resolve()),
        **settings,
        **train_options(recipe, known=package.utils.DEFAULT_CFG_DICT),
    )


def train_options(recipe: DetectionRecipe, *, known: Container[str]) -> dict[str, Any]:
    """A recipe as options of ultralytics; what neither it nor the paper speaks of stays as ultralytics has it.

    Args:
        recipe: What to train.
        known: The options that this version of ultralytics has.
    """
    options = {
        "epochs": recipe.epochs,
        "batch": recipe.batch_size,
        "nbs": recipe.batch_size,  # a step a batch, and the weight decay as it is given
        "imgsz": recipe.image_size,
        "seed": recipe.seed,
        "optimizer": {"adam": "Adam", "adamw": "AdamW"}[find_method(recipe.method).optimizer],
        "lr0": recipe.lr,
        "lrf": 0.0,
        "cos_lr": True,
        "momentum": recipe.betas[0],
        "weight_decay": recipe.weight_decay,
        "warmup_epochs": recipe.warmup_epochs,
        "warmup_bias_lr": 0.0,  # its own 0.1 would undo pretrained biases at the paper's rates
        "mosaic": recipe.mosaic,
        "close_mosaic": recipe.close_mosaic,
        "patience": 0,  # all epochs
        "plots": False,
    }
    if "cls_remap" in known:  # newer than the paper: the head's rows of classes that COCO has too
        options["cls_remap"] = False
    return options


@contextmanager
def _interruptible(recipe: DetectionRecipe, run: RunFolder) -> Iterator[None]:
    """Take SIGTERM as Ctrl-C, and say what is kept.

    Raises:
        InterruptedRunError: On either.
    """
    is_main = threading.current_thread() is threading.main_thread()  # others cannot take signals
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if is_main else None
    try:
        yield
    except KeyboardInterrupt as err:
        raise InterruptedRunError(
            f"stopped with {len(run.metrics)} of {recipe.num_epochs} epochs finished and kept in {run.path}: "
            "the same command goes on from there"
        ) from err
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
