"""What one param group per layer costs in optimizer.step(), against one group for all parameters.

All ways hold the same parameters and the same optimizer state. In each round every way is timed once, in turn; a ratio
is taken within a round. The table has medians, with the middle half of the rounds in brackets. The learning rate is 0.
Seconds are processor time of one thread, so that other processes disturb them less.
Run with: python benchmarks/group_cost.py
"""

import argparse
import datetime
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from tempbalance import param_groups
from tempbalance.bench.measure import describe_machine, describe_versions
from tempbalance.bench.networks import build_model
from tempbalance.lab.images.network import build_network

MIN_EIGENVALUES = 50  # the default of TempBalance


class ViT(nn.Module):
    """The parameters of ViT-S/16: 12 blocks of width 384; there is no forward pass."""

    def __init__(self, width: int = 384, num_blocks: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 197, width))
        self.blocks = nn.Sequential(*(nn.TransformerEncoderLayer(width, 6, 4 * width) for _ in range(num_blocks)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1000)


def depthwise(width: int = 96, num_blocks: int = 18) -> nn.Module:
    """Blocks as in ConvNeXt: a depthwise convolution, a normalisation, two linear layers."""
    blocks = [
        nn.Sequential(
            nn.Conv2d(width, width, 7, padding=3, groups=width),
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )
        for _ in range(num_blocks)
    ]
    return nn.Sequential(nn.Conv2d(3, width, 4, 4), *blocks, nn.Linear(width, 100))


def tiny(num_layers: int = 200) -> nn.Module:
    """Linear layers of 16 x 16, and one of 64 x 64 that can be scored."""
    return nn.Sequential(
        nn.Linear(64, 64), nn.Linear(64, 16), *(nn.Linear(16, 16) for _ in range(num_layers)), nn.Linear(16, 10)
    )


NETWORKS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "resnet18": ("ResNet18", lambda: build_network("resnet18", num_classes=100)),
    "vit_s": ("ViT-S", ViT),
    "gpt2": ("GPT-2 small", lambda: build_model("gpt2")),
    "depthwise": ("depthwise, 18 blocks", depthwise),
    "tiny": ("200 layers of 16 x 16", tiny),
}
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "SGD": lambda groups, **form: SGD(groups, lr=0.0, momentum=0.9, weight_decay=5e-4, **form),
    "AdamW": lambda groups, **form: AdamW(groups, lr=0.0, **form),
}
FORMS = {"default": {}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def ways_of(model: nn.Module, build: Callable[..., Optimizer], form: dict[str, bool]) -> dict[str, Optimizer]:
    """One group, one per layer, and, if these are fewer, one per large layer: optimizers with a common state."""
    ways = {
        "one": build(model.parameters(), **form),
        "layers": build(param_groups(model), **form),
        "large": build(param_groups(model, min_eigenvalues=MIN_EIGENVALUES), **form),
    }
    if len(ways["large"].param_groups) == len(ways["layers"].param_groups):
        del ways["large"]
    ways["one"].step()  # makes the state
    for optimizer in ways.values():
        optimizer.state = ways["one"].state
    return ways


def seconds(optimizer: Optimizer, num_calls: int) -> float:
    start = time.process_time()
    for _ in range(num_calls):
        optimizer.step()
    return (time.process_time() - start) / num_calls


def measure(ways: dict[str, Optimizer], *, rounds: int, least: float) -> dict[str, list[float]]:
    """Seconds of a step of each way in each round, after one round to warm up."""
    num_calls = max(1, round(least / min(seconds(each, 1) for each in ways.values())))
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, optimizer in ways.items():
            found[way].append(seconds(optimizer, num_calls))
    return found


def ratio(found: dict[str, list[float]], way: str) -> str:
    if way not in found:
        return ""
    ratios = [mine / one for mine, one in zip(found[way], found["one"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def fill_gradients(model: nn.Module) -> None:
    torch.manual_seed(0)
    gradient: Callable[[Tensor], Tensor] = torch.randn_like
    for each in model.parameters():
        each.grad = gradient(each)


def describe(rounds: int) -> str:
    machine, versions = describe_machine(), describe_versions()
    return (
        f"{machine['cpu']}, {machine['system']}; one thread, processor time; "
        f"python {versions['python']}, torch {versions['torch']}; {rounds} rounds; {datetime.date.today()}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--rounds", type=int, default=7, help="at least 2")
    parser.add_argument("--least", type=float, default=0.02, help="seconds that one timing should take at least")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(describe(given.rounds), end="\n\n")
    print(
        "| network | optimizer | form | one group, ms | groups | times one group | extra ms |"
        f" groups, min_eigenvalues={MIN_EIGENVALUES} | times one group |"
    )
    print("| --- " * 9 + "|")
    for name in given.networks:
        title, build = NETWORKS[name]
        model = build()
        fill_gradients(model)
        for optimizer in given.optimizers:
            for form in given.forms:
                ways = ways_of(model, OPTIMIZERS[optimizer], FORMS[form])
                found = measure(ways, rounds=given.rounds, least=given.least)
                num_groups = {way: len(each.param_groups) for way, each in ways.items()}
                gap = statistics.median(many - one for many, one in zip(found["layers"], found["one"], strict=True))
                print(
                    f"| {title} | {optimizer} | {form} | {1e3 * statistics.median(found['one']):.3g} |"
                    f" {num_groups['layers']} | {ratio(found, 'layers')} | {1e3 * gap:.2g} |"
                    f" {num_groups.get('large', 'the same')} | {ratio(found, 'large')} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
