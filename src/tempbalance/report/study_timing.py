"""What balancing costs: its seconds beside those of an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import altair as alt

from tempbalance.report.look import BLUE, DATA, INK, RED, names_param
from tempbalance.report.study_data import Timing, check, ends, numbered
from tempbalance.report.study_look import (
    HEIGHT,
    Datum,
    by_sign,
    error_rule,
    finish_study,
    grid,
    label_axis,
    log_axis,
    measure_axis,
    of_panel,
    panel_title,
    panel_width,
)
from tempbalance.report.text import finite

_KINDS = {"one epoch": ("circle", BLUE), "one balancing": ("square", RED)}
_COLUMNS = 2


def timing_chart(timings: Sequence[Timing], *, title: str, subtitle: str) -> alt.TopLevelMixin:
    """For each panel the seconds of one epoch and of one balancing on a log axis, and beside it the increment.

    Args:
        timings: In the order in which the panels, and the labels in them, stand.
        title: What is measured.
        subtitle: Preset and data.

    Raises:
        ValueError: If there are no timings, or two of one label in a panel.
    """
    check(timings, "timing", lambda timing: (timing.panel, timing.label))
    panels, labels = numbered(each.panel for each in timings), numbered(each.label for each in timings)
    data = [_datum(each, panels[each.panel], labels[each.label]) for each in timings]
    width = panel_width(_COLUMNS)
    charts = []
    for name, number in panels.items():
        mine = [datum for datum in data if datum["panel"] == number]
        base = of_panel(alt.Chart(DATA), number)
        base = base.encode(x=label_axis([datum["label"] for datum in mine], list(labels), width))
        for layers in (_second_layers(base, mine), _increment_layers(base, mine)):
            charts.append(alt.layer(*layers).properties(width=width, height=HEIGHT, title=panel_title(name, width)))
    return finish_study(
        grid(charts, columns=_COLUMNS).add_params(names_param("label_names", list(labels))),
        data,
        title=title,
        subtitle=subtitle,
        note="Left: error bars are one standard deviation. Right: one balancing in percent of one epoch.",
        description=f"Seconds of one epoch and of one balancing for {len(timings)} networks in {len(panels)} panels, "
        "and how much longer an epoch with one balancing takes, in percent.",
    )


def _datum(timing: Timing, panel: int, label: int) -> Datum:
    datum: Datum = {"panel": panel, "label": label}
    for name in ("epoch", "balancing"):
        seconds, std = _positive(getattr(timing, name)), getattr(timing, f"{name}_std")
        low, high = ends(seconds, std)
        # a log axis has no place for 0: what would end there ends within the picture
        if low is not None and seconds is not None:
            low = max(low, seconds / 10)
        datum |= {name: seconds, f"{name}_low": low, f"{name}_high": high}
    epoch, balancing = datum["epoch"], datum["balancing"]
    return {**datum, "increment": None if epoch is None or balancing is None else finite(100 * balancing / epoch)}


def _positive(value: float | None) -> float | None:
    number = finite(value, 9)
    return number if number is not None and number > 0 else None


def _second_layers(base: alt.Chart, data: Sequence[Datum]) -> Iterator[alt.Chart]:
    fields = [f"{name}{end}" for name in ("epoch", "balancing") for end in ("", "_low", "_high")]
    there = [datum[field] for datum in data for field in fields if datum[field] is not None]
    options = log_axis((min(there) / 1.5, max(there) * 1.5) if there else (0.1, 1.0))
    for name, (kind, (_, colour)) in zip(("epoch", "balancing"), _KINDS.items(), strict=True):
        y = alt.Y(f"{name}:Q", title="seconds (log)", **options)
        there_is = base.transform_filter(f"isValid(datum.{name})").transform_calculate(sign=f"'{kind}'")
        yield there_is.mark_line(color=colour, strokeWidth=1.5, aria=False).encode(y=y)
        yield error_rule(there_is, low=f"{name}_low", high=f"{name}_high", color=colour)
        tooltip = alt.Tooltip(f"{name}:Q", title=f"seconds of {kind}", format=".4g")
        points = there_is.mark_point(size=50, filled=True, opacity=1)
        yield points.encode(y=y, tooltip=tooltip, **by_sign(_KINDS))


def _increment_layers(base: alt.Chart, data: Sequence[Datum]) -> Iterator[alt.Chart]:
    there = [datum["increment"] for datum in data if datum["increment"] is not None]
    y = measure_axis("increment:Q", "increment, %", (0.0, 1.2 * max(there)) if there else None)
    drawn = base.transform_filter("isValid(datum.increment)")
    yield drawn.mark_bar(fill=BLUE, fillOpacity=0.35, stroke=BLUE).encode(y=y)
    text = alt.Text("increment:Q", format=".3~g")
    yield drawn.mark_text(dy=-8, fontSize=11, color=INK).encode(y=y, text=text)
