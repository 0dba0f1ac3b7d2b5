"""Table and chart of the accuracy, or another measure, of each cell of a study."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from tempbalance.lab.findings import Cell, Findings
from tempbalance.lab.options import CONTROLS, pretty
from tempbalance.lab.points import NAMED
from tempbalance.report.tables import Entry, Number, Report, ResultTable

if TYPE_CHECKING:
    import altair as alt

_SECONDS = {"balancing": "seconds a balancing", "balancing_an_epoch": "seconds of balancing an epoch"}


@dataclass(frozen=True)
class _Accuracies:
    """Presents findings as a table of accuracies and one chart, named as the study.

    Attributes:
        by: Labels under a bar, separated by spaces, or the option on the x axis.
        title: Title of the chart.
        caption: Caption of the chart.
        seconds: Times to show next to the accuracies, as for `Tried.seconds`; ``None`` for none.
        notes: Sentences after the results of the tests.
    """

    by: str
    title: str
    caption: str
    seconds: str | None = None
    notes: tuple[str, ...] = ()

    def draw(self, findings: Findings) -> alt.TopLevelMixin:
        """Return the chart."""
        raise NotImplementedError

    def __call__(self, findings: Findings) -> Report:
        """Return the table, the chart and the results of the tests."""
        several = any(len(cell.tried) > 1 for cell in findings.cells)
        caption = self.caption + (" Crosses are all settings tried." if several else "")
        table = accuracy_table(findings, seconds=self.seconds)
        charts, captions = {findings.name: self.draw(findings)}, {findings.name: caption}
        if findings.has_common_rates:
            name = f"{findings.name}_rates"
            charts[name], captions[name] = rate_chart(findings), f"{findings.measure.word} at each base rate."
        return Report([table], charts, captions, [*findings.effects, *findings.verdicts, *self.notes])


class Bars(_Accuracies):
    """A bar for each cell, a panel for each network and data, a cross for each point of a grid."""

    def draw(self, findings: Findings) -> alt.TopLevelMixin:
        """Return the bars, with seconds on a second axis."""
        from tempbalance.report.study_charts import Bar, bar_chart

        bars = []
        for cell in findings.cells:
            seconds, seconds_std = (cell.seconds(self.seconds) if self.seconds else None) or (None, None)
            means = tuple(each.mean for each in cell.tried if each.mean is not None)
            bars.append(
                Bar(
                    panel=cell.panel,
                    label=_bar_label(cell, self.by.split()),
                    mean=cell.mean,
                    std=cell.std,
                    crosses=means if len(cell.tried) > 1 else (),
                    paper=_drawn_paper(findings, cell),
                    seconds=seconds,
                    seconds_std=seconds_std,
                    method=pretty(cell.labels["method"]),
                    missing=_diverged_text(cell) or "no run yet",
                )
            )
        return bar_chart(
            bars,
            title=self.title,
            subtitle=findings.subtitle,
            y_title=f"test {findings.measure.title}",
            seconds_title=_SECONDS[self.seconds] if self.seconds else None,
        )


def _bar_label(cell: Cell, names: list[str]) -> str:
    """Return the labels under a bar, with the control where the method is not among them."""
    _, _, control = str(cell.labels["method"]).partition(", ")
    more = [control] if control in CONTROLS and "method" not in names else []
    return ", ".join([*(pretty(cell.labels[name]) for name in names), *more])


@dataclass(frozen=True)
class Lines(_Accuracies):
    """Accuracy against an option, a line for each series and a panel for each network and data.

    Attributes:
        x_title: Title of the x axis.
        series: Label that makes a line.
        is_log: Whether both axes are logarithmic.
    """

    x_title: str = ""
    series: str = "method"
    is_log: bool = False

    def draw(self, findings: Findings) -> alt.TopLevelMixin:
        """Return the lines."""
        from tempbalance.report.study_charts import Dot, line_chart

        dots = [
            Dot(
                panel=cell.panel,
                series=pretty(cell.labels[self.series]),
                x=float(cell.labels[self.by]),
                mean=cell.mean,
                std=cell.std,
                paper=_drawn_paper(findings, cell),
            )
            for cell in findings.cells
        ]
        return line_chart(
            dots,
            title=self.title,
            subtitle=findings.subtitle,
            x_title=self.x_title,
            y_title=f"test {findings.measure.title}",
            log_x=self.is_log,
            log_y=self.is_log,
        )


def rate_chart(findings: Findings) -> alt.TopLevelMixin:
    """Draw each method over the base rates that were tried, at the best of its other settings."""
    from tempbalance.report.study_charts import Dot, line_chart

    dots = []
    for cell in findings.cells:
        for rate in cell.rates:
            there = tuple(each for each in cell.tried if each.point.options.get("lr") == rate)
            best = replace(cell, tried=there).best
            method = pretty(cell.labels["method"])
            mean, std = (None, None) if best is None else (best.mean, best.std)
            dots.append(Dot(panel=cell.setting, series=method, x=rate, mean=mean, std=std))
    return line_chart(
        dots,
        title="Each method over the base rates",
        subtitle=findings.subtitle,
        x_title="base rate",
        y_title=f"test {findings.measure.title}",
        log_x=True,
    )


def _drawn_paper(findings: Findings, cell: Cell) -> float | None:
    """Return the paper's mean where our data are the paper's."""
    return cell.paper.mean if cell.paper is not None and findings.preset.is_paper else None


def accuracy_table(findings: Findings, *, seconds: str | None = None) -> ResultTable:
    """Return a row for each cell: accuracy, the paired test, the paper's number, seconds if asked, and the setting."""
    names = [name for name in findings.cells[0].labels if name not in NAMED]
    has_test = any(findings.compared_with(cell) for cell in findings.cells)
    against = f"against {findings.reference_text}"
    measure = findings.measure
    paper = measure.with_unit("paper")
    columns = ["data", "network", "method", *(name.replace("_", " ") for name in names), measure.title]
    other = "last epoch" if findings.is_best_reported else "best epoch"
    columns += [other, "seeds"]
    columns += [against, "p"] if has_test else []
    columns += [paper, "difference"]
    columns += [_SECONDS[seconds], "paper, seconds"] if seconds else []
    rows = []
    for cell in findings.cells:
        row: list[Entry] = [pretty(cell.labels[name]) for name in (*NAMED, *names)]
        row.append(_diverged_text(cell) or None if cell.mean is None else Number(cell.mean, cell.std))
        row += [_other_entry(cell), _seeds_text(cell)]
        row += _test_entries(findings, cell) if has_test else []
        row += _paper_entries(cell)
        row += _second_entries(cell, seconds) if seconds else []
        rows.append([*row, _setting_text(cell)])
    spread = (measure.title, against, paper, *_SECONDS.values(), "paper, seconds")
    caption = _caption(findings, has_test=has_test, seconds=seconds)
    return ResultTable(caption, [*columns, "setting"], rows, spread=spread, noted=(paper,))


