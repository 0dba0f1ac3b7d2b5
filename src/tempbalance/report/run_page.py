"""The page of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tempbalance.report.page import Column, cell, document, facts, figure, section, table
from tempbalance.report.run_charts import charts_of
from tempbalance.report.runs import Group, Summary, read_groups, summarize
from tempbalance.report.text import named
from tempbalance.runlog import RunFolder

_COLUMNS = (
    Column("#", "Place in the list of methods"),
    Column("method", "Its name, and in what it differs from others of that name", is_number=False),
    Column("seeds", "Complete runs"),
    Column("test accuracy, mean, %", "Mean of the test accuracy after the last epoch"),
    Column("sd, points", "Standard deviation over the seeds"),
    Column("difference, points", "Mean of the differences to the first method, seed by seed"),
    Column("sd of it", "Standard deviation of those differences"),
    Column("pairs", "Seeds that both methods have"),
)
_END = "First and last layers have no score in the logs, unless the recipe says so, and are skipped as in the paper."
_CAPTIONS = {
    "accuracy": "Mean over the seeds; the band goes from the lowest seed to the highest.",
    "loss": "Cross entropy, mean over the seeds; the band goes from the lowest seed to the highest.",
    "alpha_map": "Mean over the seeds at each scoring; of many scorings an even choice. Epoch 0 is before training. "
    + _END,
    "rate_map": "The rate that follows each scoring, mean over the seeds; of many scorings an even choice.",
    "alpha_boxes": "Alpha at the last scoring, over layers and seeds: median, quartiles, the farthest values within "
    "1.5 times their distance, and those beyond as points. The diamond is the mean, the dashed line marks 2. " + _END,
    "alpha_histogram": "The same values counted; the dashed line marks 2.",
    "two_layers": "Alpha above and learning rate below, mean over the seeds.",
    "spectrum": "Of each method's first run with recorded eigenvalues. Eigenvalues as a density on log axes; stronger "
    "bars are the tail from xmin on, the dashed line is p(x) ~ x^-alpha, where the recipe tells the threshold.",
}
_SECTIONS = (
    ("Curves", ("accuracy", "loss"), "No epoch is complete yet."),
    ("Layers over the epochs", ("alpha_map", "rate_map"), "No layer was scored."),
    ("The distribution of alpha", ("alpha_boxes", "alpha_histogram"), "No layer has an alpha."),
    ("Two layers", ("two_layers",), "No layer was scored."),
    ("Spectra through the epochs", ("spectrum",), "No eigenvalues were recorded: train with --log-eigenvalues."),
)


def runs_page(runs: Sequence[RunFolder]) -> str:
    """One HTML document about runs, which opens offline.

    Args:
        runs: Their folders; the first one's method is what others are compared with.

    Raises:
        ValueError: If there are no runs, or a folder holds none.
    """
    groups = read_groups(runs)
    charts = charts_of(groups)
    title = ", ".join(dict.fromkeys(f"{_option(group, 'model')} on {_option(group, 'dataset')}" for group in groups))
    body = [
        f"<header><p>Runs</p><h1>{named(title)}</h1></header>",
        facts(_facts(groups)),
        section("Methods", _methods(groups)),
        *(section(heading, *_figures(names, charts, otherwise)) for heading, names, otherwise in _SECTIONS),
    ]
    return document(f"Runs: {title}", body, charts)


def _option(group: Group, name: str) -> Any:
    return group.runs[0].recipe.get(name)


def _facts(groups: Sequence[Group]) -> dict[str, Any]:
    runs = [run for group in groups for run in group.runs]
    missing = sum(run.result is None for run in runs)
    values = {"methods": len(groups), "runs": len(runs), "not complete": missing or None}
    for name in ("epochs", "batch_size", "lr", "weight_decay", "tail", "score", "assignment"):
        found = {str(run.recipe.get(name)) for run in runs if run.recipe.get(name) is not None}
        if len(found) == 1:
            values[name.replace("_", " ")] = found.pop()  # type: ignore[assignment]
    return values


def _methods(groups: Sequence[Group]) -> str:
    lines = [_line(place, summary) for place, summary in enumerate(summarize(groups), start=1)]
    return table(_COLUMNS, lines, caption="Test accuracy after the last epoch")


def _line(place: int, summary: Summary) -> str:
    unfinished = summary.num_runs - summary.num_complete
    more = f" ({unfinished} not complete)" if unfinished else ""
    difference = "" if summary.difference is None else f"{summary.difference:+.2f}"
    return (
        f'<tbody><tr>{cell(place)}<th scope="row">{named(summary.label)}{more}</th>{cell(summary.num_complete)}'
        f'{_points(summary.mean)}{_points(summary.std)}<td class="number">{difference}</td>'
        f"{_points(summary.difference_std)}{cell(summary.num_pairs or None)}</tr></tbody>\n"
    )


def _points(value: float | None) -> str:
    return f'<td class="number">{"" if value is None else f"{value:.2f}"}</td>'


def _figures(names: Sequence[str], charts: Mapping[str, Any], otherwise: str) -> list[str]:
    there = [figure(name, _CAPTIONS[name]) for name in names if name in charts]
    return there or [f"<p>{escape(otherwise)}</p>"]
