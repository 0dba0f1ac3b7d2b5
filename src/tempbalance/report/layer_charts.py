"""Charts of a diagnosis: alpha over random and alpha by depth, and the spectrum of a chosen layer or part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from tempbalance.ranking.table import DiagnosisRow, PartRow
from tempbalance.report.histogram import drawn, spectrum_datum
from tempbalance.report.look import DATA, FAINT, INK, chooser, finish, names_param
from tempbalance.report.spectrum_chart import spectrum_chart
from tempbalance.report.text import VERDICT_LOOKS, finite, short, shown

_SHAPES = {"▼": "triangle-down", "●": "circle", "▲": "triangle-up", "✚": "cross", "■": "square"}
NO_VERDICT = "no verdict"
_AXES = {
    "alpha_over_random": "alpha / alpha of a random matrix",
    "alpha": "alpha (exponent of the tail, no unit)",
}


def diagnosis_charts(rows: Sequence[DiagnosisRow], *, model: str, tail: str) -> dict[str, alt.TopLevelMixin]:
    """Return the charts of a diagnosis by name.

    Args:
        rows: One for each layer, in the model's order.
        model: Name of the model.
        tail: How the tails were fitted.

    Returns:
        ``alpha_over_random`` and ``alpha`` by depth, and ``spectrum``, each where a layer has one.
    """
    charts: dict[str, alt.TopLevelMixin] = {}
    for name in _AXES:
        if points := depth_points(rows, name):
            charts[name] = _depth_chart(points, name, model=model, tail=tail)
    if numbers := spectrum_numbers(rows):
        charts["spectrum"] = _spectrum_chart(rows, numbers)
    return charts


def look_of(verdict: str) -> tuple[str, str]:
    """Return the colour and the sign of a verdict."""
    return VERDICT_LOOKS.get(verdict, VERDICT_LOOKS["cannot tell"])


def marked_values(name: str, tail: str) -> tuple[int, ...]:
    """Return where a chart has lines: at a random matrix, or with ``goodness_of_fit`` at the levels of the theory."""
    if name == "alpha_over_random":
        return (1,)
    return (2, 6) if tail == "goodness_of_fit" else ()


def spectrum_numbers(rows: Sequence[DiagnosisRow]) -> dict[tuple[int, str], int]:
    """Return the number in the chart of each spectrum, by the row's place and the part.

    The part is called "" where it is all of the layer.
    """
    names = [(place, name) for place, row in enumerate(rows) for name in row.spectra if len(drawn(row.spectra[name]))]
    return {each: number for number, each in enumerate(names)}


def depth_points(rows: Sequence[DiagnosisRow], name: str) -> list[dict[str, Any]]:
    """Return a datum for each layer that has the value, with the number of its, or its first part's, spectrum."""
    numbers: dict[int, int] = {}
    for (place, _), number in spectrum_numbers(rows).items():
        numbers.setdefault(place, number)
    points = []
    for place, row in enumerate(rows):
        value, alpha = finite(getattr(row, name)), finite(row.alpha)
        if value is None or alpha is None:
            continue
        error = (finite(row.alpha_stderr) or 0.0) * value / alpha
        point = {"depth": place + 1, "value": value, "low": finite(value - error), "high": finite(value + error)}
        verdict = shown(row.verdict) or NO_VERDICT
        points.append({**point, "layer": short(row.name), "verdict": verdict, "spectrum": numbers.get(place, -1)})
    return points


def _depth_chart(points: list[dict[str, Any]], name: str, *, model: str, tail: str) -> alt.TopLevelMixin:
    scale = alt.Scale(zero=False, nice=False, padding=8)
    base = alt.Chart(DATA).encode(
        x=alt.X("depth:Q", title="layer, by depth", scale=scale, axis=alt.Axis(tickMinStep=1))
    )
    bounds = [{"bound": bound} for bound in marked_values(name, tail)]
    rules = alt.Chart(alt.InlineData(values=bounds)).mark_rule(color=INK, strokeDash=[5, 4], aria=False)
    errors = base.mark_rule(color=FAINT, aria=False).encode(y=alt.Y("low:Q"), y2="high:Q")
    lowest, highest = (pick(points, key=lambda point: float(point["value"])) for pick in (min, max))
    title = "Alpha over that of a random matrix" if name == "alpha_over_random" else "Alpha"
    layers = [*([rules.encode(y="bound:Q")] if bounds else []), errors, _marks(base, points, name)]
    return finish(
        alt.layer(*layers).properties(width="container"),
        points,
        title=f"{title} by depth, {short(model, 40)}",
        description=f"{title} of {len(points)} layers by depth, tail {shown(tail)}. Lowest {lowest['value']:.3f} in "
        f"{lowest['layer']}, highest {highest['value']:.3f} in {highest['layer']}.",
    )


def _marks(base: alt.Chart, points: list[dict[str, Any]], name: str) -> alt.Chart:
    """Draw a point for each layer, its verdict as colour and as shape."""
    present = {point["verdict"] for point in points}
    verdicts = [each for each in VERDICT_LOOKS if each in present] + sorted(present - set(VERDICT_LOOKS))
    colours, signs = zip(*map(look_of, verdicts), strict=True)
    shapes = [_SHAPES[sign] for sign in signs]
    marks: alt.Chart = base.mark_point(filled=True, size=70, opacity=1, cursor="pointer").encode(
        y=alt.Y("value:Q", title=_AXES[name], scale=alt.Scale(zero=False)),
        color=alt.Color("verdict:N", scale=alt.Scale(domain=verdicts, range=list(colours))),
        shape=alt.Shape("verdict:N", scale=alt.Scale(domain=verdicts, range=shapes)),
        tooltip=[
            alt.Tooltip("layer:N", title="layer"),
            alt.Tooltip("value:Q", title=name.replace("_", " "), format=".3f"),
            alt.Tooltip("verdict:N", title="verdict"),
        ],
    )
    return marks


def _spectrum_chart(rows: Sequence[DiagnosisRow], numbers: dict[tuple[int, str], int]) -> alt.TopLevelMixin:
    names = [f"{rows[place].name}, part {part}" if part else rows[place].name for place, part in numbers]
    return spectrum_chart(
        [{**_datum(rows[place], part), "spectrum": number} for (place, part), number in numbers.items()],
        chosen="datum.spectrum == spectrum",
        title="'Spectrum of ' + spectrum_names[spectrum]",
        description=f"Histogram of the eigenvalues of one of {len(rows)} layers on log axes, with the threshold xmin "
        "and the fitted power law. Choose the layer in the list before the chart.",
        params=[names_param("spectrum_names", names), chooser("spectrum", "Layer ", names)],
    )


def _datum(row: DiagnosisRow, part: str) -> dict[str, Any]:
    fit: DiagnosisRow | PartRow = next((each for each in row.parts if each.name == part), row)
    values = row.spectra[part]
    datum = spectrum_datum(values, alpha=fit.alpha, xmin=fit.xmin, num_tail=fit.num_tail, edge=row.mp_edge)
    assert datum is not None
    return datum
