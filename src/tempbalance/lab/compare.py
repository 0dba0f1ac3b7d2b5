"""Comparison of methods with the same seeds: recipes, paired differences and a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, pstdev, stdev
from typing import Any

from rich.table import Table

from tempbalance.lab.findings import effect_text, last_alphas
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.options import ASSIGNMENTS, CONTROLS
from tempbalance.lab.recipe import ACCURACY, find_method
from tempbalance.lab.runs import DivergedError
from tempbalance.report.statistics import Paired, verdict_text
from tempbalance.runlog import RunFolder, write_whole

# ends within minutes on two cores with the digits; a quarter of the width has a quarter of the eigenvalues
_SMALL = {"epochs": 12, "width": 0.25, "min_eigenvalues": 12}


@dataclass(frozen=True)
class Comparison:
    """Results of a method over its seeds: test accuracies in percent after the last epoch, one a seed.

    Attributes:
        difference, interval: Mean of the paired differences to the first method and half the width of its 95 %
            interval; the interval is ``None`` with fewer than two seeds.
        alpha_spread: Standard deviation of alpha over the layers at the end, mean over the seeds; ``None`` where no
            layer was scored.
    """

    method: str
    accuracies: tuple[float, ...]
    mean: float
    std: float | None
    difference: float
    interval: float | None
    alpha_spread: float | None


def plan(
    options: Mapping[str, Any], methods: Sequence[str], seeds: Sequence[int], *, controls: bool = False
) -> list[ImageRecipe]:
    """Return the recipes of a comparison, one for each method and seed, and for each control of a balanced method.

    Without a learning rate in the options, each method has its usual one. On the digits, epochs, width and
    min_eigenvalues are small unless the options say otherwise.
    """
    if twice := [name for name in methods if methods.count(name) > 1]:
        raise ValueError(f"methods must be named once, got {twice[0]!r} twice")
    given = {**(_SMALL if options.get("dataset", "digits") == "digits" else {}), **options}
    found = []
    for seed in seeds:
        for method in methods:
            recipe = ImageRecipe.from_dict({**given, "method": method, "seed": seed})
            found.append(recipe)
            if controls and recipe.is_balanced and recipe.assignment in ASSIGNMENTS:
                ways = [f"{name}:{recipe.assignment}" for name in CONTROLS]
                found += [ImageRecipe.from_dict({**recipe.to_dict(), "assignment": each}) for each in ways]
    return found


def _label(recipe: ImageRecipe) -> str:
    """Return the method, with the control that it is."""
    return f"{recipe.method}, {recipe.control}" if recipe.control else recipe.method


def headline(recipes: Sequence[ImageRecipe]) -> str:
    """Describe the runs of a comparison in a line."""
    first = recipes[0]
    methods, seeds = dict.fromkeys(map(_label, recipes)), dict.fromkeys(str(each.seed) for each in recipes)
    text = f"{first.dataset}, {first.model}, width {first.width:g}, {first.epochs} epochs"
    return f"{text}, {', '.join(methods)}, seeds {', '.join(seeds)}"


def doubts(options: Mapping[str, Any], recipes: Sequence[ImageRecipe]) -> list[str]:
    """Warn of one learning rate for methods with different usual ones, and of a scale range that no method uses."""
    found = []
    methods = dict.fromkeys(recipe.method for recipe in recipes)
    rates = {method: ImageRecipe(model=recipes[0].model, method=method).lr for method in methods}
    if options.get("lr") is not None and len(set(rates.values())) > 1:
        own = ", ".join(f"{method} {rate:g}" for method, rate in rates.items())
        found.append(f"lr {recipes[0].lr:g} is set for all methods; their usual ones are {own}")
    if "scale_range" in options and not any(find_method(method).balanced for method in methods):
        found.append(f"scale_range has no effect: {', '.join(methods)} does not balance")
    return found


def summarize(recipes: Sequence[ImageRecipe], folder: Path) -> list[Comparison]:
    """Summarize the complete runs of each method, with differences from the first one seed by seed."""
    found = []
    reference: tuple[float, ...] = ()
    for method in dict.fromkeys(map(_label, recipes)):
        runs = [RunFolder(folder / recipe.name) for recipe in recipes if _label(recipe) == method]
        results = [result for run in runs if (result := run.result) is not None]
        for result in results:
            if "diverged" in result:
                raise DivergedError(f"{method} diverged: {result['diverged']}", result["diverged_epoch"])
        accuracies = tuple(float(result["test_accuracy"]) for result in results)
        reference = reference or accuracies
        test = Paired(tuple(ours - theirs for ours, theirs in zip(accuracies, reference, strict=True)))
        spreads = [pstdev(alphas) for run in runs if (alphas := last_alphas(run))]
        std = stdev(accuracies) if len(accuracies) > 1 else None
        spread = fmean(spreads) if spreads else None
        found.append(Comparison(method, accuracies, fmean(accuracies), std, test.mean, test.interval, spread))
    return found


def write_comparison(comparisons: Sequence[Comparison], recipes: Sequence[ImageRecipe], folder: Path) -> None:
    """Write the comparison as ``comparison.json`` into the folder of its runs."""
    recipe = recipes[0].to_dict()
    content = {
        **{name: recipe[name] for name in ("dataset", "model", "width", "epochs")},
        "seeds": list(dict.fromkeys(each.seed for each in recipes)),
        "methods": [asdict(each) for each in comparisons],
    }
    write_whole(folder / "comparison.json", (json.dumps(content, indent=2) + "\n").encode())


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """Return the comparison as a table for a terminal."""
    first = comparisons[0].method
    several, paired = len(comparisons[0].accuracies) > 1, len(comparisons) > 1
    caption = ["Spread of alpha: its standard deviation over the layers at the end."]
    if several:
        caption.insert(0, "Accuracy: mean ± standard deviation over the seeds.")
    if several and paired:
        caption.insert(1, f"Against {first}: mean ± half the 95 % interval of the differences seed by seed.")
    table = Table("method", "seeds", "test accuracy, %", caption="\n".join(caption), caption_justify="left")
    if paired:
        table.add_column(f"against {first}, points")
    table.add_column("spread of alpha")
    for each in comparisons:
        difference = "" if each.method == first else _with_spread(f"{each.difference:+.2f}", each.interval)
        spread = "" if each.alpha_spread is None else f"{each.alpha_spread:.3f}"
        cells = [each.method, str(len(each.accuracies)), _with_spread(f"{each.mean:.2f}", each.std)]
        table.add_row(*cells, *([difference] if paired else []), spread)
    return table


def _with_spread(mean: str, spread: float | None) -> str:
    return mean if spread is None else f"{mean} ± {spread:.2f}"


def verdict(comparisons: Sequence[Comparison]) -> list[str]:
    """Describe each difference from the first method in a sentence, and how much of it remains over controls."""
    first, *others = comparisons
    outcomes = {each.method: dict(enumerate(each.accuracies)) for each in comparisons}
    found = []
    for each in others:
        text = verdict_text(each.difference, each.interval, num_seeds=len(each.accuracies))
        found.append(f"{each.method} - {first.method} = {text}")
    effects = (effect_text(outcomes, each.method, first.method, ACCURACY) for each in others)
    return found + [text for text in effects if text]
