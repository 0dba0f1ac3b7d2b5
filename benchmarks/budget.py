"""Balancing at every step within a share of the time: what it takes, how old scores get, and what it trains to.

A small convolutional network on the digits of scikit-learn. The share is measured from outside: seconds in `step` over
all seconds of the training, the first scoring included in both. `step` also steps the schedule and writes the rates:
that alone is what "once" has beyond its one scoring.
Run with: python benchmarks/budget.py
"""

import argparse
import platform
import statistics
import time
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tempbalance import Execution, TempBalance, param_groups

BATCH = 64
WIDTHS = (64, 64, 128, 128, 256, 256)
Split = tuple[Tensor, Tensor]


@dataclass
class Trained:
    """One training: the share of its time in the scheduler, from outside and by its own account, and the rest."""

    seconds: float
    share: float
    told: float | None
    oldest: list[int]
    accuracy: float


def load() -> tuple[Split, Split]:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    return (images[train], labels[train]), (images[test], labels[test])


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    modules: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(zip((1, *WIDTHS), WIDTHS, strict=False)):
        modules += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        modules += [nn.MaxPool2d(2)] if index in (1, 3) else []
    return nn.Sequential(*modules, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTHS[-1], 10))


def train(seed: int, num_steps: int, **options: object) -> Trained:
    (images, labels), (test_images, test_labels) = load()
    model = network(seed)
    optimizer = torch.optim.SGD(param_groups(model), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    generator = torch.Generator().manual_seed(seed)
    begin = time.perf_counter()
    scheduler = TempBalance(optimizer, model, schedule, **options)
    inside, oldest = time.perf_counter() - begin, []
    for _ in range(num_steps):
        chosen = torch.randint(len(labels), (BATCH,), generator=generator)
        optimizer.zero_grad()
        cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
        start = time.perf_counter()
        scheduler.step()
        inside += time.perf_counter() - start
        spending = scheduler.spending()
        oldest += [spending.oldest] if spending is not None else []
    seconds, spending = time.perf_counter() - begin, scheduler.spending()
    model.eval()
    with torch.no_grad():
        accuracy = float((model(test_images).argmax(1) == test_labels).float().mean())
    return Trained(seconds, inside / seconds, spending and spending.share, oldest, 100 * accuracy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=0.02)
    given = parser.parse_args()
    ways = {
        f"every step, budget {given.budget:g}": {"interval": 1, "execution": Execution(budget=given.budget)},
        "every step, all layers": {"interval": 1},
        "every 22 steps (an epoch), all layers": {"interval": 22},
        "once": {"interval": given.steps + 1},
    }
    print(f"{given.steps} steps, {given.seeds} seeds, {torch.get_num_threads()} threads, torch {torch.__version__}, "
          f"{platform.processor() or platform.machine()}")  # fmt: skip
    found: dict[str, list[Trained]] = {way: [] for way in ways}
    for seed in range(given.seeds):
        for way, options in ways.items():
            found[way].append(train(seed, given.steps, **options))
    for way, each in found.items():
        accuracies = [one.accuracy for one in each]
        ages = [age for one in each for age in one.oldest[len(one.oldest) // 2 :]]
        shares = [one.told for one in each if one.told is not None]
        print(
            f"{way:38s} {statistics.median(one.seconds for one in each):6.1f} s, "
            f"in the scheduler {100 * max(one.share for one in each):5.2f} % at most, "
            f"accuracy {statistics.mean(accuracies):.2f} % ({min(accuracies):.2f} to {max(accuracies):.2f})"
        )
        if shares:
            print(f"  by its own account {100 * max(shares):.2f} % at most for scoring; in the second half, the oldest "
                  f"score is {statistics.median(ages):.0f} calls old, {max(ages)} at most")  # fmt: skip


if __name__ == "__main__":
    main()
