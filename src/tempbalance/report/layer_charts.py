"""Charts of layers: distributions of alpha, alpha and rate over training, gradients and spectra within epochs.

Each chart takes its data in the order of the panels, a title, and a subtitle with preset and data. It raises
a ValueError without data that can be drawn, or if two items have the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import altair as alt
import numpy as np

from tempbalance.report.chart import (
    BLUE,
    DATA,
    INK,
    PANEL_HEIGHT,
    RED,
    Datum,
    Panel,
    by_method,
    check,
    epoch_axis,
    evenly,
    finish_study,
    grid,
    label_axis,
    log_axis,
    measure_axis,
    numbered,
    of_panel,
    panel_title,
    panel_width,
    panels_chart,
    zoomed,
)
from tempbalance.report.spectrum import drawn, log_histogram
from tempbalance.report.text import finite, short, shown

MOST_EPOCHS, MOST_CELLS = 60, 20_000
_LAYER = "layer_names[datum.value]"
_STAR = "M0,-1L.24,-.32L.95,-.31L.38,.12L.59,.81L0,.4L-.59,.81L-.38,.12L-.95,-.31L-.24,-.32Z"
_QUANTITIES = {"rate": "learning rate", "alpha": "alpha"}
_MOST = 6  # histograms of one chart
_OVER_LAYERS: Mapping[str, Callable[[list[float]], float]] = {"maximum": max, "minimum": min, "mean": fmean}
Values = dict[tuple[int, int], list[float]]  # by epoch and step


@dataclass(frozen=True)
class Alphas:
    """Alpha of every layer and seed of a method (``label``) in a panel."""

    panel: str
    label: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class LayerTrack:
    """Alpha and rate of each layer over the epochs: ``alpha[layer][epoch]``, ``None`` where there is none."""

    panel: str
    epochs: tuple[int, ...]
    layers: tuple[str, ...]
    alpha: tuple[tuple[float | None, ...], ...]
    rate: tuple[tuple[float | None, ...], ...]

    def __post_init__(self) -> None:
        for quantity in ("alpha", "rate"):
            lengths = [len(row) for row in getattr(self, quantity)]
            if lengths != [len(self.epochs)] * len(self.layers):
                raise ValueError(
                    f"{quantity} of track {shown(self.panel)!r} must have {len(self.layers)} rows (layers) of "
                    f"{len(self.epochs)} values (epochs), got rows of {lengths}"
                )


@dataclass(frozen=True)
class StepNorm:
    """Norm of a layer's gradient at a step, which is counted from the start of training."""

    epoch: int
    step: int
    layer: str
    norm: float | None


