"""Tables and charts that several studies make of what they found."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

from tempbalance.lab.findings import Cell, Findings
from tempbalance.lab.names import pretty
from tempbalance.lab.point import Point
from tempbalance.lab.points import NAMED
from tempbalance.lab.statistics import verdict_text
from tempbalance.lab.study import Presentation
from tempbalance.lab.tables import Entry, Number, ResultTable

if TYPE_CHECKING:
    import altair as alt

_SECONDS = {"balancing": "seconds a balancing", "balancing_an_epoch": "seconds of balancing an epoch"}
_SEARCHED = (
    "lr", "snr", "scale_range", "tail_fraction", "interval", "restart_epochs", "restart_factor", "lookahead_steps",
    "lookahead_alpha",
)  # fmt: skip


def accuracy_table(findings: Findings, *, seconds: str | None = None) -> ResultTable:
    """A row for each cell: accuracy, the paired test against the reference, the paper's number, and the setting.

    Args:
        findings: Of the study.
        seconds: Which times go beside them, named as for `tempbalance.lab.findings.Tried.seconds`.
    """
    names = [name for name in findings.cells[0].labels if name not in NAMED]
    has_test = any(findings.compared_with(cell) for cell in findings.cells)
    against = f"against {reference_text(findings)}"
    measure = findings.measure
    paper = measure.with_unit("paper")
    columns = ["data", "network", "method", *(name.replace("_", " ") for name in names), measure.title, "seeds"]
    columns += [against, "p"] if has_test else []
    columns += [paper, "difference"]
    columns += [_SECONDS[seconds], "paper, seconds"] if seconds else []
    columns += ["setting"]
    rows = []
    for cell in findings.cells:
        row: list[Entry] = [pretty(cell.labels[name]) for name in (*NAMED, *names)]
        row += [_outcome(cell), f"{len(cell.outcomes)} of {cell.num_seeds}"]
        row += _tested(findings, cell) if has_test else []
        row += _beside_paper(cell)
        row += _timed(cell, seconds) if seconds else []
        rows.append([*row, _setting(cell)])
    caption = _caption(findings, has_test=has_test, seconds=seconds)
    spread = (measure.title, against, paper, *_SECONDS.values(), "paper, seconds")
    return ResultTable(caption, columns, rows, spread=spread, noted=(paper,))


def reference_text(findings: Findings) -> str:
    """What cells are tested against."""
    return ", ".join(label_text(name, value) for name, value in findings.reference.items())


def label_text(name: str, value: Any) -> str:
    """A label in words: a method speaks for itself, a number does not."""
    return pretty(value) if name == "method" else f"{name.replace('_', ' ')} {pretty(value)}"


def _outcome(cell: Cell) -> Entry:
    if cell.best is None or cell.best.mean is None:
        return None
    return Number(cell.best.mean, cell.best.std)


def _setting(cell: Cell) -> str:
    """The options of the best point that are searched for, and of how many it was the best."""
    if cell.best is None:
        return ""
    told = settings_text(cell.best.point, left_out=cell.labels)
    num_begun = sum(bool(each.results) for each in cell.tried)
    there = f"{num_begun}" if cell.is_complete else f"{num_begun} so far"
    return told + (f" (best of {there})" if len(cell.tried) > 1 else "")


def settings_text(point: Point, left_out: Container[str] = NAMED) -> str:
    """What a point sets of all that is searched or varied, but for the labels that stand beside it."""
    found = {name: point.options[name] for name in _SEARCHED if name in point.options} | dict(point.cell)
    unused = point.recipe(0).unused
    used = {name: value for name, value in found.items() if name not in left_out and name not in unused}
    return ", ".join(f"{name} {pretty(value)}" for name, value in used.items())


def _beside_paper(cell: Cell) -> list[Entry]:
    if cell.paper is None:
        return [None, None]
    ours = cell.best.mean if cell.best is not None else None
    stands_for = cell.tried[0].point.stands_for
    difference = None if ours is None or stands_for else Number(ours - cell.paper.mean, signed=True)
    note = f"({pretty(stands_for)})" if stands_for else ""
    return [Number(cell.paper.mean, cell.paper.std, note=note), difference]


def _tested(findings: Findings, cell: Cell) -> list[Entry]:
    test = findings.against(cell)
    if test is None:
        return [None, None]
    p_value = None if test.p_value is None else Number(test.p_value, digits=3 if test.p_value >= 0.001 else 6)
    note = f"({test.num_pairs} of {cell.num_seeds} seeds)" if test.num_pairs < cell.num_seeds else ""
    return [Number(test.mean, test.interval or None, signed=True, note=note), p_value]


def _timed(cell: Cell, seconds: str) -> list[Entry]:
    found = cell.best.seconds(seconds) if cell.best is not None else None
    ours = None if found is None else Number(*found, digits=3)
    theirs = cell.paper
    if theirs is None or theirs.seconds is None:
        return [ours, None]
    return [ours, Number(theirs.seconds, theirs.seconds_std)]


def _caption(findings: Findings, *, has_test: bool, seconds: str | None) -> str:
    measure = findings.measure
    better = "; lower is better" if measure.is_lower_better else ""
    what = measure.word.capitalize() if measure.word.islower() else measure.word
    told = [f"{what} on the test set after the last epoch, mean ± standard deviation over the seeds{better}."]
    if has_test:
        unit = f", in {measure.points}" if measure.points else ""
        told.append(
            f"Against {reference_text(findings)}: mean of the differences seed by seed ± half its 95 % interval{unit}; "
            "p of the paired t-test."
        )
    if seconds:
        told.append("Seconds are as the runs had them, several at a time; the study overhead measures alone.")
    if not findings.preset.is_paper and any(cell.paper for cell in findings.cells):
        told.append("The paper's numbers are of other data, at its own size and duration: compare orders, not values.")
    return " ".join(told)


def verdicts(findings: Findings) -> list[str]:
    """What the paired tests of balanced methods say, in words."""
    told = []
    varied = tuple(findings.reference)
    for cell in findings.cells:
        test = findings.against(cell)
        if test is None or not str(cell.labels["method"]).startswith("tb"):
            continue
        others = [label_text(name, value) for name, value in cell.labels.items() if name not in (*NAMED, *varied)]
        ours = ", ".join(label_text(name, cell.labels[name]) for name in varied)
        where = ", ".join([cell.panel, *others])
        found = verdict_text(test.mean, test.interval, num_seeds=test.num_pairs, points=findings.measure.points)
        other = findings.compared_with(cell)
        so_far = "" if cell.is_complete and (other is None or other.is_complete) else "so far, with runs missing, "
        told.append(f"{where}: {so_far}{ours} against {reference_text(findings)}: {found}")
    return told


def bars(findings: Findings, *names: str, title: str, seconds: str | None = None) -> alt.TopLevelMixin:
    """A bar for each cell, a panel for each network and data, a cross for each point of a grid.

    Args:
        findings: Of the study.
        names: The labels that stand under a bar.
        title: Of the chart.
        seconds: Which times go on a second axis.
    """
    from tempbalance.report.study_charts import bar_chart
    from tempbalance.report.study_data import Bar

    found = []
    for cell in findings.cells:
        best, paper = cell.best, cell.paper
        timed = best.seconds(seconds) if seconds and best is not None else None
        found.append(
            Bar(
                panel=cell.panel,
                label=", ".join(pretty(cell.labels[name]) for name in names),
                mean=None if best is None else best.mean,
                std=None if best is None else best.std,
                crosses=tuple(each.mean for each in cell.tried if each.mean is not None) if len(cell.tried) > 1 else (),
                paper=paper.mean if paper is not None and findings.preset.is_paper else None,
                seconds=None if timed is None else timed[0],
                seconds_std=None if timed is None else timed[1],
            )
        )
    return bar_chart(
        found,
        title=title,
        subtitle=findings.subtitle,
        y_title=f"test {findings.measure.title}",
        seconds_title=_SECONDS[seconds] if seconds else None,
    )


def lines(
    findings: Findings,
    name: str,
    *,
    title: str,
    x_title: str,
    series: str = "method",
    log_x: bool = False,
    log_y: bool = False,
) -> alt.TopLevelMixin:
    """Accuracy against an option, a line for each method, or other series, and a panel for each network and data."""
    from tempbalance.report.study_charts import line_chart
    from tempbalance.report.study_data import Dot

    dots = [
        Dot(
            panel=cell.panel,
            series=pretty(cell.labels[series]),
            x=float(cell.labels[name]),
            mean=None if cell.best is None else cell.best.mean,
            std=None if cell.best is None else cell.best.std,
            paper=cell.paper.mean if cell.paper is not None and findings.preset.is_paper else None,
        )
        for cell in findings.cells
    ]
    return line_chart(
        dots,
        title=title,
        subtitle=findings.subtitle,
        x_title=x_title,
        y_title=f"test {findings.measure.title}",
        log_x=log_x,
        log_y=log_y,
    )


def accuracies_with(
    findings: Findings, chart: Any, caption: str, *, seconds: str | None = None, notes: Sequence[str] = ()
) -> Presentation:
    """The table of accuracies with one chart, named as the study."""
    name = findings.name
    table = accuracy_table(findings, seconds=seconds)
    if any(len(cell.tried) > 1 for cell in findings.cells):
        caption += " Crosses are all settings tried."
    return Presentation([table], {name: chart}, {name: caption}, [*verdicts(findings), *notes])
