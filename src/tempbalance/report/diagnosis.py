"""Charts and page of a diagnosis: alpha by depth, the spectrum of a chosen layer, and a table of all layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from tempbalance.ranking.table import DiagnosisRow
from tempbalance.report.chart import DATA, FAINT, INK, Datum, chooser, finish, names_param
from tempbalance.report.page import Column, facts, render
from tempbalance.report.spectrum import is_drawn, spectrum_chart, spectrum_datum
from tempbalance.report.text import VERDICT_LOOKS, finite, number, short, shown

Numbers = dict[tuple[int, str], int]  # of a spectrum in the chart, by the row's place and the part
_SHAPES = {"▼": "triangle-down", "●": "circle", "▲": "triangle-up", "✚": "cross", "■": "square"}
_AXES = {
    "alpha_over_random": "alpha / alpha of a random matrix",
    "alpha": "alpha (exponent of the tail, no unit)",
}
_COLUMNS = (
    Column("#", "Place in the model"),
    Column("layer", "Its name; click a name to see its spectrum", is_number=False),
    Column("verdict", "How the layer stands, or why it is skipped", is_number=False),
    Column("alpha", "Exponent of the tail of its spectrum", "alpha"),
    Column("±", "Standard error of alpha, as if eigenvalues were independent", "alpha_stderr", digits=2),
    Column("/ random", "Alpha over that of a random matrix of the same shape", "alpha_over_random", digits=3),
    Column("shape", "Of the weight", is_number=False),
    Column("beyond", "Eigenvalues beyond the edge of a random matrix", "num_beyond", is_more=True),
    Column("shuffled", "The same with the weight's entries shuffled", "num_beyond_shuffled", is_more=True),
    Column("excess", "Share of the squared norm beyond that edge", "excess", is_more=True),
    Column("values", "Number of eigenvalues", "num_eigenvalues", is_more=True),
    Column("tail", "Number of eigenvalues in the fitted tail", "num_tail", is_more=True),
    Column("xmin", "Threshold of the tail", "xmin", is_more=True),
    Column("KS", "Kolmogorov-Smirnov distance between tail and fit", "ks", is_more=True),
    Column("largest", "Largest eigenvalue", "spectral_norm", is_more=True),
    Column("stable rank", "Sum of the eigenvalues over the largest", "stable_rank", is_more=True),
    Column("log norm", "log10 of the sum of the eigenvalues", "log_norm", is_more=True),
    Column("weighted", "alpha x log10 of the largest eigenvalue", "alpha_weighted", is_more=True),
    Column("log alpha norm", "log10 of the sum of the eigenvalues to the power alpha", "log_alpha_norm", is_more=True),
    Column("entropy", "Of the eigenvalues as shares of their sum, 0 to 1", "entropy", is_more=True),
)

_FIELDS = {
    kind: [(column.field, column.digits) for column in _COLUMNS if column.field and column.is_more == is_more]
    for kind, is_more in (("cells", False), ("more", True))
}


def diagnosis_charts(rows: Sequence[DiagnosisRow], *, model: str, tail: str) -> dict[str, alt.TopLevelMixin]:
    """Return ``alpha_over_random`` and ``alpha`` by depth, and ``spectrum``, each where a layer has one."""
    numbers = spectrum_numbers(rows)
    charts: dict[str, alt.TopLevelMixin] = {}
    for name in _AXES:
        if points := depth_points(rows, name, numbers):
            charts[name] = _depth_chart(points, name, model=model, tail=tail)
    if numbers:
        charts["spectrum"] = _spectrum_chart(rows, numbers)
    return charts


def spectrum_numbers(rows: Sequence[DiagnosisRow]) -> Numbers:
    """Number the spectra that can be drawn; a part that is all of the layer is called ""."""
    names = [(place, name) for place, row in enumerate(rows) for name, each in row.spectra.items() if is_drawn(each)]
    return {each: place for place, each in enumerate(names)}


def depth_points(rows: Sequence[DiagnosisRow], name: str, numbers: Numbers) -> list[Datum]:
    """Return a datum for each layer that has the value, with the number of its, or its first part's, spectrum."""
    points = []
    for place, row in enumerate(rows):
        value, alpha = finite(getattr(row, name)), finite(row.alpha)
        if value is None or alpha is None:
            continue
        error = (finite(row.alpha_stderr) or 0.0) * value / alpha
        ends = {"low": finite(value - error), "high": finite(value + error)}
        words = {"layer": short(row.name), "verdict": shown(row.verdict) or "no verdict"}
        spectrum = _first_number(place, row, numbers)
        points.append({"depth": place + 1, "value": value, **ends, **words, "spectrum": spectrum})
    return points


def _first_number(place: int, row: DiagnosisRow, numbers: Numbers) -> int:
    """Return the number of a layer's, or its first part's, spectrum; -1 if there is none."""
    return next((numbers[place, name] for name in row.spectra if (place, name) in numbers), -1)