def alpha_boxes(alphas: Sequence[Alphas], *, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Draw box plots of alpha in panels, with a star at the mean and a dashed line at 2."""
    data, panels, labels = _alpha_data(alphas)

    def draw(panel: Panel) -> Any:
        domain = zoomed([2.0, *(value for values in panel.column("values") for value in values)])
        y = measure_axis("values:Q", panel.first("alpha (no unit)"), domain)
        base = panel.base.transform_flatten(["values"])
        base = base.encode(x=label_axis(panel.column("label"), list(labels), panel.width), y=y)
        boxes = base.mark_boxplot(
            color=BLUE,
            size=24,
            extent=1.5,
            box={"fillOpacity": 0.35, "stroke": BLUE},
            median={"color": BLUE, "thickness": 2.5},
            outliers={"size": 12},
        )
        means = base.mark_point(shape=_STAR, filled=True, size=80, color=RED, opacity=1)
        return alt.layer(mark_two("y"), boxes, means.encode(y="mean(values):Q"))

    return panels_chart(
        list(panels),
        data,
        draw,
        names={"label_names": list(labels)},
        title=title,
        subtitle=subtitle,
        note="Median, quartiles, the farthest values within 1.5 times their distance, those beyond as points. "
        "Star: mean. Dashes across: 2.",
        description=f"Box plots of alpha, {len(data)} in {len(panels)} panels, with the mean, and the value 2 marked. "
        "The axes are zoomed and do not begin at 0.",
    )


def _alpha_data(alphas: Sequence[Alphas]) -> tuple[list[Datum], dict[str, int], dict[str, int]]:
    """Return the finite alphas, and the numbers of panels and labels."""
    check(alphas, "set of alphas", lambda each: (each.panel, each.label))
    panels, labels = numbered(each.panel for each in alphas), numbered(each.label for each in alphas)
    data: list[Datum] = []
    for each in alphas:
        values = [value for raw in each.values if (value := finite(raw)) is not None]
        data.append({"panel": panels[each.panel], "label": labels[each.label], "values": values})
    if not any(datum["values"] for datum in data):
        raise ValueError(f"the chart needs a finite alpha, got none in {len(alphas)} sets of alphas")
    return data, panels, labels


def alpha_histograms(alphas: Sequence[Alphas], *, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Draw histograms of alpha over each other, in panels and common bins, with a dashed line at 2."""
    sets, panels, labels = _alpha_data(alphas)
    x = alt.X("left:Q", title="alpha (no unit)", scale=alt.Scale(zero=False, nice=False), axis=alt.Axis(grid=False))

    def draw(panel: Panel) -> Any:
        most = max(panel.column("count"), default=1)
        y = measure_axis("count:Q", panel.first("layers x seeds"), (0.0, 1.08 * most), min_step=1)
        base = panel.base.encode(x=x, y=y.stack(None))
        looks = by_method(list(labels))
        area = base.mark_area(interpolate="step-after", opacity=0.25, aria=False).encode(color=looks["color"])
        line = base.mark_line(interpolate="step-after", strokeWidth=1.5).encode(**looks)
        return alt.layer(area, line, mark_two())

    return panels_chart(
        list(panels),
        _alpha_bins(sets),
        draw,
        height=130,
        names={"method_names": list(labels)},
        title=title,
        subtitle=subtitle,
        note="The upright dashes mark 2.",
        description=f"Histograms of alpha of {len(labels)} methods over each other in {len(panels)} panels, with the "
        "value 2 marked.",
    )


def _alpha_bins(data: Sequence[Datum]) -> list[Datum]:
    """Count alphas in common bins of a panel; a last empty one brings the line back to 0."""
    found = []
    for panel in sorted({datum["panel"] for datum in data}):
        mine = [datum for datum in data if datum["panel"] == panel]
        alphas = [{"method": datum["label"], "alpha": value} for datum in mine for value in datum["values"]]
        bins = alpha_bins(alphas) if alphas else []
        ends = [{**each, "left": each["right"], "count": 0} for each in bins if each["right"] == bins[-1]["right"]]
        found += [{"panel": panel, **each} for each in [*bins, *ends]]
    return found


def layer_maps(tracks: Sequence[LayerTrack], *, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Draw heat maps of layers by epochs: for each track one of the rate and one of alpha."""
    data, names = track_data(tracks)
    charts = []
    for number, track in enumerate(tracks):
        for quantity, words in _QUANTITIES.items():
            values = [datum[quantity] for datum in data if datum[quantity] is not None]  # of all tracks: one scale
            domain = [min(values), max(values)] if values else None
            cells = of_panel(heat_map(quantity, quantity, len(track.layers), domain), number)
            cells = cells.transform_filter(f"isValid(datum.{quantity})")
            charts.append(cells.properties(width=290, title=panel_title(f"{track.panel}: {words}", 290)))
    return finish_study(
        grid(charts, columns=2).resolve_scale(color="independent"),
        data,
        names={"layer_names": names},
        title=title,
        subtitle=subtitle,
        note="",
        description=f"Heat maps of learning rate and alpha by layer and epoch for each of {len(tracks)} networks.",
    )


def track_data(tracks: Sequence[LayerTrack]) -> tuple[list[Datum], list[str]]:
    """Return alpha and rate of each layer and an even choice of epochs, and the names of the layers by number.

    Each track has its own numbers, so that its layers stand in its own order.
    """
    check(tracks, "track", lambda track: track.panel)
    names = [name for track in tracks for name in track.layers]
    most = min(MOST_EPOCHS, max(2, MOST_CELLS // max(1, len(names))))
    number, data = 0, []
    for panel, track in enumerate(tracks):
        for alphas, rates in zip(track.alpha, track.rate, strict=True):
            for epoch, alpha, rate in evenly(list(zip(track.epochs, alphas, rates, strict=True)), most):
                place = {"panel": panel, "layer": number, "epoch": epoch}
                data.append({**place, "alpha": finite(alpha), "rate": finite(rate)})
            number += 1
    if not any(datum[quantity] is not None for datum in data for quantity in _QUANTITIES):
        raise ValueError(f"the chart needs an alpha or a rate, got none in {len(tracks)} tracks")
    return data, names


def two_layers(
    tracks: Sequence[LayerTrack], layers: tuple[str, str], *, title: str, subtitle: str
) -> alt.TopLevelMixin:
    """Draw rate and alpha of two layers, by name, over the epochs, with a line for each track."""
    data, names = track_data(tracks)
    for name in layers:
        if name not in names:
            raise ValueError(f"layers must be of those of the tracks, got {short(name)!r}")
    data = [
        {**each, "method": each["panel"], "row": row}
        for row, name in enumerate(layers)
        for each in data
        if names[each["layer"]] == name
    ]
    width, charts = panel_width(2), []
    for row, name in enumerate(layers):
        for quantity, words in _QUANTITIES.items():
            there = alt.Chart(DATA).transform_filter(f"datum.row == {row} && isValid(datum.{quantity})")
            y = alt.Y(f"{quantity}:Q", title=words, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5))
            lines = there.mark_line(strokeWidth=2).encode(
                x=epoch_axis(data), y=y, **by_method([track.panel for track in tracks])
            )
            charts.append(lines.properties(width=width, height=PANEL_HEIGHT, title=panel_title(name, width)))
    return finish_study(
        grid(charts, columns=2),
        data,
        names={"method_names": [track.panel for track in tracks]},
        title=title,
        subtitle=subtitle,
        note="",
        description=f"Learning rate and alpha of the layers {' and '.join(map(short, layers))} over the epochs, a line "
        f"for each of {len(tracks)} tracks.",
    )


def gradient_chart(norms: Sequence[StepNorm], *, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Draw maximum, minimum and mean over the layers of the gradient norms of one run, step by step, on log axes."""
    found = _positive_norms(norms)
    data: list[Datum] = [
        {"panel": panel, "step": step, "norm": finite(over(values))}
        for panel, over in enumerate(_OVER_LAYERS.values())
        for (_, step), values in sorted(found.items())
    ]
    x = epoch_axis(data, "step")

    def draw(panel: Panel) -> Any:
        values = panel.column("norm")
        axis = log_axis((min(values) / 1.3, max(values) * 1.3))
        y = alt.Y("norm:Q", title=panel.first("gradient norm (log)"), **axis)
        return panel.base.mark_line(color=BLUE, strokeWidth=1.5).encode(x=x, y=y)

    num_layers, num_skipped = len({norm.layer for norm in norms}), len(norms) - sum(map(len, found.values()))
    return panels_chart(
        list(_OVER_LAYERS),
        data,
        draw,
        axes=66,
        title=title,
        subtitle=subtitle,
        note=f"Over {num_layers} layers at {len(found)} steps. {_skipped_text(num_skipped, 'norms')}",
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


def _skipped_text(count: int, what: str) -> str:
    return f"Not drawn, as 0, too small or not finite: {count} {what}." if count else ""


def gradient_histograms(norms: Sequence[StepNorm], *, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Draw histograms of the gradient norms of all layers at up to six steps of the first epoch of one run."""
    found = _positive_norms(norms)
    first = min(epoch for epoch, _ in found)
    chosen = evenly(sorted(place for place in found if place[0] == first), _MOST)
    words = ("gradient norm (log)", "layers", "gradient norms of the layers")
    return _histograms({place: found[place] for place in chosen}, words, title=title, subtitle=subtitle)


def _histograms(found: Values, words: tuple[str, str, str], *, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Draw a histogram in common bins for each step.

    Args:
        found: Values by epoch and step.
        words: Titles of the axes, and the name of the values.
        title: Title of the chart.
        subtitle: Preset and data.
    """
    x_title, y_title, what = words
    data = _binned(found)
    most = max(datum["count"] for datum in data)
    ends = min(datum["left"] for datum in data), max(datum["right"] for datum in data)
    x = alt.X("left:Q", title=x_title, **log_axis(ends))
    bounds = [alt.Tooltip("left:Q", title="from", format=".3g"), alt.Tooltip("right:Q", title="to", format=".3g")]
    tooltip = [*bounds, alt.Tooltip("count:Q", title="count")]

    def draw(panel: Panel) -> Any:
        base = panel.base.transform_calculate(floor="0").encode(x=x)
        y = measure_axis("count:Q", panel.first(y_title), (0.0, 1.1 * most), min_step=1)
        return base.mark_rect(fill=BLUE, stroke=None).encode(x2="right:Q", y=y, y2="floor:Q", tooltip=tooltip)

    num_hidden = sum(map(len, found.values())) - sum(datum["count"] for datum in data)
    return panels_chart(
        [f"epoch {epoch}, step {step:,}" for epoch, step in found],
        data,
        draw,
        height=130,
        title=title,
        subtitle=subtitle,
        note=f"Histograms of the {what}. {_skipped_text(num_hidden, 'values')}",
        description=f"Histograms of the {what} at {len(found)} steps, in common bins.",
    )


def _binned(found: Values) -> list[Datum]:
    """Count the values of each step in common bins; empty bins are skipped."""
    common = log_histogram([value for values in found.values() for value in values])
    if common is None:
        raise ValueError(f"the chart needs a value above 0, got none at {len(found)} steps")
    edges = common.start + common.step * np.arange(len(common.counts) + 1)
    edges[-1] += 1e-9  # the largest value must not fall out by rounding
    data = []
    for panel, values in enumerate(found.values()):
        counts, _ = np.histogram(np.log10(drawn(values)), bins=edges)
        for place in np.flatnonzero(counts):
            left, right = (finite(float(10**edge)) for edge in edges[place : place + 2])
            data.append({"panel": panel, "left": left, "right": right, "count": int(counts[place])})
    return data


def heat_map(quantity: str, title: str, num_layers: int, domain: list[float] | None = None) -> alt.Chart:
    """Layers, called as ``layer_names`` says, by epochs, coloured by the quantity, or by where it is in the domain."""
    scale = alt.Scale(scheme="viridis", zero=False, domain=alt.Undefined if domain is None else domain)
    legend = alt.Legend(title=title.lower(), orient="bottom", gradientLength=200, direction="horizontal")
    cells: alt.Chart = (
        alt.Chart(DATA)
        .mark_rect()
        .encode(
            x=alt.X("epoch:O", axis=alt.Axis(labelOverlap="greedy", labelSeparation=5, labelAngle=0, title="epoch")),
            y=alt.Y("layer:O", title=None, axis=alt.Axis(labelExpr=_LAYER, labelLimit=170, labelOverlap="greedy")),
            color=alt.Color(f"{quantity}:Q", scale=scale, legend=legend),
            tooltip=[alt.Tooltip("epoch:O"), alt.Tooltip(f"{quantity}:Q", format=".4g")],
        )
        .properties(height=alt.Step(16) if num_layers <= 30 else 480)
    )
    return cells


def mark_two(channel: str = "x") -> alt.Chart:
    """A dashed line at the value that the paper calls optimal."""
    data = alt.Chart(alt.InlineData(values=[{"two": 2}]))
    two: alt.Chart = data.mark_rule(color=INK, strokeDash=[5, 4], aria=False).encode(**{channel: "two:Q"})
    return two


_NARROWEST = 0.2  # a histogram of alphas that hardly differ is drawn this wide, or its bars are too thin to see


def alpha_bins(alphas: Sequence[Datum]) -> list[Datum]:
    """How many alphas of each method lie in each of some common bins."""
    values = [each["alpha"] for each in alphas]
    room = max(0.0, _NARROWEST - (max(values) - min(values))) / 2
    low, high = min(values) - room, max(values) + room
    edges = np.linspace(low, high, 1 + min(30, max(8, len(alphas) // 8)))
    data = []
    for method in sorted({each["method"] for each in alphas}):
        counts, _ = np.histogram([each["alpha"] for each in alphas if each["method"] == method], bins=edges)
        for count, left, right in zip(counts, edges, edges[1:], strict=False):
            data.append(
                {"method": method, "left": finite(float(left)), "right": finite(float(right)), "count": int(count)}
            )
    return data
