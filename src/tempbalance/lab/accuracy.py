"""Table and chart of the accuracy, or another measure, of each cell of a study."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

from tempbalance.lab.findings import Cell, Findings
from tempbalance.lab.options import CONTROLS, pretty
from tempbalance.lab.points import NAMED, FileEntry
from tempbalance.report.tables import Entry, Number, Report, ResultTable

if TYPE_CHECKING:
    import altair as alt

_SECONDS = {"balancing": "seconds a balancing", "balancing_an_epoch": "seconds of balancing an epoch"}


class Chart(FileEntry):
    """Presents findings as a table of accuracies and one chart, named as the study.

    Attributes:
        bars: Labels under a bar; a panel for each network and data, a cross for each point of a grid.
        lines: The option on the x axis, instead of bars.
        title: Title of the chart.
        caption: Caption of the chart.
        seconds: Times to show next to the accuracies, as for `Tried.seconds`.
        series: Label that makes a line.
        x_title: Title of the x axis.
        log: Whether both axes of lines are logarithmic.
        notes: Sentences after the results of the tests.
    """

    title: str
    caption: str
    bars: tuple[str, ...] = ()
    lines: str = ""
    seconds: str | None = None
    series: str = "method"
    x_title: str = ""
    log: bool = False
    notes: tuple[str, ...] = ()

    def __call__(self, findings: Findings) -> Report:
        """Return the table, the chart and the results of the tests."""
        several = any(len(cell.tried) > 1 for cell in findings.cells)
        caption = self.caption + (" Crosses are all settings tried." if several else "")
        table = accuracy_table(findings, seconds=self.seconds)
        drawn = self._draw_lines(findings) if self.lines else self._draw_bars(findings)
        charts, captions = {findings.name: drawn}, {findings.name: caption}
        if findings.has_common_rates:
            name = f"{findings.name}_rates"
            charts[name], captions[name] = rate_chart(findings), f"{findings.measure.word} at each base rate."
        return Report([table], charts, captions, [*findings.effects, *findings.verdicts, *self.notes])

    def _draw_bars(self, findings: Findings) -> alt.TopLevelMixin:
        from tempbalance.report.study_charts import Bar, bar_chart

        bars = []
        for cell in findings.cells:
            seconds, seconds_std = (cell.best.seconds(self.seconds) if self.seconds else None) or (None, None)
            means = tuple(each.mean for each in cell.tried if each.mean is not None)
            bars.append(
                Bar(
                    panel=cell.panel,
                    label=self._label(cell),
                    mean=cell.best.mean,
                    std=cell.best.std,
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

    def _label(self, cell: Cell) -> str:
        """Return the labels under a bar, with the control where the method is not among them."""
        _, _, control = str(cell.labels["method"]).partition(", ")
        more = [control] if control in CONTROLS and "method" not in self.bars else []
        return ", ".join([*(pretty(cell.labels[name]) for name in self.bars), *more])

    def _draw_lines(self, findings: Findings) -> alt.TopLevelMixin:
        from tempbalance.report.study_charts import Dot, line_chart

        dots = [
            Dot(
                panel=cell.panel,
                series=pretty(cell.labels[self.series]),
                x=float(cell.labels[self.lines]),
                mean=cell.best.mean,
                std=cell.best.std,
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
            log_x=self.log,
            log_y=self.log,
        )


def rate_chart(findings: Findings) -> alt.TopLevelMixin:
    """Draw each method over the base rates that were tried, at the best of its other settings."""
    from tempbalance.report.study_charts import Dot, line_chart

    dots = []
    for cell in findings.cells:
        for rate in cell.rates:
            there = tuple(each for each in cell.tried if each.point.options.get("lr") == rate)
            best, method = replace(cell, tried=there).best, pretty(cell.labels["method"])
            dots.append(Dot(panel=cell.setting, series=method, x=rate, mean=best.mean, std=best.std))
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
    measure, against = findings.measure, f"against {findings.reference_text}"
    paper = measure.with_unit("paper")
    has_test = any(findings.compared_with(cell) for cell in findings.cells)
    rows: list[dict[str, Entry]] = []
    for cell in findings.cells:
        names = dict(zip(NAMED, ("data", "network", "method"), strict=True))
        names |= {name: name.replace("_", " ") for name in cell.labels if name not in NAMED}
        row: dict[str, Entry] = {column: pretty(cell.labels[name]) for name, column in names.items()}
        best = cell.best
        others = list(best.values(best=not best.chosen_by).values())
        row[measure.title] = _diverged_text(cell) or None if best.mean is None else Number(best.mean, best.std)
        row["last epoch" if findings.is_best_reported else "best epoch"] = Number(fmean(others)) if others else None
        row["seeds"] = _seeds_text(cell)
        if has_test:
            row[against], row["p"] = _test_entries(findings, cell)
        row[paper], row["difference"] = _paper_entries(cell)
        if seconds:
            row[_SECONDS[seconds]], row["paper, seconds"] = _second_entries(cell, seconds)
        row["setting"] = _setting_text(cell)
        rows.append(row)
    spread = (measure.title, against, paper, *_SECONDS.values(), "paper, seconds")
    caption = _caption(findings, has_test=has_test, seconds=seconds)
    return ResultTable(caption, list(rows[0]), [list(row.values()) for row in rows], spread=spread, noted=(paper,))


def _test_entries(findings: Findings, cell: Cell) -> tuple[Entry, Entry]:
    """Return the mean of the paired differences with half its interval, and the p-value."""
    test = findings.against(cell)
    if test is None:
        return None, None
    p_value = None if test.p_value is None else Number(test.p_value, digits=3, least=0.001)
    note = f"({test.num_pairs} of {cell.num_seeds} seeds)" if test.num_pairs < cell.num_seeds else ""
    return Number(test.mean, test.interval or None, signed=True, note=note), p_value


def _paper_entries(cell: Cell) -> tuple[Entry, Entry]:
    """Return the paper's number, and our difference to it where the data are the same."""
    if cell.paper is None:
        return None, None
    ours, stands_for = cell.best.mean, cell.tried[0].point.stands_for
    difference = None if ours is None or stands_for else Number(ours - cell.paper.mean, signed=True)
    return Number(cell.paper.mean, cell.paper.std, note=f"({pretty(stands_for)})" if stands_for else ""), difference


