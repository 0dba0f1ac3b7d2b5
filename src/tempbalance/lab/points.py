"""Points: settings that a study trains, from the paper's grids, in the size of a preset."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from tempbalance.errors import unknown
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.options import ASSIGNMENTS, CONTROLS, DATASETS, NUM_IMAGES, pretty
from tempbalance.lab.paper import BETTER, PaperResult, PaperRow, paper_tables, stated
from tempbalance.lab.recipe import SEEDS, BalancingRecipe, BaseRecipe, ScoredRecipe, make_recipe

NAMED = ("dataset", "model", "method")
PAPER_STEPS = 390  # of an epoch of CIFAR at batch 128, in which the paper counts
DIGITS = {"cifar100": "digits"}  # stand-in of most studies
_SEARCHED = (
    "lr", "snr", "scale_range", "tail_fraction", "interval", "restart_epochs", "restart_factor", "lookahead_steps",
    "lookahead_alpha",
)  # fmt: skip
# The paper's numbers are of its published code; docs/numbers.md says what differs and by how much.
PUBLISHED = {"tail": "median_published", "norms": "name", "snr_iterations": 5, "flip": True}
_MIN_EIGENVALUES = 50
BY_TYPE = "embedding=5,head=5"  # control of networks with embeddings: no spectra
_LIMIT, _TEST_LIMIT = 10_000, 2_000  # images in small presets; the digits are fewer


@dataclass(frozen=True)
class Preset:
    """Size of a study.

    Attributes:
        name: ``paper``, ``laptop`` or ``smoke``.
        seeds: Seeds of each point.
        about: Description in a few words.
        options: Options set in every recipe; none for the paper's preset.
        width: Factor on the paper's widths.
        dataset: Replaces the paper's data; ``None`` for each study's own choice.
    """

    name: str
    seeds: tuple[int, ...]
    about: str
    options: Mapping[str, Any] = field(default_factory=dict)
    width: float = 1.0
    dataset: str | None = None

    @property
    def is_paper(self) -> bool:
        """Whether it is the paper's own."""
        return not self.options


PRESETS = {
    "paper": Preset("paper", SEEDS, "the paper's own setting, for GPUs"),
    "laptop": Preset("laptop", SEEDS[:3], "small real data, minutes to hours on two cores", {"epochs": 12}, 0.25),
    "smoke": Preset(
        "smoke", SEEDS[:2], "a few steps, to see that it works", {"epochs": 2, "limit": 256, "test_limit": 128}, 0.125
    ),
}


def find_preset(name: str, *, dataset: str | None = None) -> Preset:
    """Return a preset by its name, with its data replaced by a known dataset or a path.

    Raises:
        ValueError: If there is no such preset, with the closest name, or its data cannot be replaced.
    """
    if name not in PRESETS:
        raise ValueError(unknown("preset", name, PRESETS))
    if dataset is None:
        return PRESETS[name]
    if PRESETS[name].is_paper:
        raise ValueError(f"dataset must not be given with preset paper, which has the paper's own, got {dataset!r}")
    if not dataset.strip():
        raise ValueError(f"dataset must be a name or a path, got {dataset!r}")
    path = Path(dataset)
    known = dataset in DATASETS or not (path.suffix or len(path.parts) > 1 or path.exists())  # a bare word is a name
    return replace(PRESETS[name], dataset=dataset if known else str(path.expanduser().resolve()))


@dataclass(frozen=True)
class Point:
    """Setting that is trained with each seed.

    Attributes:
        cell: Labels by name: dataset, model, method and whatever else the study varies. Points with the same labels are
            a grid, of which the best counts.
        options: Options of a recipe except the seed; ``kind`` where it is not images.
        paper: The paper's result for the cell.
        is_best: Whether the paper's result belongs to this point of the grid.
        stands_for: The paper's dataset that is replaced, if any.
        is_paper: Whether the paper trained it, in the preset ``paper``.
    """

    cell: Mapping[str, Any]
    options: Mapping[str, Any]
    paper: PaperResult | None = None
    is_best: bool = False
    stands_for: str | None = None
    is_paper: bool = True

    def recipe(self, seed: int) -> BaseRecipe:
        """Return the recipe with a seed."""
        return make_recipe({**self.options, "seed": seed})

    def settings_text(self, skip: Container[str] = NAMED) -> str:
        """List the searched and varied options that the method uses, without the labels to skip."""
        varied = {name: value for name, value in self.cell.items() if value != self.cell["method"]}
        found = {name: self.options[name] for name in _SEARCHED if name in self.options} | varied
        unused = self.recipe(0).unused
        used = {name: value for name, value in found.items() if name not in skip and name not in unused}
        return ", ".join(f"{name} {pretty(value)}" for name, value in used.items())


