"""A run in its folder: whether it is the one asked for, recording and resuming it, and reading its weights.

The files are those of `tempbalance.runlog`.
"""

from __future__ import annotations

import math
import platform
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tempbalance.lab.recipe import BaseRecipe, Method, find_method, make_recipe, recipe_dict, training_module
from tempbalance.runlog import Line, RunFolder, RunFolderError, read_signed, write_signed

if TYPE_CHECKING:
    from torch import Tensor

_PACKAGES = ("tempbalance", "torch", "numpy", "lightning", "pytorch_optimizer")
_PRECISIONS = {"64": "64-true", "32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}  # Lightning's short names
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
_LARGE = ("optimizer", "file")  # parts of a state that a complete run does not need
EVERY = 300.0  # seconds between checkpoints
SPEEDS = ("channels_last", "fused", "compile")


class TrainingError(Exception):
    """A run cannot continue; the message says why."""


class DivergedError(TrainingError):
    """A run whose loss, weights or test value is no longer finite, as was noticed in an epoch."""

    def __init__(self, message: str, epoch: int) -> None:
        super().__init__(message, epoch)
        self.message, self.epoch = message, epoch

    def __str__(self) -> str:
        return self.message

    @property
    def result(self) -> Line:
        """Result of a run that ended so: studies count it as the worst, and it is not trained again."""
        return {"diverged": self.message, "diverged_epoch": self.epoch}


class InterruptedRunError(Exception):
    """A run was asked to stop; its finished epochs are kept."""


class OtherRunError(Exception):
    """The folder has a run of another recipe."""


def versions(packages: Sequence[str] = _PACKAGES) -> dict[str, str]:
    """Return the version of Python and of each package that moves a run's numbers."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def full_precision(name: str) -> str:
    """Return Lightning's full name of a precision."""
    return _PRECISIONS.get(name, name)


def check_run(
    run: RunFolder,
    recipe: BaseRecipe,
    *,
    precision: str | None = None,
    speed: Sequence[str] | None = None,
    digest: str | None = None,
) -> None:
    """Refuse a folder that holds a run of another recipe; one in which no epoch was finished is free for any.

    ``digest`` is the checksum of the data. Nothing is compared that the folder or the caller does not know.
    """
    if not run.is_begun:
        return
    file, content = run.path / "recipe.json", run.recipe or {}
    if not isinstance(content.get("recipe"), dict):
        raise RunFolderError(f"{file}: must say what the run was started with, got {content or 'nothing'}")
    try:
        saved = make_recipe(content["recipe"])
    except ValueError as err:
        raise RunFolderError(f"{file}: {err}") from err
    theirs, ours, used = saved.to_dict(), recipe.to_dict(), {*saved.key, *recipe.key}
    if saved.kind != recipe.kind:
        theirs, ours, used = {"kind": saved.kind}, {"kind": recipe.kind}, {"kind"}
    changed = [(name, theirs[name], value) for name, value in ours.items() if name in used and theirs[name] != value]
    asked = {"precision": precision and full_precision(precision), "speed": None if speed is None else list(speed)}
    for name, value in asked.items():
        if_missing = [] if name == "speed" else value  # a run without options of speed notes none
        if value is not None and (before := content.get(name, if_missing)) != value:
            changed.append((name, before, value))
    found = [f"{name}: {before!r} in the folder, {value!r} asked for" for name, before, value in changed]
    if digest is not None and content.get("data", digest) != digest:
        found.append(f"data: the content of {recipe.dataset} has changed")
    if found:
        raise OtherRunError(
            f"{run.path} holds a run of another recipe: {'; '.join(found)}; choose another --out or remove the folder"
        )


def finished(run: RunFolder, recipe: BaseRecipe) -> Line | None:
    """Return the result of a complete or diverged run, otherwise ``None``."""
    if (result := run.result) is None:
        return None
    names = ("diverged_epoch",) if "diverged" in result else recipe.result_names
    if missing := [name for name in names if not _is_number(result.get(name))]:
        file = run.path / "result.json"
        raise RunFolderError(
            f"{file}: must have numbers for {', '.join(missing)}; without the file the same command ends the run again"
        )
    return result


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def load_weights(folder: Path | str, *, best: bool = False) -> dict[str, Tensor]:
    """Return the network's state dict of a run, after the last or the best epoch, on the CPU.

    Raises:
        RunFolderError: If there is no whole checkpoint.
    """
    path = Path(folder) / ("best.ckpt" if best else "last.ckpt")
    if not path.exists():
        raise RunFolderError(f"{folder}: must hold {path.name}, it does not")
    content = read_signed(path)
    weights: dict[str, Tensor] = content if best else content["training"]["network"]
    return weights


class DiskNeeds(NamedTuple):
    """Estimated bytes of a run's folder: at most while the run trains, and when it is complete."""

    peak: int
    kept: int


def disk_needed(recipe: BaseRecipe, *, keep_checkpoints: bool = False) -> DiskNeeds:
    """Estimate the disk that a run needs, from the size of its network; logs count as 1 MB.

    With ``keep_checkpoints``, ``kept`` is what one checkpoint needs.
    """
    build = getattr(import_module(training_module(recipe.kind)), "bare_network", None)
    if build is None:
        return DiskNeeds(6 * _DETECTOR, 3 * _DETECTOR)
    if (key := (recipe.kind, *recipe.pace)) not in _network_bytes:
        import torch

        with torch.device("meta"):
            tensors = build(recipe).state_dict().values()
        _network_bytes[key] = sum(each.numel() * each.element_size() for each in tensors)
    weights = _network_bytes[key]
    method = find_method(vars(recipe)["method"]) if recipe.kind == "images" else Method("adam")
    state = weights * (1 + _STATES.get(method.optimizer, 2))
    # while a file is replaced, both the old and the new one are there
    return DiskNeeds(2 * state + 2 * weights + _LOGS, (state if keep_checkpoints else weights) + weights + _LOGS)


_STATES = {"sgd": 1, "sgdp": 1, "lars": 1}  # numbers that an optimizer keeps per weight; others keep two
_DETECTOR, _LOGS = 20_000_000, 1_000_000
_network_bytes: dict[tuple[Any, ...], int] = {}


@dataclass(frozen=True)
class Epoch:
    """Lines of the logs about one epoch: its metrics, one per scored layer, one per layer and noted step."""

    metrics: Line
    layers: Sequence[Line] = ()
    steps: Sequence[Line] = ()


class Recorder:
    """Writes a run's epochs into its folder, and finds where an interrupted run stands.

    Of the processes of a distributed run only the first is the writer. A checkpoint is written after ``every`` seconds
    and after the last epoch; ``keep_checkpoints`` keeps all, and the optimizer's state of a complete run.
    """

    def __init__(
        self,
        run: RunFolder,
        recipe: BaseRecipe,
        *,
        say: Callable[[str], None],
        is_writer: bool = True,
        every: float = EVERY,
        keep_checkpoints: bool = False,
    ) -> None:
        self.run, self.recipe, self.say, self.is_writer = run, recipe, say, is_writer
        self.every, self.keep_checkpoints = every, keep_checkpoints
        self.epoch, self.saved, self.seconds = 0, 0, 0.0
        self.best: Line = {}
        self._best_weights: Any = None  # that are not written yet
        self._last: Line = {}
        self._saved_at = time.perf_counter()
        self._is_writing, self._is_stopped = False, False

    def resume(self) -> dict[str, Any] | None:
        """Return the state in the checkpoint and cut the logs back to it; ``None`` to begin anew."""
        content = self.run.checkpoint()
        if content is None:
            if (self.run.path / "last.ckpt").exists():
                self.say(f"last.ckpt in {self.run.path} is damaged: starting again")
            return None
        self.epoch, self.seconds, self.best = content["epoch"], content["seconds"], content["best"]
        self.saved, self._last = self.epoch, content
        if missing := {*range(1, self.epoch + 1)} - {line["epoch"] for line in self.run.metrics}:
            listed = ", ".join(map(str, sorted(missing)[:5])) + (", ..." if len(missing) > 5 else "")
            raise RunFolderError(
                f"{self.run.path / 'metrics.jsonl'}: must have a line for each of the {self.epoch} finished epochs, "
                f"lacks {listed}: put it back, or remove the folder to start again"
            )
        self.run.rewind(content["logs"], only_check=not self.is_writer)
        self.say(f"going on after epoch {self.epoch} in {self.run.path}")
        return dict(content["training"])

    def begin(self, made_with: Line, layers: Sequence[Line] = (), *, packages: Mapping[str, str] | None = None) -> None:
        """Start the logs of a run; ``made_with`` is the rest of ``recipe.json``, ``layers`` are lines with epoch 0."""
        if self.is_writer:
            noted = {"recipe": recipe_dict(self.recipe), "versions": {**versions(), **(packages or {})}}
            with self._writing("the recipe"):
                self.run.rewind({})
                self.run.write_recipe({**noted, **made_with})
                self.run.append(layers=layers)

    def write(self, epoch: Epoch, state: Callable[[], dict[str, Any]], *, seconds: float, weights: Any = None) -> None:
        """Write a finished epoch to the logs; when it is time, write the checkpoint and the best weights so far too.

        ``state`` gives everything that training needs to continue; ``weights`` of ``None`` keep no best one.
        """
        self.epoch, self.seconds = epoch.metrics["epoch"], self.seconds + seconds
        is_best = self._is_best(epoch.metrics)
        if not self.is_writer:
            return
        is_due = self.epoch == self.recipe.num_epochs or time.perf_counter() - self._saved_at >= self.every
        if is_best and weights is not None:
            self._best_weights = weights if is_due else {name: each.clone() for name, each in weights.items()}
        with self._writing(f"epoch {self.epoch}"):
            self.run.append([epoch.metrics], epoch.layers, epoch.steps)
            if is_due:
                self._save(state())

    def _save(self, state: dict[str, Any]) -> None:
        if self._best_weights is not None:
            write_signed(self.run.path / "best.ckpt", self._best_weights)
            self._best_weights = None
        self._last = {"epoch": self.epoch, "seconds": self.seconds, "best": self.best, "training": state}
        self._last["logs"] = self.run.marks()
        self.run.save_checkpoint(self._last, keep=self.keep_checkpoints)
        self.saved, self._saved_at = self.epoch, time.perf_counter()

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """Write all of something before a signal stops the run; a full disk is said with what is free."""
        self._is_writing = True
        try:
            yield
        except OSError as err:
            path = next(each for each in (self.run.path, *self.run.path.absolute().parents) if each.exists())
            disk = shutil.disk_usage(path)
            raise TrainingError(
                f"{what} cannot be written to {self.run.path}: {err.strerror or err} ({disk.free / 1e6:,.1f} MB of the "
                f"disk's {disk.total / 1e6:,.1f} MB are free); once it can be written, the same command resumes "
                + (f"after epoch {self.saved}" if self.saved else "from the beginning")
            ) from err
        finally:
            self._is_writing = False
        if self._is_stopped:
            raise KeyboardInterrupt

    def _is_best(self, metrics: Line) -> bool:
        """Whether an epoch is better than all before; its number and test value are kept."""
        measure, by = self.recipe.measure, self.recipe.best_by or self.recipe.measure.name
        if self.best and measure.sign(metrics[by]) <= measure.sign(self.best["by"]):
            return False
        self.best = {"epoch": metrics["epoch"], "by": metrics[by], "value": metrics.get(measure.name)}
        return True

    def finish(self, result: Line) -> Line:
        """Complete the run; its result gets the best epoch, the seconds and the number of epochs.

        ``result`` has the measure at the best epoch if the metrics do not.
        """
        name = f"best_{self.recipe.measure.name.removeprefix('test_')}"
        best = {name: result.get(name, self.best["value"]), "best_epoch": self.best["epoch"]}
        result = {**result, **best, "seconds": self.seconds, "epochs": self.epoch}
        if self.is_writer:
            with self._writing("the result"):
                self.run.write_result(result)
                if not self.keep_checkpoints:
                    small = {name: each for name, each in self._last["training"].items() if name not in _LARGE}
                    self.run.save_checkpoint({**self._last, "training": small})
        return result

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Stop on Ctrl-C, SIGTERM and SIGHUP, and say what is kept; an epoch that is being written is kept too."""
        is_main = threading.current_thread() is threading.main_thread()  # others cannot take signals
        numbers = [getattr(signal, name) for name in _SIGNALS if is_main and hasattr(signal, name)]
        before = {number: signal.getsignal(number) for number in numbers}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # as nohup has it
                signal.signal(number, self._stop)
        try:
            yield
        except KeyboardInterrupt as err:
            raise InterruptedRunError(
                f"stopped in epoch {self.epoch + 1} of {self.recipe.num_epochs} with {self.saved} of "
                f"{self.recipe.num_epochs} epochs kept in {self.run.path}: the same command resumes from there"
            ) from err
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _stop(self, *_: object) -> None:
        self._is_stopped = True
        if not self._is_writing:
            raise KeyboardInterrupt
