"""What was found out about each layer, as rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, overload


@dataclass(frozen=True)
class PartRow:
    """One part of a layer: all of it, or a projection, a gate, an expert.

    Attributes:
        name: What the part is called; empty if it is all of the layer.
        num_eigenvalues: Size of its spectrum.
        alpha, alpha_stderr, xmin, ks, num_tail: Its tail fit, ``None`` if there is none.
        score: Its score, ``None`` if it is left out.
        reason: Why it is left out; empty if it is not.
    """

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
        name: The layer.
        shape: Of its weight; empty while that is not known.
        num_eigenvalues: Over all its parts.
        alpha: Mean over the parts that have a fit; ``None`` if none has.
        alpha_stderr: The parts' standard errors, combined in quadrature.
        xmin: Threshold of the fit; ``None`` with several parts.
        ks: The largest of the parts' distances.
        num_tail: Tail values, over all parts.
        score: Mean over the parts; ``None`` if the layer is left out.
        scale: What multiplies its rate.
        reason: Why it is left out; empty if it is not.
        parts: The parts one by one, if there are several.
        compared: What it is compared with other layers by: the score, averaged over its group, drawn toward the layers'
            mean and averaged over time, as options say.
        scales: What multiplies other targets, by their names.
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

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dictionaries."""
        return {**asdict(self), "shape": list(self.shape), "parts": [asdict(part) for part in self.parts]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> LayerRow:
        """The row that `to_dict` gave."""
        parts = tuple(PartRow(**part) for part in values["parts"])
        return cls(**{**values, "shape": tuple(values["shape"]), "parts": parts})


@dataclass(frozen=True)
class DiagnosisRow(LayerRow):
    """One layer of a diagnosis: its fit, what else its spectrum says, and a verdict.

    A layer with parts has their mean, but for ``spectral_norm``, which is the largest, and the two counts, which are
    sums. A value is ``None`` where it does not exist: a layer that is left out has none, a product of adapters no edge.

    Attributes:
        spectral_norm: Largest eigenvalue, as the paper has it.
        stable_rank: Sum of the eigenvalues over the largest.
        log_norm: log10 of the sum of the eigenvalues.
        alpha_weighted: alpha x log10 of the largest eigenvalue.
        log_alpha_norm: log10 of the sum of the eigenvalues to the power alpha.
        entropy: That of the eigenvalues as shares of their sum, 0 to 1.
        mp_edge: Where the eigenvalues of a random matrix with such entries end; ``None`` with several parts.
        num_beyond: How many eigenvalues lie beyond it.
        num_beyond_shuffled: How many do when the weight's entries are shuffled.
        verdict: In words; empty if the layer is left out.
        spectra: The eigenvalues of each part, ascending; the part is called "" where it is all of the layer.
    """

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
    spectra: Mapping[str, Sequence[float]] = field(default_factory=dict, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dictionaries, without the spectra and what training makes of scores."""
        values = LayerRow.to_dict(replace(self, spectra={}))
        return {name: value for name, value in values.items() if name not in _OF_TRAINING}


_OF_TRAINING = ("spectra", "scale", "scales", "score", "compared")


class LayerTable(Sequence[LayerRow]):
    """Rows, one a layer, in the model's order; printed as text.

    Example:
        >>> print(LayerTable([LayerRow("fc", (64, 64), 64, alpha=2.5, score=2.5, scale=1.5)]))
        layer  shape    alpha  score  scale
        fc     64 x 64  2.500  2.500  1.500
    """

    def __init__(self, rows: Sequence[LayerRow]) -> None:
        self.rows = tuple(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[LayerRow]:
        return iter(self.rows)

    @overload
    def __getitem__(self, key: int | str) -> LayerRow: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[LayerRow, ...]: ...
    def __getitem__(self, key: int | str | slice) -> LayerRow | tuple[LayerRow, ...]:
        """A row by its position or its layer's name.

        Raises:
            KeyError: If no layer has the name.
        """
        if isinstance(key, str):
            for row in self.rows:
                if row.name == key:
                    return row
            raise KeyError(f"no layer {key!r}")
        return self.rows[key]

    def __str__(self) -> str:
        names = [name for name in _COLUMNS if name in _ALWAYS or any(_differs(row, name) for row in self.rows)]
        targets = sorted({target for row in self.rows for target in row.scales})
        lines = [("layer", "shape", *names, *targets, "")]
        for row in self.rows:
            numbers = [*(getattr(row, name) for name in names), *(row.scales.get(target) for target in targets)]
            why = f"left out: {row.reason}" if row.reason else ""
            lines.append((row.name, " x ".join(map(str, row.shape)), *map(_number, numbers), why))
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)

    __repr__ = __str__


_COLUMNS = ("alpha", "score", "compared", "scale")
_ALWAYS = ("alpha", "score", "scale")


def _differs(row: LayerRow, name: str) -> bool:
    """Whether a column says what the score does not."""
    return getattr(row, name) not in (None, row.score)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if abs(value) < 1e4 else f"{value:.2e}"
