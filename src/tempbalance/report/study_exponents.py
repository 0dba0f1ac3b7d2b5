"""Charts of decaying eigenvalues: alpha against the exponent s, one exponent against another, and spectra by rank.

Each chart takes its data in the order of the panels, a title, and a subtitle with preset and data. It raises
a ValueError without data that can be drawn, or if two items have the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import altair as alt

from tempbalance.report.look import BLUE, FAINT, INK, RED, by_method
from tempbalance.report.panels import (
    HEIGHT,
    Datum,
    Panel,
    check,
    log_axis,
    measure_axis,
    numbered,
    panels_chart,
    zoomed,
)
from tempbalance.report.text import finite, shown


@dataclass(frozen=True)
class ExponentFit:
    """Alpha of the tail of ``size`` eigenvalues that decay with the exponent ``s``."""

    size: int
    s: float
    alpha: float

    @property
    def found(self) -> float:
        """The exponent that alpha implies: 1 / (alpha - 1)."""
        return 1 / (self.alpha - 1)


@dataclass(frozen=True)
class ExponentPair:
    """Exponents of the eigenvalues of two matrices after an epoch of a seed."""

    panel: str
    epoch: int
    seed: int
    x: float
    y: float


@dataclass(frozen=True)
class MatrixSpectrum:
    """The largest eigenvalues of a matrix after an epoch, the largest first."""

    panel: str
    matrix: str
    epoch: int
    eigenvalues: tuple[float, ...]


def exponent_chart(fits: Sequence[ExponentFit], *, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Draw alpha against s in a panel for each size, with the curve 1 + 1 / s."""
    check(fits, "fit", lambda each: (each.size, each.s))
    panels = numbered(each.size for each in fits)
    data: list[Datum] = [
        {"panel": panels[each.size], "s": finite(each.s), "alpha": finite(each.alpha)} for each in fits
    ]
    most = max(max(each.alpha, 1 + 1 / each.s) for each in fits)
    scale, axis = alt.Scale(nice=False, zero=True), alt.Axis(grid=False, tickCount=4)
    x = alt.X("s:Q", title="s of the eigenvalues", scale=scale, axis=axis)

    def draw(panel: Panel) -> Any:
        base = panel.base.encode(x=x)
        points = base.mark_point(size=22, color=BLUE, strokeWidth=1.4, opacity=1).encode(
            y=measure_axis("alpha:Q", panel.first("alpha (no unit)"), (1.0, 1.06 * most)),
            tooltip=[alt.Tooltip("s:Q"), alt.Tooltip("alpha:Q", format=".4g")],
        )
        curve = base.transform_calculate(theory="1 + 1 / datum.s").mark_line(color=RED, strokeWidth=1.5, aria=False)
        return alt.layer(curve.encode(y="theory:Q"), points)

    return panels_chart(
        [f"Q = {size:,}" for size in panels],
        data,
        draw,
        title=title,
        subtitle=subtitle,
        note="Circles: alpha of the Hill fit. Line: 1 + 1 / s.",
        description=f"Alpha against s for {len(fits)} spectra in {len(panels)} panels, one for each number of "
        "eigenvalues, with the curve alpha = 1 + 1 / s.",
    )


