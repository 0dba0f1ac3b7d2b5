"""Weights computed from stored tensors: dequantised weights and products of LoRA factors.

Layouts of quantised weights: int8 and 4-bit of bitsandbytes, GPTQ, AWQ, and int8 or float8 with a scale beside it.
torch's own quantised tensors carry their scales, and are read as such.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tempbalance.checkpoint.tensors import (
    StoredTensor,
    inside,
    num_elements,
    parse_json,
    read_json,
    refuse,
    unreadable,
)
from tempbalance.errors import CheckpointError, WeightError, quoted

_CONFIGS = ("config.json", "quantize_config.json")
_PART = "part of a quantised weight, scored with it"
_MOST_STATE_BYTES = 1 << 16
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the place of each column among the eight in an integer
_STATE = ".quant_state.bitsandbytes__"
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
_PREFIX = "base_model.model."
_FACTOR = re.compile(r"(.+)\.lora_(?:embedding_)?([AB])(?:\.weight)?")
_PLAIN_PATTERN = re.compile(r"\^?(?:[\w-]|\\?\.)+")

Named = Mapping[str, StoredTensor]
Load = Callable[[], Tensor]
Made = tuple[tuple[int, ...], Load]  # the shape of a weight, and how it is computed


def dequantize(tensors: Sequence[StoredTensor], folder: Path | None) -> list[StoredTensor]:
    """Replace quantised weights by dequantised ones, and mark their parts as such.

    Args:
        tensors: Tensors of a checkpoint.
        folder: Folder that may have a configuration with the packing of the integers.
    """
    by_name = {tensor.name: tensor for tensor in tensors}
    made: dict[str, StoredTensor] = {}
    parts: set[str] = set()
    config = cache(partial(_config, folder))
    for name, tensor in by_name.items():
        owner, _, key = name.rpartition(".")
        if tensor.problem or len(tensor.shape) != 2:
            continue
        make: Callable[[], Made]
        suffixes: tuple[str, ...]
        weight, suffixes = name, ("_scale", "_scale_inv", "_zero_point")
        if key == "qweight":
            weight, suffixes = f"{owner}.weight", (".qzeros", ".scales", ".g_idx")
            make = partial(_packed, owner, by_name, config())
        elif key == "weight" and f"{owner}.SCB" in by_name and tensor.dtype == torch.int8:
            suffixes, make = (".SCB", ".weight_format"), partial(_row_scaled, owner, by_name)
        elif tensor.dtype == torch.uint8 and any(f"{name}{_STATE}{kind}" in by_name for kind in ("nf4", "fp4")):
            suffixes = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", f"{_STATE}nf4", f"{_STATE}fp4")
            make = partial(_four_bit, name, by_name)
        elif tensor.dtype in (torch.int8, *_FLOAT8) and (f"{name}_scale" in by_name or f"{name}_scale_inv" in by_name):
            make = partial(_scaled, name, by_name, config())
        else:
            continue
        try:
            shape, load = make()
            num_elements(f"weight {quoted(weight)}", shape)
            made[name] = StoredTensor(weight, shape, torch.float32, load)
        except WeightError as err:
            made[name] = unreadable(tensor.shape, str(err), torch.float32, weight)
        stem = owner if key == "qweight" or suffixes[0] == ".SCB" else name
        parts |= {stem + suffix for suffix in suffixes}
    return [
        made[name] if name in made else replace(tensor, problem=_PART) if name in parts else tensor
        for name, tensor in by_name.items()
    ]


def _config(folder: Path | None) -> dict[str, Any]:
    """Read how a model was quantised from the configuration beside its weights; empty if it is not there."""
    for file in _CONFIGS:
        if folder is not None and os.path.isfile(folder / file):
            content = read_json(inside(folder, file))
            nested = content.get("quantization_config", content if file == _CONFIGS[1] else {})
            return nested if isinstance(nested, dict) else {}
    return {}


def _row_scaled(owner: str, by_name: Named) -> Made:
    """Compute an int8 weight of bitsandbytes: W = integer x SCB of its row / 127."""
    weight, scale, form = by_name[f"{owner}.weight"], by_name[f"{owner}.SCB"], by_name.get(f"{owner}.weight_format")
    if scale.shape != weight.shape[:1]:
        refuse("int8 with an SCB that does not fit its rows")

    def load() -> Tensor:
        if form is not None and int(form.load()) != 0:
            refuse("int8 in a layout other than row by row")
        return weight.load().float().mul_(scale.load().float()[:, None] / 127)

    return weight.shape, load


def _four_bit(name: str, by_name: Named) -> Made:
    """Compute a 4-bit weight of bitsandbytes: W = code[nibble] x absmax of its block, the high nibble first."""
    held, code = by_name[name], by_name.get(f"{name}.quant_map")
    described = by_name[next(f"{name}{_STATE}{kind}" for kind in ("nf4", "fp4") if f"{name}{_STATE}{kind}" in by_name)]
    if described.problem or described.num_bytes > _MOST_STATE_BYTES or described.dtype != torch.uint8:
        refuse(f"4-bit, and {quoted(described.name)} does not describe it")
    content = described.load().cpu().numpy().tobytes()
    try:
        state = parse_json(content, quoted(described.name))
    except CheckpointError as err:
        refuse(f"4-bit, and {err}")
    match state:
        case {"shape": [int() as rows, int() as columns], "blocksize": int() as size} if min(size, rows, columns) > 0:
            absmax = _absmax(name, by_name, state, -(-rows * columns // size))
            fits = 2 * math.prod(held.shape) == rows * columns
            if fits and code is not None and code.shape == (16,) and absmax is not None:
                return (rows, columns), partial(_load_four_bit, held, code, absmax, size, (rows, columns))
    refuse("4-bit, and its quant_state does not fit it")


def _absmax(name: str, by_name: Named, state: Mapping[str, Any], count: int) -> Load | None:
    """Return a function that reads the scales of blocks, which may be quantised too; ``None`` if they do not fit."""
    absmax, nested = by_name.get(f"{name}.absmax"), by_name.get(f"{name}.nested_absmax")
    code, size = by_name.get(f"{name}.nested_quant_map"), state.get("nested_blocksize")
    if absmax is None or absmax.shape != (count,):
        return None
    if nested is None:
        return lambda: absmax.load().float()
    offset = state.get("nested_offset")
    if not isinstance(size, int) or size < 1 or not isinstance(offset, float) or absmax.dtype != torch.uint8:
        return None
    if code is None or code.shape != (256,) or nested.shape != (-(-count // size),):
        return None
    return lambda: _blocks(code.load().float()[absmax.load().long()], nested.load().float(), size) + offset


def _blocks(values: Tensor, scales: Tensor, size: int) -> Tensor:
    """Multiply each block of a vector with its scale, in place."""
    whole = len(values) // size * size
    values[:whole].view(-1, size).mul_(scales[: whole // size, None])
    values[whole:].mul_(scales[-1:])
    return values


def _load_four_bit(held: StoredTensor, code: StoredTensor, absmax: Load, size: int, shape: tuple[int, int]) -> Tensor:
    levels = code.load().float()
    pairs = torch.stack([levels.repeat_interleave(16), levels.repeat(16)], dim=1)  # of each byte
    return _blocks(pairs[held.load().flatten().long()].flatten(), absmax(), size).view(shape)


def _packed(owner: str, by_name: Named, config: Mapping[str, Any]) -> Made:
    """Compute a weight of GPTQ or AWQ: W = (integer - zero point) x scale of its group of inputs."""
    weight, groups = by_name[f"{owner}.qweight"], by_name.get(f"{owner}.g_idx")
    zeros, scales = by_name.get(f"{owner}.qzeros"), by_name.get(f"{owner}.scales")
    method, bits = config.get("quant_method"), config.get("bits")
    if type(bits) is not int or (method, bits) not in (("gptq", 2), ("gptq", 4), ("gptq", 8), ("awq", 4)):
        said = "packed, and no quantization_config beside it says how" if method is None else "packed in a way not read"
        refuse(f"{said} (quant_method {quoted(method)}, bits {quoted(bits)})")
    each, is_gptq = 32 // bits, method == "gptq"
    rows, columns = weight.shape[0] * (each if is_gptq else 1), weight.shape[1] * (1 if is_gptq else each)
    num_groups = scales.shape[0] if scales is not None and len(scales.shape) == 2 else 0
    by_index = groups is not None and groups.shape == (rows,)
    fits = num_groups > 0 and (by_index or rows % num_groups == 0)
    if scales is None or zeros is None or not fits or not weight.dtype == zeros.dtype == torch.int32:
        refuse("packed, and its scales and zero points do not fit it")
    if scales.shape[1] != columns or zeros.shape != (num_groups, columns // each):
        refuse("packed, and its scales and zero points do not fit it")
    shift = 1 if is_gptq and config.get("checkpoint_format", "gptq") != "gptq_v2" else 0

    def load() -> Tensor:
        integers, zero = _unpack(weight.load(), bits, dim=0 if is_gptq else 1), _unpack(zeros.load(), bits, dim=1)
        if not is_gptq:
            order = (torch.arange(0, columns, 8)[:, None] + torch.tensor(_AWQ_ORDER)).flatten()
            integers, zero = integers[:, order], zero[:, order]
        index = groups.load().long() if groups is not None and by_index else torch.arange(rows) * num_groups // rows
        if int(index.min()) < 0 or int(index.max()) >= num_groups:
            refuse("packed, with a group that has no scale")
        return integers.sub_(zero.add_(shift)[index]).float().mul_(scales.load().float()[index]).T

    return (columns, rows), load


def _unpack(packed: Tensor, bits: int, dim: int) -> Tensor:
    """Unpack 32-bit integers along a dimension, the lowest bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    shifts = shifts.view(1, -1, 1) if dim == 0 else shifts.view(1, 1, -1)
    return (packed.unsqueeze(dim + 1) >> shifts).bitwise_and_(2**bits - 1).flatten(dim, dim + 1)


