"""Points: settings that a study trains, from the paper's grids or of our own, in the size of a preset."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from tempbalance.errors import unknown
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.options import ASSIGNMENTS, CONTROLS, DATASETS, NUM_IMAGES, pretty
from tempbalance.lab.paper import BETTER, PaperResult, PaperRow, paper_tables, stated
from tempbalance.lab.recipe import SEEDS, BalancingRecipe, BaseRecipe, ScoredRecipe, make_recipe

NAMED = ("dataset", "model", "method")
PAPER_STEPS = 390  # of an epoch of CIFAR at batch 128, in which the paper counts
_SEARCHED = (
    "lr", "snr", "scale_range", "tail_fraction", "interval", "restart_epochs", "restart_factor", "lookahead_steps",
    "lookahead_alpha",
)  # fmt: skip
# The paper's numbers are of its published code; docs/numbers.md says what differs and by how much.
_PUBLISHED = {"tail": "median_published", "norms": "name", "snr_iterations": 5, "flip": True}
_MIN_EIGENVALUES = 50
_BY_TYPE = "embedding=5,head=5"  # control of networks with embeddings: no spectra
_LIMITS = {"limit": 10_000, "test_limit": 2_000}  # images in small presets; the digits are fewer

Options = Mapping[str, Any]
Names = tuple[str, ...]


@dataclass(frozen=True)
class Preset:
    """Size of a study.

    Attributes:
        options: Options set in every recipe of images; none for the paper's preset.
        width: Factor on the paper's widths.
        dataset: Replaces the paper's data; ``None`` for each study's own choice.
    """

    name: str
    seeds: tuple[int, ...]
    about: str
    options: Options = field(default_factory=dict)
    width: float = 1.0
    dataset: str | None = None

    @property
    def is_paper(self) -> bool:
        return not self.options

    def chosen(self, options: Options) -> dict[str, Any]:
        """Return options in this preset: a value that is a mapping has one for each preset, or none."""
        found = {name: each.get(self.name) if isinstance(each, Mapping) else each for name, each in options.items()}
        return {name: each for name, each in found.items() if each is not None}


PRESETS = {
    "paper": Preset("paper", SEEDS, "the paper's own setting, for GPUs"),
    "laptop": Preset("laptop", SEEDS[:3], "small real data, minutes to hours on two cores", {"epochs": 12}, 0.25),
    "smoke": Preset(
        "smoke", SEEDS[:2], "a few steps, to see that it works", {"epochs": 2, "limit": 256, "test_limit": 128}, 0.125
    ),
}


def find_preset(name: str, *, dataset: str | None = None) -> Preset:
    """Return a preset by its name, with its data replaced by a known dataset or a path."""
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

    cell: Options
    options: Options
    paper: PaperResult | None = None
    is_best: bool = False
    stands_for: str | None = None
    is_paper: bool = True

    @property
    def key(self) -> str:
        """The same text for all points of a cell."""
        return repr(sorted(self.cell.items()))

    def recipe(self, seed: int) -> BaseRecipe:
        return make_recipe({**self.options, "seed": seed})

    def having(self, **options: Any) -> Point:
        """Return the point with other options."""
        return replace(self, options={**self.options, **options})

    def variant(self, name: str, options: Options) -> Point:
        """Return a point with another method or name of it, and other options; the paper did not train it."""
        cell, made = {**self.cell, "method": name}, {**self.options, **options}
        return replace(self, cell=cell, options=made, paper=None, is_best=False, is_paper=False)

    def settings_text(self, skip: Container[str] = NAMED) -> str:
        """List the searched and varied options that the method uses, without the labels to skip."""
        varied = {name: value for name, value in self.cell.items() if value != self.cell["method"]}
        found = {name: self.options[name] for name in _SEARCHED if name in self.options} | varied
        unused = self.recipe(0).unused
        used = {name: value for name, value in found.items() if name not in skip and name not in unused}
        return ", ".join(f"{name} {pretty(value)}" for name, value in used.items())


class FileEntry(BaseModel):
    """Part of a study's entry in a file; a field that it does not have is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class _Trained(FileEntry):
    """Points crossed with variants of methods.

    Attributes:
        options: Options of all points, each a value or one for each preset.
        variants: More options of a method by name: ``tb, fair`` is TB with other options. No variants: as it is.
        only: Variants of a preset that does not train all.
    """

    options: Options = {}
    variants: Mapping[str, Options] = {}
    only: Mapping[str, Names] = {}

    def named(self, preset: Preset) -> Iterator[tuple[str, dict[str, Any]]]:
        """Return the options of each variant of a preset by name."""
        for name in self.only.get(preset.name, tuple(self.variants)):
            yield name, {"method": name.partition(", ")[0], **preset.chosen(self.variants[name])}


