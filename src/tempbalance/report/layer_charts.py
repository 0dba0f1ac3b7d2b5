"""Charts of a diagnosis: alpha by depth, and the spectrum of a chosen layer or part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from tempbalance.ranking.table import DiagnosisRow, PartRow
from tempbalance.report.histogram import drawn, spectrum_datum
from tempbalance.report.look import DATA, FAINT, chooser, finish, names_param
from tempbalance.report.spectrum_chart import spectrum_chart
from tempbalance.report.text import finite, short, shown

# a colour and a shape for each verdict; the ones beside the other layers look like those on their own
_OVER, _WELL, _UNDER, _RANDOM = (
    ("#d0505a", "triangle-down"),
    ("#2f9178", "circle"),
    ("#a9761c", "triangle-up"),
    ("#8a63c4", "cross"),
)
_UNKNOWN = ("#6f7a86", "square")
_SIGNS = {"triangle-down": "▼", "circle": "●", "triangle-up": "▲", "cross": "✚", "square": "■"}
VERDICTS = {
    "over-trained": _OVER,
    "over-trained beside the others": _OVER,
    "well-trained": _WELL,
    "balanced": _WELL,
    "under-trained": _UNDER,
    "under-trained beside the others": _UNDER,
    "random-like": _RANDOM,
}
NO_VERDICT = "no verdict"


def diagnosis_charts(rows: Sequence[DiagnosisRow], *, model: str, tail: str) -> dict[str, alt.TopLevelMixin]:
    """The charts of a diagnosis by name.

    Args:
        rows: One a layer, in the model's order.
        model: What the model is called.
        tail: How the tails were fitted.

    Returns:
        ``alpha`` by depth, where a layer has one, and ``spectrum``, where a layer has one.
    """
    charts: dict[str, alt.TopLevelMixin] = {}
    if points := alpha_points(rows):
        charts["alpha"] = _alpha_chart(points, model=model, tail=tail)
    if numbers := spectrum_numbers(rows):
        charts["spectrum"] = _spectrum_chart(rows, numbers)
    return charts


def look_of(verdict: str) -> tuple[str, str]:
    """Colour of a verdict, and its shape as a character."""
    colour, shape = VERDICTS.get(verdict, _UNKNOWN)
    return colour, _SIGNS[shape]


def marked_alphas(tail: str) -> tuple[int, ...]:
    """Where alpha is marked: 2, the paper's optimum, and with ``goodness_of_fit`` 6, above which is under-trained."""
    return (2, 6) if tail == "goodness_of_fit" else (2,)


def spectrum_numbers(rows: Sequence[DiagnosisRow]) -> dict[tuple[int, str], int]:
    """Each row's place and part with a spectrum to draw, and its number in the chart.

    The part is called "" where it is all of the layer.
    """
    names = [(place, name) for place, row in enumerate(rows) for name in row.spectra if len(drawn(row.spectra[name]))]
    return {each: number for number, each in enumerate(names)}


def alpha_points(rows: Sequence[DiagnosisRow]) -> list[dict[str, Any]]:
    """A datum for each layer that has an alpha, with the number of its, or its first part's, spectrum."""
    numbers: dict[int, int] = {}
    for (place, _), number in spectrum_numbers(rows).items():
        numbers.setdefault(place, number)
    points = []
    for place, row in enumerate(rows):
        if (alpha := finite(row.alpha)) is not None:
            error = finite(row.alpha_stderr) or 0.0
            point = {"depth": place + 1, "alpha": alpha, "low": finite(alpha - error), "high": finite(alpha + error)}
            verdict = shown(row.verdict) or NO_VERDICT
            points.append({**point, "layer": short(row.name), "verdict": verdict, "spectrum": numbers.get(place, -1)})
    return points


def _alpha_chart(points: list[dict[str, Any]], *, model: str, tail: str) -> alt.TopLevelMixin:
    scale = alt.Scale(zero=False, nice=False, padding=8)
    base = alt.Chart(DATA).encode(
        x=alt.X("depth:Q", title="layer, by depth", scale=scale, axis=alt.Axis(tickMinStep=1))
    )
    bounds = [{"bound": bound} for bound in marked_alphas(tail)]
    rules = alt.Chart(alt.InlineData(values=bounds)).mark_rule(color=FAINT, strokeDash=[5, 4], aria=False)
    errors = base.mark_rule(color=FAINT, aria=False).encode(y=alt.Y("low:Q"), y2="high:Q")
    lowest, highest = (pick(points, key=lambda point: float(point["alpha"])) for pick in (min, max))
    return finish(
        alt.layer(rules.encode(y="bound:Q"), errors, _marks(base, points)).properties(width="container"),
        points,
        title=f"Alpha by depth, {short(model, 40)}",
        description=f"Alpha of {len(points)} layers by depth, tail {shown(tail)}. Lowest {lowest['alpha']:.3f} in "
        f"{lowest['layer']}, highest {highest['alpha']:.3f} in {highest['layer']}.",
    )


def _marks(base: alt.Chart, points: list[dict[str, Any]]) -> alt.Chart:
    """A point for each layer, its verdict as colour and as shape."""
    present = {point["verdict"] for point in points}
    verdicts = [each for each in VERDICTS if each in present] + sorted(present - set(VERDICTS))
    colours, shapes = zip(*(VERDICTS.get(each, _UNKNOWN) for each in verdicts), strict=True)
    legend = alt.Legend(columns=2)
    marks: alt.Chart = base.mark_point(filled=True, size=70, opacity=1, cursor="pointer").encode(
        y=alt.Y("alpha:Q", title="alpha (exponent of the tail, no unit)", scale=alt.Scale(zero=False)),
        color=alt.Color("verdict:N", scale=alt.Scale(domain=verdicts, range=list(colours)), legend=legend),
        shape=alt.Shape("verdict:N", scale=alt.Scale(domain=verdicts, range=list(shapes)), legend=legend),
        tooltip=[
            alt.Tooltip("layer:N", title="layer"),
            alt.Tooltip("alpha:Q", title="alpha", format=".3f"),
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