def pair_chart(
    pairs: Sequence[ExponentPair], *, title: str, subtitle: str, x_title: str, y_title: str
) -> alt.TopLevelMixin:
    """Draw one exponent against another: means over seeds in the order of epochs, each with its number."""
    check(pairs, "pair", lambda each: (each.panel, each.epoch, each.seed))
    panels = numbered(each.panel for each in pairs)
    data = [_pair_datum(panels[each.panel], [each], is_mean=False) for each in pairs]
    for name, epoch in dict.fromkeys((each.panel, each.epoch) for each in pairs):
        mine = [each for each in pairs if (each.panel, each.epoch) == (name, epoch)]
        data.append(_pair_datum(panels[name], mine, is_mean=True))

    def draw(panel: Panel) -> Any:
        scale = alt.Scale(domain=list(zoomed(panel.column("x")) or (0, 1)), nice=False, zero=False)
        x = alt.X("x:Q", title=shown(x_title), scale=scale, axis=alt.Axis(tickCount=5))
        base = panel.base.encode(x=x, y=measure_axis("y:Q", panel.first(y_title), zoomed(panel.column("y"))))
        means = base.transform_filter("datum.mean")
        tooltip = [alt.Tooltip("epoch:Q"), alt.Tooltip("x:Q", format=".3f"), alt.Tooltip("y:Q", format=".3f")]
        return alt.layer(
            base.transform_filter("!datum.mean").mark_point(size=14, filled=True, color=FAINT, opacity=0.8),
            means.mark_line(color=BLUE, strokeWidth=1, opacity=0.6, aria=False).encode(order="epoch:Q"),
            means.mark_point(size=55, filled=True, color=BLUE, opacity=1).encode(tooltip=tooltip),
            means.mark_text(align="left", dx=7, dy=-7, fontSize=12, color=INK).encode(text="epoch:Q"),
        )

    num_seeds = len({each.seed for each in pairs})
    seeds = f"Large points: means over {num_seeds} seeds; small ones: each seed." if num_seeds > 1 else "One seed."
    return panels_chart(
        list(panels),
        data,
        draw,
        height=1.5 * HEIGHT,
        title=title,
        subtitle=subtitle,
        note=f"Numbers are epochs. {seeds} Axes do not begin at 0.",
        description=f"{y_title} over {x_title} after some epochs in {len(panels)} panels, in order of epochs. {seeds} "
        "The axes are zoomed and do not begin at 0.",
    )


def _pair_datum(panel: int, pairs: Sequence[ExponentPair], *, is_mean: bool) -> Datum:
    x, y = fmean(each.x for each in pairs), fmean(each.y for each in pairs)
    return {"panel": panel, "epoch": pairs[0].epoch, "mean": is_mean, "x": finite(x), "y": finite(y)}


def decay_chart(spectra: Sequence[MatrixSpectrum], *, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Draw eigenvalues by rank on log axes: a row for each panel, a chart for each matrix, a line for each epoch."""
    check(spectra, "spectrum", lambda each: (each.panel, each.matrix, each.epoch))
    places = numbered((each.panel, each.matrix) for each in spectra)
    rows = [row for row, _ in places]
    epochs = numbered(each.epoch for each in spectra)
    data: list[Datum] = [
        {"panel": places[each.panel, each.matrix], "method": epochs[each.epoch], "rank": rank, "value": value}
        for each in spectra
        for rank, raw in enumerate(each.eigenvalues, 1)
        if (value := finite(raw)) is not None and value > 0
    ]
    if not data:
        raise ValueError(f"the chart needs an eigenvalue above 0, got none in {len(spectra)} spectra")

    def draw(panel: Panel) -> Any:
        mine = panel.data or data
        values = [datum["value"] for datum in mine]
        x = alt.X("rank:Q", title="rank (log)", **log_axis((0.9, 1.1 * max(datum["rank"] for datum in mine))))
        y_title = panel.first(shown(f"{rows[panel.number]}: eigenvalue (log)"))
        y = alt.Y("value:Q", title=y_title, **log_axis((min(values) / 1.5, max(values) * 1.5)))
        return panel.base.mark_line(strokeWidth=1.6).encode(x=x, y=y, **by_method(len(epochs)))

    return panels_chart(
        [matrix for _, matrix in places],
        data,
        draw,
        columns=min(4, len({each.matrix for each in spectra})),
        names={"method_names": [f"epoch {epoch}" for epoch in epochs]},
        title=title,
        subtitle=subtitle,
        note="",
        description=f"Eigenvalues by rank on log axes for {len(places)} matrices, a line for each of {len(epochs)} "
        "epochs.",
    )
