"""Findings: results of a study's runs, the best point of each grid, and paired tests between cells."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from tempbalance.lab.jobs import Job
from tempbalance.lab.options import CONTROLS, pretty
from tempbalance.lab.paper import PaperResult
from tempbalance.lab.points import NAMED, Point, Preset
from tempbalance.lab.recipe import ACCURACY, SEEDS, Measure, find_kind
from tempbalance.report.statistics import LEVEL, Paired, holm, paired
from tempbalance.runlog import Line, RunFolder

Seconds = tuple[float, float | None]
_CONTROLS = {"shuffled": "its scales shuffled", "mean": "their mean for every layer"}


@dataclass(frozen=True)
class Tried:
    """Complete runs of a point by seed, and the epoch in which others diverged."""

    point: Point
    runs: Mapping[int, RunFolder]
    results: Mapping[int, Line]
    diverged: Mapping[int, int] = field(default_factory=dict)

    @property
    def num_done(self) -> int:
        """Number of runs that are complete or diverged."""
        return len(self.results) + len(self.diverged)

    @property
    def measure(self) -> Measure:
        return find_kind(self.point.options.get("kind", "images")).measure

    @cached_property
    def chosen_by(self) -> str:
        """Validation metric that chooses the epoch that counts; empty if the last one does."""
        return self.point.recipe(SEEDS[0]).best_by

    @cached_property
    def outcomes(self) -> dict[int, float]:
        """Value of the measure by seed."""
        return self.values(best=bool(self.chosen_by))

    def values(self, *, best: bool) -> dict[int, float]:
        """Return the measure by seed, after the last epoch or at the best one, of the runs that have it."""
        name = f"best_{self.measure.name.removeprefix('test_')}" if best else self.measure.name
        return {seed: float(result[name]) for seed, result in self.results.items() if name in result}

    @property
    def mean(self) -> float | None:
        return fmean(self.outcomes.values()) if self.results else None

    @property
    def std(self) -> float | None:
        return stdev(self.outcomes.values()) if len(self.results) > 1 else None

    @cached_property
    def validation(self) -> dict[int, float]:
        """Validation metric at the best epoch by seed; empty where no validation data choose it."""
        by = self.chosen_by
        found = {seed: [line[by] for line in run.metrics if by in line] for seed, run in self.runs.items() if by}
        return {seed: max(values, key=self.measure.sign) for seed, values in found.items() if values}

    @property
    def rank(self) -> tuple[int, float]:
        """Larger for better points: fewer diverged runs first, then the mean, of validation where there is one."""
        mean = fmean(self.validation.values()) if self.validation else self.mean
        return -len(self.diverged), -math.inf if mean is None else self.measure.sign(mean)

    def seconds(self, name: str) -> Seconds | None:
        """Return seconds and their standard deviation, each a mean over the seeds; ``None`` if not measured.

        They are of an ``epoch`` of training alone, of one ``balancing``, or of ``balancing_an_epoch``.
        """
        key = f"{name.removesuffix('_an_epoch')}_seconds"
        means, spreads = [], []
        for result in self.results.values():
            times = result["num_balancings"] / result["epochs"] if name.endswith("_an_epoch") and key in result else 1.0
            means += [result[key] * times] if key in result else []
            spreads += [result[f"{key}_std"] * times] if f"{key}_std" in result else []
        return (fmean(means), fmean(spreads) if spreads else None) if means else None


@dataclass(frozen=True)
class Cell:
    """Place in a study's table: its labels, the points of its grid, and the number of seeds that each needs."""

    labels: Mapping[str, Any]
    tried: tuple[Tried, ...]
    num_seeds: int

    @property
    def key(self) -> str:
        return self.tried[0].point.key

    @property
    def paper(self) -> PaperResult | None:
        return next((each.point.paper for each in self.tried if each.point.paper is not None), None)

    @cached_property
    def best(self) -> Tried:
        """The best point among those with the most seeds; without a run that ended, the first."""
        most = max(each.num_done for each in self.tried)
        return max((each for each in self.tried if each.num_done == most), key=lambda each: each.rank)

    @property
    def is_complete(self) -> bool:
        """Whether every point of its grid has all its seeds."""
        return all(each.num_done == self.num_seeds for each in self.tried)

    @property
    def panel(self) -> str:
        """Network and data."""
        return f"{pretty(self.labels['model'])}, {pretty(self.labels['dataset'])}"

    @property
    def setting(self) -> str:
        """Network, data and all labels but the method."""
        others = (label_text(name, value) for name, value in self.labels.items() if name not in NAMED)
        return ", ".join([self.panel, *others])

    @property
    def rates(self) -> list[float]:
        """Base rates of its grid."""
        return sorted({float(each.point.options["lr"]) for each in self.tried if "lr" in each.point.options})


