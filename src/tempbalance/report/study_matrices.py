"""Charts of how the eigenvalues of a network's matrices decay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import altair as alt

from tempbalance.report.look import BLUE, DATA, FAINT, INK, by_method, names_param
from tempbalance.report.study_data import check, numbered, zoomed
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
from tempbalance.report.text import finite, shown


@dataclass(frozen=True)
class ExponentPair:
    """How fast the eigenvalues of two matrices decay after an epoch of a seed."""

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


def pair_chart(
    pairs: Sequence[ExponentPair], *, title: str, subtitle: str, x_title: str, y_title: str
) -> alt.TopLevelMixin:
    """One exponent against another in panels: means over seeds in the order of epochs, each with its number.

    Args:
        pairs: In the order in which the panels stand.
        title: What is compared.
        subtitle: Preset and data.
        x_title: What goes to the right.
        y_title: What goes up.

    Raises:
        ValueError: If there are no pairs, or two of one panel, epoch and seed.
    """
    check(pairs, "pair", lambda each: (each.panel, each.epoch, each.seed))
    panels = numbered(each.panel for each in pairs)
    data = [*_seed_data(pairs), *_mean_data(pairs)]
    columns = num_columns(len(panels))
    width = panel_width(columns)
    charts = []
    for name, number in panels.items():
        mine = [datum for datum in data if datum["panel"] == number]
        x_domain = zoomed(datum["x"] for datum in mine)
        scale = alt.Scale(domain=list(x_domain or (0, 1)), nice=False, zero=False)
        x = alt.X("x:Q", title=shown(x_title), scale=scale, axis=alt.Axis(tickCount=5))
        y = measure_axis("y:Q", y_title if number % columns == 0 else None, zoomed(datum["y"] for datum in mine))
        chart = alt.layer(*_pair_layers(of_panel(alt.Chart(DATA), number).encode(x=x, y=y)))
        charts.append(chart.properties(width=width, height=1.5 * HEIGHT, title=panel_title(name, width)))
    num_seeds = len({each.seed for each in pairs})
    seeds = f"Large points: means over {num_seeds} seeds; small ones: each seed." if num_seeds > 1 else "One seed."
    return finish_study(
        grid(charts, columns=columns),
        data,
        title=title,
        subtitle=subtitle,
        note=f"Numbers are epochs. {seeds} Axes do not begin at 0.",
        description=f"{y_title} over {x_title} after some epochs in {len(panels)} panels, in order of epochs. {seeds} "
        "The axes are zoomed and do not begin at 0.",
    )


def _seed_data(pairs: Sequence[ExponentPair]) -> list[Datum]:
    panels = numbered(each.panel for each in pairs)
    return [
        {"panel": panels[each.panel], "epoch": each.epoch, "mean": False, "x": finite(each.x), "y": finite(each.y)}
        for each in pairs
    ]


def _mean_data(pairs: Sequence[ExponentPair]) -> list[Datum]:
    panels = numbered(each.panel for each in pairs)
    data: list[Datum] = []
    for panel, epoch in dict.fromkeys((each.panel, each.epoch) for each in pairs):
        mine = [each for each in pairs if (each.panel, each.epoch) == (panel, epoch)]
        x, y = fmean(each.x for each in mine), fmean(each.y for each in mine)
        data.append({"panel": panels[panel], "epoch": epoch, "mean": True, "x": finite(x), "y": finite(y)})
    return data


def _pair_layers(base: alt.Chart) -> Iterator[alt.Chart]:
    yield base.transform_filter("!datum.mean").mark_point(size=14, filled=True, color=FAINT, opacity=0.8)
    means = base.transform_filter("datum.mean")
    yield means.mark_line(color=BLUE, strokeWidth=1, opacity=0.6, aria=False).encode(order="epoch:Q")
    told = [alt.Tooltip("epoch:Q"), alt.Tooltip("x:Q", format=".3f"), alt.Tooltip("y:Q", format=".3f")]
    yield means.mark_point(size=55, filled=True, color=BLUE, opacity=1).encode(tooltip=told)
    yield means.mark_text(align="left", dx=7, dy=-7, fontSize=12, color=INK).encode(text="epoch:Q")


def decay_chart(spectra: Sequence[MatrixSpectrum], *, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Eigenvalues by rank on log axes, a line for each epoch, a small chart for each matrix.

    Args:
        spectra: In the order in which the rows, one for each panel, and the matrices in them stand.
        title: What is shown.
        subtitle: Preset and data.

    Raises:
        ValueError: If there are no spectra, two of one panel, matrix and epoch, or no eigenvalue is above 0.
    """
    check(spectra, "spectrum", lambda each: (each.panel, each.matrix, each.epoch))
    places = {
        place: number for number, place in enumerate(dict.fromkeys((each.panel, each.matrix) for each in spectra))
    }
    epochs = numbered(f"epoch {each.epoch}" for each in spectra)
    data: list[Datum] = [
        {
            "panel": places[each.panel, each.matrix],
            "method": epochs[f"epoch {each.epoch}"],
            "rank": rank,
            "value": value,
        }
        for each in spectra
        for rank, raw in enumerate(each.eigenvalues, 1)
        if (value := finite(raw)) is not None and value > 0
    ]
    if not data:
        raise ValueError(f"the chart needs an eigenvalue above 0, got none in {len(spectra)} spectra")
    columns = min(4, len({each.matrix for each in spectra}))
    width = panel_width(columns)
    charts = []
    for (row, matrix), number in places.items():
        mine = [datum for datum in data if datum["panel"] == number] or data
        values = [datum["value"] for datum in mine]
        x = alt.X("rank:Q", title="rank (log)", **log_axis((0.9, 1.1 * max(datum["rank"] for datum in mine))))
        y_title = shown(f"{row}: eigenvalue (log)") if number % columns == 0 else None
        y = alt.Y("value:Q", title=y_title, **log_axis((min(values) / 1.5, max(values) * 1.5)))
        lines = of_panel(alt.Chart(DATA), number).mark_line(strokeWidth=1.6)
        chart = lines.encode(x=x, y=y, **by_method(len(epochs)))
        charts.append(chart.properties(width=width, height=HEIGHT, title=panel_title(matrix, width)))
    return finish_study(
        grid(charts, columns=columns).add_params(names_param("method_names", list(epochs))),
        data,
        title=title,
        subtitle=subtitle,
        note="",
        description=f"Eigenvalues by rank on log axes for {len(places)} matrices, a line for each of {len(epochs)} "
        "epochs.",
    )
