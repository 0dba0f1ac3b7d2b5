"""Other tasks than images: language models, object detection and neural operators, balanced and not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tempbalance.lab.accuracy import Bars, Lines
from tempbalance.lab.claims import Better
from tempbalance.lab.points import PRESETS, Grid, Point, Preset, cell_key
from tempbalance.lab.studies.comparisons import FAIR, FAIR_NOTE
from tempbalance.lab.study import Study

_PUBLISHED, _CAUSAL, _GPT = "tensorized (published)", "tensorized", "gpt"
_NETWORKS: dict[str, dict[str, Any]] = {
    _PUBLISHED: {
        "model": "published", "causal": False, "clip": 0.25, "hold_rates": True, "score_first": True,
        "tail": "median_published", "evaluate_every": 200,
    },  # the paper's numbers are of it
    _CAUSAL: {"model": "tensorized", "causal": True},
    _GPT: {"model": "gpt", "causal": True},
}  # fmt: skip
_LANGUAGE_SIZES = {
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


def _language_points(preset: Preset) -> list[Point]:
    """Return the paper's grids, for Adam alone and balanced, of three networks.

    The paper does not say with which rates balancing was tried: they are those of Adam alone. Small presets train one
    point of each grid, on another text; the laptop skips the published network.
    """
    listed = Grid("language")(PRESETS["paper"])
    rates = [point.options["lr"] for point in listed if "lr" in point.options]
    grid = []
    for point in listed:
        options = {"interval" if name == "interval_iterations" else name: each for name, each in point.options.items()}
        for rate in [options["lr"]] if "lr" in options else rates:
            grid.append(replace(point, options={**options, "lr": rate}, is_best=False))  # the paper does not say which
    names = (_CAUSAL, _GPT) if preset.name == "laptop" else tuple(_NETWORKS)
    found = [_with_network(name, point) for name in names for point in grid]
    return found if preset.is_paper else _first_points(found, preset, _LANGUAGE_SIZES)


def _with_network(name: str, point: Point) -> Point:
    """Return a point of the table with one of our networks; the paper's number belongs to the published one.

    The published code reads k = n / 1.25 as the threshold's position from below: its tail is the rest.
    """
    options = {**point.options, **_NETWORKS[name], "kind": "language"}
    if name == _PUBLISHED and "tail_fraction" in options:
        options["tail_fraction"] = round(1 - options["tail_fraction"], 6)
    return replace(
        point,
        cell={**point.cell, "model": name},
        options=options,
        paper=point.paper if name == _PUBLISHED else None,
        is_paper=name == _PUBLISHED,
    )


def _first_points(points: list[Point], preset: Preset, sizes: Mapping[str, Mapping[str, Any]]) -> list[Point]:
    """Return the first point of each cell, with the options of a small preset."""
    first: dict[str, Point] = {}
    for point in points:
        first.setdefault(cell_key(point), point)
    size = sizes[preset.name]
    options = {**size, "dataset": preset.dataset or size["dataset"]}
    named = {name: value for name, value in options.items() if name in ("dataset", "model")}
    return [
        replace(
            point,
            cell={**point.cell, **named},
            options={**point.options, **options},
            stands_for=point.cell["dataset"],
        )
        for point in first.values()
    ]


# From random weights on drawn shapes, in minutes on one core; the rate is ultralytics' usual one for Adam.
_SHAPES = {"dataset": "shapes", "model": "yolov8n.yaml", "lr": 1e-3}
_DETECTION_SIZES = {
    "laptop": {**_SHAPES, "batch_size": 16, "image_size": 96, "limit": 400, "test_limit": 150, "epochs": 12},
    "smoke": {**_SHAPES, "batch_size": 4, "image_size": 64, "limit": 8, "test_limit": 4, "epochs": 2},
}


def _detection_points(preset: Preset) -> list[Point]:
    """Return the grids of the paper's table, with the method and its optimizer as separate labels."""
    found = []
    for point in Grid("detection")(PRESETS["paper"]):
        method = point.options["method"]
        labels = {"method": "tb" if method.startswith("tb+") else "cal", "optimizer": method.removeprefix("tb+")}
        options = {**point.options, "kind": "detection"}
        # the paper does not say which rate was the best
        found.append(replace(point, cell={**point.cell, **labels}, options=options, is_best=False))
    if preset.is_paper:
        published = {"split": "train", "min_eigenvalues": 64, "tail": "median_published"}
        return [replace(point, options={**point.options, **published}) for point in found]
    return _first_points(found, preset, _DETECTION_SIZES)


