"""Charts of what happens within epochs: gradient norms of the layers, and the spectrum of one layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import altair as alt
import numpy as np

from tempbalance.report.histogram import drawn, log_histogram
from tempbalance.report.look import BLUE, DATA, RED
from tempbalance.report.study_data import StepNorm, StepSpectrum, check, evenly
from tempbalance.report.study_look import (
    HEIGHT,
    Datum,
    finish_study,
    grid,
    log_axis,
    measure_axis,
    num_columns,
    of_panel,
    panel_title,
    panel_width,
)
from tempbalance.report.text import finite, short

_MOST = 6  # small multiples
_OVER_LAYERS: Mapping[str, Callable[[list[float]], float]] = {"maximum": max, "minimum": min, "mean": fmean}
Values = dict[tuple[int, int], list[float]]  # by epoch and step


def gradient_chart(norms: Sequence[StepNorm], *, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Maximum, minimum and mean over the layers of their gradients' norms, step by step, on log axes.

    Args:
        norms: Of one run.
        title: What is shown.
        subtitle: Preset and data.

    Raises:
        ValueError: If no norm is above 0.
    """
    found = _positive_norms(norms)
    data: list[Datum] = [
        {"panel": panel, "step": step, "norm": finite(over(values))}
        for panel, over in enumerate(_OVER_LAYERS.values())
        for (_, step), values in sorted(found.items())
    ]
    columns = len(_OVER_LAYERS)
    width = panel_width(columns, axes=66)
    x = alt.X("step:Q", title="step", scale=alt.Scale(nice=False, zero=False), axis=alt.Axis(tickCount=5, grid=False))
    charts = []
    for number, name in enumerate(_OVER_LAYERS):
        values = [datum["norm"] for datum in data if datum["panel"] == number]
        y_title = "gradient norm (log)" if number == 0 else None
        y = alt.Y("norm:Q", title=y_title, **log_axis((min(values) / 1.3, max(values) * 1.3)))
        line = of_panel(alt.Chart(DATA), number).mark_line(color=BLUE, strokeWidth=1.5).encode(x=x, y=y)
        charts.append(line.properties(width=width, height=HEIGHT, title=panel_title(name, width)))
    num_layers, num_left_out = len({norm.layer for norm in norms}), len(norms) - sum(map(len, found.values()))
    return finish_study(
        grid(charts, columns=columns),
        data,
        title=title,
        subtitle=subtitle,
        note=f"Over {num_layers} layers at {len(found)} steps. {_left_out(num_left_out, 'norms')}",
        description=f"Maximum, minimum and mean of the gradient norms of {num_layers} layers at {len(found)} steps.",
    )


def _positive_norms(norms: Sequence[StepNorm]) -> Values:
    check(norms, "gradient norm")
    found: Values = {}
    for each in norms:
        if (norm := finite(each.norm, 9)) is not None and norm > 0:
            found.setdefault((each.epoch, each.step), []).append(norm)
    if not found:
        raise ValueError(f"the chart needs a gradient norm above 0, got {len(norms)} that are 0 or not finite")
    return found


def _left_out(count: int, what: str) -> str:
    return f"Not drawn, as 0, too small or not finite: {count} {what}." if count else ""