@dataclass(frozen=True)
class Grid:
    """Points of a table of the paper, in the size of a preset.

    Attributes:
        table: Name of the table.
        cells: Options whose values are separate cells; the others are searched for the best.
        datasets, models, methods: Only these; empty for all.
        best: Whether to train only the point of each line whose result the paper reports.
        vary: An option and its values, each a cell; the paper's result belongs to the first value.
        stated: More points on CIFAR-100: a network, a method and the statement that has its learning rates.
        beside: Points of a baseline. The labels that it lacks have its method as their value.
        stand_ins: Replacements of the paper's data in small presets; other data are skipped there.
        smoke: Networks of the smallest preset; empty for all.
    """

    table: str
    cells: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    best: bool = False
    vary: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    stated: Sequence[tuple[str, str, str]] = ()
    beside: Grid | None = None
    stand_ins: Mapping[str, str] = field(default_factory=lambda: DIGITS)
    smoke: tuple[str, ...] = ()

    def __call__(self, preset: Preset) -> list[Point]:
        """Return the points of a preset."""
        return reduced(self.paper_points(), preset, self.stand_ins, models=self.smoke)

    def paper_points(self) -> list[Point]:
        """Return the points in the paper's size."""
        wanted = {"dataset": self.datasets, "model": self.models, "method": self.methods}
        found = []
        for row in paper_tables()[self.table].rows:
            if all(not names or getattr(row, label) in names for label, names in wanted.items()):
                found += [_table_point(row, options, self.cells) for options in row.points()]
        found = [point for point in found if point.is_best or not self.best]
        for name, values in self.vary.items():
            found = [_with_value(point, name, value, values[0]) for point in found for value in values]
        for each in self.stated:
            found += _stated_points(*each)
        return found + (beside(found, self.beside.paper_points()) if self.beside is not None else [])


def beside(points: Sequence[Point], baseline: Sequence[Point]) -> list[Point]:
    """Return the baseline's points on the same networks, with all labels of the points."""
    networks = [(point.cell["dataset"], point.cell["model"]) for point in points]
    return [
        replace(point, cell={**dict.fromkeys(points[0].cell, point.cell["method"]), **point.cell})
        for point in baseline
        if (point.cell["dataset"], point.cell["model"]) in networks
    ]


def with_controls(points: Sequence[Point]) -> list[Point]:
    """Return the points, each balanced one followed by its controls: scales shuffled, their mean, or scales by type."""
    found = []
    for point in points:
        found.append(point)
        recipe = point.recipe(SEEDS[0])
        if not isinstance(recipe, ScoredRecipe) or not recipe.is_balanced or recipe.assignment not in ASSIGNMENTS:
            continue
        assignments = {name: f"{name}:{recipe.assignment}" for name in CONTROLS}
        is_plain = isinstance(recipe, BalancingRecipe) and not (recipe.reference or recipe.shrink or recipe.decay_range)
        if recipe.kind == "language" and is_plain:
            assignments["by type"] = BY_TYPE
        found += [variant(point, name, {"assignment": each}) for name, each in assignments.items()]
    return found


def variant(point: Point, name: str, options: Mapping[str, Any]) -> Point:
    """Return a point with other options, named after the method; the paper did not train it."""
    cell = {**point.cell, "method": f"{point.cell['method']}, {name}"}
    options = {**point.options, **options}
    return replace(point, cell=cell, options=options, paper=None, is_best=False, is_paper=False)


def over_rates(points: Sequence[Point], rates: Sequence[float]) -> list[Point]:
    """Return each point at each base rate; the best of them counts."""
    return [replace(point, options={**point.options, "lr": rate}) for point in points for rate in rates]


def _table_point(row: PaperRow, options: Mapping[str, Any], cells: Sequence[str]) -> Point:
    names = {name: getattr(row, name) for name in NAMED}
    chosen = {name: options[name] for name in cells}
    results = [each for each in row.results if all(each.options[name] == value for name, value in chosen.items())]
    paper: PaperResult | None = BETTER[row.metric](results, key=lambda each: each.mean) if results else None
    is_best = paper is not None and all(options[name] == value for name, value in paper.options.items())
    return Point({**names, **chosen}, {**names, **options}, paper, is_best)


def _with_value(point: Point, name: str, value: Any, first: Any) -> Point:
    cell, options = {**point.cell, name: value}, {**point.options, name: value}
    return replace(point, cell=cell, options=options, paper=point.paper if value == first else None)


