"""Results of scoring and diagnosis: a row for each layer, and a table of rows."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints, overload


def from_plain(kind: Any, value: Any, name: str) -> Any:
    """Return plain values as the dataclass, tuple, mapping, number or string that a type asks for."""
    origin, inside = get_origin(kind), get_args(kind)
    if kind is Any or (value is None and NoneType in inside):
        return value
    if origin in (Union, UnionType):
        return from_plain(inside[0], value, name)
    if is_dataclass(kind) and isinstance(value, Mapping) and value.keys() == {each.name for each in fields(kind)}:
        make, hints = cast(Any, kind), get_type_hints(kind)
        return make(**{key: from_plain(hints[key], each, f"{name}.{key}") for key, each in value.items()})
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(from_plain(inside[0], each, name) for each in value)
    if origin in (Mapping, dict) and isinstance(value, Mapping):
        return {key: from_plain(inside[1], each, f"{name}.{key}") for key, each in value.items()}
    if kind is float and type(value) is int and abs(value) < sys.float_info.max:
        return float(value)
    if type(value) is kind:
        return value
    raise ValueError(f"{name} is not {getattr(kind, '__name__', kind)}: {str(value)[:80]!r}")


@dataclass(frozen=True)
class PartRow:
    """One part of a layer: a projection, a gate or an expert, with the fields of a `LayerRow` that a part has."""

    name: str
    num_eigenvalues: int
    alpha: float | None = None
    alpha_stderr: float | None = None
    xmin: float | None = None
    ks: float | None = None
    num_tail: int | None = None
    score: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class LayerRow:
    """One layer.

    Attributes:
        name: Name of the layer.
        shape: Shape of its weight; empty while the weight is lazy.
        num_eigenvalues: Number of eigenvalues, over all parts.
        alpha: Mean over the parts that have a fit; ``None`` if none has.
        alpha_stderr: Standard error of alpha; those of the parts combined in quadrature.
        xmin: Threshold of the fit; ``None`` with several parts.
        ks: The largest KS distance of the parts.
        num_tail: Number of tail values, over all parts.
        score: Mean over the parts; ``None`` if the layer is skipped.
        scale: Multiplier on its learning rate.
        reason: Why the layer is skipped; empty if it is not.
        parts: The parts, if there are several.
        compared: The number the layer is ranked by: the score after grouping, shrinkage and smoothing.
        scales: Multipliers on other values of its param group, by their names.
        root: The root that the layer is in, of those given as ``roots``; empty without roots.
    """

    name: str
    shape: tuple[int, ...] = ()
    num_eigenvalues: int = 0
    alpha: float | None = None
    alpha_stderr: float | None = None
    xmin: float | None = None
    ks: float | None = None
    num_tail: int | None = None
    score: float | None = None
    scale: float = 1.0
    reason: str = ""
    parts: tuple[PartRow, ...] = ()
    compared: float | None = None
    scales: Mapping[str, float] = field(default_factory=dict)
    root: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and dictionaries."""
        return {**asdict(self), "shape": list(self.shape), "parts": [asdict(part) for part in self.parts]}


