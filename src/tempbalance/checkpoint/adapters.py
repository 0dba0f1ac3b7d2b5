"""LoRA adapters as peft saves them: each pair of factors is the product that it adds to a weight."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from tempbalance.checkpoint.files import inside, naming, parse_json, read_index, shown
from tempbalance.checkpoint.formats import read_file
from tempbalance.checkpoint.tensors import StoredTensor, Weights, choose
from tempbalance.errors import CheckpointError

CONFIG = "adapter_config.json"
_FILES = ("adapter_model.safetensors", "adapter_model.bin")
_PREFIX = "base_model.model."
_FACTOR = re.compile(r"(.+)\.lora_(?:embedding_)?([AB])(?:\.weight)?")
_PLAIN_PATTERN = re.compile(r"\^?(?:[\w-]|\\?\.)+")


@dataclass(frozen=True)
class _Scaling:
    """The factor of a product: alpha / r, or alpha / sqrt(r) for rank-stabilised adapters."""

    alpha: float
    alpha_of: Mapping[str, float]
    is_root: bool

    def of(self, layer: str, rank: int) -> float:
        patterns = (alpha for pattern, alpha in self.alpha_of.items() if _is_meant(pattern, layer))
        return next(patterns, self.alpha) / (math.sqrt(rank) if self.is_root else rank)


def read_adapter(folder: Path) -> tuple[list[Weights], tuple[str, ...]]:
    """Read the products of an adapter folder, the tensors beside them, and what a reader should know.

    Raises:
        CheckpointError: If it is not LoRA, or its factors do not belong together.
    """
    config = parse_json(read_index(inside(folder, CONFIG)), CONFIG)
    scaling = _read_scaling(config)
    present = [name for name in _FILES if os.path.isfile(folder / name)]
    if not present:
        raise CheckpointError(f"has {CONFIG} but neither {' nor '.join(_FILES)}")
    with naming(shown(present[0])):
        found, _, notes = choose(read_file(inside(folder, present[0])), None)
    notes += ["the magnitudes of DoRA are not part of the products"] if config.get("use_dora") else []
    return [replace(found, tensors=_products(found.tensors, scaling))], tuple(notes)


def _read_scaling(config: Mapping[str, object]) -> _Scaling:
    kind, alpha, alpha_of = config.get("peft_type"), config.get("lora_alpha"), config.get("alpha_pattern") or {}
    if kind != "LORA":
        raise CheckpointError(f"is an adapter of type {shown(kind)}; only LORA is read")
    if not isinstance(alpha_of, dict) or not all(_is_number(value) for value in (alpha, *alpha_of.values())):
        raise CheckpointError(f"{CONFIG} needs numbers for lora_alpha and in alpha_pattern")
    for pattern in alpha_of:
        # a regular expression from a file could run for years
        if not _PLAIN_PATTERN.fullmatch(pattern):
            raise CheckpointError(f"{CONFIG} has the alpha_pattern {shown(pattern)}; only names of layers are read")
    assert isinstance(alpha, int | float)
    return _Scaling(alpha, alpha_of, config.get("use_rslora") is True)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30


def _is_meant(pattern: str, layer: str) -> bool:
    name = pattern.replace("\\.", ".")
    return layer == name.removeprefix("^") or (not name.startswith("^") and layer.endswith(f".{name}"))


def _products(tensors: Sequence[StoredTensor], scaling: _Scaling) -> list[StoredTensor]:
    factors: dict[str, dict[str, StoredTensor]] = {}
    others: list[StoredTensor] = []
    for tensor in tensors:
        name = tensor.name.removeprefix(_PREFIX)
        if match := _FACTOR.fullmatch(name):
            factors.setdefault(match[1], {})[match[2]] = tensor
        else:
            others.append(replace(tensor, name=name))
    return [_product(layer, pair, scaling) for layer, pair in factors.items()] + others


def _product(layer: str, pair: Mapping[str, StoredTensor], scaling: _Scaling) -> StoredTensor:
    if set(pair) != {"A", "B"}:
        raise CheckpointError(f"layer {shown(layer)} has lora_{min(pair)} without its partner")
    down, up = pair["A"], pair["B"]
    rank = down.shape[0] if down.shape else 0
    if min(len(down.shape), len(up.shape)) < 2 or rank == 0 or math.prod(up.shape[1:]) != rank:
        raise CheckpointError(f"layer {shown(layer)} has lora_A and lora_B that cannot be multiplied")
    dtype = torch.promote_types(torch.promote_types(down.dtype, up.dtype), torch.float32)
    load = partial(_load_core, down, up, scaling.of(layer, rank), dtype)
    return StoredTensor(layer, (up.shape[0], math.prod(down.shape[1:])), dtype, load, rank=rank)


def _load_core(down: StoredTensor, up: StoredTensor, scale: float, dtype: torch.dtype) -> Tensor:
    """A small matrix with the singular values of scale x B @ A: with B = Qb Rb and A' = Qa Ra it is Rb Ra'."""
    of_down: Tensor = torch.linalg.qr(down.load().flatten(1).T.to(dtype), mode="r").R
    of_up: Tensor = torch.linalg.qr(up.load().flatten(1).to(dtype), mode="r").R
    return scale * of_up @ of_down.T
