"""Train a detector with ultralytics through callbacks, in a folder from which a killed run resumes.

ultralytics is under the AGPL, so it is imported by name when a run starts, and no class of it is subclassed. Its own
files are in the folder ``ultralytics``. A run resumes from a copy of its last checkpoint. That has averaged weights in
half precision, so the results of a resumed run differ from those of an uninterrupted one.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Container, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import tempbalance
from tempbalance.integrations.ultralytics import UltralyticsBalance, balance
from tempbalance.lab.detection.data import ReadyData, find_weights, ready_data
from tempbalance.lab.detection.recipe import PRETRAINED, DetectionRecipe, check_installed
from tempbalance.lab.progress import epoch_text, say
from tempbalance.lab.recipe import find_method
from tempbalance.lab.runs import (
    EVERY,
    DivergedError,
    Epoch,
    Recorder,
    TrainingError,
    check_run,
    finished,
    full_precision,
)
from tempbalance.runlog import Line, RunFolder, read_signed, write_whole

OWN_FILES = "ultralytics"
_DEVICES = {"auto": "", "gpu": "", "cuda": "", "cpu": "cpu", "mps": "mps"}
_AMP = {"32-true": False, "32": False, "16-mixed": True, "16": True, "bf16-mixed": "bf16", "bf16": "bf16"}
# no requests to servers, no automatic installs, no progress bars in a log
_QUIET = {"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "YOLO_VERBOSE": "false"}

_BALANCE = (
    "tail", "tail_fraction", "score", "interval", "start", "score_first", "score_last", "min_eigenvalues",
)  # fmt: skip
_MAP, _MAP50 = "metrics/mAP50-95(B)", "metrics/mAP50(B)"  # ultralytics' names


def train_on_ultralytics(
    recipe: DetectionRecipe,
    folder: Path,
    *,
    console: Console | None = None,
    device: str = "auto",
    precision: str = "32-true",
    threads: int | None = None,
    cache: Path | None = None,
    checkpoint_every: float = EVERY,
    keep_checkpoints: bool = False,
    **_: Any,
) -> Line:
    """Train a recipe, or resume the run in the folder.

    Args:
        recipe: Recipe of the run.
        folder: Folder of the run.
        console: Console for the progress; ``None`` for none.
        device: ``cpu``, ``mps``, or a GPU if there is one; one process trains on one device.
        precision: ``32-true``, ``16-mixed`` or ``bf16-mixed``.
        threads: Number of torch threads; ``None`` for ultralytics' default.
        cache: Cache folder of data and weights.
        checkpoint_every: Seconds between checkpoints.
        keep_checkpoints: Keep all checkpoints.

    Returns:
        The run's result.

    Raises:
        ModuleNotFoundError: If ultralytics is not installed.
        ValueError: If the device, the precision or the data are invalid.
        OtherRunError: If the folder holds a run of another recipe or of other data.
        RunFolderError: If another process trains there, or a file there is damaged.
        TrainingError: If the loss is not finite, the memory too small for a batch, or the disk full.
        InterruptedRunError: On Ctrl-C or SIGTERM.
    """
    options = _settings(device, precision, threads)
    package, run = load_ultralytics(), RunFolder(folder)
    data = ready_data(recipe.dataset, cache=cache, split=recipe.split, limit=recipe.limit, test_limit=recipe.test_limit)
    check_run(run, recipe, precision=precision, digest=data.digest)
    show = partial(say, console or Console(quiet=True))
    recorder = Recorder(run, recipe, say=show, every=checkpoint_every, keep_checkpoints=keep_checkpoints)
    with run.locked(), recorder.stoppable():
        if (result := finished(run, recipe)) is not None:
            recorder.say(f"{folder} is complete already")
            return result
        state = recorder.resume()
        checkpoint = folder / OWN_FILES / "weights" / "last.pt" if state and "file" in state else None
        if state is not None and checkpoint is not None:
            write_whole(checkpoint, state["file"].numpy().tobytes())
        elif state is None:
            shutil.rmtree(folder / OWN_FILES, ignore_errors=True)
            made_with = {"data": data.digest, "precision": full_precision(precision)}
            recorder.begin(made_with, packages={OWN_FILES: package.__version__})
        if recorder.epoch < recipe.num_epochs:
            callbacks = Callbacks(recorder, threads=threads)
            _train(package, recipe, data, callbacks, checkpoint, folder, options, cache)
        if recipe.split == "train":
            return recorder.finish(_test_last_and_best(package, recipe, data, recorder, folder, options))
        last = run.metrics[-1]
        return recorder.finish({name: last[name] for name in ("test_map", "test_map50")})


class Callbacks:
    """Callbacks of ultralytics that balance, and write each epoch after ultralytics has saved it.

    Args:
        recorder: Recorder of the run.
        threads: Number of torch threads, which ultralytics changes when it starts.
    """

    def __init__(self, recorder: Recorder, *, threads: int | None) -> None:
        assert isinstance(recorder.recipe, DetectionRecipe)
        self.recorder, self.recipe, self.threads = recorder, recorder.recipe, threads
        self.balance: UltralyticsBalance | None = None
        self._noted_scores: dict[str, float] = {}
        self._loss = math.nan
        self._started = time.monotonic()

    def attach(self, model: Any) -> None:
        """Add the callbacks to an ultralytics model, before its ``train``."""
        if self.recipe.is_scored:
            options = {name: getattr(self.recipe, name) for name in _BALANCE}
            options["assignment"] = self.recipe.library_assignment
            scale_range = self.recipe.scale_range if self.recipe.is_balanced else (1.0, 1.0)
            self.balance = balance(model, scale_range=scale_range, **options)
        model.add_callback("on_pretrain_routine_end", self.on_pretrain_routine_end)
        model.add_callback("on_train_epoch_end", self.on_train_epoch_end)
        model.add_callback("on_model_save", self.on_model_save)

    @property
    def scheduler(self) -> tempbalance.TempBalance | None:
        """Scores the layers, if that is asked for; it is there once training has started."""
        return None if self.balance is None else self.balance.scheduler

    def on_pretrain_routine_end(self, trainer: Any) -> None:
        """Set the options that ultralytics lacks."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        for group in trainer.optimizer.param_groups:
            group.update(betas=self.recipe.betas, eps=self.recipe.eps)
        self._started = time.monotonic()

    def on_train_epoch_end(self, trainer: Any) -> None:
        """Raise an error where ultralytics would repeat an epoch or continue with smaller batches."""
        epoch = trainer.epoch + 1
        if trainer.batch_size != self.recipe.batch_size:
            raise TrainingError(
                f"batch_size must fit into the memory, {self.recipe.batch_size} images of {self.recipe.image_size} "
                f"pixels do not: ultralytics continued with {trainer.batch_size}"
            )
        self._loss = sum(trainer.label_loss_items(trainer.tloss).values())
        if not math.isfinite(self._loss):
            raise DivergedError(
                f"the loss is {self._loss} in epoch {epoch}; rates are up to {self._rates(trainer)[1]:.3g}", epoch
            )

    def on_model_save(self, trainer: Any) -> None:
        """Write the epoch after ultralytics has tested or validated it, and saved it."""
        epoch = trainer.epoch + 1
        low, high = self._rates(trainer)
        metrics: Line = {"epoch": epoch, "lr_min": low, "lr_max": high, "train_loss": self._loss}
        weights = None
        if self.recipe.split == "trainval":
            metrics |= _precision("test", trainer.metrics)
        else:
            metrics |= _precision("valid", trainer.metrics)
            metrics["valid_fitness"] = 0.9 * metrics["valid_map"] + 0.1 * metrics["valid_map50"]  # as published
            weights = {"file": _as_tensor(trainer.last)}
        epoch_lines = Epoch(metrics, self._layer_lines(trainer))
        seconds, self._started = time.monotonic() - self._started, time.monotonic()
        self.recorder.write(epoch_lines, lambda: {"file": _as_tensor(trainer.last)}, seconds=seconds, weights=weights)
        self.recorder.say(epoch_text(self.recipe, metrics))

    def _rates(self, trainer: Any) -> tuple[float, float]:
        rates = [float(group["lr"]) for group in trainer.optimizer.param_groups]
        scales = [*(self.scheduler.last_scales.values() if self.scheduler is not None else ()), 1.0]
        return min(rates) * min(scales), max(rates) * max(scales)

    def _layer_lines(self, trainer: Any) -> list[Line]:
        """Return the lines of the last scoring with the number of epochs before it, unless they are in the log."""
        if self.scheduler is None:
            return []
        scores, epoch = dict(self.scheduler.last_scores), trainer.epoch
        if scores == self._noted_scores or any(line["epoch"] == epoch for line in self.recorder.run.layers):
            return []
        self._noted_scores = scores
        rates = {id(each): float(group["lr"]) for group in trainer.optimizer.param_groups for each in group["params"]}
        weights = {layer.name: layer.parameters[0] for layer in tempbalance.find_layers(trainer.model)}
        lines: list[Line] = []
        for row in self.scheduler.table():
            if row.score is not None and row.scale is not None:
                line = {"epoch": epoch, "layer": row.name, "alpha": row.alpha, "score": row.score, "scale": row.scale}
                lines.append({**line, "rate": rates[id(weights[row.name])] * row.scale})
        return lines