def _depth_chart(points: list[Datum], name: str, *, model: str, tail: str) -> alt.TopLevelMixin:
    present = {point["verdict"] for point in points}
    verdicts = [each for each in VERDICT_LOOKS if each in present] + sorted(present - set(VERDICT_LOOKS))
    colours, signs = zip(*map(_look_of, verdicts), strict=True)
    scales = {
        "color": alt.Scale(domain=verdicts, range=list(colours)),
        "shape": alt.Scale(domain=verdicts, range=[_SHAPES[sign] for sign in signs]),
    }
    scale = alt.Scale(zero=False, nice=False, padding=8)
    depth = alt.X("depth:Q", title="layer, by depth", scale=scale, axis=alt.Axis(tickMinStep=1))
    base = alt.Chart(DATA).encode(x=depth)
    marks = base.mark_point(filled=True, size=70, opacity=1, cursor="pointer").encode(
        y=alt.Y("value:Q", title=_AXES[name], scale=alt.Scale(zero=False)),
        color=alt.Color("verdict:N", scale=scales["color"]),
        shape=alt.Shape("verdict:N", scale=scales["shape"]),
        tooltip=[
            alt.Tooltip("layer:N", title="layer"),
            alt.Tooltip("value:Q", title=name.replace("_", " "), format=".3f"),
            alt.Tooltip("verdict:N", title="verdict"),
        ],
    )
    layers = [base.mark_rule(color=FAINT, aria=False).encode(y=alt.Y("low:Q"), y2="high:Q"), marks]
    # a random matrix, or with goodness_of_fit the levels of heavy-tailed self-regularisation
    bounds = [1] if name == "alpha_over_random" else [2, 6] if tail == "goodness_of_fit" else []
    if bounds:
        lines = alt.Chart(alt.InlineData(values=[{"bound": bound} for bound in bounds]))
        layers.insert(0, lines.mark_rule(color=INK, strokeDash=[5, 4], aria=False).encode(y="bound:Q"))
    lowest, highest = (pick(points, key=lambda point: float(point["value"])) for pick in (min, max))
    title = "Alpha over that of a random matrix" if name == "alpha_over_random" else "Alpha"
    return finish(
        alt.layer(*layers).properties(width="container"),
        points,
        title=f"{title} by depth, {short(model, 40)}",
        description=f"{title} of {len(points)} layers by depth, tail {shown(tail)}. Lowest {lowest['value']:.3f} in "
        f"{lowest['layer']}, highest {highest['value']:.3f} in {highest['layer']}.",
    )


def _look_of(verdict: str) -> tuple[str, str]:
    return VERDICT_LOOKS.get(verdict, VERDICT_LOOKS["cannot tell"])


def _spectrum_chart(rows: Sequence[DiagnosisRow], numbers: Numbers) -> alt.TopLevelMixin:
    names, data = [], []
    parts = {(place, part.name): part for place, row in enumerate(rows) for part in row.parts}
    for (place, part), spectrum in numbers.items():
        row = rows[place]
        fit = parts.get((place, part), row)
        names.append(f"{row.name}, part {part}" if part else row.name)
        values = row.spectra[part]
        datum = spectrum_datum(values, alpha=fit.alpha, xmin=fit.xmin, num_tail=fit.num_tail, edge=row.mp_edge)
        data.append({**(datum or {}), "spectrum": spectrum})
    return spectrum_chart(
        data,
        chosen="datum.spectrum == spectrum",
        title="'Spectrum of ' + spectrum_names[spectrum]",
        description=f"Histogram of the eigenvalues of one of {len(rows)} layers on log axes, with the threshold xmin "
        "and the fitted power law. Choose the layer in the list before the chart.",
        params=[names_param("spectrum_names", names), chooser("spectrum", "Layer ", names)],
    )


def diagnosis_page(rows: Sequence[DiagnosisRow], *, model: str, tail: str, summary: Mapping[str, Any]) -> str:
    """Return one HTML document about a model's layers, which opens offline.

    ``summary`` has values to show at the top, by name; its ``advice`` stands first.
    """
    numbers = spectrum_numbers(rows)
    lines = [_layer_lines(place, row, numbers) for place, row in enumerate(rows)]
    num_judged = sum(bool(row.verdict) for row in rows)
    return render(
        "diagnosis.html",
        title=f"Diagnosis of {model}",
        charts=diagnosis_charts(rows, model=model, tail=tail),
        model=model,
        tail=tail,
        advice=summary.get("advice"),
        facts=facts({"layers": num_judged, "skipped": len(rows) - num_judged, "tail": tail, **_means(summary)}),
        evidence=[(spectrum, lines[place][0]) for (place, _), spectrum in numbers.items()],
        has_parts=any(row.parts for row in rows),
        columns=_COLUMNS,
        lines=lines,
    )


def _means(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a summary; of the means over the layers, those worth a place at the top."""
    others = {name: value for name, value in summary.items() if name not in ("num_layers", "advice", "verdicts")}
    facts = {name: value for name, value in others.items() if not isinstance(value, float) and value is not None}
    means = {f"mean {name}": others.get(name) for name in ("alpha", "alpha_over_random")}
    return {**summary.get("verdicts", {}), **facts, **{name: each for name, each in means.items() if each is not None}}


def _layer_lines(place: int, row: DiagnosisRow, numbers: Numbers) -> list[dict[str, Any]]:
    """Return a layer and its parts as the template takes them; a click on a name shows its spectrum."""
    colour, sign = _look_of(row.verdict) if row.verdict else ("", "")
    layer = {
        "depth": place + 1,
        "name": row.name,
        "spectrum": _first_number(place, row, numbers),
        "sign": sign,
        "colour": colour,
        "verdict": row.verdict or (f"skipped: {row.reason}" if row.reason else ""),
        "evidence": row.evidence,
        "shape": " x ".join(map(str, row.shape)),
        **_cells(vars(row)),
    }
    others = {"depth": "", "sign": "", "shape": ""}
    return [layer] + [
        {"name": part.name, "spectrum": numbers.get((place, part.name), -1), "verdict": part.reason, **others}
        | _cells({**vars(part), "alpha_over_random": part.score})
        for part in row.parts
    ]


def _cells(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the numbers of the columns that are always shown, and of those on demand."""
    return {kind: [number(values.get(field), digits) for field, digits in fields] for kind, fields in _FIELDS.items()}
