"""One training loop for all kinds of runs on Lightning Fabric, in a folder that a killed run goes on from."""

from __future__ import annotations

import logging
import math
import os
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from lightning.fabric import Fabric
from rich.console import Console
from torch import Tensor, nn

from tempbalance.lab.progress import RunProgress, say
from tempbalance.lab.recipe import BaseRecipe, training_module
from tempbalance.lab.runs import DivergedError, Epoch, Recorder, check_run, finished, full_precision, listed
from tempbalance.runlog import Line, RunFolder

R = TypeVar("R", bound=BaseRecipe)


class Training(ABC, Generic[R]):
    """A network in training: what each kind gives to the loop. Randomness follows from the seed and the epoch alone.

    Args:
        recipe: What to train.
        network: With fresh weights; it is moved to Fabric's device.
        optimizer: Of the network's parameters.
        fabric: Gives device, precision and processes.

    Attributes:
        network: The bare network, whose weights are scored and saved.
        model: The network as Fabric runs it, for the forward pass.
        metrics: Of the latest epoch.
        iteration: How many steps have begun.
        on_step: Called with the loss of each step.
    """

    def __init__(self, recipe: R, network: nn.Module, optimizer: torch.optim.Optimizer, fabric: Fabric) -> None:
        self.recipe, self.network, self.optimizer, self.fabric = recipe, network, optimizer, fabric
        self.model = fabric.setup_module(network)
        self._stepped: Any = fabric.setup_optimizers(optimizer)
        self.metrics: Line = {}
        self.number, self.iteration = 0, 0
        self.on_step: Callable[[float], None] = lambda loss: None

    @property
    @abstractmethod
    def num_steps(self) -> int:
        """How many steps the whole run has."""

    @abstractmethod
    def epoch(self, number: int) -> Epoch:
        """Train an epoch, the first being 1, and evaluate.

        Raises:
            TrainingError: If it cannot go on.
        """

    def first_lines(self) -> list[Line]:
        """Return lines about the layers before the first epoch, with epoch 0."""
        return []

    def scored_epochs(self, last: int) -> set[int]:
        """Return the epochs up to ``last`` that have lines about the layers."""
        return set()

    def result(self) -> Line:
        """Return the numbers of a complete run: those of its last epoch that the recipe's result has."""
        return {name: self.metrics[name] for name in self.recipe.result_names if name in self.metrics}

    def stateful(self) -> dict[str, Any]:
        """Return the objects whose state a checkpoint holds, by name."""
        return {"network": self.network, "optimizer": self.optimizer, "precision": self.fabric.strategy.precision}

    def state_dict(self) -> dict[str, Any]:
        """Return everything that training needs to go on, as plain values and tensors."""
        return {**{name: part.state_dict() for name, part in self.stateful().items()}, "metrics": self.metrics}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        for name, part in self.stateful().items():
            part.load_state_dict(state[name])
        self.metrics = state["metrics"]

    def step(self, loss: Tensor) -> float:
        """Take a step of the optimizer; the loss of all processes.

        Raises:
            TrainingError: If it is not finite.
        """
        self.iteration += 1
        value = self.finite(
            "loss", float(self.reduced(loss.detach(), "mean"))
        )  # of all processes, so that all of them stop
        self.on_step(value)
        self.optimizer.zero_grad()
        self.fabric.backward(loss)
        self.fabric.strategy.precision.unscale_gradients(self.optimizer)
        self.before_step()
        self._stepped.step()
        return value

    def before_step(self) -> None:
        """Look at the gradients, or change them."""

    def reduced(self, value: Tensor, how: str) -> Tensor:
        """Return the ``mean`` or ``sum`` of a value over all processes."""
        if self.fabric.world_size == 1:
            return value
        found = self.fabric.all_reduce(value.clone(), reduce_op=how)
        assert isinstance(found, Tensor)
        return found

    def finite(self, what: str, value: float) -> float:
        """Return a number, if it is finite.

        Raises:
            DivergedError: With epoch and iteration, the first layer that is not finite, and the learning rates.
        """
        if math.isfinite(value):
            return value
        where = f"the {what} is {value} in epoch {self.number}, iteration {self.iteration}"
        for group in self.optimizer.param_groups:
            if not all(bool(parameter.isfinite().all()) for parameter in group["params"]):
                layer = group.get("layer", "the rest")
                rate = f"learning rate {float(group['lr']):.3g}"
                raise DivergedError(f"{where}; the first layer that is not finite is {layer!r}, {rate}", self.number)
        highest = max(float(group["lr"]) for group in self.optimizer.param_groups)
        raise DivergedError(
            f"{where}; all weights are still finite, learning rates are up to {highest:.3g}", self.number
        )


