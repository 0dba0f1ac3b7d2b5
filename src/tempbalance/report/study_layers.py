"""Alpha and learning rate of layers over the epochs."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from tempbalance.report.look import DATA, by_method, names_param
from tempbalance.report.run_charts import epoch_axis, heat_map
from tempbalance.report.run_data import MOST_CELLS, MOST_EPOCHS
from tempbalance.report.study_data import LayerTrack, check, evenly
from tempbalance.report.study_look import HEIGHT, Datum, finish_study, grid, of_panel, panel_title, panel_width
from tempbalance.report.text import finite, short

_QUANTITIES = {"rate": "learning rate", "alpha": "alpha"}


def layer_maps(tracks: Sequence[LayerTrack], *, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Heat maps of layers by epochs: for each track one of the rate and, beside it, one of alpha.

    Args:
        tracks: From top to bottom.
        title: What is shown.
        subtitle: Preset and data.

    Raises:
        ValueError: If there are no tracks, two of one name, or a track has no values.
    """
    data, names = _track_data(tracks)
    charts = []
    for number, track in enumerate(tracks):
        for quantity, words in _QUANTITIES.items():
            values = [datum[quantity] for datum in data if datum[quantity] is not None]  # of all tracks: one scale
            domain = [min(values), max(values)] if values else None
            cells = of_panel(heat_map(quantity, quantity, len(track.layers), domain), number)
            cells = cells.transform_filter(f"isValid(datum.{quantity})")
            charts.append(cells.properties(width=290, title=panel_title(f"{track.panel}: {words}", 290)))
    return finish_study(
        grid(charts, columns=2).resolve_scale(color="independent").add_params(names_param("layer_names", names)),
        data,
        title=title,
        subtitle=subtitle,
        note="",
        description=f"Heat maps of learning rate and alpha by layer and epoch for each of {len(tracks)} networks.",
    )


def _track_data(tracks: Sequence[LayerTrack]) -> tuple[list[Datum], list[str]]:
    """Alpha and rate of each layer and epoch, of many epochs an even choice, and the name that each layer's number has.

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
    """Rate and alpha of two layers over the epochs, a line for each track.

    Args:
        tracks: In the order in which they stand in the legend.
        layers: Names of the two.
        title: What is shown.
        subtitle: Preset and data.

    Raises:
        ValueError: If there are no tracks, two of one name, or none has a layer of that name.
    """
    data, names = _track_data(tracks)
    for name in layers:
        if name not in names:
            raise ValueError(f"layers must be of those of the tracks, got {short(name)!r}")
    data = [
        {**each, "method": each["panel"], "row": row}
        for row, name in enumerate(layers)
        for each in data
        if names[each["layer"]] == name
    ]
    charts = [
        _layer_lines(row, name, quantity, len(tracks)) for row, name in enumerate(layers) for quantity in _QUANTITIES
    ]
    return finish_study(
        grid(charts, columns=2).add_params(names_param("method_names", [track.panel for track in tracks])),
        data,
        title=title,
        subtitle=subtitle,
        note="",
        description=f"Learning rate and alpha of the layers {' and '.join(map(short, layers))} over the epochs, a line "
        f"for each of {len(tracks)} tracks.",
    )


def _layer_lines(row: int, name: str, quantity: str, num_tracks: int) -> alt.Chart:
    width = panel_width(2)
    there = alt.Chart(DATA).transform_filter(f"datum.row == {row} && isValid(datum.{quantity})")
    y = alt.Y(f"{quantity}:Q", title=_QUANTITIES[quantity], scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5))
    lines: alt.Chart = (
        there.mark_line(strokeWidth=2)
        .encode(x=epoch_axis(), y=y, **by_method(num_tracks))
        .properties(width=width, height=HEIGHT, title=panel_title(name, width))
    )
    return lines
