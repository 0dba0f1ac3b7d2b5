"""Training loop of all kinds of runs, on Lightning Fabric, in a folder from which a killed run resumes."""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any, Generic, TypeVar

import torch
from lightning.fabric import Fabric
from rich.console import Console
from torch import Tensor, nn

from tempbalance.errors import unknown
from tempbalance.lab.progress import RunProgress, say
from tempbalance.lab.recipe import BaseRecipe, make_recipe, recipe_dict, training_module
from tempbalance.lab.runs import (
    EVERY,
    SPEEDS,
    DivergedError,
    Epoch,
    Recorder,
    TrainingError,
    check_run,
    finished,
    full_precision,
)
from tempbalance.runlog import Line, RunFolder

R = TypeVar("R", bound=BaseRecipe)


class Training(ABC, Generic[R]):
    """A network in training: what each kind gives to the loop. Randomness follows from the seed and the epoch alone.

    Attributes:
        network: The bare network, whose weights are scored and saved.
        model: The network as Fabric runs it, for the forward pass.
        metrics: Of the latest epoch.
        iteration: How many steps have begun.
        on_step: Called with the loss of each step, which is on the device: to read it waits for the device.
    """

    def __init__(self, recipe: R, network: nn.Module, optimizer: torch.optim.Optimizer, fabric: Fabric) -> None:
        self.recipe, self.network, self.optimizer, self.fabric = recipe, network, optimizer, fabric
        self.model = fabric.setup_module(network)
        self._stepped: Any = fabric.setup_optimizers(optimizer)
        self.metrics: Line = {}
        self.number, self.iteration = 0, 0
        self.on_step: Callable[[Tensor], None] = lambda loss: None
        self._losses: list[Tensor] = []  # of the steps since they were read

    @property
    @abstractmethod
    def num_steps(self) -> int:
        """How many steps the whole run has."""

    @abstractmethod
    def epoch(self, number: int) -> Epoch:
        """Train an epoch, the first being 1, and evaluate."""

    def first_lines(self) -> list[Line]:
        """Return lines about the layers before the first epoch, with epoch 0."""
        return []

    def result(self) -> Line:
        """Return the numbers of a complete run: those of its last epoch that the recipe's result has."""
        return {name: self.metrics[name] for name in self.recipe.result_names if name in self.metrics}

    def stateful(self) -> dict[str, Any]:
        """Return the objects whose state a checkpoint holds, by name."""
        return {"network": self.network, "optimizer": self.optimizer, "precision": self.fabric.strategy.precision}

    def state_dict(self) -> dict[str, Any]:
        """Return everything that training needs to continue, as plain values and tensors."""
        return {**{name: part.state_dict() for name, part in self.stateful().items()}, "metrics": self.metrics}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state; that of a complete run has no optimizer."""
        for name, part in self.stateful().items():
            if name in state:
                part.load_state_dict(state[name])
        self.metrics = state["metrics"]

    def accelerate(self, speed: Sequence[str]) -> None:
        """Use options of `SPEEDS`, unless the optimizer has no fused form or torch would crash."""
        if "channels_last" in speed:
            fewest = min((len(each) for each in self.network.parameters() if each.dim() == 4), default=_CHANNELS)
            if self.fabric.device.type == "cpu" and fewest < _CHANNELS:
                raise ValueError(
                    f"speed: channels_last on the CPU needs at least {_CHANNELS} channels in each convolution, got "
                    f"{fewest}, with which torch crashes"
                )
            self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for group in self.optimizer.param_groups if "fused" in speed else ():
            if "fused" not in group:
                raise ValueError(f"speed: {type(self.optimizer).__name__} must have a fused form, it has none")
            group.update(fused=True, foreach=False)
        if "compile" in speed:
            self.network.compile()

    def step(self, loss: Tensor) -> None:
        """Take a step of the optimizer without waiting for the device."""
        self.iteration += 1
        self._losses.append(loss.detach())
        self.on_step(self._losses[-1])
        self.optimizer.zero_grad()
        self.fabric.backward(loss)
        self.fabric.strategy.precision.unscale_gradients(self.optimizer)
        self.before_step()
        self._stepped.step()

    def read_losses(self) -> list[float]:
        """Return the losses of the steps since the last call, over all processes; waits for the device."""
        values = self.reduced(torch.stack(self._losses), "mean").tolist() if self._losses else []
        self._losses = []
        for number, value in enumerate(values, self.iteration - len(values) + 1):
            self.finite("loss", value, iteration=number)
        return values

    def before_step(self) -> None:
        """Look at the gradients, or change them."""

    def reduced(self, value: Tensor, how: str) -> Tensor:
        """Return the ``mean`` or ``sum`` of a value over all processes."""
        if self.fabric.world_size == 1:
            return value
        found = self.fabric.all_reduce(value.clone(), reduce_op=how)
        assert isinstance(found, Tensor)
        return found

    def finite(self, what: str, value: float, *, iteration: int | None = None) -> float:
        """Return a number if it is finite; otherwise raise with the first layer that is not, and the learning rates."""
        if math.isfinite(value):
            return value
        where = f"the {what} is {value} in epoch {self.number}, iteration {iteration or self.iteration}"
        rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        state = f"all weights are still finite, learning rates are up to {max(rates):.3g}"
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            if not all(bool(parameter.isfinite().all()) for parameter in group["params"]):
                layer = group.get("layer", "the rest")
                state = f"the first layer that is not finite is {layer!r}, learning rate {rate:.3g}"
                break
        raise DivergedError(f"{where}; {state}", self.number)


_CHANNELS = 16  # of convolutions in channels_last order; torch 2.x corrupts the CPU's memory with 4


def train(
    recipe: BaseRecipe,
    folder: Path,
    *,
    console: Console | None = None,
    device: str = "auto",
    devices: int = 1,
    num_nodes: int = 1,
    precision: str = "32-true",
    speed: Sequence[str] = (),
    threads: int | None = None,
    cache: Path | str | None = None,
    log_every: int = 10,
    tensorboard: bool = False,
    checkpoint_every: float = EVERY,
    keep_checkpoints: bool = False,
    kind: Any = None,
) -> Line | None:
    """Train a recipe of any kind to its end, from where the folder stands; return the result in the first process.

    Device, devices, machines and precision are Fabric's; ``speed`` has some of `SPEEDS`, which move results by rounding
    errors. A resumed run keeps its precision and speed. One process trains on each device, and this one starts the
    others of its machine. The loss is read every ``log_every`` steps where a terminal or TensorBoard shows it, and a
    checkpoint written every ``checkpoint_every`` seconds. Warnings go to the console too; ``None`` is nowhere.

    ``kind`` stands in for the module of the recipe's kind: ``check(recipe, data, num_processes)``, if there is one,
    refuses data that do not fit, and ``build(recipe, data, fabric)`` gives the `Training`.

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
    if (result := finished(run, recipe)) is not None:
        run.check_logs()
        if "diverged" in result:
            raise DivergedError(f"{folder}: {result['diverged']}", result["diverged_epoch"])
    kind = kind or import_module(training_module(recipe.kind))
    cache = Path(cache) if cache else None
    settings: Line = {"device": device, "precision": precision, "threads": threads}
    if hasattr(kind, "train_on_ultralytics"):
        settings |= {"checkpoint_every": checkpoint_every, "keep_checkpoints": keep_checkpoints}
        ended: Line = kind.train_on_ultralytics(recipe, folder, console=console, cache=cache, **settings)
        return ended
    if strange := [name for name in speed if name not in SPEEDS]:
        raise ValueError(unknown("speed", strange[0], SPEEDS))
    check_run(run, recipe, precision=precision, speed=speed)
    digest = ""
    if result is None or recipe.has_own_data:
        data = recipe.load(cache)
        digest = data.digest()
        check_run(run, recipe, digest=digest)
    if threads is not None:
        torch.set_num_threads(threads)
    with ExitStack() as stack:
        start_others = stack.enter_context(_ranks(devices))
        fabric = _fabric(recipe, folder if tensorboard else None, device, devices, num_nodes, precision)
        is_first = fabric.is_global_zero
        spoken = nullcontext() if console is None else _warnings_on(console if is_first else Console(quiet=True))
        console = console if console is not None and is_first else Console(quiet=True)
        if result is not None:
            say(console, f"{folder} is complete already")
            return result if is_first else None
        if hasattr(kind, "check"):
            kind.check(recipe, data, fabric.world_size)
        options: dict[str, Any] = {"every": checkpoint_every, "keep_checkpoints": keep_checkpoints}
        recorder = Recorder(run, recipe, say=partial(say, console), is_writer=is_first, **options)
        for each in (run.locked() if is_first else nullcontext(), spoken, recorder.stoppable()):
            stack.enter_context(each)
        if is_first and (result := finished(run, recipe)) is not None:  # by the process that had the lock
            return result
        settings |= {"devices": devices, "num_nodes": num_nodes, "speed": [*speed], "cache": cache and str(cache)}
        start_others({"recipe": recipe_dict(recipe), "folder": str(folder.absolute()), "settings": settings})
        fabric.launch()
        training: Training[Any] = kind.build(recipe, data, fabric)
        training.accelerate(speed)
        made_with = {"data": digest, "precision": full_precision(precision), "devices": fabric.world_size}
        made_with |= {"speed": [*speed]} if speed else {}
        progress = RunProgress(console, recipe, training.num_steps)
        result = _loop(training, recorder, made_with, progress, log_every)
    return result if is_first else None


