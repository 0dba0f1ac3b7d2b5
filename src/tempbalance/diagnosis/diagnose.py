"""A model or a checkpoint -> what the spectrum of each of its layers says."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from tempbalance.checkpoint import read_checkpoint
from tempbalance.diagnosis.measure import Measuring
from tempbalance.diagnosis.text import layer_text
from tempbalance.diagnosis.verdict import judge, summarize
from tempbalance.infer import Inferred, infer_layers
from tempbalance.model.layers import Layer, find_layers
from tempbalance.model.sharded import unwrap
from tempbalance.ranking.scoring import ReferenceName, Scoring
from tempbalance.ranking.table import DiagnosisRow, LayerTable
from tempbalance.spectral.matrices import cut_stack
from tempbalance.spectral.tail import TailName

if TYPE_CHECKING:
    import altair
    import pandas

Source = str | os.PathLike[str] | nn.Module | Mapping[str, Tensor]


class Diagnosis(LayerTable):
    """A `LayerTable` of `DiagnosisRow`s with what a diagnosis knows beside them.

    Attributes:
        model: What was diagnosed.
        tail: The fit.
        reference: What the rows' scores are alpha over; ``None`` if they are alpha.
        others: Why each tensor that is no layer is not in the table.
        notes: What a reader should know about the file.
        layers: The layers that rows were made of, by name; ``layers[name].weight()`` reads a weight again.
    """

    def __init__(
        self,
        rows: Sequence[DiagnosisRow],
        *,
        model: str,
        tail: TailName,
        reference: ReferenceName | None = None,
        others: Mapping[str, str] | None = None,
        notes: Sequence[str] = (),
        layers: Sequence[Layer] = (),
    ) -> None:
        super().__init__(rows)
        self.diagnoses = tuple(rows)
        self.model, self.tail, self.others, self.notes = model, tail, dict(others or {}), tuple(notes)
        self.reference = reference
        self.layers = {layer.name: layer for layer in layers}

    @property
    def scored(self) -> list[DiagnosisRow]:
        """The layers that have an alpha."""
        return [row for row in self.diagnoses if row.alpha is not None]

    @property
    def left_out(self) -> dict[str, str]:
        """Why each layer and other tensor has none."""
        return {**{row.name: row.reason for row in self.diagnoses if row.alpha is None}, **self.others}

    def summary(self) -> dict[str, Any]:
        """Means over the scored layers, how many have which verdict, and the layers most out of balance."""
        return summarize(self.scored)

    @property
    def over_reference(self) -> str | None:
        """What alpha over the reference is called; ``None`` without one."""
        return None if self.reference is None else f"alpha_over_{self.reference}"

    def row_dict(self, row: DiagnosisRow) -> dict[str, Any]:
        """A row's plain values, with alpha over the reference if there is one."""
        return row.to_dict() if self.over_reference is None else {**row.to_dict(), self.over_reference: row.score}

    def to_dict(self) -> dict[str, Any]:
        """What ``tempbalance diagnose --format json`` prints."""
        return {
            "model": self.model,
            "tail": self.tail,
            **({} if self.reference is None else {"reference": self.reference}),
            "layers": [self.row_dict(row) for row in self.scored],
            "left_out": [{"name": name, "reason": reason} for name, reason in self.left_out.items()],
            "summary": self.summary(),
        }

    def __str__(self) -> str:
        return layer_text(self.scored, reference=self.reference)

    __repr__ = __str__

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame, a row a layer, indexed by its name.

        Raises:
            ModuleNotFoundError: Without pandas.
        """
        try:
            import pandas
        except ModuleNotFoundError as err:
            raise ModuleNotFoundError("to_pandas needs pandas: pip install pandas", name=err.name) from err
        frame = pandas.DataFrame([self.row_dict(row) for row in self.diagnoses]).drop(columns="parts", errors="ignore")
        return frame.set_index("name") if len(frame) else frame

    def chart(self) -> altair.TopLevelMixin:
        """Alpha by depth, coloured by verdict; needs ``tempbalance[report]``.

        Raises:
            ValueError: If no layer has an alpha.
            ModuleNotFoundError: Without the extra.
        """
        if not self.scored:
            raise ValueError(f"no layer of {self.model!r} is scored: there is nothing to draw")
        try:
            from tempbalance.report import diagnosis_charts
        except ModuleNotFoundError as err:
            raise ModuleNotFoundError("chart needs altair: the extra tempbalance[report]", name=err.name) from err
        return diagnosis_charts(self.diagnoses, model=self.model, tail=self.tail)["alpha"]


def diagnose(
    model: Source,
    *,
    tail: TailName = "median",
    tail_fraction: float = 0.5,
    reference: ReferenceName | None = None,
    min_eigenvalues: int = 50,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    fused: Mapping[str, int | Sequence[int]] | None = None,
    stacked: Sequence[str] = (),
    shuffle: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Diagnosis:
    """Say which layers of a model are over- and under-trained.

    Args:
        model: A module, names with tensors, or the path of a checkpoint (`read_checkpoint` says which); nothing that a
            file contains is run.
        tail: ``median``, the paper's, ``goodness_of_fit``, WeightWatcher's, or ``peak``, as in `fit_tail`.
        tail_fraction: With ``median``, how many of the eigenvalues are the tail.
        reference: With ``random``, a row's ``score`` is alpha over what the same fit gives for a random matrix of the
            same shape, part by part; alpha and verdicts stay as they are. A product of adapters has none.
        min_eigenvalues: Layers with fewer are left out; 50 as in training. For LoRA products it is 8.
        include: Patterns of layer names; without any, all layers.
        exclude: Patterns of layer names to leave out.
        fused: As in `TempBalance`: how many parts a layer's weight holds side by side, by pattern.
        stacked: Patterns of weights of three dimensions that are stacked experts and not kernels.
        shuffle: Whether to count eigenvalues beyond the edge after shuffling too, which costs about as much as the
            rest.
        progress: Called with how many weights were read, and how many will be: each is read once more for shuffling.

    Returns:
        A `LayerTable` with a row for each layer, also those left out. Unlike in training the first and last layer and
        frozen ones are scored, and a layer with NaN or another flaw is left out with the reason.

    Raises:
        CheckpointError: If a file cannot be read, or is refused.
        ValueError: If an option is out of range or a pattern matches nothing.
    """
    scoring = Scoring(
        tail=tail,
        tail_fraction=tail_fraction,
        reference=reference,
        min_eigenvalues=min_eigenvalues,
        exclude=exclude,
        fused=fused or {},
    )
    found = _find(model, stacked)
    _check_patterns(found.inferred.layers, include=include, exclude=exclude, fused=tuple(scoring.fused))
    measuring = Measuring(found.inferred, scoring, include=include, progress=progress)
    measuring.solve()
    if shuffle:
        measuring.shuffle()
    rows, inferred = judge(measuring.rows(), tail), found.inferred
    if reference is not None:  # the eigenvalues of a product are not those of a random matrix
        rows = [replace(row, score=None) if row.name in inferred.ranks else row for row in rows]
    return Diagnosis(
        rows,
        model=found.name,
        tail=tail,
        reference=reference,
        others=inferred.others,
        notes=found.notes,
        layers=inferred.layers,
    )


@dataclass(frozen=True)
class _Found:
    name: str
    inferred: Inferred
    notes: tuple[str, ...] = ()


def _find(model: Source, stacked: Sequence[str]) -> _Found:
    """The layers of whatever was given."""
    if isinstance(stacked, str):
        raise TypeError(f"stacked must be a list of name patterns, got the string {stacked!r}")
    if not isinstance(model, nn.Module):
        if not isinstance(model, Mapping | str | os.PathLike):
            raise TypeError(f"model must be a module, a path or a mapping of tensors, got {type(model).__name__}")
        checkpoint = read_checkpoint(model)
        notes = (f"weights found under {checkpoint.found_under!r}",) if checkpoint.found_under else ()
        return _Found(checkpoint.name, infer_layers(checkpoint.tensors, stacked=stacked), (*notes, *checkpoint.notes))
    layers = find_layers(model)
    bare = unwrap(model)
    state = {name: each for name, each in bare.state_dict().items() if isinstance(each, Tensor) and not is_lazy(each)}
    told = infer_layers(read_checkpoint(state).tensors) if state else Inferred()
    for layer in layers:
        if any(fnmatchcase(layer.name, pattern) for pattern in stacked) and len(layer.shape) == 3:
            layer.cut = cut_stack
    return _Found(type(bare).__name__, replace(told, layers=layers, ranks={}))


def _check_patterns(layers: Sequence[Layer], **patterns: Sequence[str]) -> None:
    for option, given in patterns.items():
        if isinstance(given, str):
            raise TypeError(f"{option} must be a list of name patterns, got the string {given!r}")
        for pattern in given:
            if not any(fnmatchcase(layer.name, pattern) for layer in layers):
                raise ValueError(f"{option} pattern {pattern!r} matches no layer")


@dataclass(frozen=True)
class TensorNote:
    """What becomes of one tensor of a checkpoint.

    Attributes:
        name, shape, dtype: As stored.
        layer: The layer whose weight it is; empty if it is none.
        reason: Why it is not scored; empty if it is.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layer: str
    reason: str


