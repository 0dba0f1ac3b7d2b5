"""Studies: what is trained, against what it is tested, and how the results are presented.

The YAML files in `tempbalance.lab.studies` have an entry for each study, with the fields of `Study`. Functions that
an entry names, such as ``layers.present_alpha``, are in the modules beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, ValidationError
from rich.table import Table
from rich.text import Text

from tempbalance.errors import quoted, unknown
from tempbalance.lab import studies as folder_of_studies
from tempbalance.lab.accuracy import Chart
from tempbalance.lab.claims import AnyClaim, Function, claims_table, judge_claims
from tempbalance.lab.findings import Findings, find_cells
from tempbalance.lab.jobs import Job
from tempbalance.lab.options import pretty, read_options
from tempbalance.lab.paper import paper_statements, resolved
from tempbalance.lab.points import PRESETS, FileEntry, Grid, Names, Point, Preset, Settings, with_controls
from tempbalance.lab.recipe import SEEDS, ScoredRecipe, make_recipe
from tempbalance.report.tables import Entry, Report
from tempbalance.runlog import RunFolder, RunFolderError

_COLUMNS = {"data": "dataset", "network": "model"}  # names of labels in reports


class StudyError(Exception):
    """A file without studies, or an entry that is wrong or defined twice."""


def _form(given: Any) -> str:
    """Return the form of an entry's points or of its presentation: data of two kinds, or a function."""
    if isinstance(given, Mapping):
        return "table" if "table" in given else "data"
    return "function"


class Study(FileEntry):
    """An experiment.

    Attributes:
        name: Name on the command line.
        title: The question it asks.
        varies: What is varied, in a few words.
        source: The points of a preset; ``points`` in a file.
        present: Returns tables and charts of the findings.
        captions: Captions of the charts by name, where ``present`` has none.
        figures: Labels of the paper's figures that show it.
        reference: Labels of the cells that others are tested against, seed by seed.
        num_seeds: Number of seeds where it is not the preset's: in all presets, or by the name of the preset.
        claims: Claims of the paper that it tests.
        draws_alphas: Whether it shows or tests alphas of methods without balancing. Studies that do not leave their
            layers unscored, unless the same run belongs to one that does.
        is_timed: Whether it measures times, so that its runs are trained one at a time.
        evaluate: Works on complete runs once all are trained, and keeps in their folders what ``present`` reads there;
            is given the findings and the folder of downloads.
    """

    name: str
    title: str
    varies: str
    source: Annotated[
        Annotated[Grid, Tag("table")]
        | Annotated[Settings, Tag("data")]
        | Annotated[Callable[[Preset], list[Point]], Function, Tag("function")],
        Discriminator(_form),
    ] = Field(alias="points")
    present: Annotated[
        Annotated[Chart, Tag("data")] | Annotated[Callable[[Findings], Report], Function, Tag("function")],
        Discriminator(_form),
    ]
    captions: Mapping[str, str] = {}
    figures: Names = ()
    reference: Mapping[str, Any] = {"method": "cal"}
    num_seeds: int | Mapping[str, int] | None = None
    claims: tuple[AnyClaim, ...] = ()
    draws_alphas: bool = False
    is_timed: bool = False
    evaluate: Annotated[Callable[[Findings, Path | None], None], Function] | None = None

    def points(self, preset: Preset) -> list[Point]:
        """Return the points of a preset; baselines are scored only where a study draws their alphas."""
        found = self.source(preset)
        if self.draws_alphas:
            return found
        return [each if _is_drawn(each, preset) else each.having(score_baseline=False) for each in found]

    def seeds(self, preset: Preset) -> tuple[int, ...]:
        """Return the seeds of each point."""
        given = self.num_seeds.get(preset.name) if isinstance(self.num_seeds, Mapping) else self.num_seeds
        return preset.seeds if given is None else (*SEEDS, *range(100, 95 + given))[:given]

    def choose(
        self, preset: Preset, only: Mapping[str, Sequence[str]], *, only_paper: bool = False, controls: bool = False
    ) -> list[Point]:
        """Return the points of a preset that have one of the given values of each given label.

        Controls of each balanced point are added where the study does not have them already.
        """
        found = self.points(preset)
        if controls:
            all_points = [*found, *with_controls(found)]
            found = list({(each.key, each.recipe(SEEDS[0]).id): each for each in all_points}.values())
        found = [point for point in found if point.is_paper or not only_paper]
        for given, wanted in only.items():
            name = _COLUMNS.get(given, given)
            labels = dict.fromkeys(label for point in found for label in point.cell)
            if name not in labels:
                raise ValueError(f"{self.name}: {unknown('label', name, labels)}")
            values = dict.fromkeys(point.cell[name] for point in found)
            for each in wanted:
                if not any(_is_meant(each, value) for value in values):
                    plain = dict.fromkeys(value if isinstance(value, str) else pretty(value) for value in values)
                    raise ValueError(f"{self.name}: {unknown(name, each, plain)}")
            found = [point for point in found if any(_is_meant(each, point.cell[name]) for each in wanted)]
        return found

    def jobs(self, preset: Preset, points: Sequence[Point], folder: Path) -> list[Job]:
        """Return the runs that points need, each once, all seeds of a point together; a folder is named by its id."""
        recipes = [point.recipe(seed) for point in points for seed in self.seeds(preset)]
        return list({name: Job(recipe, folder / name) for recipe in recipes for name in [recipe.id]}.values())

    def num_runs(self, preset: Preset, *, only_paper: bool = False) -> int:
        """Return the number of different runs, which is the same for each seed."""
        seeds, points = self.seeds(preset), self.choose(preset, {}, only_paper=only_paper)
        return len({point.recipe(seeds[0]).id for point in points}) * len(seeds)

    def find(self, preset: Preset, points: Sequence[Point], folder: Path) -> Findings:
        """Read the results of the runs of points so far."""
        seeds = self.seeds(preset)
        damaged = tuple(damage for job in self.jobs(preset, points, folder) if (damage := job.damage))
        return Findings(self.name, preset, seeds, self.reference, find_cells(points, seeds, folder), damaged)

    def report(self, findings: Findings) -> Report:
        """Return what the study presents, with its headings and with warnings about runs."""
        figures = f"; the paper's figure {', '.join(self.figures)}" if self.figures else ""
        about = f"{self.varies}{figures}."
        shown = self.present(findings)
        rows = [each.row for each in judge_claims(self.claims, findings)]
        claims = [claims_table(rows, is_paper=findings.preset.is_paper)] if rows else []
        return replace(
            shown,
            tables=[*shown.tables, *claims],
            captions={name: shown.captions.get(name) or self.captions[name] for name in shown.charts},
            study=self.name,
            preset=findings.preset.name,
            title=f"{self.name}: {self.title}",
            subtitle=findings.subtitle,
            about=about[0].upper() + about[1:],
            notes=[*findings.notes, *shown.notes],
        )


