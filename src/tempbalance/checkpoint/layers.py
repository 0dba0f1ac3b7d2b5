"""Infer the layers of a model from the names and shapes of stored tensors.

A file does not say which module a tensor belonged to. Layers are inferred from names, shapes and neighbours: an
embedding has no bias, and the groups of a kernel follow from the channels of the layers around it. With usual names, a
model and its state dict give the same table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial

from tempbalance.checkpoint.tensors import StoredTensor
from tempbalance.model.layers import Layer, is_bias, is_embedding_name, mark_tied
from tempbalance.spectral.matrices import Cut, Part, cut_convolution, cut_fused, cut_matrix, cut_stack

_EMBEDDER = re.compile(r"emb(ed|eds|edding|eddings|edder)?(_|$)|^(wte|wpe|shared|tok|tokens?|pos|positions?)$|_bias$")
_NO_EMBEDDER = re.compile(r"(^|_)(out|proj|projection|unembed|unembedding)(_|$)|^unemb")
_TABLE = re.compile(r"(^|_)(mask|tril|triu|causal)(_|$)|^(pe|inv_freq|freqs\w*|(cos|sin)(_cached?)?|\w*_table)$")
_EXPERTS = re.compile(r"expert|(^|[._])moe([._]|$)", re.IGNORECASE)
_RECURRENT = re.compile(r"^weight_(ih|hh|hr)(_l\d+)?(_reverse)?$")
_LORA = re.compile(r"(^|\.)lora_(embedding_)?[AB](\.|$)")
_SHORTCUT = re.compile(r"short_?cut|down_?sample|skip|residual|identity", re.IGNORECASE)
_COLOURS = 3  # channels of an image


@dataclass
class Inferred:
    """Layers inferred from the tensors of a checkpoint."""

    layers: list[Layer] = field(default_factory=list)  # embeddings and tied weights have a reason why they are skipped
    tensors: dict[str, str] = field(default_factory=dict)  # name of the layer of each weight, by tensor
    others: dict[str, str] = field(default_factory=dict)  # why each other tensor is not a layer
    ranks: dict[str, int] = field(default_factory=dict)  # of the layers that are LoRA products
    largest: int = 0  # bytes of the largest weight


def infer_layers(tensors: Iterable[StoredTensor], *, stacked: Sequence[str] = ()) -> Inferred:
    """Infer layers from names and shapes; patterns of names say which weights are stacked experts, not kernels."""
    by_name = {tensor.name: tensor for tensor in tensors}
    for pattern in stacked:
        if not any(len(each.shape) == 3 and _matches(name, pattern) for name, each in by_name.items()):
            raise ValueError(f"stacked pattern {pattern!r} matches no tensor of three dimensions")
    found = Inferred()
    ties, names = [], set(by_name)
    for tensor in by_name.values():
        if reason := _why_none(tensor, by_name):
            found.others[tensor.name] = reason
            continue
        layer = _layer(tensor, by_name, stacked)
        if layer.name in names:  # "fc" beside "fc.weight"
            layer.name = tensor.name
        names.add(layer.name)
        found.layers.append(layer)
        found.largest = max(found.largest, 0 if layer.skipped else tensor.num_bytes)
        ties.append(tensor.tie)
        found.tensors[tensor.name] = layer.name
        if tensor.rank is not None:
            found.ranks[layer.name] = tensor.rank
    _cut_groups(found.layers)
    mark_tied(found.layers, ties)
    return found


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name.removesuffix(".weight"), pattern)


def _beside(tensor: StoredTensor, key: str, by_name: Mapping[str, StoredTensor]) -> StoredTensor | None:
    owner, dot, _ = tensor.name.rpartition(".")
    return by_name.get(owner + dot + key)


def _why_none(tensor: StoredTensor, by_name: Mapping[str, StoredTensor]) -> str:
    """Return why a tensor is not a layer; empty if it is one."""
    owner, _, key = tensor.name.rpartition(".")
    bias = _beside(tensor, "bias", by_name)
    if tensor.problem or tensor.rank is not None:
        return tensor.problem
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        is_weight = len(tensor.shape) > 1 and key.endswith("weight")
        what = "a quantised weight without a known scale" if is_weight else "an index or a count"
        return f"{str(tensor.dtype).removeprefix('torch.')}: {what}"
    if is_bias(key):
        return "bias"
    if _LORA.search(tensor.name):
        return "factor of a LoRA product: its scaling is not in the file"
    if ".parametrizations." in f".{owner}.":
        return "made into a weight by a parametrization that the file does not hold"
    if 0 in tensor.shape:
        return "empty"
    if len(tensor.shape) < 2:
        return "vector" if tensor.shape else "number"
    if bias is not None and bias.shape == tensor.shape:
        return "normalisation"
    return "mask or table" if _TABLE.search(key) else ""


def _layer(tensor: StoredTensor, by_name: Mapping[str, StoredTensor], stacked: Sequence[str]) -> Layer:
    owner, _, key = tensor.name.rpartition(".")
    name = owner if key == "weight" and owner else tensor.name
    bias = _beside(tensor, "bias", by_name)
    layer = Layer(name, tensor.shape, tensor.load, [], _cut(tensor, by_name, stacked))
    if tensor.rank is None and _is_embedding(tensor, bias):
        layer.skipped = "embedding"
    elif len(tensor.shape) > 1 and bias is not None and bias.shape == tensor.shape[1:2] != tensor.shape[:1]:
        layer.out_dim = 1  # GPT-2 stores its weights the other way round, and so do transposed convolutions
    return layer


def _is_embedding(tensor: StoredTensor, bias: StoredTensor | None) -> bool:
    owner, _, key = tensor.name.rpartition(".")
    if key != "weight":
        is_plain = not _RECURRENT.match(key) and key != "in_proj_weight"
        return is_plain and (is_embedding_name(key) or (len(tensor.shape) == 3 and tensor.shape[0] == 1))
    module = owner.rpartition(".")[2].lower()
    named = bool(_EMBEDDER.search(module)) and not _NO_EMBEDDER.search(module)
    return named and len(tensor.shape) == 2 and bias is None


def _cut(tensor: StoredTensor, by_name: Mapping[str, StoredTensor], stacked: Sequence[str]) -> Cut:
    """Return how a weight is cut, ignoring the groups of a kernel."""
    key = tensor.name.rpartition(".")[2]
    if (rank := tensor.rank) is not None:  # the r x r matrix that has the eigenvalues of a LoRA product
        return lambda weight: [Part("", weight[:rank, :rank].unsqueeze(0))]
    if len(tensor.shape) == 2:
        if key == "in_proj_weight" and tensor.shape[0] == 3 * tensor.shape[1]:
            return partial(cut_fused, sizes=3, names=["q", "k", "v"])
        gates = _gates(tensor, by_name)
        return partial(cut_fused, sizes=len(gates), names=list(gates)) if gates else cut_matrix
    if len(tensor.shape) == 3:
        says_so = any(_matches(tensor.name, pattern) for pattern in stacked)
        return cut_stack if says_so or _EXPERTS.search(tensor.name) or "bilinear" in tensor.name else cut_convolution
    return cut_convolution


def _gates(tensor: StoredTensor, by_name: Mapping[str, StoredTensor]) -> str:
    """Return the gates of a recurrent weight, from the ratio of its rows to the hidden size."""
    key = tensor.name.rpartition(".")[2]
    match = _RECURRENT.match(key)
    if match is None or match[1] == "hr":
        return ""
    suffix = (match[2] or "") + (match[3] or "")
    recurrent = _beside(tensor, f"weight_hh{suffix}", by_name)
    projection = _beside(tensor, f"weight_hr{suffix}", by_name)
    inner = projection or recurrent
    hidden = inner.shape[1] if inner is not None and len(inner.shape) == 2 else 0
    return {4: "ifgo", 3: "rzn"}.get(tensor.shape[0] // hidden if hidden else 0, "")


def _cut_groups(layers: Iterable[Layer]) -> None:
    """Cut kernels into groups where they take fewer channels than the layers before them give."""
    before: dict[str, int] = {}  # outputs of the layer before each; those of a shortcut do not count
    known: Counter[int] = Counter()
    latest = 0
    for layer in layers:
        before[layer.name] = latest
        if not layer.skipped:
            num_out = layer.shape[layer.out_dim]
            known[num_out] += 1
            latest = latest if _SHORTCUT.search(layer.name) else num_out
    kernels = [layer for layer in layers if layer.cut is cut_convolution and len(layer.shape) > 2]
    single = [layer for layer in kernels if layer.shape[1] == 1 and layer.out_dim == 0]
    inputs = [_COLOURS, *(layer.shape[1] for layer in kernels[:1] if layer.shape[1] not in {1, *known})]
    if single and not any(layer.shape[1] in inputs for layer in kernels):  # the outermost one takes gray images
        single.remove(min(single, key=lambda layer: layer.name.count(".")))
    for layer in [*single, *(layer for layer in kernels if layer.shape[1] > 1)]:
        layer.cut = partial(cut_convolution, groups=_groups(layer, before[layer.name], known))


def _groups(layer: Layer, before: int, known: Counter[int]) -> int:
    """Return the groups of a kernel, from the outputs of the layer before it and of all layers."""
    num_out, num_in = layer.shape[:2]
    if num_in == 1:
        is_depthwise = num_out == before or known[num_out] > 1  # another layer gives as many
        return num_out if is_depthwise else before if before and num_out % before == 0 else 1
    is_plain = layer.out_dim == 1 or num_in == _COLOURS or num_in >= before
    if is_plain or before % num_in or num_out % (before // num_in):
        return 1
    # as many outputs as the layer before it, not a shortcut's 1 x 1 kernel nor a deconvolution's even one
    is_grouped = num_out == before and all(side > 1 and side % 2 for side in layer.shape[2:])
    return before // num_in if is_grouped or num_in not in known else 1