def train(recipe: BaseRecipe, folder: Path, *, cache: Path | str | None = None, **settings: Any) -> Line | None:
    """Train a recipe of any kind to its end, from where the folder stands.

    Args:
        recipe: What to train.
        folder: Where the run is kept. A folder with this recipe goes on where it stopped.
        cache: Where downloads are kept.
        settings: Of `train_on_fabric`; detection ignores those that ultralytics has no use for.

    Returns:
        The run's result; ``None`` in all processes of several but the first.

    Raises:
        ValueError: If the recipe does not fit the data or the devices, or a setting cannot be used.
        OtherRunError: If the folder holds a run of another recipe or of other data.
        RunFolderError: If another process trains there, or a file there is damaged.
        DivergedError: If the loss is not finite, or the folder holds a run that ended so.
        TrainingError: If the disk is full.
        InterruptedRunError: On Ctrl-C or SIGTERM.
    """
    run = RunFolder(folder)
    check_run(run, recipe)
    if (result := finished(run, recipe)) is not None and "diverged" in result:
        raise DivergedError(f"{folder}: {result['diverged']}", result["diverged_epoch"])
    module = import_module(training_module(recipe.kind))
    own_loop = getattr(module, "train_on_ultralytics", None)
    cache = Path(cache) if cache else None
    if own_loop is not None:
        ended: Line = own_loop(recipe, folder, cache=cache, **settings)
        return ended
    return train_on_fabric(recipe, folder, module, cache=cache, **settings)


def train_on_fabric(
    recipe: BaseRecipe,
    folder: Path,
    kind: Any,
    *,
    console: Console | None = None,
    device: str = "auto",
    devices: int = 1,
    num_nodes: int = 1,
    precision: str = "32-true",
    threads: int | None = None,
    cache: Path | None = None,
    log_every: int = 10,
    tensorboard: bool = False,
) -> Line | None:
    """Train a recipe with Fabric; errors are as of `train`.

    Args:
        recipe: What to train.
        folder: Where the run is kept.
        kind: The module of the recipe's kind: ``load(recipe, cache)`` gives the data, ``check(recipe, data,
            num_processes)``, if there is one, refuses data that do not fit, ``build(recipe, data, fabric)`` gives the
            `Training`.
        console: Where it says how it goes, warnings included; ``None`` for nowhere.
        device: Fabric's accelerator.
        devices: How many a machine.
        num_nodes: How many machines.
        precision: Fabric's; a run goes on in the one it was started with.
        threads: How many torch may use; ``None`` for its own choice.
        cache: Where downloads are kept.
        log_every: Steps between two readings of the loss.
        tensorboard: Whether to write TensorBoard logs into the folder.
    """
    run = RunFolder(folder)
    check_run(run, recipe, precision=precision)
    result, digest = finished(run, recipe), ""
    if result is None or recipe.has_own_data:
        data = kind.load(recipe, cache)
        digest = data.digest()
        check_run(run, recipe, precision=precision, digest=digest)
    if threads is not None:
        torch.set_num_threads(threads)
    fabric = _fabric(recipe, folder if tensorboard else None, device, devices, num_nodes, precision)
    is_first = fabric.is_global_zero
    spoken = nullcontext() if console is None else _warnings_on(console if is_first else Console(quiet=True))
    console = console if console is not None and is_first else Console(quiet=True)
    tell = partial(say, console)
    if result is not None:
        tell(f"{folder} is complete already")
        return result if is_first else None
    if hasattr(kind, "check"):
        kind.check(recipe, data, fabric.world_size)
    recorder = Recorder(run, recipe, say=tell, is_writer=is_first)
    with run.locked() if is_first else nullcontext(), spoken, recorder.stoppable():
        if is_first and (result := finished(run, recipe)) is not None:  # by the process that had the lock
            return result
        with _launched(fabric):
            training: Training[Any] = kind.build(recipe, data, fabric)
            result = _loop(training, recorder, digest, RunProgress(console, recipe, training.num_steps), log_every)
    return result if is_first else None


