"""Runs as a report sees them: those of one method together, whatever their seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from tempbalance.report.statistics import paired
from tempbalance.report.text import finite
from tempbalance.runlog import Line, RunFolder, RunFolderError

# options that do not make it another method, and those that are always said where they differ
_NOT_COMPARED = ("seed", "method", "log_gradients", "log_eigenvalues")
_SETTING = ("dataset", "model", "width", "epochs")


@dataclass(frozen=True)
class Run:
    """The content of a run's folder."""

    recipe: Line
    metrics: list[Line]
    layers: list[Line]
    result: Line | None

    @property
    def accuracy(self) -> float | None:
        """Test accuracy after the last epoch, in percent; ``None`` while the run is not complete."""
        return finite((self.result or {}).get("test_accuracy"), 12)


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed.

    Attributes:
        label: The method, and in what it differs from others where the method alone does not tell.
        runs: One a seed.
    """

    label: str
    runs: tuple[Run, ...]

    @property
    def accuracies(self) -> dict[str, float]:
        """Test accuracy of the complete runs, by seed."""
        return {str(run.recipe.get("seed")): run.accuracy for run in self.runs if run.accuracy is not None}


@dataclass(frozen=True)
class Summary:
    """What a group came to.

    Attributes:
        label: That of the group.
        num_runs, num_complete: All its runs, and the complete ones.
        mean, std: Of the test accuracies in percent; the standard deviation is that of the sample, ``None`` under two.
        difference, difference_std: Mean and standard deviation of the paired differences to the first group of the same
            dataset and network, in points; ``None`` for that group itself, or without common seeds.
        num_pairs: Seeds in common.
    """

    label: str
    num_runs: int
    num_complete: int
    mean: float | None
    std: float | None
    difference: float | None
    difference_std: float | None
    num_pairs: int


def read_groups(folders: Sequence[RunFolder]) -> list[Group]:
    """Read runs and put those together that differ in nothing but the seed, in the order of the first of each.

    Raises:
        ValueError: If there are no runs.
        RunFolderError: If a folder holds none, or is damaged.
    """
    if not folders:
        raise ValueError("a report needs at least one run, got none")
    found: dict[str, list[Run]] = {}
    for folder in folders:
        run = _read(folder)
        options = {name: value for name, value in run.recipe.items() if name not in (*_NOT_COMPARED,)}
        found.setdefault(repr((run.recipe.get("method"), sorted(options.items()))), []).append(run)
    groups = list(found.values())
    return [Group(_label(runs, groups), tuple(runs)) for runs in groups]


def _read(folder: RunFolder) -> Run:
    content = folder.recipe
    if content is None or not isinstance(content.get("recipe"), dict):
        raise RunFolderError(f"{folder.path} holds no run: its recipe.json must have a recipe, got {str(content)[:80]}")
    layers = [_checked(line, folder) for line in folder.layers]
    return Run(content["recipe"], folder.metrics, layers, folder.result)


def _checked(line: Line, folder: RunFolder) -> Line:
    """A line about a layer, its eigenvalues ascending and finite."""
    if not isinstance(line.get("layer"), str):
        raise RunFolderError(f"{folder.path}, layers.jsonl: a line must have the name of a layer, got {str(line)[:80]}")
    if "eigenvalues" not in line:
        return line
    values = line["eigenvalues"]
    if not isinstance(values, list) or any(finite(value) is None for value in values):
        raise RunFolderError(f"{folder.path}, layers.jsonl: eigenvalues must be numbers, got {str(values)[:80]}")
    return {**line, "eigenvalues": sorted(map(float, values))}


def _label(runs: list[Run], groups: list[list[Run]]) -> str:
    recipe, everyone = runs[0].recipe, [group[0].recipe for group in groups]
    alike = [other for other in everyone if other.get("method") == recipe.get("method")]
    told = [
        f"{name} {value}"
        for name, value in recipe.items()
        if name not in _NOT_COMPARED
        and any(other.get(name) != value for other in (everyone if name in _SETTING else alike))
    ]
    return ", ".join([str(recipe.get("method")), *told])


def summarize(groups: Sequence[Group]) -> list[Summary]:
    """What each group came to, beside the first one of the same dataset and network."""
    return [_summary(group, _first_alike(group, groups)) for group in groups]


def _first_alike(group: Group, groups: Sequence[Group]) -> Group:
    def setting(each: Group) -> list[Any]:
        return [each.runs[0].recipe.get(name) for name in ("dataset", "model", "width")]

    return next(each for each in groups if setting(each) == setting(group))


def _summary(group: Group, first: Group) -> Summary:
    accuracies = group.accuracies
    values = list(accuracies.values())
    test = None if group is first else paired(accuracies, first.accuracies)
    return Summary(
        group.label,
        num_runs=len(group.runs),
        num_complete=len(values),
        mean=fmean(values) if values else None,
        std=stdev(values) if len(values) > 1 else None,
        difference=test.mean if test else None,
        difference_std=test.std if test else None,
        num_pairs=test.num_pairs if test else 0,
    )
