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
from tempbalance.lab.balancing import scored_layers
from tempbalance.lab.detection.data import WEIGHTS, ready_data
from tempbalance.lab.detection.recipe import DetectionRecipe, check_installed
from tempbalance.lab.download import fetch
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
_BALANCE = (
    "tail", "tail_fraction", "score", "interval", "start", "score_first", "score_last", "min_eigenvalues",
)  # fmt: skip


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
    """Train a recipe, or resume the run in the folder; settings and errors are those of `tempbalance.lab.train.train`.

    Other settings are ignored. The memory may be too small for a batch, which is a `TrainingError` too.
    """
    options = _options(device, precision, threads)
    package, run = load_ultralytics(), RunFolder(folder)
    data = ready_data(cache=cache, **{name: getattr(recipe, name) for name in recipe.data_options})
    check_run(run, recipe, precision=precision, digest=data.digest)
    show = partial(say, console or Console(quiet=True))
    recorder = Recorder(run, recipe, say=show, every=checkpoint_every, keep_checkpoints=keep_checkpoints)
    with run.locked(), recorder.stoppable():
        if (result := finished(run, recipe)) is not None:
            recorder.say(f"{folder} is complete already")
            return result
        own = folder / OWN_FILES
        last = own / "weights" / "last.pt"
        state = recorder.resume()
        if is_resumed := state is not None and "file" in state:
            write_whole(last, state["file"].numpy().tobytes())
        elif state is None:
            shutil.rmtree(own, ignore_errors=True)
            made_with = {"data": data.digest, "precision": full_precision(precision)}
            recorder.begin(made_with, packages={OWN_FILES: package.__version__})
        if recorder.epoch < recipe.num_epochs:
            source: Path | str = last if is_resumed else recipe.model
            if source in WEIGHTS:
                source = fetch(WEIGHTS[recipe.model], cache=cache)
            model = package.YOLO(str(source), task="detect")
            Callbacks(recorder, threads=threads).attach(model)
            options["data"] = str(data.description)
            known = package.utils.DEFAULT_CFG_DICT
            model.train(resume=is_resumed, save_dir=str(own.resolve()), **options, **train_options(recipe, known=known))
        if recipe.split != "train":
            return recorder.finish({name: run.metrics[-1][name] for name in ("test_map", "test_map50")})
        write_whole(own / "weights" / "best.pt", read_signed(folder / "best.ckpt")["file"].numpy().tobytes())
        tested = {}
        for name in ("last", "best"):
            found = package.YOLO(str(own / "weights" / f"{name}.pt"), task="detect").val(
                data=str(data.description),
                split="test",
                imgsz=recipe.image_size,
                batch=recipe.batch_size,
                save_dir=str((own / "test").resolve()),
                plots=False,
                device=options["device"],
                workers=options["workers"],
            )
            tested[name] = found.results_dict
        valid = run.metrics[recorder.best["epoch"] - 1]
        numbers = {**_precision("test", tested["last"]), **_precision("best", tested["best"])}
        return recorder.finish({**numbers, "valid_map": valid["valid_map"], "valid_map50": valid["valid_map50"]})


class Callbacks:
    """Callbacks of ultralytics that balance, and write each epoch after ultralytics has saved it."""

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
        for event in ("on_pretrain_routine_end", "on_train_epoch_end", "on_model_save"):
            model.add_callback(event, getattr(self, event))

    @property
    def scheduler(self) -> tempbalance.TempBalance | None:
        """Scores the layers, if that is asked for; it is there once training has started."""
        return None if self.balance is None else self.balance.scheduler

    def on_pretrain_routine_end(self, trainer: Any) -> None:
        """Set the options that ultralytics lacks, and the number of threads, which it has changed."""
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
        low, high = self._rates(trainer)
        metrics: Line = {"epoch": trainer.epoch + 1, "lr_min": low, "lr_max": high, "train_loss": self._loss}
        weights = None
        if self.recipe.split == "trainval":
            metrics |= _precision("test", trainer.metrics)
        else:
            metrics |= _precision("valid", trainer.metrics)
            metrics["valid_fitness"] = 0.9 * metrics["valid_map"] + 0.1 * metrics["valid_map50"]  # as published
            weights = _as_state(trainer.last)
        epoch_lines = Epoch(metrics, self._layer_lines(trainer))
        seconds, self._started = time.monotonic() - self._started, time.monotonic()
        self.recorder.write(epoch_lines, lambda: _as_state(trainer.last), seconds=seconds, weights=weights)
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
        lines = scored_layers(self.scheduler, trainer.model, trainer.optimizer, epoch)
        return [{**line, "rate": line["rate"] * line["scale"]} for line in lines]  # its groups are not scaled


def _precision(part: str, metrics: Mapping[str, Any]) -> Line:
    """Return ultralytics' precisions in percent."""
    names = {"map": "metrics/mAP50-95(B)", "map50": "metrics/mAP50(B)"}
    return {f"{part}_{name}": 100 * float(metrics[theirs]) for name, theirs in names.items()}


def _as_state(path: Path) -> dict[str, torch.Tensor]:
    """Return a file's bytes as a tensor, which a checkpoint can hold."""
    return {"file": torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)}


def load_ultralytics() -> Any:
    """Import ultralytics without requests to servers, automatic installs or progress bars."""
    check_installed()
    for name, value in {"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "YOLO_VERBOSE": "false"}.items():
        os.environ.setdefault(name, value)
    return import_module("ultralytics")


def _options(device: str, precision: str, threads: int | None) -> dict[str, Any]:
    """Return device, precision and workers as options of ultralytics."""
    for name, value, known in (("device", device, _DEVICES), ("precision", precision, _AMP)):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)} for detection, got {value!r}")
    if device in ("gpu", "cuda") and not torch.cuda.is_available():
        raise ValueError(f"device must be cpu or mps, or auto, without a GPU that torch can use, got {device!r}")
    return {"device": _DEVICES[device], "amp": _AMP[precision], "workers": min(8, threads or 8)}


def train_options(recipe: DetectionRecipe, *, known: Container[str]) -> dict[str, Any]:
    """Convert a recipe to the options that this version of ultralytics knows; others keep its defaults."""
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