def _is_meant(given: str, value: object) -> bool:
    """Whether a value is given as recipes or as reports write it."""
    return given.lower() in (str(value).lower(), pretty(value).lower())


@cache
def all_studies() -> Mapping[str, Study]:
    """Return all studies by name, in alphabetical order.

    Raises:
        StudyError: If a file cannot be read, or an entry is wrong or there already; with the study and the field.
    """
    found: dict[str, Study] = {}
    for path in (each for folder in folder_of_studies.__path__ for each in sorted(Path(folder).glob("*.yaml"))):
        try:
            entries = read_options(path)
        except ValueError as err:
            raise StudyError(str(err)) from err
        for name, entry in entries.items():
            if name in found or not isinstance(entry, Mapping):
                wrong = "is defined twice" if name in found else f"must have fields, got {quoted(entry)}"
                raise StudyError(f"{path.name}: study {name} {wrong}")
            try:
                found[name] = Study(**{"name": name, **resolved(entry)})
            except ValidationError as err:
                wrong = "; ".join(f"field {'.'.join(map(str, each['loc']))}: {each['msg']}" for each in err.errors())
                raise StudyError(f"{path.name}: study {name}: {wrong}") from err
    return dict(sorted(found.items()))


def _is_drawn(point: Point, preset: Preset) -> bool:
    recipe = point.recipe(SEEDS[0])
    is_baseline = isinstance(recipe, ScoredRecipe) and not recipe.is_balanced
    return not is_baseline or recipe.id in _drawn(preset.name, preset.dataset)


