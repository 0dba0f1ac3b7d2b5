"""The page of a diagnosis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from tempbalance.ranking.table import DiagnosisRow, PartRow
from tempbalance.report.layer_charts import diagnosis_charts, look_of, spectrum_numbers
from tempbalance.report.page import Column, cell, document, facts, figure, section, table
from tempbalance.report.text import named, shown

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
    charts = diagnosis_charts(rows, model=model, tail=tail)
    advice = f'<p class="advice">{escape(shown(summary["advice"]))}</p>' if "advice" in summary else ""
    levels = " The lines at 2 and 6 are the levels of heavy-tailed self-regularisation."
    alpha = _ALPHA + (levels if tail == "goodness_of_fit" else "")
    num_judged = sum(bool(row.verdict) for row in rows)
    body = [
        f"<header><p>Diagnosis</p><h1>{named(model)}</h1></header>",
        advice,
        facts({"layers": num_judged, "skipped": len(rows) - num_judged, "tail": tail, **_means(summary)}),
        section("Beside random matrices", _figure_of("alpha_over_random", charts, _RATIO, "No layer has an alpha.")),
        section("Alpha by depth", _figure_of("alpha", charts, alpha, "No layer has an alpha.")),
        section(
            "One layer", _evidence(rows), _figure_of("spectrum", charts, _SPECTRUM, "There are no spectra to draw.")
        ),
        section("Layers", _switches(rows), table(_COLUMNS, _bodies(rows), caption="All layers")),
    ]
    return document(f"Diagnosis of {model}", body, charts)


_SHOWN_MEANS = ("alpha", "alpha_over_random")


def _means(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a summary; of the means over the layers, those worth a place at the top."""
    others = {name: value for name, value in summary.items() if name not in ("num_layers", "advice", "verdicts")}
    means = {name: value for name, value in others.items() if isinstance(value, float)}
    facts = {name: value for name, value in others.items() if name not in means and value is not None}
    return {**summary.get("verdicts", {}), **facts} | {
        f"mean {name}": value for name, value in means.items() if name in _SHOWN_MEANS
    }


_RATIO = (
    "1 is a random matrix of the layer's shape, whatever the shape; the lower, the more the layer has learned. Bars "
    "are standard errors. Click a point to see the layer's spectrum and how its verdict came about."
)
_ALPHA = (
    "The exponent of the tail. A small alpha is a heavy tail: strong correlations. It depends on the shape of the "
    "weight: compare layers of different shapes in the chart above."
)
_SPECTRUM = (
    "The eigenvalues as a density, on log axes. The stronger bars are the tail, which begins at xmin; the "
    "dashed line is the fitted density p(x) ~ x^-alpha. The random edge is where the eigenvalues of a random matrix "
    "with entries of this variance would end."
)


def _evidence(rows: Sequence[DiagnosisRow]) -> str:
    """How each verdict came about; the page shows that of the chosen layer."""
    paragraphs = [
        f'<p data-evidence="{number}"{" hidden" if number else ""}>{_verdict(rows[place])}. '
        f"{escape(shown(rows[place].evidence))}</p>"
        for (place, _), number in spectrum_numbers(rows).items()
    ]
    return f'<div class="evidence" aria-live="polite">{"".join(paragraphs)}</div>' if paragraphs else ""


def _figure_of(name: str, charts: Mapping[str, Any], caption: str, otherwise: str) -> str:
    return figure(name, caption) if name in charts else f"<p>{escape(otherwise)}</p>"


def _switches(rows: Sequence[DiagnosisRow]) -> str:
    labels = {"more": "show every column"} | ({"parts": "show the parts of each layer"} if _has_parts(rows) else {})
    boxes = (f'<label><input type="checkbox" id="{name}"> {label}</label>' for name, label in labels.items())
    return f'<p class="switches">{"".join(boxes)}</p>'


def _has_parts(rows: Sequence[DiagnosisRow]) -> bool:
    return any(row.parts for row in rows)


def _bodies(rows: Sequence[DiagnosisRow]) -> Iterator[str]:
    """Yield a table body for each layer, its parts below it."""
    numbers = spectrum_numbers(rows)
    of_row = {place: number for (place, _), number in reversed(numbers.items())}
    for place, row in enumerate(rows):
        parts = [_part_line(part, numbers.get((place, part.name))) for part in row.parts]
        yield f"<tbody>{_layer_line(place + 1, row, of_row.get(place))}{''.join(parts)}</tbody>\n"


def _layer_line(depth: int, row: DiagnosisRow, spectrum: int | None) -> str:
    counts = (row.num_beyond, row.num_beyond_shuffled, row.excess, row.num_eigenvalues, row.num_tail, row.xmin, row.ks)
    more = (row.spectral_norm, row.stable_rank, row.log_norm, row.alpha_weighted, row.log_alpha_norm, row.entropy)
    shape = " x ".join(map(str, row.shape))
    return (
        f'<tr>{cell(depth)}<th scope="row">{_choice(row.name, spectrum)}</th>'
        f'<td class="verdict">{_verdict(row)}</td>{cell(row.alpha)}{cell(row.alpha_stderr, 2)}'
        f"{cell(row.alpha_over_random, 3)}<td>{escape(shape)}</td>"
        f"{''.join(cell(each, is_more=True) for each in (*counts, *more))}</tr>"
    )


def _part_line(part: PartRow, spectrum: int | None) -> str:
    values = (None, None, None, part.num_eigenvalues, part.num_tail, part.xmin, part.ks, *[None] * 6)
    return (
        f'<tr class="part"><td></td><th scope="row">{_choice(part.name, spectrum)}</th>'
        f'<td class="verdict">{escape(shown(part.reason))}</td>{cell(part.alpha)}{cell(part.alpha_stderr, 2)}'
        f"{cell(part.score, 3)}<td></td>"
        f"{''.join(cell(each, is_more=True) for each in values)}</tr>"
    )


def _choice(name: str, spectrum: int | None) -> str:
    """Return a name, as a button where there is a spectrum to see."""
    if spectrum is None:
        return named(name)
    return f'<button type="button" data-spectrum="{spectrum}">{named(name)}</button>'


def _verdict(row: DiagnosisRow) -> str:
    if not row.verdict:
        return f"skipped: {escape(shown(row.reason))}" if row.reason else ""
    colour, sign = look_of(row.verdict)
    return f'<span class="sign" style="color:{colour}">{sign}</span> {escape(shown(row.verdict))}'