def _precision(part: str, metrics: Mapping[str, Any]) -> Line:
    """Return ultralytics' precisions on a part of the images, in percent."""
    return {f"{part}_map": 100 * float(metrics[_MAP]), f"{part}_map50": 100 * float(metrics[_MAP50])}


def _test_last_and_best(
    package: Any,
    recipe: DetectionRecipe,
    data: ReadyData,
    recorder: Recorder,
    folder: Path,
    settings: dict[str, Any],
) -> Line:
    """Test the last checkpoint, and the one that was best on the validation images; return the numbers of both."""
    own = folder / OWN_FILES
    write_whole(own / "weights" / "best.pt", read_signed(folder / "best.ckpt")["file"].numpy().tobytes())
    tested = []
    for name in ("last.pt", "best.pt"):
        found = package.YOLO(str(own / "weights" / name), task="detect").val(
            data=str(data.description),
            split="test",
            imgsz=recipe.image_size,
            batch=recipe.batch_size,
            save_dir=str((own / "test").resolve()),
            plots=False,
            device=settings["device"],
            workers=settings["workers"],
        )
        tested.append(_precision("test", found.results_dict))
    last, best = tested
    valid = recorder.run.metrics[recorder.best["epoch"] - 1]
    result = {**last, "best_map": best["test_map"], "best_map50": best["test_map50"]}
    return {**result, "valid_map": valid["valid_map"], "valid_map50": valid["valid_map50"]}


