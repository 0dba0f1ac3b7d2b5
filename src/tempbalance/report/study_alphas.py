"""How alpha is distributed over layers and seeds, method beside method."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from tempbalance.report.look import BLUE, DATA, RED, by_method, names_param
from tempbalance.report.run_charts import mark_two
from tempbalance.report.run_data import alpha_bins
from tempbalance.report.study_data import Alphas, check, numbered, zoomed
from tempbalance.report.study_look import (
    HEIGHT,
    Datum,
    finish_study,
    grid,
    label_axis,
    measure_axis,
    num_columns,
    of_panel,
    panel_title,
    panel_width,
)
from tempbalance.report.text import finite

_STAR = "M0,-1L.24,-.32L.95,-.31L.38,.12L.59,.81L0,.4L-.59,.81L-.38,.12L-.95,-.31L-.24,-.32Z"


def alpha_boxes(alphas: Sequence[Alphas], *, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Box plots of alpha in panels, with a star at the mean and a dashed line at 2.

    Args:
        alphas: In the order in which the panels, and the boxes in them, stand.
        title: What is compared.
        subtitle: Preset and data.

    Raises:
        ValueError: If no alpha is finite, or two boxes are of one label in a panel.
    """
    data = _alpha_data(alphas)
    panels, labels = numbered(each.panel for each in alphas), numbered(each.label for each in alphas)
    columns = num_columns(len(panels))
    width = panel_width(columns)
    charts = []
    for name, number in panels.items():
        mine = [datum for datum in data if datum["panel"] == number]
        domain = zoomed([2.0, *(value for datum in mine for value in datum["values"])])
        y = measure_axis("values:Q", "alpha (no unit)" if number % columns == 0 else None, domain)
        base = of_panel(alt.Chart(DATA), number).transform_flatten(["values"])
        base = base.encode(x=label_axis([datum["label"] for datum in mine], list(labels), width), y=y)
        boxes = base.mark_boxplot(
            color=BLUE,
            size=24,
            extent=1.5,
            box={"fillOpacity": 0.35, "stroke": BLUE},
            median={"color": BLUE, "thickness": 2.5},
            outliers={"size": 12},
        )
        means = base.mark_point(shape=_STAR, filled=True, size=80, color=RED, opacity=1)
        chart = alt.layer(mark_two("y"), boxes, means.encode(y="mean(values):Q"))
        charts.append(chart.properties(width=width, height=HEIGHT, title=panel_title(name, width)))
    return finish_study(
        grid(charts, columns=columns).add_params(names_param("label_names", list(labels))),
        data,
        title=title,
        subtitle=subtitle,
        note="Median, quartiles, the farthest values within 1.5 times their distance, those beyond as points. "
        "Star: mean. Dashes across: 2.",
        description=f"Box plots of alpha, {len(data)} in {len(panels)} panels, with the mean, and the value 2 marked. "
        "The axes are zoomed and do not begin at 0.",
    )


def _alpha_data(alphas: Sequence[Alphas]) -> list[Datum]:
    check(alphas, "set of alphas", lambda each: (each.panel, each.label))
    panels, labels = numbered(each.panel for each in alphas), numbered(each.label for each in alphas)
    data: list[Datum] = []
    for each in alphas:
        values = [value for raw in each.values if (value := finite(raw)) is not None]
        data.append({"panel": panels[each.panel], "label": labels[each.label], "values": values})
    if not any(datum["values"] for datum in data):
        raise ValueError(f"the chart needs a finite alpha, got none in {len(alphas)} sets of alphas")
    return data


def alpha_histograms(alphas: Sequence[Alphas], *, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Histograms of alpha over each other, in panels and common bins, with a dashed line at 2.

    Args:
        alphas: In the order in which panels and labels stand.
        title: What is compared.
        subtitle: Preset and data.

    Raises:
        ValueError: If no alpha is finite, or two sets are of one label in a panel.
    """
    data = _bins(_alpha_data(alphas))
    panels, labels = numbered(each.panel for each in alphas), numbered(each.label for each in alphas)
    columns = num_columns(len(panels))
    width = panel_width(columns)
    charts = []
    for name, number in panels.items():
        most = max((datum["count"] for datum in data if datum["panel"] == number), default=1)
        y = measure_axis("count:Q", "layers x seeds" if number % columns == 0 else None, (0.0, 1.08 * most), min_step=1)
        x = alt.X("left:Q", title="alpha (no unit)", scale=alt.Scale(zero=False, nice=False), axis=alt.Axis(grid=False))
        base = of_panel(alt.Chart(DATA), number).encode(x=x, y=y.stack(None))
        looks = by_method(len(labels))
        area = base.mark_area(interpolate="step-after", opacity=0.25, aria=False).encode(color=looks["color"])
        line = base.mark_line(interpolate="step-after", strokeWidth=1.5).encode(**looks)
        chart = alt.layer(area, line, mark_two())
        charts.append(chart.properties(width=width, height=130, title=panel_title(name, width)))
    return finish_study(
        grid(charts, columns=columns).add_params(names_param("method_names", list(labels))),
        data,
        title=title,
        subtitle=subtitle,
        note="The upright dashes mark 2.",
        description=f"Histograms of alpha of {len(labels)} methods over each other in {len(panels)} panels, with the "
        "value 2 marked.",
    )


def _bins(data: Sequence[Datum]) -> list[Datum]:
    """Counts in bins that are common to a panel; a last one of nothing brings the line back to 0."""
    found = []
    for panel in sorted({datum["panel"] for datum in data}):
        mine = [datum for datum in data if datum["panel"] == panel]
        alphas = [{"method": datum["label"], "alpha": value} for datum in mine for value in datum["values"]]
        bins = alpha_bins(alphas) if alphas else []
        ends = [{**each, "left": each["right"], "count": 0} for each in bins if each["right"] == bins[-1]["right"]]
        found += [{"panel": panel, **each} for each in [*bins, *ends]]
    return found