def _loop(training: Training[Any], recorder: Recorder, made_with: Line, progress: RunProgress, log_every: int) -> Line:
    """Train from the checkpoint to the end, writing each epoch."""
    fabric = training.fabric
    if (state := recorder.resume()) is None:
        recorder.begin(made_with, training.first_lines())
    else:
        training.load_state_dict(state)
    is_watched = bool(fabric.loggers) or not progress.disable

    def on_step(loss: Tensor) -> None:
        is_read = is_watched and (training.iteration - 1) % log_every == 0
        value = float(loss) if is_read else None  # of this process alone
        progress.step(training.iteration, value)
        if value is not None:
            fabric.log_dict({"loss": value}, step=training.iteration - 1)
            if fabric.world_size == 1:
                training.finite("loss", value)

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
    """Return Fabric for a run, if it can do what is asked for; ``logs`` is the folder of TensorBoard's."""
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


_EXTERNAL = ("LOCAL_RANK", "SLURM_NTASKS", "TORCHELASTIC_RUN_ID")  # somebody else has started all processes
_PATIENCE = 30  # seconds for a process to end when this one has


@contextmanager
def _ranks(devices: int) -> Iterator[Callable[[Line], None]]:
    """Make this process the first of a run on several devices, unless all of them are started from outside.

    Gives a function that starts the other processes of this machine. Each ends when its input does, and so with this
    process.
    """
    if devices == 1 or any(name in os.environ for name in _EXTERNAL):
        yield lambda task: None
        return
    from lightning.fabric.plugins.environments.lightning import find_free_network_port

    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_network_port()), "LOCAL_RANK": "0"}
    added = {name: value for name, value in place.items() if name not in os.environ}
    processes: list[subprocess.Popen[bytes]] = []

    def start(task: Line) -> None:
        for rank in range(1, devices):
            process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "LOCAL_RANK": str(rank)},
                start_new_session=True,  # Ctrl-C is for the first process
            )
            processes.append(process)
            assert process.stdin is not None
            process.stdin.write(json.dumps(task).encode() + b"\n")
            process.stdin.flush()

    os.environ.update(added)
    try:
        yield start
    except BaseException:
        for process in processes:
            process.kill()
        raise
    finally:
        for name in added:
            del os.environ[name]
        for process in processes:
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdin is not None
            process.stdin.close()


def _main() -> None:
    """Train as one of several processes what a line of the standard input asks for, as long as that is open."""
    task = json.loads(sys.stdin.readline())
    Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
    try:
        train(make_recipe(task["recipe"]), Path(task["folder"]), **task["settings"])
    except TrainingError:  # which the first process reports
        sys.exit(1)


@contextmanager
def _warnings_on(console: Console) -> Iterator[None]:
    """Have warnings in lines on a console, without those of Lightning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        warnings.showwarning = lambda message, *_: say(console, f"warning: {message}")
        yield


if __name__ == "__main__":
    _main()