def gradient_histograms(norms: Sequence[StepNorm], *, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Histograms of the gradient norms of all layers at up to six steps of the first epoch.

    Args:
        norms: Of one run.
        title: What is shown.
        subtitle: Preset and data.

    Raises:
        ValueError: If no norm is above 0.
    """
    found = _positive_norms(norms)
    first = min(epoch for epoch, _ in found)
    chosen = evenly(sorted(place for place in found if place[0] == first), _MOST)
    return _histograms(
        {place: found[place] for place in chosen},
        title=title,
        subtitle=subtitle,
        x_title="gradient norm (log)",
        y_title="layers",
        what="gradient norms of the layers",
    )


def spectra_chart(spectra: Sequence[StepSpectrum], *, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Histograms of a layer's eigenvalues at up to six steps: of the first epoch, the last one of a later epoch.

    Args:
        spectra: Of one layer of one run.
        title: What is shown.
        subtitle: Preset and data.

    Raises:
        ValueError: If there are no spectra, they are of several layers, or no eigenvalue is above 0.
    """
    check(spectra, "spectrum", lambda each: (each.epoch, each.step, each.layer))
    layers = list(dict.fromkeys(each.layer for each in spectra))
    if len(layers) > 1:
        raise ValueError(f"spectra must be of one layer, got {len(layers)}: {', '.join(map(short, layers[:3]))}")
    found = dict(sorted(((each.epoch, each.step), list(each.eigenvalues)) for each in spectra))
    first = next(iter(found))[0]
    early, late = [place for place in found if place[0] == first], [place for place in found if place[0] != first]
    chosen = [*evenly(early, _MOST - 1), late[-1]] if late else evenly(early, _MOST)
    return _histograms(
        {place: found[place] for place in chosen},
        title=title,
        subtitle=subtitle,
        x_title="eigenvalue (log)",
        y_title="eigenvalues (log)",
        what=f"eigenvalues of {short(layers[0])}",
        is_log=True,
    )


def _histograms(
    found: Values, *, title: str, subtitle: str, x_title: str, y_title: str, what: str, is_log: bool = False
) -> alt.TopLevelMixin:
    """A histogram in common bins for each step, counts on a log axis if asked, the largest value then marked."""
    data = _binned(found)
    columns = num_columns(len(found))
    width = panel_width(columns)
    most, floor = max(datum["count"] for datum in data), 0.6 if is_log else 0.0
    charts = []
    for number, (epoch, step) in enumerate(found):
        base = (
            of_panel(alt.Chart(DATA), number).transform_calculate(floor=str(floor)).encode(x=_bin_axis(data, x_title))
        )
        y = _count_axis(y_title if number % columns == 0 else None, floor, most, is_log=is_log)
        layers = [base.mark_rect(fill=BLUE, stroke=None).encode(x2="right:Q", y=y, y2="floor:Q", tooltip=_bin_told())]
        if is_log:
            largest = base.transform_filter("isValid(datum.largest)")
            mark = largest.mark_point(shape="triangle-down", filled=True, color=RED, size=40, opacity=1, yOffset=-7)
            layers.append(mark.encode(x="largest:Q", y=y))
        chart = alt.layer(*layers).properties(width=width, height=130)
        charts.append(chart.properties(title=panel_title(f"epoch {epoch}, step {step:,}", width)))
    num_hidden = sum(map(len, found.values())) - sum(datum["count"] for datum in data)
    marked = " The triangle marks the largest one." if is_log else ""
    return finish_study(
        grid(charts, columns=columns),
        data,
        title=title,
        subtitle=subtitle,
        note=f"Histograms of the {what}.{marked} {_left_out(num_hidden, 'values')}",
        description=f"Histograms of the {what} at {len(found)} steps, in common bins.{marked}",
    )


def _binned(found: Values) -> list[Datum]:
    """How many values of each step lie in each of some common bins; empty bins are left out."""
    common = log_histogram([value for values in found.values() for value in values])
    if common is None:
        raise ValueError(f"the chart needs a value above 0, got none at {len(found)} steps")
    edges = common.start + common.step * np.arange(len(common.counts) + 1)
    edges[-1] += 1e-9  # the largest value must not fall out by rounding
    data = []
    for panel, values in enumerate(found.values()):
        counts, _ = np.histogram(np.log10(drawn(values)), bins=edges)
        places = np.flatnonzero(counts)
        for place in places:
            left, right = (finite(float(10**edge)) for edge in edges[place : place + 2])
            middle = finite(float(10 ** edges[place : place + 2].mean())) if place == places[-1] else None
            data.append({"panel": panel, "left": left, "right": right, "count": int(counts[place]), "largest": middle})
    return data


def _count_axis(title: str | None, floor: float, most: int, *, is_log: bool) -> alt.Y:
    if is_log:
        return alt.Y("count:Q", title=title, **log_axis((floor, 2.0 * most)))
    return measure_axis("count:Q", title, (floor, 1.1 * most), min_step=1)


def _bin_axis(data: Sequence[Datum], title: str) -> alt.X:
    ends = min(datum["left"] for datum in data), max(datum["right"] for datum in data)
    return alt.X("left:Q", title=title, **log_axis(ends))


def _bin_told() -> list[alt.Tooltip]:
    bounds = [alt.Tooltip("left:Q", title="from", format=".3g"), alt.Tooltip("right:Q", title="to", format=".3g")]
    return [*bounds, alt.Tooltip("count:Q", title="count")]
