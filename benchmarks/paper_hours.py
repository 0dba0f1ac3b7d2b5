"""Hours that the image runs of the paper's preset take on the paper's GPU, estimated from multiplications.

The paper trains ResNet18 on CIFAR-100 for 200 epochs in 59 minutes on a Quadro RTX 6000. Other runs are taken to need
time in proportion to their multiplications. Run with: python benchmarks/paper_hours.py [STUDY...]
"""

import sys
from collections import Counter
from functools import cache

import torch
from torch import nn

from tempbalance.lab.images.network import build_network
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.options import NUM_IMAGES
from tempbalance.lab.points import PRESETS
from tempbalance.lab.study import all_studies, find_study

HOURS = 59 / 60
IMAGES = {"tiny_imagenet": (64, 200)}  # side and number of classes; others have 32 and at most 100


@cache
def multiplications(model: str, width: float, dataset: str) -> int:
    """Count the multiplications of a network for one image."""
    found = 0

    def count(module: nn.Module, _: object, output: torch.Tensor) -> None:
        nonlocal found
        if isinstance(module, nn.Conv2d | nn.Linear):
            found += output.numel() * module.weight[0].numel()

    side, num_classes = IMAGES.get(dataset, (32, 100))
    with torch.device("meta"):
        network = build_network(model, num_classes=num_classes, width=width).eval()
        for module in network.modules():
            module.register_forward_hook(count)
        network(torch.empty(1, 3, side, side))
    return found


def hours(recipe: ImageRecipe) -> float:
    """Estimate the hours of a run."""
    whole = multiplications("resnet18", 1.0, "cifar100") * NUM_IMAGES["cifar100"][0] * 200
    images = NUM_IMAGES[recipe.dataset][0] * recipe.num_epochs
    return HOURS * multiplications(recipe.model, recipe.width, recipe.dataset) * images / whole


def main() -> None:
    preset, seen = PRESETS["paper"], set()
    for study in map(find_study, sys.argv[1:] or all_studies()):
        times, counts = Counter(), Counter()
        for point in study.points(preset):
            for recipe in (point.recipe(seed) for seed in study.seeds(preset)):
                if isinstance(recipe, ImageRecipe) and recipe.id not in seen:
                    seen.add(recipe.id)
                    times[recipe.dataset] += hours(recipe)
                    counts[recipe.dataset] += 1
        parts = ", ".join(f"{data} {counts[data]} runs {times[data]:.0f} h" for data in counts)
        print(f"{study.name}: {counts.total()} runs, {times.total():.0f} h" + (f" ({parts})" if parts else ""))


if __name__ == "__main__":
    main()
