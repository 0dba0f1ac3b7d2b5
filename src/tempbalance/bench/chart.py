"""Chart of the speed: ratios with their spread, by network and tail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import altair as alt

from tempbalance.bench.contestants import TAILS, WEIGHTWATCHER, reference_name
from tempbalance.bench.results import REFERENCE, Results, machine_text
from tempbalance.report import save_figures
from tempbalance.report.chart import (
    COLOURS,
    DATA,
    FAINT,
    INK,
    Datum,
    by_sign,
    check,
    error_rule,
    finish_study,
    grid,
    label_axis,
    log_axis,
    numbered,
    of_panel,
    panel_title,
    panel_width,
)

HEIGHT = 260
_SHAPES = ("circle", "square", "triangle-up", "diamond")


@dataclass(frozen=True)
class Speed:
    """Speed of one balancing relative to another contestant.

    Attributes:
        panel: Name of the other contestant.
        network: Label under the points.
        tail: Tail of the fit.
        ratio: Median over rounds, > 0.
        low, high: Quartiles over rounds, > 0.
    """

    panel: str
    network: str
    tail: str
    ratio: float
    low: float
    high: float


def speed_chart(speeds: Sequence[Speed], *, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Draw a panel for each other contestant: ratios on a shared log axis and a line at 1.

    Args:
        speeds: Speeds in the order of panels, networks and tails.
        title: Title of the chart.
        subtitle: Machine and versions.

    Raises:
        ValueError: If there are no speeds, or two of one network and tail in a panel.
    """
    check(speeds, "speed", lambda speed: (speed.panel, speed.network, speed.tail))
    panels, labels = numbered(each.panel for each in speeds), numbered(each.network for each in speeds)
    tails = numbered(each.tail for each in speeds)
    data: list[Datum] = [
        {
            "panel": panels[each.panel],
            "label": labels[each.network],
            "sign": each.tail,
            "ratio": float(f"{each.ratio:.4g}"),
            "low": float(f"{each.low:.4g}"),
            "high": float(f"{each.high:.4g}"),
        }
        for each in speeds
    ]
    signs = {tail: (_SHAPES[place % len(_SHAPES)], COLOURS[place % len(COLOURS)]) for place, tail in enumerate(tails)}
    axis = log_axis((min(0.9, *(each["low"] for each in data)) / 1.1, max(each["high"] for each in data) * 1.4))
    axis["axis"].grid = True
    width = panel_width(len(panels))
    charts = []
    for name, place in panels.items():
        mine = [datum["label"] for datum in data if datum["panel"] == place]
        base = of_panel(alt.Chart(DATA), place)
        x = label_axis(list(dict.fromkeys(mine)), list(labels), width)
        layers = alt.layer(*_layers(base, x, axis, signs, with_title=place == 0))
        charts.append(layers.properties(width=width, height=HEIGHT, title=panel_title(f"against {name}", width)))
    return finish_study(
        grid(charts, columns=len(panels)),
        data,
        names={"label_names": list(labels)},
        title=title,
        subtitle=subtitle,
        note="Medians over interleaved rounds; lines span the middle half of the rounds.",
        description=f"How many times as fast as {' and '.join(panels)} one balancing is, for {len(labels)} networks "
        f"and {len(tails)} ways to find the tail.",
    )


def _layers(
    base: alt.Chart, x: alt.X, axis: dict[str, Any], signs: dict[str, tuple[str, str]], *, with_title: bool
) -> Iterator[alt.Chart]:
    y = alt.Y("ratio:Q", title="times as fast (log)" if with_title else None, **axis)
    yield base.mark_rule(color=FAINT, strokeWidth=1.2, aria=False).encode(y=alt.datum(1))
    offset = alt.XOffset("sign:N", scale=alt.Scale(domain=list(signs), paddingOuter=0.1))
    placed = base.encode(x=x, xOffset=offset)
    looks = by_sign(signs)
    yield error_rule(placed).encode(color=looks["color"])
    tooltip = [
        alt.Tooltip("sign:N", title="tail"),
        *(alt.Tooltip(f"{field}:Q", format=".3~g") for field in ("ratio", "low", "high")),
    ]
    yield placed.mark_point(size=45, filled=True, opacity=1).encode(y=y, tooltip=tooltip, **looks)
    text = placed.mark_text(dy=-10, fontSize=8.5, color=INK, aria=False)
    yield text.encode(y=alt.Y("high:Q"), text=alt.Text("ratio:Q", format=".2~g"))


def speeds(results: Results) -> list[Speed]:
    """Return the library's speed relative to the other contestants, by network and tail."""
    found = []
    for times, tail in product(results.of_part("speed"), TAILS):
        for panel, other in ((REFERENCE, reference_name(tail)), (WEIGHTWATCHER, WEIGHTWATCHER)):
            if ratio := times.ratio(other, tail):
                found.append(Speed(panel, times.network, tail, ratio.median, ratio.low, ratio.high))
    return found


def draw_speed(results: Results, path: Path) -> Path:
    """Write the chart in the format of the path's suffix.

    Raises:
        ValueError: If no speed was measured.
    """
    chart = speed_chart(speeds(results), title="One balancing, how many times as fast", subtitle=machine_text(results))
    (written,) = save_figures({path.stem: chart}, path.parent, [path.suffix.removeprefix(".")])
    return written