@dataclass(frozen=True)
class Findings:
    """Results of a study so far.

    Attributes:
        seeds: Seeds that each point needs.
        reference: Labels of the cells that others are tested against.
        damaged: Damage of runs that are skipped.
    """

    name: str
    preset: Preset
    seeds: tuple[int, ...]
    reference: Mapping[str, Any]
    cells: tuple[Cell, ...]
    damaged: tuple[str, ...] = ()

    @property
    def tried(self) -> list[Tried]:
        """All points of all cells."""
        return [each for cell in self.cells for each in cell.tried]

    @property
    def measure(self) -> Measure:
        return self.tried[0].measure if self.cells else ACCURACY

    @property
    def num_runs(self) -> tuple[int, int]:
        """Number of complete runs, and of all runs."""
        return sum(each.num_done for each in self.tried), len(self.tried) * len(self.seeds)

    @property
    def is_best_reported(self) -> bool:
        """Whether the best epoch counts instead of the last one."""
        return bool(self.cells and self.tried[0].chosen_by)

    @property
    def subtitle(self) -> str:
        """Preset and data in a line, for every table and figure."""
        if not self.cells:
            return f"preset {self.preset.name}: nothing is trained"
        recipes = [each.point.recipe(self.seeds[0]) for each in self.tried]
        data = "; ".join(dict.fromkeys(recipe.data_text for recipe in recipes))
        sizes = "; ".join(map(_listed, zip(*(recipe.size_text.split("; ") for recipe in recipes), strict=True)))
        text = f"preset {self.preset.name}: {data}; {sizes}; seeds {', '.join(map(str, self.seeds))}"
        done, total = self.num_runs
        return text if done == total else f"{text}; {done} of {total} runs complete"

    @property
    def notes(self) -> list[str]:
        """Warnings about runs that are damaged, or that none is complete yet."""
        found = [f"skipped: {damage}" for damage in self.damaged]
        if number := sum(len(each.diverged) for each in self.tried):
            found.append(
                f"{number} run{'s' * (number > 1)} diverged. A setting with one is worse than all settings without, "
                "and in tests the run has the worst outcome of all runs."
            )
        if self.cells and self.num_runs[0] == 0:
            found.append(f"no run is complete yet: tempbalance study run {self.name} --preset {self.preset.name}")
        return found

    @property
    def reference_text(self) -> str:
        """Name of the cells that others are tested against."""
        return ", ".join(label_text(name, value) for name, value in self.reference.items())

    def find(self, cell: Cell, labels: Mapping[str, Any]) -> Cell | None:
        """Return the cell with the labels of another one but for these."""
        wanted = {**cell.labels, **labels}
        return next((each for each in self.cells if each.labels == wanted), None)

    def compared_with(self, cell: Cell) -> Cell | None:
        """Return the reference of a cell; ``None`` for the reference itself, or where there is none."""
        found = self.find(cell, self.reference)
        return None if found is cell else found

    def against(self, cell: Cell) -> Paired | None:
        """Test a cell against its reference seed by seed; ``None`` without a reference or a common seed."""
        other = self.compared_with(cell)
        return None if other is None else paired(self.outcomes(cell), self.outcomes(other))

    @property
    def has_common_rates(self) -> bool:
        """Whether all methods were tried at the same base rates, of which there are several, in every setting."""
        rates: dict[str, set[tuple[float, ...]]] = {}
        for cell in self.cells:
            rates.setdefault(cell.setting, set()).add(tuple(cell.rates))
        return bool(rates) and all(len(each) == 1 and len(min(each)) > 1 for each in rates.values())

    @property
    def effects(self) -> list[str]:
        """Sentences about how much of the difference of each method with controls remains over these."""
        settings: dict[str, dict[str, dict[int, float]]] = {}
        for cell in self.cells:
            settings.setdefault(cell.setting, {})[str(cell.labels["method"])] = self.outcomes(cell)
        baseline = str(self.reference.get("method"))
        return [
            f"{setting}: {text}"
            for setting, outcomes in settings.items()
            for method in outcomes
            if (text := effect_text(outcomes, method, baseline, self.measure))
        ]

    def outcomes(self, cell: Cell) -> dict[int, float]:
        """Return the outcomes of a cell by seed; a diverged run has the worst outcome of all runs of the study."""
        worst = {} if self._worst is None else dict.fromkeys(cell.best.diverged, self._worst)
        return cell.best.outcomes | worst

    @cached_property
    def _worst(self) -> float | None:
        values = [value for each in self.tried for value in each.outcomes.values()]
        return min(values, key=self.measure.sign, default=None)

    def raw(self, command: str) -> str:
        """Return the command that trains the runs and each run's setting, method, rate, seed and values as JSON."""
        head: dict[str, Any] = {"study": self.name, "command": command, "about": self.subtitle}
        head |= {"baseline": self.reference.get("method"), "measure": asdict(self.measure)}
        rows = []
        for cell in self.cells:
            for tried in cell.tried:
                for seed in (each for each in self.seeds if each in tried.outcomes or each in tried.diverged):
                    row = {"setting": cell.setting, "method": cell.labels["method"]}
                    row |= {"rate": tried.point.options.get("lr"), "seed": seed, "value": tried.outcomes.get(seed)}
                    rows.append(row | ({"validation": tried.validation[seed]} if seed in tried.validation else {}))
        lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
        return json.dumps(head, indent=1)[:-2] + f',\n "runs": [\n{lines}\n ]\n}}\n'

    @property
    def verdicts(self) -> list[str]:
        """How many paired tests of each balanced setting show a difference, corrected for their number."""
        balanced = [cell for cell in self.cells if str(cell.labels["method"]).startswith("tb")]
        tested = [(cell, test) for cell in balanced if (test := self.against(cell)) is not None]
        corrected = holm([test.p_value for _, test in tested])
        found: dict[str, list[tuple[float, float | None]]] = {}
        for (cell, test), p_value in zip(tested, corrected, strict=True):
            ours = ", ".join(label_text(name, cell.labels[name]) for name in self.reference)
            found.setdefault(ours, []).append((test.mean, p_value))
        used = [each for cell, _ in tested for each in (cell, self.compared_with(cell)) if each is not None]
        so_far = "" if all(cell.is_complete for cell in used) else "so far, "
        return [f"{ours} against {self.reference_text}: {so_far}{self._counts(each)}" for ours, each in found.items()]

    def _counts(self, found: Sequence[tuple[float, float | None]]) -> str:
        """Return in how many cells differences are significant, and between which values they lie."""
        signs = [self.measure.sign(mean) for mean, p_value in found if p_value is not None and p_value < LEVEL]
        better, worse, cells = sum(sign > 0 for sign in signs), sum(sign < 0 for sign in signs), len(found)
        low, high = min(mean for mean, _ in found), max(mean for mean, _ in found)
        between = f"{low:+.2f}" if low == high else f"{low:+.2f} to {high:+.2f}"
        counted = f"better in {better} of {cells} cells, worse in {worse} (p < {LEVEL:g}, corrected)"
        return f"{counted}; difference {between} {self.measure.points}".rstrip() + "."


