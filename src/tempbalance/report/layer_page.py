"""The page of a diagnosis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from tempbalance.ranking.table import DiagnosisRow, PartRow
from tempbalance.report.layer_charts import diagnosis_charts, look_of, marked_alphas, spectrum_numbers
from tempbalance.report.page import Column, cell, document, facts, figure, section, table
from tempbalance.report.text import named, shown

_COLUMNS = (
    Column("#", "Place in the model"),
    Column("layer", "Its name; click a name to see its spectrum", is_number=False),
    Column("alpha", "Exponent of the tail of its spectrum"),
    Column("±", "Standard error of alpha, as if eigenvalues were independent"),
    Column("verdict", "What alpha says, or why the layer is left out", is_number=False),
    Column("beyond", "Eigenvalues beyond the edge of a random matrix"),
    Column("shuffled", "The same with the weight's entries shuffled"),
    Column("shape", "Of the weight", is_number=False),
    Column("values", "Number of eigenvalues"),
    Column("tail", "Number of eigenvalues in the fitted tail"),
    Column("xmin", "Threshold of the tail"),
    Column("KS", "Kolmogorov-Smirnov distance between tail and fit"),
    Column("largest", "Largest eigenvalue"),
    Column("stable rank", "Sum of the eigenvalues over the largest"),
    Column("log norm", "log10 of the sum of the eigenvalues"),
    Column("weighted", "alpha x log10 of the largest eigenvalue"),
    Column("log alpha norm", "log10 of the sum of the eigenvalues to the power alpha"),
    Column("entropy", "Of the eigenvalues as shares of their sum, 0 to 1"),
)


def diagnosis_page(rows: Sequence[DiagnosisRow], *, model: str, tail: str, summary: Mapping[str, Any]) -> str:
    """One HTML document about a model's layers, which opens offline.

    Args:
        rows: One a layer, in the model's order.
        model: What the model is called.
        tail: How the tails were fitted.
        summary: More to say at the top, by name.
    """
    charts = diagnosis_charts(rows, model=model, tail=tail)
    scored = [row for row in rows if row.alpha is not None]
    bounds = " and ".join(map(str, marked_alphas(tail)))
    body = [
        f"<header><p>Diagnosis</p><h1>{named(model)}</h1></header>",
        facts({"layers": len(rows), "with an alpha": len(scored), "tail": tail, **_means(summary)}),
        _worst(summary.get("most_out_of_balance", ())),
        section("Alpha by depth", _figure_of("alpha", charts, _ALPHA.format(bounds=bounds), "No layer has an alpha.")),
        section("The spectrum of a layer", _figure_of("spectrum", charts, _SPECTRUM, "No spectra were kept.")),
        section("Layers", _parts_switch(rows), table(_COLUMNS, _bodies(rows), caption="All layers")),
    ]
    return document(f"Diagnosis of {model}", body, charts)


def _means(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What is worth saying again: numbers are means over the layers."""
    others = {name: value for name, value in summary.items() if name not in ("num_layers", "most_out_of_balance")}
    return {f"mean {name}" if isinstance(value, float) else name: value for name, value in others.items()}


def _worst(names: Sequence[str]) -> str:
    return f"<p>Most out of balance: {', '.join(map(named, names))}.</p>" if names else ""


_ALPHA = (
    "A small alpha is a heavy tail: a layer with strong correlations. Dashed: {bounds}. Bars are standard errors. "
    "Click a point to see its spectrum."
)
_SPECTRUM = (
    "The eigenvalues as a density, on log axes. The stronger bars are the tail, which begins at xmin; the "
    "dashed line is the fitted density p(x) ~ x^-alpha. The random edge is where the eigenvalues of a random matrix "
    "with entries of this variance would end."
)


def _figure_of(name: str, charts: Mapping[str, Any], caption: str, otherwise: str) -> str:
    return figure(name, caption) if name in charts else f"<p>{escape(otherwise)}</p>"


def _parts_switch(rows: Sequence[DiagnosisRow]) -> str:
    if not any(row.parts for row in rows):
        return ""
    return '<p><label><input type="checkbox" id="parts"> show the parts of each layer</label></p>'


def _bodies(rows: Sequence[DiagnosisRow]) -> Iterator[str]:
    """A table body for each layer, its parts below it."""
    numbers = spectrum_numbers(rows)
    for place, row in enumerate(rows):
        parts = [_part_line(part, numbers.get((place, part.name))) for part in row.parts]
        first = next((number for (where, _), number in numbers.items() if where == place), None)
        yield f"<tbody>{_layer_line(place + 1, row, first)}{''.join(parts)}</tbody>\n"


def _layer_line(depth: int, row: DiagnosisRow, spectrum: int | None) -> str:
    more = (row.spectral_norm, row.stable_rank, row.log_norm, row.alpha_weighted, row.log_alpha_norm, row.entropy)
    shape = " x ".join(map(str, row.shape))
    return (
        f'<tr>{cell(depth)}<th scope="row">{_choice(row.name, spectrum)}</th>{cell(row.alpha)}'
        f"{cell(row.alpha_stderr, 2)}<td>{_verdict(row)}</td>{cell(row.num_beyond)}{cell(row.num_beyond_shuffled)}"
        f"<td>{escape(shape)}</td>{cell(row.num_eigenvalues)}"
        f"{cell(row.num_tail)}{cell(row.xmin)}{cell(row.ks, 3)}{''.join(map(cell, more))}</tr>"
    )


def _part_line(part: PartRow, spectrum: int | None) -> str:
    return (
        f'<tr class="part"><td></td><th scope="row">{_choice(part.name, spectrum)}</th>{cell(part.alpha)}'
        f"{cell(part.alpha_stderr, 2)}<td>{escape(shown(part.reason))}</td>{'<td></td>' * 3}"
        f"{cell(part.num_eigenvalues)}{cell(part.num_tail)}{cell(part.xmin)}{cell(part.ks, 3)}"
        f'<td colspan="{len(_COLUMNS) - 12}"></td></tr>'
    )


def _choice(name: str, spectrum: int | None) -> str:
    """A name, as a button where there is a spectrum to see."""
    if spectrum is None:
        return named(name)
    return f'<button type="button" data-spectrum="{spectrum}">{named(name)}</button>'


def _verdict(row: DiagnosisRow) -> str:
    if row.reason:
        return f"left out: {escape(shown(row.reason))}"
    colour, sign = look_of(row.verdict)
    return (
        f'<span class="sign" style="color:{colour}">{sign}</span> {escape(shown(row.verdict))}' if row.verdict else ""
    )