def _loop(training: Training[Any], recorder: Recorder, digest: str, progress: RunProgress, log_every: int) -> Line:
    """Train from the newest checkpoint to the end, writing each epoch."""
    fabric = training.fabric
    state = recorder.resume()
    if state is None:
        made_with = {"precision": full_precision(fabric.strategy.precision.precision), "devices": fabric.world_size}
        recorder.begin({"data": digest, **made_with}, training.first_lines())
    else:
        training.load_state_dict(state)
        if missing := training.scored_epochs(recorder.epoch) - {line["epoch"] for line in recorder.run.layers}:
            warnings.warn(f"{recorder.run.path / 'layers.jsonl'} lacks the epochs {listed(missing)}", stacklevel=4)

    def on_step(loss: float) -> None:
        is_read = (training.iteration - 1) % log_every == 0
        progress.step(training.iteration, loss if is_read else None)
        if is_read and fabric.loggers:
            fabric.log_dict({"loss": loss}, step=training.iteration - 1)

    training.on_step = on_step
    with progress:
        for number in range(recorder.epoch + 1, recorder.recipe.num_epochs + 1):
            started = time.monotonic()
            epoch = training.epoch(number)
            seconds = time.monotonic() - started
            recorder.write(epoch, training.state_dict, seconds=seconds, weights=training.network.state_dict())
            progress.epoch(epoch.metrics)
            if fabric.loggers:
                numbers = {name: each for name, each in epoch.metrics.items() if isinstance(each, int | float)}
                fabric.log_dict(numbers, step=training.iteration)
    return recorder.finish(training.result())


def _fabric(recipe: BaseRecipe, logs: Path | None, device: str, devices: int, num_nodes: int, precision: str) -> Fabric:
    """Return Fabric for a run; ``logs`` is the folder of TensorBoard's.

    Raises:
        ValueError: If Fabric, or a recipe of this kind, cannot do what is asked for.
    """
    if recipe.is_float32 and full_precision(precision) != "32-true":
        raise ValueError(f"precision must be 32-true for runs of kind {recipe.kind}, got {precision!r}")
    if not recipe.is_distributable and devices * num_nodes > 1:
        raise ValueError(f"devices must be 1 for runs of kind {recipe.kind}, got {devices * num_nodes}")
    for name in ("lightning.fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.WARNING)
    options: dict[str, Any] = {"accelerator": device, "devices": devices, "num_nodes": num_nodes}
    if logs is not None:
        from lightning.fabric.loggers.tensorboard import TensorBoardLogger

        options["loggers"] = TensorBoardLogger(logs, name="", version="tensorboard")
    try:
        fabric = Fabric(precision=full_precision(precision), **options)  # type: ignore[arg-type]
    except Exception as err:  # of several kinds
        asked = f"device {device!r}, devices {devices} and precision {precision!r} cannot be used"
        raise ValueError(f"{asked}: {' '.join(str(err).split())}") from err
    if fabric.device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=True)
    return fabric


@contextmanager
def _launched(fabric: Fabric) -> Iterator[None]:
    """Start the other processes of a distributed run; they end with this one, however it ends."""
    fabric.launch()
    try:
        yield
    except BaseException:
        for process in getattr(fabric.strategy.launcher, "procs", ()):
            process.terminate()
        raise


@contextmanager
def _warnings_on(console: Console) -> Iterator[None]:
    """Have warnings in lines on a console, without those of Lightning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        warnings.showwarning = lambda message, *_: say(console, f"warning: {message}")
        yield
