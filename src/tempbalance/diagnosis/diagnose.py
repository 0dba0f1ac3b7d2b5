"""Diagnose a model or a checkpoint: a table with a verdict on each layer."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from tempbalance.checkpoint import StoredTensor, read_checkpoint
from tempbalance.checkpoint.derived import PART
from tempbalance.checkpoint.layers import Inferred, infer_layers
from tempbalance.diagnosis.measure import Measuring
from tempbalance.diagnosis.text import layer_text
from tempbalance.diagnosis.verdict import judge, summarize
from tempbalance.errors import check_flag
from tempbalance.model.layers import Layer, find_layers
from tempbalance.model.sharded import unwrap
from tempbalance.ranking.compare import Comparison
from tempbalance.ranking.scoring import Scoring
from tempbalance.ranking.table import DiagnosisRow, LayerTable
from tempbalance.spectral.matrices import cut_stack
from tempbalance.spectral.tail import TailName

if TYPE_CHECKING:
    import altair
    import pandas

Source = str | os.PathLike[str] | nn.Module | Mapping[str, Tensor]


class Diagnosis(LayerTable):
    """A `LayerTable` of `DiagnosisRow`s, and where they come from.

    ``others`` says why tensors are not layers, ``notes`` where in a file the weights were;
    ``layers[name].weight()`` reads a weight again.
    """

    def __init__(
        self,
        rows: Sequence[DiagnosisRow],
        *,
        model: str,
        tail: TailName,
        others: Mapping[str, str] | None = None,
        notes: Sequence[str] = (),
        layers: Sequence[Layer] = (),
    ) -> None:
        super().__init__(rows)
        self.diagnoses = tuple(rows)
        self.model, self.tail, self.others, self.notes = model, tail, dict(others or {}), tuple(notes)
        self.layers = {layer.name: layer for layer in layers}

    @property
    def judged(self) -> list[DiagnosisRow]:
        """The layers that have a verdict."""
        return [row for row in self.diagnoses if row.verdict]

    @property
    def scored(self) -> list[DiagnosisRow]:
        """The layers that have an alpha."""
        return [row for row in self.diagnoses if row.alpha is not None]

    @property
    def skipped(self) -> dict[str, str]:
        """Why each other layer, and each tensor that is no layer, has no verdict."""
        return {**{row.name: row.reason for row in self.diagnoses if not row.verdict}, **self.others}

    def why_none_is_scored(self) -> str:
        """Return the most frequent reasons: of layers, or of the other tensors if there are no layers."""
        reasons = Counter(row.reason for row in self.diagnoses)
        reasons = reasons or Counter(reason for reason in self.others.values() if reason != PART)
        listed = "; ".join(f"{reason} ({count} x)" for reason, count in reasons.most_common(3))
        lower = ", --min-eigenvalues lowers the limit" if "min_eigenvalues" in listed else ""
        return f"no layer is scored: {listed or 'it has no tensors'}; --list shows each tensor{lower}"

    def summary(self) -> dict[str, Any]:
        """Return advice, the number of each verdict, and means over the judged layers."""
        return summarize(self.judged)

    def to_dict(self) -> dict[str, Any]:
        """Return the values that ``tempbalance diagnose --format json`` prints."""
        return {
            "model": self.model,
            "tail": self.tail,
            "summary": self.summary(),
            "layers": [row.to_dict() for row in self.judged],
            "skipped": [{"name": name, "reason": reason} for name, reason in self.skipped.items()],
        }

    def __str__(self) -> str:
        if not self.judged:
            return self.why_none_is_scored()
        return "\n".join([layer_text(self.judged), "", self.summary()["advice"], *self.notes])

    __repr__ = __str__

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame with a row for each layer, indexed by its name."""
        try:
            import pandas
        except ModuleNotFoundError as err:
            raise ModuleNotFoundError("to_pandas needs pandas: pip install pandas", name=err.name) from err
        frame = pandas.DataFrame([row.to_dict() for row in self.diagnoses]).drop(columns="parts", errors="ignore")
        return frame.set_index("name") if len(frame) else frame

    def chart(self) -> altair.TopLevelMixin:
        """Draw alpha over the random alpha by depth, coloured by verdict; needs ``tempbalance[report]``."""
        try:
            from tempbalance.report import diagnosis_charts
        except ModuleNotFoundError as err:
            raise ModuleNotFoundError("chart needs altair: the extra tempbalance[report]", name=err.name) from err
        charts = diagnosis_charts(self.diagnoses, model=self.model, tail=self.tail)
        if "alpha_over_random" not in charts:
            raise ValueError(f"no layer of {self.model!r} has an alpha: there is nothing to draw")
        return charts["alpha_over_random"]