def _scaled(name: str, by_name: Named, config: Mapping[str, Any]) -> Made:
    """Compute a weight with a scale of the tensor, of each row or of each block: W = (value - zero point) x scale."""
    held, zero = by_name[name], by_name.get(f"{name}_zero_point")
    scale = by_name.get(f"{name}_scale") or by_name[f"{name}_scale_inv"]
    rows, columns = (max(side, 1) for side in held.shape)
    block = config.get("weight_block_size")
    sides = (0, 0)
    if math.prod(scale.shape) == 1:
        sides = (rows, columns)
    elif scale.shape in ((rows,), (rows, 1)):
        sides = (1, columns)
    elif isinstance(block, list) and len(block) == 2 and all(isinstance(side, int) and side > 0 for side in block):
        sides = (min(block[0], rows), min(block[1], columns))
    elif len(scale.shape) == 2 and 0 not in scale.shape and not (rows % scale.shape[0] or columns % scale.shape[1]):
        sides = (rows // scale.shape[0], columns // scale.shape[1])
    grid = (-(-rows // sides[0]), -(-columns // sides[1])) if all(sides) else (0, 0)
    fits = math.prod(scale.shape) == math.prod(grid) > 0 and (zero is None or zero.shape == scale.shape)
    if not fits or 0 in held.shape:
        refuse(f"{str(held.dtype).removeprefix('torch.')} with scales that do not fit it")

    def load() -> Tensor:
        values = held.load().float()
        for part, apply in ((zero, values.sub_), (scale, values.mul_)):
            if part is not None:
                wide = part.load().float().reshape(grid).repeat_interleave(sides[0], 0)[:rows]
                apply(wide if sides[1] == columns else wide.repeat_interleave(sides[1], 1)[:, :columns])
        return values

    return held.shape, load


# LoRA as peft saves it: each pair of factors is the product that it adds to a weight


def lora_products(tensors: Sequence[StoredTensor], config: Mapping[str, Any]) -> list[StoredTensor]:
    """Return the products of an adapter's factors, and the other tensors under the names of the model.

    Raises:
        CheckpointError: If it is not LoRA, or its factors do not belong together.
    """
    kind, alpha, alpha_of = config.get("peft_type"), config.get("lora_alpha"), config.get("alpha_pattern") or {}
    if kind != "LORA":
        raise CheckpointError(f"is an adapter of type {quoted(kind)}; only LORA is read")
    if not isinstance(alpha_of, dict) or not all(_is_number(value) for value in (alpha, *alpha_of.values())):
        raise CheckpointError("the configuration needs numbers for lora_alpha and in alpha_pattern")
    for pattern in alpha_of:
        # a regular expression from a file could run for years
        if not _PLAIN_PATTERN.fullmatch(pattern):
            raise CheckpointError(f"the configuration has the alpha_pattern {quoted(pattern)}; only names are read")
    factors: dict[str, dict[str, StoredTensor]] = {}
    others: list[StoredTensor] = []
    for tensor in tensors:
        name = tensor.name.removeprefix(_PREFIX)
        if match := _FACTOR.fullmatch(name):
            factors.setdefault(match[1], {})[match[2]] = tensor
        else:
            others.append(replace(tensor, name=name))
    is_root = config.get("use_rslora") is True  # alpha / sqrt(r) for rank-stabilised adapters, else alpha / r
    products = [
        _product(layer, pair, next((alpha_of[each] for each in alpha_of if _is_meant(each, layer)), alpha), is_root)
        for layer, pair in factors.items()
    ]
    return products + others


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30


def _is_meant(pattern: str, layer: str) -> bool:
    name = pattern.replace("\\.", ".")
    return layer == name.removeprefix("^") or (not name.startswith("^") and layer.endswith(f".{name}"))


def _product(layer: str, pair: Mapping[str, StoredTensor], alpha: Any, is_root: bool) -> StoredTensor:
    down, up = pair.get("A"), pair.get("B")
    if down is None or up is None:
        return unreadable(pair[min(pair)].shape, f"lora_{min(pair)} without its partner", name=layer)
    rank = down.shape[0] if down.shape else 0
    fits = min(len(down.shape), len(up.shape)) > 1 and rank > 0 and math.prod(up.shape[1:]) == rank
    is_real = down.dtype.is_floating_point and up.dtype.is_floating_point
    if not fits or not is_real or down.problem or up.problem:
        return unreadable(down.shape, "made of a lora_A and a lora_B that cannot be multiplied", name=layer)
    dtype = torch.float64 if torch.float64 in (down.dtype, up.dtype) else torch.float32
    load = partial(_load_core, down, up, alpha / (math.sqrt(rank) if is_root else rank), dtype)
    return StoredTensor(layer, (up.shape[0], math.prod(down.shape[1:])), dtype, load, rank=rank)


def _load_core(down: StoredTensor, up: StoredTensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Compute a small matrix with the singular values of scale x B @ A: with B = Qb Rb and A' = Qa Ra it is Rb Ra'."""
    of_down: Tensor = torch.linalg.qr(down.load().flatten(1).T.to(dtype), mode="r").R
    of_up: Tensor = torch.linalg.qr(up.load().flatten(1).to(dtype), mode="r").R
    return scale * of_up @ of_down.T