def effect_text(outcomes: Mapping[str, Mapping[int, float]], method: str, baseline: str, measure: Measure) -> str:
    """Say how a method differs from a baseline, and how much of that remains over each of its controls.

    Outcomes are values by method and seed. Controls of a method have its name before theirs: ``tb, shuffled``. The text
    is empty without a common seed, or if the method has no control.
    """
    over = {name: paired(outcomes[method], outcomes.get(f"{method}, {name}", {})) for name in CONTROLS}
    tests = {_CONTROLS[name]: test for name, test in over.items() if test is not None}
    total = paired(outcomes[method], outcomes.get(baseline, {}))
    if total is None or not tests:
        return ""
    parts = [f"against {words} {difference_text(test, measure)}" for words, test in tests.items()]
    text = f"{pretty(method)} against {pretty(baseline)} {difference_text(total, measure)}; {', '.join(parts)}."
    if not _is_shown(total):
        return f"{text} There is no effect to explain."
    is_gain = measure.sign(total.mean) > 0
    what = "gain" if is_gain else "loss"
    lost = [words for words, test in tests.items() if not _is_shown(test) or (measure.sign(test.mean) > 0) != is_gain]
    if not lost:
        return f"{text} The {what} is shown over every control: it is due to which layer has which scale."
    return f"{text} The {what} is not shown over {' and '.join(lost)}: that spectra matter is not shown."


