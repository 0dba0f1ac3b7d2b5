"""Every scheduler of torch as a builder from an optimizer, and what tests of schedulers share."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiplicativeLR,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.optim.swa_utils import SWALR

from tempbalance import TempBalance
from tests.cases import mlp

Build = Callable[[Optimizer], LRScheduler]

OPTIMIZERS = {
    "sgd": partial(SGD, lr=0.1, momentum=0.9),
    "adam": partial(Adam, lr=0.01),
    "adamw": partial(AdamW, lr=0.01, weight_decay=0.02),
}


class Decay:
    """A callable object, whose attributes LambdaLR saves."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, epoch: int) -> float:
        return self.factor**epoch


def hyperbola(epoch: int) -> float:
    return 1 / (1 + epoch / 10)


def wave(epoch: int) -> float:
    return 1.02 if epoch % 10 < 5 else 0.97


def shrink(epoch: int) -> float:
    return 0.99 if epoch % 7 else 0.9


def amplitude(cycle: float) -> float:
    return 0.8**cycle


def in_turn(optimizer: Optimizer, *values):
    """A value for each group."""
    return [values[index % len(values)] for index in range(len(optimizer.param_groups))]


def sequential(optimizer: Optimizer) -> SequentialLR:
    warmup, decay = LinearLR(optimizer, 0.1, total_iters=10), CosineAnnealingLR(optimizer, T_max=190)
    return SequentialLR(optimizer, [warmup, decay], milestones=[10])


def sequential_of_three(optimizer: Optimizer) -> SequentialLR:
    start, cycles = ConstantLR(optimizer, 0.2, total_iters=8), CyclicLR(optimizer, 0.01, 0.1, step_size_up=6)
    return SequentialLR(optimizer, [start, cycles, ExponentialLR(optimizer, gamma=0.97)], milestones=[9, 30])


def chained(optimizer: Optimizer) -> ChainedScheduler:
    return ChainedScheduler([ConstantLR(optimizer, 0.1, total_iters=15), ExponentialLR(optimizer, gamma=0.97)])


def sequential_in_chained(optimizer: Optimizer) -> ChainedScheduler:
    return ChainedScheduler([sequential(optimizer), MultiplicativeLR(optimizer, wave)])


def chained_in_sequential(optimizer: Optimizer) -> SequentialLR:
    parts = [chained(optimizer), StepLR(optimizer, 9)]
    with warnings.catch_warnings(action="ignore"):  # SequentialLR steps a chain once more while it is built
        return SequentialLR(optimizer, parts, milestones=[25])


