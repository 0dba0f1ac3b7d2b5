"""A diagnosis against WeightWatcher's, in one interleaved run: seconds and their ratio.

    python benchmarks/diagnosis.py [--model resnet18] [--rounds 5]

The network has random weights and 100 classes. WeightWatcher runs ``analyze(pool=True)``; we run ``diagnose`` with
``goodness_of_fit``, with and without the second count after shuffling, which WeightWatcher does not do then.
"""

import argparse
import logging
import time
import warnings
from collections.abc import Callable
from statistics import median

import torch
import weightwatcher

import tempbalance
from tempbalance.lab.images.network import build_network


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    model = build_network(options.model, num_classes=100, channels=3, side=32, width=1)
    ways = {
        "WeightWatcher": lambda: weightwatcher.WeightWatcher(model=model).analyze(pool=True),
        "diagnose": lambda: tempbalance.diagnose(model, tail="goodness_of_fit"),
        "diagnose without shuffling": lambda: tempbalance.diagnose(model, tail="goodness_of_fit", shuffle=False),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds + 1):
        for name, way in ways.items():
            times[name].append(seconds(way))
    theirs = times["WeightWatcher"][1:]  # the first round warms up
    print(f"{options.model}, {torch.get_num_threads()} threads, torch {torch.__version__}, {options.rounds} rounds")
    for name, taken in times.items():
        ratios = [their / our for their, our in zip(theirs, taken[1:], strict=True)]
        spread = f"{min(ratios):.1f} to {max(ratios):.1f}"
        print(f"{name:28} {median(taken[1:]):6.2f} s, {median(ratios):4.1f} times as fast as WeightWatcher ({spread})")


if __name__ == "__main__":
    main()