def diagnose(
    model: Source,
    *,
    tail: TailName = "median",
    tail_fraction: float = 0.5,
    min_eigenvalues: int = 50,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    fused: Mapping[str, int | Sequence[int]] | None = None,
    stacked: Sequence[str] = (),
    shuffle: bool = True,
    key: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Diagnosis:
    """Judge the layers of a model by their spectra: random-like, under-trained, typical or strongly correlated.

    Args:
        model: A module, names with tensors, or the path of a checkpoint (`read_checkpoint` says which); nothing that a
            file contains is run.
        tail: ``median``, the paper's, ``median_published``, its code's, ``goodness_of_fit``, WeightWatcher's, or
            ``peak``, as in `fit_tail`.
        tail_fraction: With a median, how many of the eigenvalues are the tail.
        min_eigenvalues: Layers with fewer are skipped; 50 as in training. For LoRA products it is 8.
        include: Patterns of layer names; without any, all layers.
        exclude: Patterns of layer names to skip.
        fused: As in `TempBalance`: how many parts a layer's weight holds side by side, by pattern.
        stacked: Patterns of weights of three dimensions that are stacked experts and not kernels.
        shuffle: Whether to count eigenvalues beyond the edge after shuffling too, which costs about as much as the
            rest.
        key: Which mapping of names to tensors in a file to take, such as ``ema``; without it the largest that is not an
            optimizer's.
        progress: Called with how many weights were read, and how many will be: each is read once more for shuffling.

    Returns:
        A `LayerTable` with a row for each layer, skipped ones too. Unlike in training the first and last layer and
        frozen ones are scored, and a layer with NaN or another flaw is skipped with the reason. `judge` has the rules
        of the verdicts.

    Raises:
        CheckpointError: If a file cannot be read, or is refused.
        ValueError: If an option is out of range or a pattern matches nothing.
    """
    _check_types(include=include, stacked=stacked, key=key, shuffle=shuffle, progress=progress)
    scoring = Scoring(
        tail=tail,
        tail_fraction=tail_fraction,
        comparison=Comparison(reference="random"),
        min_eigenvalues=min_eigenvalues,
        exclude=exclude,
        fused=fused or {},
    )
    name, found, notes = _find(model, stacked, key)
    measuring = Measuring(found, scoring, include=include, progress=progress)
    measuring.solve()
    if shuffle:
        measuring.shuffle()
    rows = judge(measuring.rows(), tail=tail)
    return Diagnosis(rows, model=name, tail=tail, others=found.others, notes=notes, layers=found.layers)


def _check_types(
    *, include: object, stacked: object, key: object, shuffle: object = True, progress: object = None
) -> None:
    """Refuse options of other types; `Scoring` checks the others."""
    for name, given in (("include", include), ("stacked", stacked)):
        if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
            raise TypeError(f"{name} must be a list of name patterns, got {given!r}")
    if not isinstance(key, str | None):
        raise TypeError(f"key must be the name of a mapping in the file, got {key!r}")
    check_flag("shuffle", shuffle)
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be a function of two numbers, got {progress!r}")


def _find(model: Source, stacked: Sequence[str], key: str | None) -> tuple[str, Inferred, Sequence[str]]:
    """Return the name of a module, a mapping or a file, its layers, and notes."""
    if not isinstance(model, nn.Module):
        if not isinstance(model, Mapping | str | os.PathLike):
            raise TypeError(f"model must be a module, a path or a mapping of tensors, got {type(model).__name__}")
        checkpoint = read_checkpoint(model, key=key)
        return checkpoint.name, infer_layers(checkpoint.tensors, stacked=stacked), checkpoint.notes
    if key is not None:
        raise ValueError(f"key chooses among the mappings of a file, a module has one; got {key!r}")
    layers = find_layers(model)
    bare = unwrap(model)
    state = {name: each for name, each in bare.state_dict().items() if isinstance(each, Tensor) and not is_lazy(each)}
    inferred = infer_layers(read_checkpoint(state).tensors) if state else Inferred()
    for layer in layers:
        if any(fnmatchcase(layer.name, pattern) for pattern in stacked) and len(layer.shape) == 3:
            layer.cut = cut_stack
    return type(bare).__name__, replace(inferred, layers=layers, ranks={}), ()


@dataclass(frozen=True)
class TensorNote:
    """One tensor of a checkpoint, the layer whose weight it is, or why it is not scored, and the mapping it is in."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    layer: str
    reason: str
    key: str = ""


def list_tensors(
    path: str | os.PathLike[str],
    *,
    include: Sequence[str] = (),
    stacked: Sequence[str] = (),
    key: str | None = None,
    **options: Any,
) -> list[TensorNote]:
    """List every tensor of a checkpoint, of all its mappings, and why it is or is not scored, as `diagnose` would."""
    _check_types(include=include, stacked=stacked, key=key)
    checkpoint = read_checkpoint(path, key=key)
    found = infer_layers(checkpoint.tensors, stacked=stacked)
    reasons = {row.name: row.reason for row in Measuring(found, Scoring(**options), include=include).rows()}
    notes = []
    for tensor in checkpoint.tensors:
        layer = found.tensors.get(tensor.name)  # empty for a weight without a name
        reason = found.others[tensor.name] if layer is None else reasons[layer]
        notes.append(_note(tensor, layer or "", reason, checkpoint.key))
    for other in checkpoint.others:
        reason = "state of an optimizer" if other.is_optimizer else f"not taken: --key {other.key or '.'}"
        notes += [_note(tensor, "", reason, other.key) for tensor in other.tensors]
    return notes


def _note(tensor: StoredTensor, layer: str, reason: str, key: str) -> TensorNote:
    return TensorNote(tensor.name, tensor.shape, str(tensor.dtype).removeprefix("torch."), layer, reason, key)