@dataclass(frozen=True)
class DiagnosisRow(LayerRow):
    """One layer of a diagnosis: its fit, further numbers from its spectrum, and a verdict.

    A layer with parts has the mean over its parts, except ``spectral_norm`` (the largest) and the counts (sums). Values
    that do not exist are ``None``: a skipped layer has none, a product of adapters has no edge, a flat spectrum has a
    verdict but no alpha.

    Attributes:
        alpha_over_random: Alpha over the alpha of a random matrix of the same shape; it is the row's score.
        upper_over_random: The same for the larger half of the spectrum, whichever tail was fitted.
        upper_stderr: Standard deviation of ``upper_over_random`` among random matrices of this shape.
        excess: Sum of (eigenvalue - edge) over those beyond ``mp_edge``, as a share of the sum of all eigenvalues.
        spectral_norm: Largest eigenvalue, as in the paper.
        stable_rank: Sum of the eigenvalues over the largest.
        log_norm: log10 of the sum of the eigenvalues.
        alpha_weighted: alpha x log10 of the largest eigenvalue.
        log_alpha_norm: log10 of the sum of the eigenvalues to the power alpha.
        entropy: Entropy of the eigenvalues as shares of their sum, 0 to 1.
        mp_edge: Largest eigenvalue of a random matrix with such entries; ``None`` with several parts.
        num_beyond: How many eigenvalues exceed ``mp_edge``.
        num_beyond_shuffled: How many exceed it after the weight's entries are shuffled.
        verdict: The verdict in words; empty if the layer is skipped.
        evidence: How the verdict came about, in a sentence.
        spectra: The eigenvalues of each part by its name, ascending; the name of the whole layer is empty.
    """

    alpha_over_random: float | None = None
    upper_over_random: float | None = None
    upper_stderr: float | None = None
    excess: float | None = None
    spectral_norm: float | None = None
    stable_rank: float | None = None
    log_norm: float | None = None
    alpha_weighted: float | None = None
    log_alpha_norm: float | None = None
    entropy: float | None = None
    mp_edge: float | None = None
    num_beyond: int | None = None
    num_beyond_shuffled: int | None = None
    verdict: str = ""
    evidence: str = ""
    spectra: Mapping[str, Sequence[float]] = field(default_factory=dict, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and dictionaries, without the spectra and the fields of training."""
        left_out = ("spectra", "scale", "scales", "score", "compared", "root")
        return {name: x for name, x in LayerRow.to_dict(replace(self, spectra={})).items() if name not in left_out}


class LayerTable(Sequence[LayerRow]):
    """Rows of layers in the model's order, found by position or by name, printed as text.

    Slices are tables. A name is in the table if a row has it. Tables are equal if their rows are.

    Example:
        >>> table = LayerTable([LayerRow("fc", (64, 64), 64, alpha=2.5, score=2.5, scale=1.5)])
        >>> print(table)
        layer  shape    alpha  score  scale
        fc     64 x 64  2.500  2.500  1.500
        >>> "fc" in table, table["fc"].alpha, len(table[1:])
        (True, 2.5, 0)
    """

    def __init__(self, rows: Iterable[LayerRow]) -> None:
        self.rows = tuple(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, key: object) -> bool:
        return any(key == (row.name if isinstance(key, str) else row) for row in self.rows)

    def __eq__(self, other: object) -> bool:
        return self.rows == other.rows if isinstance(other, LayerTable) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # rows hold dictionaries

    @overload
    def __getitem__(self, key: int | str) -> LayerRow: ...
    @overload
    def __getitem__(self, key: slice) -> LayerTable: ...
    def __getitem__(self, key: int | str | slice) -> LayerRow | LayerTable:
        """Return a row by its position or its layer's name, or a table of several rows.

        Raises:
            KeyError: If no layer has the name.
        """
        if isinstance(key, slice):
            return LayerTable(self.rows[key])
        if not isinstance(key, str):
            return self.rows[key]
        for row in self.rows:
            if row.name == key:
                return row
        raise KeyError(f"no layer {key!r}")

    def __str__(self) -> str:
        shows = any(row.compared not in (None, row.score) for row in self.rows)
        names = ["alpha", "score", *(["compared"] if shows else []), "scale"]
        targets = sorted({target for row in self.rows for target in row.scales})
        lines = [("layer", "shape", *names, *targets, "")]
        for row in self.rows:
            numbers = [*(getattr(row, name) for name in names), *(row.scales.get(target) for target in targets)]
            why = f"skipped: {row.reason}" if row.reason else ""
            lines.append((row.name, " x ".join(map(str, row.shape)), *map(_number, numbers), why))
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)

    __repr__ = __str__


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if abs(value) < 1e4 else f"{value:.2e}"