def _as_tensor(path: Path) -> torch.Tensor:
    """Return the bytes of a file as a tensor, which a checkpoint can hold."""
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)


def load_ultralytics() -> Any:
    """Import ultralytics without requests to servers, automatic installs or progress bars."""
    check_installed()
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    return import_module("ultralytics")


def _settings(device: str, precision: str, threads: int | None) -> dict[str, Any]:
    """Return device, precision and workers as options of ultralytics."""
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
    callbacks: Callbacks,
    checkpoint: Path | None,
    folder: Path,
    settings: dict[str, Any],
    cache: Path | None,
) -> None:
    """Train the remaining epochs with ultralytics."""
    source: Path | str = recipe.model
    if checkpoint is not None:
        source = checkpoint
    elif recipe.model in PRETRAINED:
        source = find_weights(recipe.model, cache=cache)
    model = package.YOLO(str(source), task="detect")
    callbacks.attach(model)
    model.train(
        resume=checkpoint is not None,
        data=str(data.description),
        save_dir=str((folder / OWN_FILES).resolve()),
        **settings,
        **train_options(recipe, known=package.utils.DEFAULT_CFG_DICT),
    )


def train_options(recipe: DetectionRecipe, *, known: Container[str]) -> dict[str, Any]:
    """Convert a recipe to options of ultralytics; other options keep ultralytics' defaults.

    Args:
        recipe: Recipe of the run.
        known: Options of the installed version of ultralytics.
    """
    options = {
        "epochs": recipe.epochs,
        "batch": recipe.batch_size,
        "nbs": recipe.batch_size,  # one step per batch, and the weight decay unchanged
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
