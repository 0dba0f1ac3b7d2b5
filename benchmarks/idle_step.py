"""Time of a step at which no scoring is due, against torch's own scheduler on the same param groups.

Run with: python benchmarks/idle_step.py
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from tempbalance import TempBalance, param_groups


def build(num_layers: int, *, balanced: bool, as_tensor: bool) -> LRScheduler:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(num_layers)))
    optimizer = torch.optim.SGD(param_groups(model), lr=torch.tensor(0.1) if as_tensor else 0.1)
    if as_tensor and not balanced:  # TempBalance gives each group its own Tensor
        for group in optimizer.param_groups:
            group["lr"] = group["lr"].clone()
    schedule = CosineAnnealingLR(optimizer, T_max=10**6)
    optimizer.step()
    return TempBalance(optimizer, model, schedule, interval=10**6) if balanced else schedule


def microseconds(scheduler: LRScheduler, num_steps: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(num_steps):
        scheduler.step()
    return (clock() - start) / num_steps * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=62)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument(
        "--processor", action="store_true", help="time of the processor, for a machine that is not idle"
    )
    given = parser.parse_args()
    clock = time.thread_time if given.processor else time.perf_counter
    print(f"{given.groups} param groups, {given.rounds} interleaved rounds, torch {torch.__version__}")
    for as_tensor in (False, True):
        ours, torchs = (build(given.groups, balanced=each, as_tensor=as_tensor) for each in (True, False))
        times = [(microseconds(ours, 100, clock), microseconds(torchs, 100, clock)) for _ in range(given.rounds)]
        ratios = sorted(mine / other for mine, other in times)
        mine, other = (statistics.median(each) for each in zip(*times, strict=True))
        print(
            f"{'Tensor' if as_tensor else 'float'} learning rates: TempBalance {mine:.0f} us, "
            f"CosineAnnealingLR {other:.0f} us, ratio {statistics.median(ratios):.2f} "
            f"(middle half {ratios[len(ratios) // 4]:.2f} to {ratios[3 * len(ratios) // 4]:.2f})"
        )


if __name__ == "__main__":
    main()