def _second_entries(cell: Cell, seconds: str) -> tuple[Entry, Entry]:
    found, paper = cell.best.seconds(seconds), cell.paper
    theirs = None if paper is None or paper.seconds is None else Number(paper.seconds, paper.seconds_std)
    return None if found is None else Number(*found, digits=3), theirs


def _diverged_text(cell: Cell) -> str:
    """Return when runs of the best point diverged."""
    epochs = ", ".join(map(str, sorted(set(cell.best.diverged.values()))))
    return f"diverged in epoch {epochs}" if epochs else ""


def _seeds_text(cell: Cell) -> str:
    text = f"{len(cell.best.outcomes)} of {cell.num_seeds}"
    return f"{text}, {len(cell.best.diverged)} {_diverged_text(cell)}" if cell.best.diverged else text


def _setting_text(cell: Cell) -> str:
    """Return the searched options of the best point, and the size of its grid."""
    if not cell.best.num_done:
        return ""
    text, rates = cell.best.point.settings_text(cell.labels), cell.rates
    if len(cell.tried) == 1:
        return text
    so_far = "" if cell.is_complete else " so far"
    is_edge = len(rates) > 1 and cell.best.point.options["lr"] in (rates[0], rates[-1])
    edge = ", at the end of the rates" if is_edge else ""
    return f"{text} (best of {sum(bool(each.num_done) for each in cell.tried)}{so_far}{edge})"


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