class Grid(_Trained):
    """Points of a table of the paper, in the size of a preset. Options and variants have no number of the paper's.

    Attributes:
        table: Name of the table.
        cells: Options whose values are separate cells; the others are searched for the best.
        datasets, models, methods: Only these; empty for all.
        best: Whether to train only the point of each line whose result the paper reports.
        vary: An option and its values, each a cell; the paper's result belongs to the first value.
        more: Rates of further networks and methods on CIFAR-100.
        beside: Points of a baseline. The labels that it lacks have its method as their value.
        stand_ins: Replacements of the paper's data in small presets; other data are skipped there.
        smoke: Networks of the smallest preset; empty for all.
        steps: Options in iterations of the paper's epoch, converted to the same share of an epoch.
    """

    table: str
    cells: Names = ()
    datasets: Names = ()
    models: Names = ()
    methods: Names = ()
    best: bool = False
    vary: Mapping[str, tuple[Any, ...]] = {}
    more: Mapping[str, Mapping[str, tuple[float, ...]]] = {}
    beside: Grid | None = None
    stand_ins: Mapping[str, str] = {"cifar100": "digits"}
    smoke: Names = ()
    steps: Mapping[str, int] = {}

    def __call__(self, preset: Preset) -> list[Point]:
        """Return the points of a preset."""
        found = reduced(self.paper_points(), preset, self.stand_ins, models=self.smoke)
        if self.options or self.steps:
            found = [replace(each.having(**preset.chosen(self.options)), paper=None) for each in found]
        for name, iterations in self.steps.items():
            found = [each.having(**{name: steps_like(iterations, each.options)}) for each in found]
        if self.variants:
            found = [point.variant(name, each) for point in found for name, each in self.named(preset)]
        return found

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
        for model, methods in self.more.items():
            for method, rates in methods.items():
                found += _stated_points(model, method, rates)
        return found + (beside(found, self.beside.paper_points()) if self.beside is not None else [])


def _table_point(row: PaperRow, options: Options, cells: Names) -> Point:
    names = {name: getattr(row, name) for name in NAMED}
    chosen = {name: options[name] for name in cells}
    results = [each for each in row.results if all(each.options[name] == value for name, value in chosen.items())]
    paper: PaperResult | None = BETTER[row.metric](results, key=lambda each: each.mean) if results else None
    is_best = paper is not None and all(options[name] == value for name, value in paper.options.items())
    return Point({**names, **chosen}, {**names, **options}, paper, is_best)


def _with_value(point: Point, name: str, value: Any, first: Any) -> Point:
    paper = point.paper if value == first else None
    return replace(point.having(**{name: value}), cell={**point.cell, name: value}, paper=paper)


def _stated_points(model: str, method: str, rates: Sequence[float]) -> list[Point]:
    """Return a point for each learning rate that the text states, with the lab's default as the best.

    AdamW and AdamP, for which the paper states no rates, are not the paper's.
    """
    names = {"dataset": "cifar100", "model": model, "method": method}
    usual, is_paper = ImageRecipe(method=method).lr, method not in ("adamw", "adamp")
    point = Point(names, {**common_settings(), **names}, is_paper=is_paper)
    return [replace(point.having(lr=rate), is_best=rate == usual) for rate in rates]


def common_settings() -> dict[str, Any]:
    """Return the options that the paper states for all its trainings of images."""
    return {name: stated(name) for name in ("epochs", "batch_size", "weight_decay", "momentum")}


def beside(points: Sequence[Point], baseline: Sequence[Point]) -> list[Point]:
    """Return the baseline's points on the same networks, with all labels of the points."""
    networks = [(point.cell["dataset"], point.cell["model"]) for point in points]
    return [
        replace(point, cell={**dict.fromkeys(points[0].cell, point.cell["method"]), **point.cell})
        for point in baseline
        if (point.cell["dataset"], point.cell["model"]) in networks
    ]