def list_tensors(
    path: str | os.PathLike[str],
    *,
    min_eigenvalues: int = 50,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    fused: Mapping[str, int | Sequence[int]] | None = None,
    stacked: Sequence[str] = (),
) -> list[TensorNote]:
    """Every tensor of a checkpoint, and why it is or is not scored, as far as names and shapes tell.

    Args:
        path: Of the checkpoint.
        min_eigenvalues: As in `diagnose`, as are the others.
        include: Patterns of layer names.
        exclude: Patterns of layer names.
        fused: Parts of a layer's weight, by pattern.
        stacked: Patterns of stacked experts.
    """
    scoring = Scoring(min_eigenvalues=min_eigenvalues, exclude=exclude, fused=fused or {})
    checkpoint = read_checkpoint(path)
    found = infer_layers(checkpoint.tensors, stacked=stacked)
    _check_patterns(found.layers, include=include, exclude=exclude, fused=tuple(scoring.fused))
    reasons = {row.name: row.reason for row in Measuring(found, scoring, include=include).rows()}
    return [
        TensorNote(
            tensor.name,
            tensor.shape,
            str(tensor.dtype).removeprefix("torch."),
            layer := found.tensors.get(tensor.name, ""),
            reasons[layer] if tensor.name in found.tensors else found.others[tensor.name],
        )
        for tensor in checkpoint.tensors
    ]
