"""Methods against each other: each with each seed, a process a core, and what the differences amount to."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev, stdev
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tempbalance.lab.recipe import Recipe
from tempbalance.runlog import RunFolder, write_whole


class CompareError(Exception):
    """A comparison of which a run failed, and what it said."""


@dataclass(frozen=True)
class Comparison:
    """What a method came to over its seeds.

    Attributes:
        method: Its name.
        accuracies: Test accuracy in percent after the last epoch, one a seed.
        mean, std: Of the accuracies; the standard deviation is that of the sample, 0 for one seed.
        difference, interval: Mean of the paired differences to the first method and half the width of its 95 %
            interval; the interval is ``None`` with fewer than two seeds.
        alpha_spread: Standard deviation of alpha over the layers at the end, mean over the seeds.
    """

    method: str
    accuracies: tuple[float, ...]
    mean: float
    std: float
    difference: float
    interval: float | None
    alpha_spread: float


def run_all(
    recipes: Sequence[Recipe], folder: Path, *, num_workers: int, arguments: Sequence[str], console: Console
) -> None:
    """Train each recipe in a process of its own, in ``folder / recipe.name``, so many at a time.

    Args:
        recipes: What to train; runs that are complete already are left as they are.
        folder: Where the runs go.
        num_workers: Processes at a time, each with one thread.
        arguments: More arguments for ``tempbalance train``.
        console: Where progress is shown.

    Raises:
        CompareError: If a run fails; the others are stopped and can be gone on with.
    """
    waiting = [recipe for recipe in recipes if RunFolder(folder / recipe.name).result is None]
    total = sum(recipe.epochs for recipe in recipes)
    running: dict[str, subprocess.Popen[bytes]] = {}
    with _shown(console, total) as show, _stopped_at_the_end(running):
        while waiting or running:
            while waiting and len(running) < num_workers:
                recipe = waiting.pop(0)
                running[recipe.name] = _start(recipe, folder, arguments)
            time.sleep(0.2)
            for name, process in list(running.items()):
                if process.poll() is not None:
                    del running[name]
                    _check(process.returncode, folder / name)
            show(sum(len(RunFolder(folder / recipe.name).metrics) for recipe in recipes), list(running))


def _start(recipe: Recipe, folder: Path, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    run = folder / recipe.name
    asked = run / "asked.json"
    write_whole(asked, json.dumps(recipe.to_dict(), indent=2).encode())
    command = [sys.executable, "-m", "tempbalance.cli", "train", "--recipe", str(asked), "--out", str(run)]
    with (run / "output.txt").open("wb") as output:
        return subprocess.Popen([*command, "--threads", "1", *arguments], stdout=output, stderr=subprocess.STDOUT)


def _check(code: int, run: Path) -> None:
    if code != 0:
        last = (run / "output.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise CompareError(f"the run in {run} ended with exit code {code}: {' '.join(last) or 'no message'}")


@contextmanager
def _stopped_at_the_end(running: dict[str, subprocess.Popen[bytes]]) -> Iterator[None]:
    """Leave no process behind."""
    try:
        yield
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


@contextmanager
def _shown(console: Console, total: int) -> Iterator[Callable[[int, list[str]], None]]:
    """One bar for all runs, in epochs."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("training", total=total)

        def show(done: int, names: list[str]) -> None:
            progress.update(task, completed=done, description=", ".join(names) or "training")

        yield show


def summarize(methods: Sequence[str], recipes: Sequence[Recipe], folder: Path) -> list[Comparison]:
    """What the finished runs came to, method by method; differences are to the first one, seed by seed."""
    found = []
    reference: tuple[float, ...] = ()
    for method in methods:
        runs = [RunFolder(folder / recipe.name) for recipe in recipes if recipe.method == method]
        accuracies = tuple(float(run.result["test_accuracy"]) for run in runs if run.result is not None)
        reference = reference or accuracies
        differences = [ours - theirs for ours, theirs in zip(accuracies, reference, strict=True)]
        found.append(
            Comparison(
                method,
                accuracies,
                fmean(accuracies),
                stdev(accuracies) if len(accuracies) > 1 else 0.0,
                fmean(differences),
                _half_interval(differences),
                fmean(_alpha_spread(run) for run in runs),
            )
        )
    return found


def _half_interval(differences: list[float]) -> float | None:
    """Half the width of the 95 % interval of the mean of paired differences, by Student's t."""
    if len(differences) < 2:
        return None
    from scipy.stats import t  # type: ignore[import-untyped]

    factor = float(t.ppf(0.975, len(differences) - 1))
    return factor * stdev(differences) / math.sqrt(len(differences))


def _alpha_spread(run: RunFolder) -> float:
    lines = run.layers
    last = [line["alpha"] for line in lines if line["epoch"] == lines[-1]["epoch"] and line["alpha"] is not None]
    return pstdev(last) if last else 0.0


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """The comparison for a terminal."""
    first = comparisons[0].method
    table = Table("method", "seeds", "test accuracy, %", f"against {first}, points (95 %)", "spread of alpha")
    for each in comparisons:
        spread = f"{each.mean:.2f} ± {each.std:.2f}"
        table.add_row(
            each.method, str(len(each.accuracies)), spread, _difference(each, first), f"{each.alpha_spread:.3f}"
        )
    return table


def _difference(comparison: Comparison, first: str) -> str:
    if comparison.method == first:
        return ""
    half = "" if comparison.interval is None else f" ± {comparison.interval:.2f}"
    return f"{comparison.difference:+.2f}{half}"


def verdict(comparisons: Sequence[Comparison]) -> list[str]:
    """What was measured, in words, also where the first method wins."""
    first, sentences = comparisons[0].method, []
    for each in comparisons[1:]:
        better = "better" if each.difference > 0 else "worse"
        sentence = f"{each.method} is {abs(each.difference):.2f} points {better} than {first}"
        if each.difference == 0:
            sentence = f"{each.method} is as good as {first}"
        if each.interval is None:
            sentences.append(f"{sentence} with one seed, which tells nothing about the spread.")
        elif abs(each.difference) <= each.interval:
            sentences.append(
                f"{sentence}; the interval holds zero: with {len(each.accuracies)} seeds that is no difference."
            )
        else:
            sentences.append(f"{sentence}; the 95 % interval does not hold zero.")
    return sentences


def plan(options: Mapping[str, Any], methods: Sequence[str], seeds: Sequence[int]) -> list[Recipe]:
    """The recipes of a comparison: one a method and seed. A rate that the options do not give is each method's own."""
    return [Recipe.from_dict({**options, "method": method, "seed": seed}) for seed in seeds for method in methods]
