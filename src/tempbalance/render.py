"""A diagnosis as text: a table for people, JSON or CSV for programs. No control character of a name gets through."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal

from tempbalance.against import movements, to_dict
from tempbalance.diagnosis import Diagnosis, TensorNote
from tempbalance.layout import aligned, cell, layer_text
from tempbalance.ranking.table import DiagnosisRow
from tempbalance.report.text import number, shown

Format = Literal["table", "json", "csv"]

_NOT_IN_CSV = ("parts", "spectra", "scale", "score", "reason", "root")
_WORST = 12  # reasons shown below a table before they are only counted


def sort_rows(rows: Sequence[DiagnosisRow], sort: str, *, top: int | None = None) -> list[DiagnosisRow]:
    """The rows in another order: numbers from the largest, text by the alphabet; rows without a value last.

    Args:
        rows: Of a diagnosis.
        sort: Name of a value of a row, such as ``alpha``; ``depth`` leaves the model's order.
        top: How many to keep.

    Raises:
        ValueError: If no such value exists.
    """
    names = sorted({each.name for each in fields(DiagnosisRow)} - {*_NOT_IN_CSV, "shape"})
    if sort not in ("depth", *names):
        raise ValueError(f"sort must be one of depth, {', '.join(names)}, got {sort!r}")
    if sort == "depth":
        return list(rows)[:top]
    known = [row for row in rows if getattr(row, sort) is not None]
    ordered = sorted(known, key=lambda row: getattr(row, sort), reverse=not isinstance(_first(known, sort), str))
    return [*ordered, *(row for row in rows if getattr(row, sort) is None)][:top]


def _first(rows: Sequence[DiagnosisRow], name: str) -> Any:
    return getattr(rows[0], name) if rows else None


def render(diagnosis: Diagnosis, rows: Sequence[DiagnosisRow], form: Format) -> str:
    """The scored rows of a diagnosis, what was left out and why, and the summary.

    Args:
        diagnosis: What was found.
        rows: Those of its scored rows to show, in this order.
        form: ``table``, ``json`` or ``csv``; the latter has the rows alone.
    """
    if form == "json":
        return as_json({**diagnosis.to_dict(), "layers": [diagnosis.row_dict(row) for row in rows]})
    if form == "csv":
        names = [each.name for each in fields(DiagnosisRow) if each.name not in _NOT_IN_CSV]
        over = diagnosis.over_reference  # no field of a row, and only there if asked for
        lines = [[_exact(getattr(row, name)) for name in names] + ([_exact(row.score)] if over else []) for row in rows]
        return as_csv([*names, over] if over else names, lines)
    return "\n".join([layer_text(rows, reference=diagnosis.reference), *_telling(diagnosis)])


def _exact(value: Any) -> str:
    """A value with all its digits."""
    return cell(value) if value is None or isinstance(value, str | tuple) else repr(value)


def _telling(diagnosis: Diagnosis) -> list[str]:
    """What stands below a table."""
    summary = diagnosis.summary()
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in summary["verdicts"].items())
    lines = ["", f"{shown(diagnosis.model)}: {summary['num_layers']} layers scored with {diagnosis.tail}: {verdicts}"]
    if summary["num_layers"]:
        means = ", ".join(
            f"{name} {number(summary[name])}"
            for name in ("alpha", "alpha_weighted", "log_alpha_norm", "log_norm", "stable_rank")
            if summary[name] is not None
        )
        lines.append(f"means: {means}")
    if summary["most_out_of_balance"]:
        lines.append("most out of balance: " + ", ".join(map(shown, summary["most_out_of_balance"])))
    left_out = {row.name: row.reason for row in diagnosis.diagnoses if row.alpha is None}
    lines += [f"left out: {shown(name)}: {shown(reason)}" for name, reason in list(left_out.items())[:_WORST]]
    if len(left_out) > _WORST:
        lines.append(f"left out: {len(left_out) - _WORST} more, --list shows them")
    if diagnosis.others:
        lines.append(f"{len(diagnosis.others)} other tensors are no layers (biases, normalisation, ...): --list")
    return lines


def render_series(diagnoses: Sequence[Diagnosis], form: Format) -> str:
    """Checkpoints side by side.

    Args:
        diagnoses: Of at least two, the earliest first.
        form: ``table``, ``json`` or ``csv``.
    """
    if form == "json":
        return as_json(to_dict(diagnoses))
    models = [shown(each.model) for each in diagnoses]
    headings = ["layer", "shape", *(f"alpha {name}" for name in models), "change", "distance", "relative distance"]
    told = cell if form == "table" else _exact
    lines = [
        list(map(told, (each.name, each.shape, *each.alphas, each.change, each.distance, each.relative_distance)))
        for each in movements(diagnoses)
    ]
    return as_csv(headings, lines) if form == "csv" else aligned([headings, *lines])


def render_list(notes: Sequence[TensorNote], form: Format) -> str:
    """Return every tensor of every mapping, and why it is or is not scored."""
    if form == "json":
        return as_json([{**vars(note), "shape": list(note.shape)} for note in notes])
    headings = ["key", "tensor", "shape", "dtype", "layer", "skipped"]
    lines = [list(map(cell, (note.key, note.name, note.shape, note.dtype, note.layer, note.reason))) for note in notes]
    return as_csv(headings, lines) if form == "csv" else aligned([headings, *lines])


def as_json(value: Any) -> str:
    """JSON in ASCII, on several lines; what is not finite is refused."""
    return json.dumps(value, indent=2, allow_nan=False)


def as_csv(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Comma-separated values without a line end after the last."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([headings, *lines])
    return text.getvalue().rstrip("\n")
