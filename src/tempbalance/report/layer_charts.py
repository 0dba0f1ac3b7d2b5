"""Charts of layers: distributions of alpha, alpha and rate over training, and gradients within epochs.

Arguments and errors are as in `study_charts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import altair as alt
import numpy as np

from tempbalance.report import chart as parts
from tempbalance.report.chart import BLUE, INK, RED, Datum, Panel, measure_axis, panels_chart, tooltips
from tempbalance.report.spectrum import bin_counts, drawn_logs, log_edges
from tempbalance.report.text import finite, short, shown

MOST_EPOCHS, MOST_CELLS = 60, 20_000
_STAR = "M0,-1L.24,-.32L.95,-.31L.38,.12L.59,.81L0,.4L-.59,.81L-.38,.12L-.95,-.31L-.24,-.32Z"
_QUANTITIES = {"rate": "learning rate", "alpha": "alpha"}
_NARROWEST = 0.2  # a histogram of alphas that hardly differ is drawn this wide, or its bars are too thin to see
_MOST_HISTOGRAMS = 6
_OVER_LAYERS: Mapping[str, Callable[[list[float]], float]] = {"maximum": max, "minimum": min, "mean": fmean}


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
        for quantity in _QUANTITIES:
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


def alpha_boxes(alphas: Sequence[Alphas], **texts: Any) -> alt.TopLevelMixin:
    """Draw box plots of alpha in panels, with a star at the mean and a dashed line at 2."""
    data = [{"panel": each.panel, "label": each.label, "values": _finite_alphas(each)} for each in _drawn(alphas)]

    def draw(panel: Panel) -> Any:
        domain = parts.zoomed([2.0, *(value for values in panel.column("values") for value in values)])
        y = measure_axis("values:Q", panel.first("alpha (no unit)"), domain)
        base = panel.base.transform_flatten(["values"]).encode(x=parts.label_axis(panel), y=y)
        boxes = base.mark_boxplot(
            color=BLUE,
            size=24,
            extent=1.5,
            box={"fillOpacity": 0.35, "stroke": BLUE},
            median={"color": BLUE, "thickness": 2.5},
            outliers={"size": 12},
        )
        means = base.mark_point(shape=_STAR, filled=True, size=80, color=RED, opacity=1)
        return alt.layer(_mark_two("y"), boxes, means.encode(y="mean(values):Q"))

    return panels_chart("alpha_boxes", data, draw, **texts)


def _drawn(alphas: Sequence[Alphas]) -> Sequence[Alphas]:
    parts.check(alphas, "set of alphas", "panel", "label")
    if not any(map(_finite_alphas, alphas)):
        raise ValueError(f"the chart needs a finite alpha, got none in {len(alphas)} sets of alphas")
    return alphas


def _finite_alphas(alphas: Alphas) -> list[float]:
    return [value for raw in alphas.values if (value := finite(raw)) is not None]


def _mark_two(channel: str) -> Any:
    """Draw a dashed line at the value that the paper calls optimal."""
    data = alt.Chart(alt.InlineData(values=[{"two": 2}]))
    return data.mark_rule(color=INK, strokeDash=[5, 4], aria=False).encode(**{channel: "two:Q"})


def alpha_histograms(alphas: Sequence[Alphas], **texts: Any) -> alt.TopLevelMixin:
    """Draw histograms of alpha over each other, in panels and common bins, with a dashed line at 2."""
    names = {
        "panel": list(dict.fromkeys(each.panel for each in _drawn(alphas))),
        "method": list(dict.fromkeys(each.label for each in alphas)),
    }
    data = [datum for panel in names["panel"] for datum in _alpha_bins([a for a in alphas if a.panel == panel])]

    def draw(panel: Panel) -> Any:
        x = alt.X("left:Q", title="alpha (no unit)", scale=alt.Scale(zero=False, nice=False), axis=alt.Axis(grid=False))
        domain = (0.0, 1.08 * max(panel.column("count"), default=1))
        y = measure_axis("count:Q", panel.first("layers x seeds"), domain, min_step=1).stack(None)
        base, looks = panel.base.encode(x=x, y=y), parts.by_method(names["method"])
        area = base.mark_area(interpolate="step-after", opacity=0.25, aria=False).encode(color=looks["color"])
        line = base.mark_line(interpolate="step-after", strokeWidth=1.5).encode(**looks)
        return alt.layer(area, line, _mark_two("x"))

    return panels_chart("alpha_histograms", data, draw, names=names, height=130, **texts)


def _alpha_bins(alphas: Sequence[Alphas]) -> list[Datum]:
    """Count alphas in common bins of a panel; a last empty one brings the line back to 0."""
    sets = {each.label: values for each in alphas if (values := _finite_alphas(each))}
    together = [value for values in sets.values() for value in values]
    if not together:
        return []
    room = max(0.0, _NARROWEST - (max(together) - min(together))) / 2
    num_bins = min(30, max(8, len(together) // 8))
    edges = np.linspace(min(together) - room, max(together) + room, 1 + num_bins)
    bounds = [finite(float(edge)) for edge in edges]
    data = []
    for label, values in sets.items():
        counts = [*np.histogram(values, bins=edges)[0].tolist(), 0]
        for left, right, count in zip(bounds, [*bounds[1:], bounds[-1]], counts, strict=True):
            data.append({"panel": alphas[0].panel, "method": label, "left": left, "right": right, "count": count})
    return data


def layer_maps(tracks: Sequence[LayerTrack], **texts: Any) -> alt.TopLevelMixin:
    """Draw heat maps of layers by epochs: for each track one of the rate and one of alpha."""
    data, names = track_data(tracks)
    charts = []
    for number, track in enumerate(tracks):
        for quantity, words in _QUANTITIES.items():
            values = [datum[quantity] for datum in data if datum[quantity] is not None]  # of all tracks: one scale
            cells = _heat_map(quantity, [min(values), max(values)] if values else None, len(track.layers))
            cells = cells.transform_filter(f"datum.panel == {number}").transform_filter(f"isValid(datum.{quantity})")
            charts.append(cells.properties(width=290, title=parts.panel_title(f"{track.panel}: {words}", 290)))
    chart = parts.grid(charts, columns=2).resolve_scale(color="independent")
    return parts.finish_study("layer_maps", chart, data, names={"layer_names": names}, tracks=len(tracks), **texts)


def _heat_map(quantity: str, domain: list[float] | None, num_layers: int) -> Any:
    scale = alt.Scale(scheme="viridis", zero=False, domain=alt.Undefined if domain is None else domain)
    legend = alt.Legend(title=quantity, orient="bottom", gradientLength=200, direction="horizontal")
    epochs = alt.Axis(labelOverlap="greedy", labelSeparation=5, labelAngle=0, title="epoch")
    layers = alt.Axis(labelExpr="layer_names[datum.value]", labelLimit=170, labelOverlap="greedy")
    cells = alt.Chart(parts.DATA).mark_rect().properties(height=alt.Step(16) if num_layers <= 30 else 480)
    return cells.encode(
        x=alt.X("epoch:O", axis=epochs),
        y=alt.Y("layer:O", title=None, axis=layers),
        color=alt.Color(f"{quantity}:Q", scale=scale, legend=legend),
        tooltip=[alt.Tooltip("epoch:O"), alt.Tooltip(f"{quantity}:Q", format=".4g")],
    )


def track_data(tracks: Sequence[LayerTrack]) -> tuple[list[Datum], list[str]]:
    """Return alpha and rate of each layer and an even choice of epochs, and the names of the layers by number.

    Each track has its own numbers, so that its layers stand in its own order.
    """
    parts.check(tracks, "track", "panel")
    names = [name for track in tracks for name in track.layers]
    most = min(MOST_EPOCHS, max(2, MOST_CELLS // max(1, len(names))))
    number, data = 0, []
    for panel, track in enumerate(tracks):
        for alphas, rates in zip(track.alpha, track.rate, strict=True):
            for epoch, alpha, rate in parts.evenly(list(zip(track.epochs, alphas, rates, strict=True)), most):
                place = {"panel": panel, "layer": number, "epoch": epoch}
                data.append({**place, "alpha": finite(alpha), "rate": finite(rate)})
            number += 1
    if not any(datum[quantity] is not None for datum in data for quantity in _QUANTITIES):
        raise ValueError(f"the chart needs an alpha or a rate, got none in {len(tracks)} tracks")
    return data, names


def two_layers(tracks: Sequence[LayerTrack], layers: tuple[str, str], **texts: Any) -> alt.TopLevelMixin:
    """Draw rate and alpha of two layers, by name, over the epochs, with a line for each track."""
    data, names = track_data(tracks)
    for name in layers:
        if name not in names:
            raise ValueError(f"layers must be of those of the tracks, got {short(name)!r}")
    methods = [track.panel for track in tracks]
    data = [
        {**each, "panel": name, "method": each["panel"]}
        for name in layers
        for each in data
        if names[each["layer"]] == name
    ]

    def draw(panel: Panel) -> list[Any]:
        charts = []
        for quantity, words in _QUANTITIES.items():
            there = alt.Chart(parts.DATA).transform_filter(
                f"datum.panel == {panel.number} && isValid(datum.{quantity})"
            )
            y = alt.Y(f"{quantity}:Q", title=words, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5))
            lines = there.mark_line(strokeWidth=2)
            charts.append(lines.encode(x=parts.epoch_axis(data), y=y, **parts.by_method(methods)))
        return charts

    both = " and ".join(map(short, layers))
    return panels_chart("two_layers", data, draw, names={"method": methods}, columns=2, layers=both, **texts)


def gradient_chart(norms: Sequence[StepNorm], **texts: Any) -> alt.TopLevelMixin:
    """Draw maximum, minimum and mean over the layers of the gradient norms of one run, step by step, on log axes."""
    found = _positive_norms(norms)
    data: list[Datum] = [
        {"panel": panel, "step": step, "norm": finite(over(values))}
        for panel, over in _OVER_LAYERS.items()
        for (_, step), values in sorted(found.items())
    ]

    def draw(panel: Panel) -> Any:
        values = panel.column("norm")
        axis = parts.log_axis(min(values) / 1.3, max(values) * 1.3)
        y = alt.Y("norm:Q", title=panel.first("gradient norm (log)"), **axis)
        return panel.base.mark_line(color=BLUE, strokeWidth=1.5).encode(x=parts.epoch_axis(data, "step"), y=y)

    num_layers, num_skipped = len({norm.layer for norm in norms}), len(norms) - sum(map(len, found.values()))
    skipped = _skipped_text(num_skipped, "norms")
    return panels_chart("gradients", data, draw, axes=66, layers=num_layers, steps=len(found), skipped=skipped, **texts)


def _positive_norms(norms: Sequence[StepNorm]) -> dict[tuple[int, int], list[float]]:
    """Return the norms by epoch and step."""
    parts.check(norms, "gradient norm")
    found: dict[tuple[int, int], list[float]] = {}
    for each in norms:
        if (norm := finite(each.norm, 9)) is not None and norm > 0:
            found.setdefault((each.epoch, each.step), []).append(norm)
    if not found:
        raise ValueError(f"the chart needs a gradient norm above 0, got {len(norms)} that are 0 or not finite")
    return found


def _skipped_text(count: int, what: str) -> str:
    return f"Not drawn, as 0, too small or not finite: {count} {what}." if count else ""


def gradient_histograms(norms: Sequence[StepNorm], **texts: Any) -> alt.TopLevelMixin:
    """Draw histograms of the gradient norms of all layers at up to six steps of the first epoch of one run."""
    found = _positive_norms(norms)
    first = min(epoch for epoch, _ in found)
    chosen = parts.evenly(sorted(place for place in found if place[0] == first), _MOST_HISTOGRAMS)
    edges = log_edges(drawn_logs([norm for place in chosen for norm in found[place]]))
    bounds = [finite(float(10**edge)) for edge in edges]
    data: list[Datum] = [
        {"panel": f"epoch {place[0]}, step {place[1]:,}", "left": left, "right": right, "count": int(count)}
        for place in chosen
        for left, right, count in zip(bounds, bounds[1:], bin_counts(drawn_logs(found[place]), edges), strict=False)
        if count
    ]
    most = max(datum["count"] for datum in data)
    axis = parts.log_axis(min(datum["left"] for datum in data), max(datum["right"] for datum in data))

    def draw(panel: Panel) -> Any:
        base = panel.base.transform_calculate(floor="0")
        return base.mark_rect(fill=BLUE, stroke=None).encode(
            x=alt.X("left:Q", title="gradient norm (log)", **axis),
            x2="right:Q",
            y=measure_axis("count:Q", panel.first("layers"), (0.0, 1.1 * most), min_step=1),
            y2="floor:Q",
            tooltip=[*tooltips(".3g", left="from", right="to"), alt.Tooltip("count:Q", title="count")],
        )

    num_hidden = sum(len(found[place]) for place in chosen) - sum(datum["count"] for datum in data)
    skipped = _skipped_text(num_hidden, "values")
    return panels_chart("gradient_histograms", data, draw, height=130, skipped=skipped, **texts)
