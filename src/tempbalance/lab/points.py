"""Points of a study from the paper's tables, and the same made small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from tempbalance.lab.options import NUM_IMAGES
from tempbalance.lab.paper.rows import BETTER, PaperResult, PaperRow
from tempbalance.lab.paper.statements import paper_statements
from tempbalance.lab.paper.tables import paper_tables
from tempbalance.lab.point import Point, Preset

NAMED = ("dataset", "model", "method")
PAPER_STEPS = 390  # of an epoch of CIFAR at batch 128, in which the paper counts
_MIN_EIGENVALUES = 50
_LIMIT, _TEST_LIMIT = 10_000, 2_000  # images that small presets use, but for the digits, which have fewer


def table_points(
    table: str, *varies: str, datasets: Sequence[str] = (), models: Sequence[str] = (), methods: Sequence[str] = ()
) -> list[Point]:
    """A point for each setting that a table of the paper lists.

    Args:
        table: Its name.
        varies: Options that make a cell of their own; others are searched for the best.
        datasets: Only these; none for all.
        models: Likewise.
        methods: Likewise.
    """
    wanted = {"dataset": datasets, "model": models, "method": methods}
    found = []
    for row in paper_tables()[table].rows:
        if all(not names or getattr(row, label) in names for label, names in wanted.items()):
            found += [_point(row, options, varies) for options in row.points()]
    return found


def _point(row: PaperRow, options: Mapping[str, Any], varies: Sequence[str]) -> Point:
    names = {name: getattr(row, name) for name in NAMED}
    chosen = {name: options[name] for name in varies}
    results = [each for each in row.results if all(each.options[name] == value for name, value in chosen.items())]
    paper: PaperResult | None = BETTER[row.metric](results, key=lambda each: each.mean) if results else None
    is_best = paper is not None and all(options[name] == value for name, value in paper.options.items())
    return Point({**names, **chosen}, {**names, **options}, paper, is_best)


def best_points(table: str, **only: Sequence[str]) -> list[Point]:
    """Of each line of a table the point whose number the paper reports; ``only`` is as for `table_points`."""
    return [point for point in table_points(table, **only) if point.is_best]


def common_settings() -> dict[str, Any]:
    """The options that the paper states for all its trainings of images."""
    said = paper_statements()
    return {name: said[name].value for name in ("epochs", "batch_size", "weight_decay", "momentum")}


def varied(points: Sequence[Point], name: str, values: Sequence[Any]) -> list[Point]:
    """Each point once with each value of an option, a cell each; the paper's number goes for the first value."""
    return [
        replace(
            point,
            cell={**point.cell, name: value},
            options={**point.options, name: value},
            paper=point.paper if value == values[0] else None,
        )
        for point in points
        for value in values
    ]


def reduced(
    points: Sequence[Point], preset: Preset, data: Mapping[str, str], *, models: Sequence[str] = ()
) -> list[Point]:
    """The paper's points as a preset has them.

    The paper's preset has all of them. In others the data are replaced, of each grid only the paper's best point is
    trained, or the first where the paper does not say, and widths and epochs are smaller.

    Args:
        points: The paper's.
        preset: Which.
        data: What stands in for each of the paper's datasets; points on others are left out.
        models: For the smallest preset, only these; none for all.
    """
    if preset.is_paper:
        return list(points)
    is_smoke = preset.name == "smoke"
    cells: dict[str, list[Point]] = {}
    for point in points:
        if point.cell["dataset"] in data and not (is_smoke and models and point.cell["model"] not in models):
            cells.setdefault(repr(sorted(point.cell.items())), []).append(point)
    chosen = [next((each for each in grid if each.is_best), grid[0]) for grid in cells.values()]
    small: dict[str, Point] = {}
    for point in chosen:
        stand_in = "digits" if is_smoke else data[point.cell["dataset"]]
        each = _small(point, preset, preset.dataset or stand_in)
        small.setdefault(repr(sorted(each.cell.items())), each)
    return list(small.values())


def _small(point: Point, preset: Preset, dataset: str) -> Point:
    options = {**point.options, **preset.options, "dataset": dataset}
    options["width"] = point.options.get("width", 1.0) * preset.width
    # a narrower network scores the layers that the paper's width would
    options["min_eigenvalues"] = max(3, round(_MIN_EIGENVALUES * preset.width))
    if "limit" not in options and dataset != "digits":
        options.update(limit=_LIMIT, test_limit=_TEST_LIMIT)
    if "restart_epochs" in options:
        share = options["restart_epochs"] / point.options["epochs"]
        options["restart_epochs"] = max(1, round(options["epochs"] * share))
    cell = {**point.cell, "dataset": dataset}
    if "width" in cell:
        cell["width"] = options["width"]
    return replace(point, cell=cell, options=options, stands_for=point.cell["dataset"])


def steps_like(iterations: int, options: Mapping[str, Any]) -> int:
    """The same share of an epoch as so many iterations are of the paper's, in steps of an epoch of these options."""
    num_images = _num_training(options["dataset"])
    num_steps = min(num_images, options.get("limit") or num_images) // int(options["batch_size"])
    return max(1, round(iterations * num_steps / PAPER_STEPS))


@cache
def _num_training(dataset: str) -> int:
    """How many images there are to train with; somebody's own are counted."""
    if dataset in NUM_IMAGES:
        return NUM_IMAGES[dataset][0]
    from tempbalance.lab.images.data import load_data

    return len(load_data(dataset).train_labels)
