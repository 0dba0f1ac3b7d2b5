"""Chart of the tail's alpha against the decay s of eigenvalues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt

from tempbalance.report.look import BLUE, DATA, RED
from tempbalance.report.study_data import check, numbered
from tempbalance.report.study_look import (
    HEIGHT,
    Datum,
    finish_study,
    grid,
    measure_axis,
    num_columns,
    of_panel,
    panel_title,
    panel_width,
)
from tempbalance.report.text import finite


@dataclass(frozen=True)
class ExponentFit:
    """Alpha of a spectrum that is a power law.

    Attributes:
        size: How many eigenvalues.
        s: With which they decay.
        alpha: Of the tail.
    """

    size: int
    s: float
    alpha: float

    @property
    def found(self) -> float:
        """What alpha says of s: 1 / (alpha - 1)."""
        return 1 / (self.alpha - 1)


def exponent_chart(fits: Sequence[ExponentFit], *, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Alpha against s in a panel for each size, with the curve 1 + 1 / s.

    Args:
        fits: In the order in which the panels stand.
        title: What is compared.
        subtitle: Preset and data.

    Raises:
        ValueError: If there are no fits, or two of one size and exponent.
    """
    check(fits, "fit", lambda each: (each.size, each.s))
    panels = numbered(f"Q = {each.size:,}" for each in fits)
    data: list[Datum] = [
        {"panel": panels[f"Q = {each.size:,}"], "s": finite(each.s), "alpha": finite(each.alpha)} for each in fits
    ]
    columns = num_columns(len(panels))
    width = panel_width(columns)
    most = max(max(each.alpha, 1 + 1 / each.s) for each in fits)
    charts = []
    for name, number in panels.items():
        y_title = "alpha (no unit)" if number % columns == 0 else None
        x = alt.X(
            "s:Q",
            title="s of the eigenvalues",
            scale=alt.Scale(nice=False, zero=True),
            axis=alt.Axis(grid=False, tickCount=4),
        )
        base = of_panel(alt.Chart(DATA), number).encode(x=x)
        points = base.mark_point(size=22, color=BLUE, strokeWidth=1.4, opacity=1).encode(
            y=measure_axis("alpha:Q", y_title, (1.0, 1.06 * most)),
            tooltip=[alt.Tooltip("s:Q"), alt.Tooltip("alpha:Q", format=".4g")],
        )
        curve = base.transform_calculate(theory="1 + 1 / datum.s").mark_line(color=RED, strokeWidth=1.5, aria=False)
        chart = alt.layer(curve.encode(y="theory:Q"), points)
        charts.append(chart.properties(width=width, height=HEIGHT, title=panel_title(name, width)))
    return finish_study(
        grid(charts, columns=columns),
        data,
        title=title,
        subtitle=subtitle,
        note="Circles: alpha of the Hill fit. Line: 1 + 1 / s.",
        description=f"Alpha against s for {len(fits)} spectra in {len(panels)} panels, one for each number of "
        "eigenvalues, with the curve alpha = 1 + 1 / s.",
    )
