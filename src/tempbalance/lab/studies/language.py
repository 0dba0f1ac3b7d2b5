"""Language models on Penn Treebank: Adam with a cosine alone, and balanced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tempbalance.lab.findings import Findings
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.points import table_points
from tempbalance.lab.present import accuracies_with, bars
from tempbalance.lab.study import Presentation, Study

_AHEAD, _CAUSAL, _GPT = "tensorized (looks ahead)", "tensorized", "gpt"
_NETWORKS: dict[str, dict[str, Any]] = {
    _AHEAD: {"model": "tensorized", "causal": False},  # as published; the paper's numbers are of it
    _CAUSAL: {"model": "tensorized", "causal": True},
    _GPT: {"model": "gpt", "causal": True},
}

# What a core takes two to four minutes for; the rate is the best of Adam alone on the validation text, with seed 43.
_LAPTOP = {
    "dataset": "pydoc", "width": 64, "inner": 256, "batch_size": 16, "iterations": 2500, "evaluate_every": 125,
    "lr": 2.5e-3,
}  # fmt: skip
_SMOKE = {
    "dataset": "pydoc", "layers": 1, "width": 16, "head": 8, "inner": 32, "sequence": 8,
    "batch_size": 8, "iterations": 8, "evaluate_every": 4, "interval": 2, "min_eigenvalues": 8, "lr": 1e-3,
}  # fmt: skip


def points(preset: Preset) -> list[Point]:
    """The paper's grids, for Adam alone and balanced, of the published network, of its causal form and of a GPT.

    With what rates balancing was tried the paper does not say: they are those of Adam alone. Small presets train one
    point of each grid, on another text.
    """
    grids = list(_grids())
    if preset.is_paper:
        return [_point(name, each) for name in _NETWORKS for each in grids]
    is_smoke = preset.name == "smoke"
    first = {each.options["method"]: each for each in reversed(grids)}
    small = _SMOKE if is_smoke else _LAPTOP
    options = {**small, "dataset": preset.dataset or small["dataset"]}
    found = []
    for name in _NETWORKS if is_smoke else (_CAUSAL, _GPT):
        found += [_small(_point(name, first[method]), options) for method in ("adam", "tb+adam")]
    return found


def _grids() -> Iterator[Point]:
    """The points of the paper's table, each balanced one once with every rate of Adam alone."""
    listed = table_points("language")
    rates = [point.options["lr"] for point in listed if "lr" in point.options]
    for point in listed:
        options = {"interval" if name == "interval_iterations" else name: each for name, each in point.options.items()}
        for rate in [options["lr"]] if "lr" in options else rates:
            yield replace(point, options={**options, "lr": rate})


def _point(name: str, point: Point) -> Point:
    """A point of the table with one of our networks; only the published one is the paper's."""
    return replace(
        point,
        cell={**point.cell, "model": name},
        options={**point.options, **_NETWORKS[name], "kind": "language"},
        paper=point.paper if name == _AHEAD else None,
        is_best=False,  # which of the grid was, the paper does not say
    )


def _small(point: Point, options: Mapping[str, Any]) -> Point:
    return replace(
        point,
        cell={**point.cell, "dataset": options["dataset"]},
        options={**point.options, **options},
        stands_for=point.cell["dataset"],
    )


def present(findings: Findings) -> Presentation:
    """Bars of the two methods, a panel for each network."""
    chart = bars(findings, "method", title="Temperature balancing of language models")
    notes = [
        "As published, the tensorized transformer's attention sees the tokens that it is to tell: perplexities of "
        f"“{_AHEAD}”, beside which the paper's stand, are not those of a language model; “{_CAUSAL}” is its causal "
        "form."
    ]
    return accuracies_with(findings, chart, "Perplexity on the test text; lower is better.", notes=notes)


STUDY = Study(
    name="language",
    title="Does balancing help language models?",
    figures=(),
    varies="Adam alone and balanced; the tensorized transformer as published, made causal, and a GPT; their grids",
    points=points,
    present=present,
    num_seeds={"laptop": 5},
    reference={"method": "adam"},
)