def difference_text(test: Paired, measure: Measure) -> str:
    """Return a mean difference with half its 95 % interval, and whether it is shown."""
    if test.interval is None:
        return f"{test.mean:+.2f} {measure.points}".rstrip() + " (one seed)"
    is_better = measure.sign(test.mean) > 0
    verdict = ("better" if is_better else "worse") if _is_shown(test) else "not shown"
    return f"{test.mean:+.2f} ± {test.interval:.2f} {measure.points}".rstrip() + f" ({verdict})"


def _is_shown(test: Paired) -> bool:
    return test.interval is not None and abs(test.mean) > test.interval


def label_text(name: str, value: Any) -> str:
    """Return a label in words: a method needs no name before it, a number does."""
    return pretty(value) if name == "method" else f"{name.replace('_', ' ')} {pretty(value)}"


def _listed(texts: Iterable[str]) -> str:
    """Join different texts; a first word that all have in common is written once."""
    first, *others = dict.fromkeys(texts)
    word = first.split(" ")[0] + " "
    same = all(each.startswith(word) for each in others)
    return ", ".join([first, *(each.removeprefix(word) if same else each for each in others)])


def find_cells(points: Sequence[Point], seeds: Sequence[int], folder: Path) -> tuple[Cell, ...]:
    """Read the results of the runs of points, cell by cell; damaged runs are skipped."""
    cells: dict[str, list[Tried]] = {}
    for point in points:
        jobs = {seed: Job(recipe := point.recipe(seed), folder / recipe.id) for seed in seeds}
        ended = {seed: result for seed, job in jobs.items() if not job.damage and (result := job.result) is not None}
        results = {seed: result for seed, result in ended.items() if "diverged" not in result}
        diverged = {seed: result["diverged_epoch"] for seed, result in ended.items() if "diverged" in result}
        tried = Tried(point, {seed: jobs[seed].run for seed in results}, results, diverged)
        cells.setdefault(point.key, []).append(tried)
    return tuple(Cell(each[0].point.cell, tuple(each), len(seeds)) for each in cells.values())


def last_lines(run: RunFolder) -> list[Line]:
    """Return the lines of the layers with an alpha at the last scoring of a run."""
    lines = run.layers
    return [line for line in lines if line["epoch"] == lines[-1]["epoch"] and line["alpha"] is not None]


def last_alphas(run: RunFolder) -> list[float]:
    """Return alpha of every layer at the last scoring of a run."""
    return [line["alpha"] for line in last_lines(run)]
