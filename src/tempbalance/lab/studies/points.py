"""Points of studies that are neither a table of the paper as it is nor settings crossed with variants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tempbalance.lab.paper import stated
from tempbalance.lab.points import (
    PAPER_STEPS,
    Grid,
    Options,
    Point,
    Preset,
    beside,
    common_settings,
    reduced,
    steps_like,
)

CHANNELS = 512  # of the last stage at width 1


def interval(preset: Preset) -> list[Point]:
    """Return a point for each interval of the paper, as a share of an epoch; intervals that become equal are one."""
    found: list[Point] = []
    for point in Grid(table="optimizers", best=True, models=("resnet18",), methods=("tb",))(preset):
        steps = {steps_like(each, point.options): each for each in reversed(stated("intervals"))}
        steps.pop(steps_like(PAPER_STEPS, point.options), None)
        found.append(replace(point, cell={**point.cell, "iterations": PAPER_STEPS}))
        for num_steps, iterations in reversed(steps.items()):
            cell = {**point.cell, "iterations": iterations}
            found.append(replace(point.having(interval_steps=num_steps), cell=cell, paper=None))
    return found + beside(found, Grid(table="main", best=True, datasets=("cifar100",), methods=("cal",))(preset))


def overhead(preset: Preset) -> list[Point]:
    """Return TB on CIFAR-100, ten epochs of each network; in small presets two, which take minutes for the widest."""
    num_epochs = stated("overhead_runs") if preset.is_paper else 2
    deep = [(f"resnet{depth}", 1.0) for depth in stated("overhead_depths")]
    wide = [("resnet18", channels / CHANNELS) for channels in stated("overhead_widths")]
    found = []
    for model, width in dict.fromkeys(deep + wide):
        names = {"dataset": "cifar100", "model": model, "method": "tb"}
        options = {**common_settings(), **names, "width": width, "stop_after": num_epochs}
        found.append(Point({**names, "width": width}, options))
    return reduced(found, preset, {"cifar100": "fashion_mnist"})


_PUBLISHED = "tensorized (published)"  # the paper's numbers are of it
_NETWORKS: dict[str, dict[str, Any]] = {
    _PUBLISHED: {
        "model": "published", "causal": False, "clip": 0.25, "hold_rates": True, "score_first": True,
        "tail": "median_published", "evaluate_every": 200,
    },
    "tensorized": {"model": "tensorized", "causal": True},
    "gpt": {"model": "gpt", "causal": True},
}  # fmt: skip
_TEXT = {
    # A core takes two to four minutes; the rate is the best of Adam alone on the validation text, with seed 43.
    "laptop": {
        "dataset": "pydoc", "width": 64, "inner": 256, "batch_size": 16, "iterations": 2500, "evaluate_every": 125,
        "lr": 2.5e-3,
    },
    "smoke": {
        "dataset": "pydoc", "layers": 1, "width": 16, "head": 8, "inner": 32, "sequence": 8,
        "batch_size": 8, "iterations": 8, "evaluate_every": 4, "interval": 2, "min_eigenvalues": 8, "lr": 1e-3,
    },
}  # fmt: skip


def language(preset: Preset) -> list[Point]:
    """Return the paper's grids, for Adam alone and balanced, of three networks.

    The paper does not say with which rates balancing was tried: they are those of Adam alone. Small presets train one
    point of each grid, on another text; the laptop skips the published network.
    """
    listed = Grid(table="language").paper_points()
    rates = [point.options["lr"] for point in listed if "lr" in point.options]
    found = []
    for name, network in _NETWORKS.items():
        is_published = name == _PUBLISHED
        if is_published and preset.name == "laptop":
            continue
        for point in listed:
            options = {**point.options, **network, "kind": "language"}
            if is_published and "tail_fraction" in options:
                # the published code reads k = n / 1.25 as the threshold's position from below: its tail is the rest
                options["tail_fraction"] = round(1 - options["tail_fraction"], 6)
            paper, cell = point.paper if is_published else None, {**point.cell, "model": name}
            made = Point(cell, options, paper, is_paper=is_published)
            found += [made] if "lr" in options else [made.having(lr=rate) for rate in rates]
    return found if preset.is_paper else _first_points(found, preset, _TEXT[preset.name])


def _first_points(points: list[Point], preset: Preset, size: Options) -> list[Point]:
    """Return the first point of each cell, with the options of a small preset."""
    first: dict[str, Point] = {}
    for point in points:
        first.setdefault(point.key, point)
    options = {**size, "dataset": preset.dataset or size["dataset"]}
    named = {name: value for name, value in options.items() if name in ("dataset", "model")}
    return [
        replace(point.having(**options), cell={**point.cell, **named}, stands_for=point.cell["dataset"])
        for point in first.values()
    ]


# From random weights on drawn shapes, in minutes on one core; the rate is ultralytics' usual one for Adam.
_SHAPES = {"dataset": "shapes", "model": "yolov8n.yaml", "lr": 1e-3}
_IMAGES = {
    "laptop": {**_SHAPES, "batch_size": 16, "image_size": 96, "limit": 400, "test_limit": 150, "epochs": 12},
    "smoke": {**_SHAPES, "batch_size": 4, "image_size": 64, "limit": 8, "test_limit": 4, "epochs": 2},
}


def detection(preset: Preset) -> list[Point]:
    """Return the grids of the paper's table, with the method and its optimizer as separate labels."""
    published = {"split": "train", "min_eigenvalues": 64, "tail": "median_published"} if preset.is_paper else {}
    found = []
    for point in Grid(table="detection").paper_points():
        method = point.options["method"]
        labels = {"method": "tb" if method.startswith("tb+") else "cal", "optimizer": method.removeprefix("tb+")}
        made = point.having(kind="detection", **published)
        # the paper does not say which rate was the best
        found.append(replace(made, cell={**point.cell, **labels}, is_best=False))
    return found if preset.is_paper else _first_points(found, preset, _IMAGES[preset.name])


_GPT: Mapping[str, Options] = {
    "paper": {"dataset": "penn_treebank", "min_eigenvalues": 40},
    "laptop": {
        "dataset": "pydoc", "layers": 4, "width": 64, "head": 64, "inner": 256, "batch_size": 16, "iterations": 2500,
        "evaluate_every": 500, "lr": 2.5e-3,
    },
    "smoke": {
        "dataset": "pydoc", "layers": 2, "width": 16, "head": 16, "inner": 32, "batch_size": 8,
        "iterations": 8, "evaluate_every": 8, "min_eigenvalues": 8, "lr": 1e-3,
    },
}  # fmt: skip


def pruning(preset: Preset) -> list[Point]:
    """ResNet18 with CAL and a GPT with Adam; ``--dataset`` replaces the images, or the text if it is a text file."""
    given = preset.dataset or ""
    is_text = given.endswith((".txt", ".text", ".md")) or given == "penn_treebank"
    grid = Grid(
        table="main", best=True, datasets=("cifar10",), models=("resnet18",), methods=("cal",),
        stand_ins={"cifar10": "digits"}, variants={"cal": {}},
    )  # fmt: skip
    images = grid(replace(preset, dataset=None) if is_text else preset)
    if preset.name == "laptop" and images[0].options["dataset"] != "digits":
        images = [each.having(width=0.125, limit=4_000) for each in images]
    text = {"dataset": given} if is_text else {}
    options = {**_GPT[preset.name], "model": "gpt", "method": "adam", **text}
    names = {name: options[name] for name in ("dataset", "model", "method")}
    return [*images, Point(names, {**options, "kind": "language"}, is_paper=False)]
