"""Charts and page of a diagnosis: alpha by depth, the spectrum of a chosen layer, and a table of all layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from tempbalance.ranking.table import DiagnosisRow, PartRow
from tempbalance.report.chart import DATA, FAINT, INK, chooser, finish, names_param
from tempbalance.report.page import Column, facts, render
from tempbalance.report.spectrum import is_drawn, spectrum_chart, spectrum_datum
from tempbalance.report.text import VERDICT_LOOKS, finite, number, short, shown

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
    names = [(place, name) for place, row in enumerate(rows) for name, each in row.spectra.items() if is_drawn(each)]
    return {each: place for place, each in enumerate(names)}


def depth_points(rows: Sequence[DiagnosisRow], name: str) -> list[dict[str, Any]]:
    """Return a datum for each layer that has the value, with the number of its, or its first part's, spectrum."""
    numbers: dict[int, int] = {}
    for (place, _), spectrum in spectrum_numbers(rows).items():
        numbers.setdefault(place, spectrum)
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
    fits: dict[tuple[int, str], DiagnosisRow | PartRow] = {
        (place, part.name): part for place, row in enumerate(rows) for part in row.parts
    }
    data = []
    for (place, part), spectrum in numbers.items():
        row = rows[place]
        fit = fits.get((place, part), row)
        values = row.spectra[part]
        datum = spectrum_datum(values, alpha=fit.alpha, xmin=fit.xmin, num_tail=fit.num_tail, edge=row.mp_edge)
        assert datum is not None
        data.append({**datum, "spectrum": spectrum})
    return spectrum_chart(
        data,
        chosen="datum.spectrum == spectrum",
        title="'Spectrum of ' + spectrum_names[spectrum]",
        description=f"Histogram of the eigenvalues of one of {len(rows)} layers on log axes, with the threshold xmin "
        "and the fitted power law. Choose the layer in the list before the chart.",
        params=[names_param("spectrum_names", names), chooser("spectrum", "Layer ", names)],
    )


_COLUMNS = (
    Column("#", "Place in the model"),
    Column("layer", "Its name; click a name to see its spectrum", is_number=False),
    Column("verdict", "How the layer stands, or why it is skipped", is_number=False),
    Column("alpha", "Exponent of the tail of its spectrum"),
    Column("±", "Standard error of alpha, as if eigenvalues were independent"),
    Column("/ random", "Alpha over that of a random matrix of the same shape"),
    Column("shape", "Of the weight", is_number=False),
    Column("beyond", "Eigenvalues beyond the edge of a random matrix", is_more=True),
    Column("shuffled", "The same with the weight's entries shuffled", is_more=True),
    Column("excess", "Share of the squared norm beyond that edge", is_more=True),
    Column("values", "Number of eigenvalues", is_more=True),
    Column("tail", "Number of eigenvalues in the fitted tail", is_more=True),
    Column("xmin", "Threshold of the tail", is_more=True),
    Column("KS", "Kolmogorov-Smirnov distance between tail and fit", is_more=True),
    Column("largest", "Largest eigenvalue", is_more=True),
    Column("stable rank", "Sum of the eigenvalues over the largest", is_more=True),
    Column("log norm", "log10 of the sum of the eigenvalues", is_more=True),
    Column("weighted", "alpha x log10 of the largest eigenvalue", is_more=True),
    Column("log alpha norm", "log10 of the sum of the eigenvalues to the power alpha", is_more=True),
    Column("entropy", "Of the eigenvalues as shares of their sum, 0 to 1", is_more=True),
)


def diagnosis_page(rows: Sequence[DiagnosisRow], *, model: str, tail: str, summary: Mapping[str, Any]) -> str:
    """Return one HTML document about a model's layers, which opens offline.

    Args:
        rows: One for each layer, in the model's order.
        model: Name of the model.
        tail: How the tails were fitted.
        summary: Values to show at the top, by name; ``advice`` stands first.
    """
    numbers = spectrum_numbers(rows)
    lines = [_layer_line(place, row, numbers) for place, row in enumerate(rows)]
    num_judged = sum(bool(row.verdict) for row in rows)
    return render(
        "diagnosis.html",
        title=f"Diagnosis of {model}",
        charts=diagnosis_charts(rows, model=model, tail=tail),
        model=model,
        tail=tail,
        advice=summary.get("advice"),
        facts=facts({"layers": num_judged, "skipped": len(rows) - num_judged, "tail": tail, **_means(summary)}),
        evidence=[(spectrum, lines[place]) for (place, _), spectrum in numbers.items()],
        has_parts=any(row.parts for row in rows),
        columns=_COLUMNS,
        lines=lines,
    )


def _means(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a summary; of the means over the layers, those worth a place at the top."""
    others = {name: value for name, value in summary.items() if name not in ("num_layers", "advice", "verdicts")}
    means = {name: value for name, value in others.items() if isinstance(value, float)}
    facts = {name: value for name, value in others.items() if name not in means and value is not None}
    return {**summary.get("verdicts", {}), **facts} | {
        f"mean {name}": means[name] for name in ("alpha", "alpha_over_random") if name in means
    }


def _layer_line(place: int, row: DiagnosisRow, numbers: Mapping[tuple[int, str], int]) -> dict[str, Any]:
    """Return a layer as the template takes it; a click on its name shows its, or its first part's, spectrum."""
    colour, sign = look_of(row.verdict) if row.verdict else ("", "")
    counts = (row.num_beyond, row.num_beyond_shuffled, row.excess, row.num_eigenvalues, row.num_tail, row.xmin, row.ks)
    more = (row.spectral_norm, row.stable_rank, row.log_norm, row.alpha_weighted, row.log_alpha_norm, row.entropy)
    parts = [_part_line(part, numbers.get((place, part.name))) for part in row.parts]
    return {
        "depth": place + 1,
        "name": row.name,
        "is_part": False,
        "spectrum": next((numbers[place, name] for name in row.spectra if (place, name) in numbers), None),
        "sign": sign,
        "colour": colour,
        "verdict": row.verdict or (f"skipped: {row.reason}" if row.reason else ""),
        "evidence": row.evidence,
        "cells": [number(row.alpha), number(row.alpha_stderr, 2), number(row.alpha_over_random, 3)],
        "shape": " x ".join(map(str, row.shape)),
        "more": list(map(number, (*counts, *more))),
        "parts": parts,
    }


def _part_line(part: PartRow, spectrum: int | None) -> dict[str, Any]:
    more = (None, None, None, part.num_eigenvalues, part.num_tail, part.xmin, part.ks, *[None] * 6)
    return {
        "depth": "",
        "name": part.name,
        "is_part": True,
        "spectrum": spectrum,
        "sign": "",
        "verdict": part.reason,
        "cells": [number(part.alpha), number(part.alpha_stderr, 2), number(part.score, 3)],
        "shape": "",
        "more": list(map(number, more)),
    }