@cache
def _drawn(preset: str, dataset: str | None) -> frozenset[str]:
    """Return the ids, with the first seed, of the runs whose alphas a study draws."""
    size = replace(PRESETS[preset], dataset=dataset)
    studies = [study for study in all_studies().values() if study.draws_alphas]
    return frozenset(point.recipe(SEEDS[0]).id for study in studies for point in study.points(size))


def find_study(name: str) -> Study:
    """Return a study by its name."""
    if name not in all_studies():
        raise ValueError(unknown("study", name, all_studies()))
    return all_studies()[name]


def claims_report(preset: Preset, folder: Path) -> Report:
    """Return the claims of all studies in one table, and those that no study can test with the reason."""
    rows: list[list[Entry]] = []
    for study in all_studies().values():
        if study.claims:
            findings = study.find(preset, study.points(preset), folder)
            rows += [[study.name, *judged.row] for judged in judge_claims(study.claims, findings)]
    counts = Counter(str(row[1]) for row in rows)
    plural = {"holds": "hold", "does not hold": "do not hold"}
    words = {verdict: verdict if number == 1 else plural.get(verdict, verdict) for verdict, number in counts.items()}
    notes = ["; ".join(f"{number} {words[verdict]}" for verdict, number in counts.items()) + "."]
    notes += [f"Not tested: {each.says} {each.untested}" for each in paper_statements().values() if each.untested]
    table = claims_table(rows, is_paper=preset.is_paper, first=["study"])
    title, subtitle = "The paper's claims", f"preset {preset.name}: all studies, in {folder}"
    return Report([table], {}, {}, notes, "claims", preset.name, title, subtitle)


def read_only(given: Iterable[str]) -> dict[str, list[str]]:
    """Read ``NAME=VALUE`` as values by name."""
    found: dict[str, list[str]] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not (name and equals and value):
            raise ValueError(f"only must be NAME=VALUE, such as model=resnet18, got {each!r}")
        found.setdefault(name.strip(), []).append(value.strip())
    return found


def jobs_of_all(
    chosen: Mapping[str, Sequence[Point]], studies: Sequence[Study], preset: Preset, folder: Path
) -> list[Job]:
    """Return the runs that studies need, each once."""
    jobs = [job for study in studies for job in study.jobs(preset, chosen[study.name], folder)]
    return list({job.folder: job for job in jobs}.values())


def known_jobs(folder: Path) -> list[Job]:
    """Return all runs in a folder that can be read, from which times are estimated."""
    found = []
    for path in sorted(folder.glob("*/recipe.json")):
        try:
            content = RunFolder(path.parent).recipe or {}
            job = Job(make_recipe(content.get("recipe") or {"": ""}), path.parent)
        except (RunFolderError, ValueError, TypeError, AttributeError):  # of another kind or version
            continue
        if not job.damage:
            found.append(job)
    return found


def plan_table(study: Study, preset: Preset, points: Sequence[Point], folder: Path) -> Table:
    """Return a table of all points with the number of runs, and of complete runs."""
    table = Table(title=f"{study.name}, preset {preset.name}", title_justify="left")
    for name in ("data", "network", "method", "setting"):
        table.add_column(name, overflow="fold")
    is_mixed = not all(point.is_paper for point in points)
    if is_mixed:
        table.add_column("the paper's")
    table.add_column("runs", justify="right")
    table.add_column("done", justify="right")
    for point in points:
        jobs = study.jobs(preset, [point], folder)
        done = sum(job.state == "done" for job in jobs)
        names = (pretty(point.cell["model"]), pretty(point.cell["method"]), point.settings_text())
        marks = ["yes" if point.is_paper else "no"] if is_mixed else []
        table.add_row(*map(Text, (jobs[0].recipe.data_text, *names)), *marks, str(len(jobs)), str(done))
    return table


def totals_text(jobs: Sequence[Job]) -> str:
    """Return the number of runs, in all and by method.

    Example:
        >>> totals_text([])
        '0 runs'
    """
    counts = Counter(pretty(job.recipe.method) for job in jobs)
    methods = ", ".join(f"{number} {name}" for name, number in counts.items())
    return f"{len(jobs)} run{'s' * (len(jobs) != 1)}" + (f": {methods}" if methods else "")