SCHEDULES: dict[str, Build] = {
    "lambda": lambda each: LambdaLR(each, hyperbola),
    "lambda_per_group": lambda each: LambdaLR(each, in_turn(each, hyperbola, wave)),
    "lambda_object": lambda each: LambdaLR(each, Decay(0.98)),
    "multiplicative": lambda each: MultiplicativeLR(each, wave),
    "multiplicative_per_group": lambda each: MultiplicativeLR(each, in_turn(each, wave, shrink)),
    "step": lambda each: StepLR(each, step_size=13, gamma=0.5),
    "multistep": lambda each: MultiStepLR(each, milestones=[5, 12, 12, 60, 150], gamma=0.3),
    "constant": lambda each: ConstantLR(each, factor=0.2, total_iters=17),
    "linear_warmup": lambda each: LinearLR(each, start_factor=0.01, total_iters=20),
    "linear_decay": lambda each: LinearLR(each, start_factor=1.0, end_factor=0.0, total_iters=150),
    "exponential": lambda each: ExponentialLR(each, gamma=0.96),
    "polynomial": lambda each: PolynomialLR(each, total_iters=120, power=2.0),
    "polynomial_short": lambda each: PolynomialLR(each, total_iters=12),
    "cosine": lambda each: CosineAnnealingLR(each, T_max=200),
    "cosine_floor": lambda each: CosineAnnealingLR(each, T_max=180, eta_min=1e-3),
    "cosine_short": lambda each: CosineAnnealingLR(each, T_max=15, eta_min=1e-4),
    "warm_restarts": lambda each: CosineAnnealingWarmRestarts(each, T_0=9),
    "warm_restarts_longer": lambda each: CosineAnnealingWarmRestarts(each, T_0=6, T_mult=2, eta_min=1e-4),
    "cyclic_triangular": lambda each: CyclicLR(each, 0.01, 0.1, step_size_up=7, mode="triangular"),
    "cyclic_triangular2": lambda each: CyclicLR(each, 0.01, 0.1, step_size_up=5, step_size_down=9, mode="triangular2"),
    "cyclic_exp_range": lambda each: CyclicLR(each, 0.01, 0.1, step_size_up=8, mode="exp_range", gamma=0.99),
    "cyclic_own": lambda each: CyclicLR(each, 0.01, 0.1, step_size_up=8, scale_fn=amplitude),
    "cyclic_rate_only": lambda each: CyclicLR(each, 0.01, 0.1, step_size_up=7, cycle_momentum=False),
    "cyclic_per_group": lambda each: CyclicLR(each, in_turn(each, 0.01, 0.02), in_turn(each, 0.1, 0.3), step_size_up=6),
    "one_cycle": lambda each: OneCycleLR(each, 0.1, total_steps=210, pct_start=0.1),
    "one_cycle_linear": lambda each: OneCycleLR(each, 0.1, total_steps=210, anneal_strategy="linear"),
    "one_cycle_three_phase": lambda each: OneCycleLR(each, 0.1, total_steps=210, pct_start=0.08, three_phase=True),
    "one_cycle_rate_only": lambda each: OneCycleLR(each, 0.1, total_steps=210, cycle_momentum=False),
    "one_cycle_per_group": lambda each: OneCycleLR(each, in_turn(each, 0.1, 0.03), epochs=30, steps_per_epoch=7),
    "plateau": lambda each: ReduceLROnPlateau(each, factor=0.5, patience=2),
    "plateau_per_group": lambda each: ReduceLROnPlateau(
        each, "max", factor=0.7, patience=1, cooldown=2, min_lr=in_turn(each, 1e-3, 5e-3)
    ),
    "sequential": sequential,
    "sequential_of_three": sequential_of_three,
    "chained": chained,
    "sequential_in_chained": sequential_in_chained,
    "chained_in_sequential": chained_in_sequential,
    "swa": lambda each: SWALR(each, swa_lr=0.02, anneal_epochs=30),
}


def advance(scheduler: LRScheduler, epoch: int) -> None:
    """Step a scheduler, with a metric that improves, stands still and gets worse if it or its schedule watches one."""
    if isinstance(getattr(scheduler, "schedule", scheduler), ReduceLROnPlateau):
        scheduler.step(1 / (1 + epoch % 11) + (epoch // 11) / 50)
    else:
        scheduler.step()


def small_mlp(seed: int = 0) -> nn.Sequential:
    """Five Linear layers; with ``min_eigenvalues=8`` the three in the middle are scored."""
    return mlp((16, 24, 20, 18, 14, 12), seed)


def two_rates(model: nn.Module, rates: tuple = (0.1, 0.02)) -> list[dict]:
    """A user's own groups: matrices at one rate, vectors without decay at another."""
    return [
        {"params": [each for each in model.parameters() if each.dim() > 1], "lr": rates[0]},
        {"params": [each for each in model.parameters() if each.dim() < 2], "lr": rates[1], "weight_decay": 0.0},
    ]


def bare_twin(optimizer: Optimizer) -> Optimizer:
    """An optimizer of the same kind with as many groups and the same options, on parameters of its own."""
    options = [{key: copy_rate(value) for key, value in group.items()} for group in optimizer.param_groups]
    groups = [{**each, "params": [nn.Parameter(torch.zeros(2))]} for each in options]
    return type(optimizer)(groups, lr=optimizer.defaults["lr"])


def copy_rate(rate: float | Tensor) -> float | Tensor:
    return rate.clone() if isinstance(rate, Tensor) else rate


def shake(model: nn.Module, seed: int, size: float = 0.1) -> None:
    """Move every matrix at random, so that its score changes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=size)


def rates_of(optimizer: Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def scale_of(scheduler, group):
    return scheduler.last_scales.get(group.get("layer"), 1)


def load_through_files(fresh: TempBalance, scheduler: TempBalance, folder: Path) -> None:
    """Give a scheduler the state of another by way of torch.distributed's checkpoints."""
    state = {"scheduler": fresh.state_dict()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process
        state_dict_saver.save({"scheduler": scheduler.state_dict()}, checkpoint_id=folder, no_dist=True)
        state_dict_loader.load(state, checkpoint_id=folder, no_dist=True)
    fresh.load_state_dict(state["scheduler"])