def _stated_points(model: str, method: str, statement: str) -> list[Point]:
    """Return a point for each learning rate that the text states, with the lab's default as the best.

    AdamW and AdamP, for which the paper states no rates, are not the paper's.
    """
    names = {"dataset": "cifar100", "model": model, "method": method}
    usual = ImageRecipe(method=method).lr
    is_paper = method not in ("adamw", "adamp")
    return [
        Point(names, {**common_settings(), **names, "lr": rate}, is_best=rate == usual, is_paper=is_paper)
        for rate in stated(statement)
    ]


def common_settings() -> dict[str, Any]:
    """Return the options that the paper states for all its trainings of images."""
    return {name: stated(name) for name in ("epochs", "batch_size", "weight_decay", "momentum")}


@dataclass(frozen=True)
class Variants:
    """ResNet18 at the settings that the paper found best for TB, with other options; no number of the paper's.

    On a laptop it trains on Fashion-MNIST instead of CIFAR-10, with half the preset's width.

    Attributes:
        options: Options by the name of the variant, which takes the place of a method. The smallest preset trains the
            first three.
        laptop: Variants that a laptop has time for; empty for all.
    """

    options: Mapping[str, Mapping[str, Any]]
    laptop: tuple[str, ...] = ()

    def __call__(self, preset: Preset) -> list[Point]:
        """Return the points of a preset."""
        small = {"width": 0.125, "limit": 4_000} if preset.name == "laptop" else {}
        names = self.laptop if self.laptop and preset.name == "laptop" else tuple(self.options)
        stand_ins = {"cifar10": "fashion_mnist"}
        best = Grid("main", (), ("cifar10", "cifar100"), ("resnet18",), ("tb",), best=True, stand_ins=stand_ins)
        return [
            replace(
                point,
                cell={**point.cell, "method": name},
                options={"method": "tb", **point.options, **small, **self.options[name]},
                paper=None,
                is_best=False,
                is_paper=False,
            )
            for point in best(preset)
            for name in names[: 3 if preset.name == "smoke" else None]
        ]


def reduced(
    points: Sequence[Point], preset: Preset, data: Mapping[str, str] = DIGITS, *, models: Sequence[str] = ()
) -> list[Point]:
    """Return the paper's points in the size of a preset.

    The paper's preset has all of them. The others replace the data, train only the paper's best point of each grid, or
    the first where the paper names none, and have smaller widths and fewer epochs. A start of balancing after the last
    epoch is skipped.

    Args:
        points: The paper's points.
        preset: Their size.
        data: Replacements of the paper's datasets; points on others are skipped.
        models: Networks of the smallest preset; empty for all.
    """
    if preset.is_paper:
        return [_as_published(point) for point in points]
    is_smoke = preset.name == "smoke"
    grids: dict[str, list[Point]] = {}
    for point in points:
        if point.cell["dataset"] in data and not (is_smoke and models and point.cell["model"] not in models):
            grids.setdefault(cell_key(point), []).append(point)
    small: dict[str, Point] = {}
    for grid in grids.values():
        point = next((each for each in grid if each.is_best), grid[0])
        stand_in = "digits" if is_smoke else data[point.cell["dataset"]]
        each = _small(point, preset, preset.dataset or stand_in)
        if each.options.get("start", 0) < each.options["epochs"]:
            small.setdefault(cell_key(each), each)
    return list(small.values())


def _as_published(point: Point) -> Point:
    """Return a point of images with the forms of the published code, where its options do not say otherwise."""
    if point.cell["dataset"] not in DATASETS:
        return point
    options = {**PUBLISHED, **point.options}
    if options["tail"] == "median":
        options["tail"] = PUBLISHED["tail"]
    return replace(point, options=options)


def cell_key(point: Point) -> str:
    """Return the same text for all points of a cell."""
    return repr(sorted(point.cell.items()))


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
    """Convert iterations of the paper's epoch to the same share of an epoch with these options, in steps."""
    num_images = _num_training(options["dataset"])
    num_steps = min(num_images, options.get("limit") or num_images) // int(options["batch_size"])
    return max(1, round(iterations * num_steps / PAPER_STEPS))


@cache
def _num_training(dataset: str) -> int:
    """Return the number of training images, which are counted unless the dataset is known."""
    if dataset in NUM_IMAGES:
        return NUM_IMAGES[dataset][0]
    from tempbalance.lab.images.data import load_data

    return len(load_data(dataset).train_labels)