_OPERATORS: dict[str, dict[str, Any]] = {
    "adam": {"method": "adam"},
    "tb+adam": {"method": "tb+adam"},
    "tb+adam, keep mean": {"method": "tb+adam", "keep_mean": True},
    "tb+adam, fair": {"method": "tb+adam", **FAIR},
    "tb+adam, fair, shrink": {"method": "tb+adam", **FAIR, "shrink": True},
}
_SAMPLES = {"paper": (16, 32, 64, 128, 256, 512), "laptop": (16, 64, 256), "smoke": (4, 8)}
_OPERATOR_SIZES: dict[str, dict[str, Any]] = {
    "paper": {"grid": 128, "width": 128, "modes": 16, "iterations": 5000, "evaluate_every": 500, "interval": 50},
    "laptop": {},
    "smoke": {
        "test_limit": 8, "grid": 16, "width": 8, "modes": 4, "blocks": 2, "iterations": 4, "evaluate_every": 2,
        "interval": 2, "batch_size": 4, "min_eigenvalues": 8,
    },
}  # fmt: skip


def _operator_points(preset: Preset) -> list[Point]:
    """Return each equation and number of solutions, for Adam alone and balanced, with the same steps and rate."""
    size = {"kind": "operator", "model": "fno", **_OPERATOR_SIZES[preset.name]}
    return [
        Point(
            {"dataset": dataset, "model": "fno", "method": name, "solutions": limit},
            {**size, "dataset": dataset, "limit": limit, **variant},
            is_paper=False,
        )
        for dataset in ([preset.dataset] if preset.dataset else ("burgers", "advection"))
        for limit in _SAMPLES[preset.name]
        for name, variant in _OPERATORS.items()
    ]


STUDIES = (
    Study(
        "language",
        title="Does balancing help language models?",
        varies="Adam alone and balanced; the tensorized transformer as published and causal, and a GPT; their grids",
        points=_language_points,
        present=Bars(
            "method",
            "Temperature balancing of language models",
            "Perplexity on the test text; lower is better.",
            notes=(
                f"The attention of “{_PUBLISHED}” sees the tokens that it predicts: its perplexities, and the paper's "
                f"beside them, are not those of a language model. “{_CAUSAL}” is a causal form with split projections; "
                "no number of the paper belongs to it.",
            ),
        ),
        reference={"method": "adam"},
        num_seeds={"laptop": 5},
        claims=(Better("tb_helps_other_tasks", "method", "tb+adam", ("adam",), part="language models"),),
    ),
    Study(
        "detection",
        title="Does balancing help object detection?",
        varies="CAL and TB with Adam and AdamW; their rates",
        points=_detection_points,
        present=Bars(
            "method optimizer",
            "Temperature balancing of object detection",
            "Mean average precision on the test set, over ten overlaps from 0.5 to 0.95.",
        ),
        claims=(Better("tb_helps_other_tasks", "method", "tb", ("cal",), part="object detection"),),
    ),
    Study(
        "operator",
        title="Does balancing help where data are few?",
        varies="Adam alone and balanced; solutions of Burgers' equation and of advection to train on",
        points=_operator_points,
        present=Lines(
            "solutions",
            "Temperature balancing of a Fourier neural operator",
            "Error against the number of solutions; lower is better.",
            x_title="solutions to train on",
            is_log=True,
            notes=(
                FAIR_NOTE,
                "All train as many steps, whatever there is to train on; the rate was chosen for Adam alone, in the "
                "size of laptop and on other data of the same kind.",
            ),
        ),
        reference={"method": "adam"},
        num_seeds={"laptop": 5},
    ),
)
