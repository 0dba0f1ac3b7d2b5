"""Chart of the speed: ratios with their spread, by network and tail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import altair as alt

from tempbalance.bench.contestants import TAILS, WEIGHTWATCHER, reference_name
from tempbalance.bench.results import REFERENCE, Results, machine_text
from tempbalance.report import chart as parts

_SHAPES = ("circle", "square", "triangle-up", "diamond")


@dataclass(frozen=True)
class Speed:
    """Speed of one balancing with a tail relative to another contestant (``panel``): median and quartiles, > 0."""

    panel: str
    network: str
    tail: str
    ratio: float
    low: float
    high: float


def speed_chart(speeds: Sequence[Speed], **texts: Any) -> alt.TopLevelMixin:
    """Draw a panel for each other contestant: ratios on a shared log axis and a line at 1."""
    parts.check(speeds, "speed", "panel", "network", "tail")
    data: list[parts.Datum] = [
        {"panel": f"against {each.panel}", "label": each.network, "sign": each.tail}
        | {name: float(f"{getattr(each, name):.4g}") for name in ("ratio", "low", "high")}
        for each in speeds
    ]
    others, tails = (list(dict.fromkeys(getattr(each, name) for each in speeds)) for name in ("panel", "tail"))
    signs = {tail: (_SHAPES[i % len(_SHAPES)], parts.COLOURS[i % len(parts.COLOURS)]) for i, tail in enumerate(tails)}
    axis = parts.log_axis(min(0.9, *(each["low"] for each in data)) / 1.1, max(each["high"] for each in data) * 1.4)
    axis["axis"].grid = True

    def draw(panel: parts.Panel) -> Any:
        offset = alt.XOffset("sign:N", scale=alt.Scale(domain=tails, paddingOuter=0.1))
        placed, looks = panel.base.encode(x=parts.label_axis(panel), xOffset=offset), parts.by_sign(signs)
        numbers = [alt.Tooltip(f"{field}:Q", format=".3~g") for field in ("ratio", "low", "high")]
        text = placed.mark_text(dy=-10, fontSize=8.5, color=parts.INK, aria=False)
        return alt.layer(
            panel.base.mark_rule(color=parts.FAINT, strokeWidth=1.2, aria=False).encode(y=alt.datum(1)),
            parts.error_rule(placed).encode(color=looks["color"]),
            placed.mark_point(size=45, filled=True, opacity=1).encode(
                y=alt.Y("ratio:Q", title=panel.first("times as fast (log)"), **axis),
                tooltip=[alt.Tooltip("sign:N", title="tail"), *numbers],
                **looks,
            ),
            text.encode(y=alt.Y("high:Q"), text=alt.Text("ratio:Q", format=".2~g")),
        )

    words: parts.Datum = {"others": " and ".join(others), "tails": len(tails)}
    return parts.panels_chart("speed", data, draw, columns=len(others), height=260, **words, **texts)


def speeds(results: Results) -> list[Speed]:
    """Return the library's speed relative to the other contestants, by network and tail."""
    found = []
    for times, tail in product(results.of_part("speed"), TAILS):
        for panel, other in ((REFERENCE, reference_name(tail)), (WEIGHTWATCHER, WEIGHTWATCHER)):
            if ratio := times.ratio(other, tail):
                found.append(Speed(panel, times.network, tail, ratio.median, ratio.low, ratio.high))
    return found


def draw_speed(results: Results, path: Path) -> Path:
    """Write the chart in the format of the path's suffix."""
    chart = speed_chart(speeds(results), title="One balancing, how many times as fast", subtitle=machine_text(results))
    (written,) = parts.save_figures({path.stem: chart}, path.parent, [path.suffix.removeprefix(".")])
    return written
