"""Time of one balancing against the published procedure, interleaved in one run, as a ratio with its spread.

The published procedure, written out plainly: singular values of all kernel slices of a layer in one batch, then Eq. 3.
Run with: python benchmarks/one_balancing.py
"""

import platform
import statistics
import time
from itertools import pairwise

import torch
from torch import nn

from tempbalance import find_layers
from tempbalance.scoring import Scoring, score_layers

ROUNDS = 11


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, bias=False)
        if inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, bias=False)


def resnet18() -> nn.Module:
    """The weights of a ResNet18 with 3x3 stem and 100 classes."""
    torch.manual_seed(0)
    widths = [64, 64, 128, 256, 512]
    blocks = [Block(a, b) for pair in pairwise(widths) for a, b in [pair, (pair[1], pair[1])]]
    return nn.Sequential(nn.Conv2d(3, 64, 3, bias=False), *blocks, nn.Linear(512, 100))


def plain(weights: list[torch.Tensor]) -> list[float]:
    alphas = []
    for weight in weights:
        slices = weight if weight.dim() == 2 else weight.flatten(2).permute(2, 0, 1) * 0.5**0.5
        values = torch.linalg.svdvals(slices).square().flatten().sort().values
        num_tail = len(values) // 2
        alphas.append(float(1 + num_tail / (values[-num_tail:] / values[-num_tail - 1]).log().sum()))
    return alphas


def timed(function, *args) -> float:
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start


def main() -> None:
    layers = find_layers(resnet18())
    weights = [layer.weight() for layer in layers]
    scoring = {tail: Scoring(tail=tail) for tail in ("median", "goodness_of_fit", "peak")}
    plain(weights)
    times: dict[str, list[float]] = {name: [] for name in ("plain", *scoring)}
    for _ in range(ROUNDS):
        times["plain"].append(timed(plain, weights))
        for tail, options in scoring.items():
            times[tail].append(timed(score_layers, layers, options))
    print(f"ResNet18, {torch.get_num_threads()} threads, torch {torch.__version__}, {platform.processor() or 'CPU'}")
    for name, values in times.items():
        ratios = sorted(reference / value for reference, value in zip(times["plain"], values, strict=True))
        low, _, high = statistics.quantiles(ratios, n=4)
        print(
            f"{name:16s} {statistics.median(values):.2f} s, "
            f"{statistics.median(ratios):.1f} times the plain speed (middle half of the rounds {low:.1f} to {high:.1f})"
        )


if __name__ == "__main__":
    main()