class Settings(_Trained):
    """Points of our own: settings crossed with variants and base rates.

    Attributes:
        settings: Options of each setting, in all presets or by preset. Lists of values are crossed, and an ``lr`` that
            is a list is searched for the best.
        labels: Labels that tell settings apart, and the options that they are.
        paper: Variants that the paper trained.
        stands_for: The paper's dataset that small presets replace.
    """

    settings: Mapping[str, tuple[Options, ...]] | tuple[Options, ...] = ({},)
    labels: Mapping[str, str] = {}
    paper: Names = ()
    stands_for: str | None = None

    def __call__(self, preset: Preset) -> list[Point]:
        """Return the points of a preset."""
        found = []
        for setting in self._crossed(preset):
            rates = setting.pop("lr", None)
            for name, variant in self.named(preset):
                options = {**setting, **variant}
                labels = {label: options[option] for label, option in self.labels.items()}
                cell = {"dataset": options["dataset"], "model": options["model"], "method": name, **labels}
                stands_for = None if preset.is_paper else self.stands_for
                point = Point(cell, options, stands_for=stands_for, is_paper=name in self.paper)
                found += [point] if rates is None else [point.having(lr=rate) for rate in rates]
        return found

    def _crossed(self, preset: Preset) -> list[dict[str, Any]]:
        """Return the options of each setting; given data replace its own, or choose the settings that have them."""
        found = []
        for each in self.settings[preset.name] if isinstance(self.settings, Mapping) else self.settings:
            options = {**preset.chosen(self.options), **preset.chosen(each)}
            lists = [each if isinstance(each, tuple) and name != "lr" else (each,) for name, each in options.items()]
            found += [dict(zip(options, values, strict=True)) for values in product(*lists)]
        given = {} if preset.dataset is None else {"dataset": preset.dataset}
        return [each for each in found if each["dataset"] == preset.dataset] or [{**each, **given} for each in found]


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
            assignments["by type"] = _BY_TYPE
        for name, assignment in assignments.items():
            found.append(point.variant(f"{point.cell['method']}, {name}", {"assignment": assignment}))
    return found


def reduced(points: Sequence[Point], preset: Preset, data: Mapping[str, str], *, models: Names = ()) -> list[Point]:
    """Return the paper's points of images in the size of a preset.

    The paper's preset has all of them. The others replace the data, train only the paper's best point of each grid, or
    the first where the paper names none, and have smaller widths and fewer epochs. A start of balancing after the last
    epoch is skipped.
    """
    if preset.is_paper:
        return [_as_published(point) for point in points]
    is_smoke = preset.name == "smoke"
    grids: dict[str, list[Point]] = {}
    for point in points:
        if point.cell["dataset"] in data and not (is_smoke and models and point.cell["model"] not in models):
            grids.setdefault(point.key, []).append(point)
    small: dict[str, Point] = {}
    for grid in grids.values():
        point = next((each for each in grid if each.is_best), grid[0])
        stand_in = "digits" if is_smoke else data[point.cell["dataset"]]
        each = _small(point, preset, preset.dataset or stand_in)
        if each.options.get("start", 0) < each.options["epochs"]:
            small.setdefault(each.key, each)
    return list(small.values())


def _as_published(point: Point) -> Point:
    """Return a point of images with the forms of the published code, where its options do not say otherwise."""
    tail = point.options.get("tail", "median")
    published = {**_PUBLISHED, **point.options, "tail": _PUBLISHED["tail"] if tail == "median" else tail}
    return point.having(**published) if point.cell["dataset"] in DATASETS else point


def _small(point: Point, preset: Preset, dataset: str) -> Point:
    options = {**point.options, **preset.options, "dataset": dataset}
    options["width"] = point.options.get("width", 1.0) * preset.width
    # a narrower network scores the layers that the paper's width would
    options["min_eigenvalues"] = max(3, round(_MIN_EIGENVALUES * preset.width))
    if "limit" not in options and dataset != "digits":
        options.update(_LIMITS)
    if "restart_epochs" in options:
        share = options["restart_epochs"] / point.options["epochs"]
        options["restart_epochs"] = max(1, round(options["epochs"] * share))
    cell = {**point.cell, "dataset": dataset}
    if "width" in cell:
        cell["width"] = options["width"]
    return replace(point, cell=cell, options=options, stands_for=point.cell["dataset"])


def steps_like(iterations: int, options: Options) -> int:
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