def _other_entry(cell: Cell) -> Entry:
    """Return the mean at the best epoch where the last one counts, and the other way round."""
    values = [] if cell.best is None else list(cell.best.values(best=not cell.best.is_best_reported).values())
    return Number(fmean(values)) if values else None


def _diverged_text(cell: Cell) -> str:
    """Return when runs of the best point diverged."""
    epochs = ", ".join(map(str, sorted(set(cell.diverged.values()))))
    return f"diverged in epoch {epochs}" if epochs else ""


def _seeds_text(cell: Cell) -> str:
    text = f"{len(cell.outcomes)} of {cell.num_seeds}"
    return f"{text}, {len(cell.diverged)} {_diverged_text(cell)}" if cell.diverged else text


def _test_entries(findings: Findings, cell: Cell) -> list[Entry]:
    test = findings.against(cell)
    if test is None:
        return [None, None]
    p_value = None if test.p_value is None else Number(test.p_value, digits=3, least=0.001)
    note = f"({test.num_pairs} of {cell.num_seeds} seeds)" if test.num_pairs < cell.num_seeds else ""
    return [Number(test.mean, test.interval or None, signed=True, note=note), p_value]


def _paper_entries(cell: Cell) -> list[Entry]:
    """Return the paper's number, and our difference to it where the data are the same."""
    if cell.paper is None:
        return [None, None]
    stands_for = cell.tried[0].point.stands_for
    difference = None if cell.mean is None or stands_for else Number(cell.mean - cell.paper.mean, signed=True)
    note = f"({pretty(stands_for)})" if stands_for else ""
    return [Number(cell.paper.mean, cell.paper.std, note=note), difference]


def _second_entries(cell: Cell, seconds: str) -> list[Entry]:
    found, paper = cell.seconds(seconds), cell.paper
    theirs = None if paper is None or paper.seconds is None else Number(paper.seconds, paper.seconds_std)
    return [None if found is None else Number(*found, digits=3), theirs]


def _setting_text(cell: Cell) -> str:
    """Return the searched options of the best point, and the size of its grid."""
    if cell.best is None:
        return ""
    num_begun = sum(bool(each.num_done) for each in cell.tried)
    there = f"{num_begun}" if cell.is_complete else f"{num_begun} so far"
    rates = cell.rates
    edge = (
        ", at the end of the rates"
        if len(rates) > 1 and cell.best.point.options["lr"] in rates[:: len(rates) - 1]
        else ""
    )
    return cell.best.point.settings_text(cell.labels) + (f" (best of {there}{edge})" if len(cell.tried) > 1 else "")


def _caption(findings: Findings, *, has_test: bool, seconds: str | None) -> str:
    measure = findings.measure
    better = "; lower is better" if measure.is_lower_better else ""
    word = measure.word.capitalize() if measure.word.islower() else measure.word
    counted, other = "after the last epoch", "best epoch: the best of all on the test set"
    if findings.is_best_reported:
        counted, other = "at the best epoch on the validation data", "last epoch: after it"
    parts = [f"{word} on the test set {counted}, mean ± standard deviation over the seeds{better}; {other}."]
    if has_test:
        unit = f", in {measure.points}" if measure.points else ""
        parts.append(
            f"Against {findings.reference_text}: mean of the differences seed by seed ± half its 95 % interval{unit}; "
            "p of the paired t-test."
        )
    if any(len(cell.tried) > 1 for cell in findings.cells):
        by = "validation data" if findings.is_best_reported else "the test set, for there are no validation data"
        common = "; all methods were tried at the same base rates" if findings.has_common_rates else ""
        parts.append(f"Each row is the best of its grid by the mean on {by}{common}.")
    if seconds:
        parts.append("Seconds are as the runs had them, several at a time; the study overhead measures alone.")
    if not findings.preset.is_paper and any(cell.paper for cell in findings.cells):
        parts.append("The paper's numbers are of other data, at its own size and duration: compare orders, not values.")
    return " ".join(parts)
