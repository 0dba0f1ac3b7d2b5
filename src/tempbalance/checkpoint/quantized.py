"""Quantised weights -> the weights that a model computes with, where the file or the configuration beside it says how.

Layouts: int8 and 4-bit of bitsandbytes, GPTQ, AWQ, and int8 or float8 with a scale beside it. torch's own quantised
tensors carry their scales, and are read as such.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from tempbalance.checkpoint.files import inside, num_elements, parse_json, read_index, shown
from tempbalance.checkpoint.tensors import StoredTensor
from tempbalance.errors import CheckpointError, WeightError

_CONFIGS = ("config.json", "quantize_config.json")
_PART = "part of a quantised weight, scored with it"
_MOST_STATE_BYTES = 1 << 16
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the place of each column among the eight in an integer
_STATE = ".quant_state.bitsandbytes__"
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)

Named = Mapping[str, StoredTensor]


def dequantize(tensors: Sequence[StoredTensor], folder: Path | None) -> list[StoredTensor]:
    """Replace quantised weights by what they stand for, and say of their parts what they are.

    Args:
        tensors: Of a checkpoint.
        folder: Where a configuration may stand that says how its integers are packed.
    """
    by_name = {tensor.name: tensor for tensor in tensors}
    made: dict[str, StoredTensor] = {}
    parts: set[str] = set()
    config: dict[str, object] | None = None
    for name, tensor in by_name.items():
        owner, _, key = name.rpartition(".")
        if tensor.problem or len(tensor.shape) != 2:
            continue
        found: tuple[StoredTensor, list[str]] | None = None
        if key == "qweight":
            config = _config(folder) if config is None else config
            found = _packed(owner, by_name, config)
        elif f"{owner}.SCB" in by_name and tensor.dtype == torch.int8:
            found = _row_scaled(owner, by_name)
        elif tensor.dtype == torch.uint8:
            found = _four_bit(name, by_name)
        elif tensor.dtype in (*_FLOAT8, torch.int8):
            config = _config(folder) if config is None else config
            found = _scaled(name, by_name, config)
        if found is not None:
            made[name] = found[0]
            parts.update(part for part in found[1] if part in by_name)
    return [
        made[name] if name in made else replace(tensor, problem=_PART) if name in parts else tensor
        for name, tensor in by_name.items()
    ]


def _config(folder: Path | None) -> dict[str, Any]:
    """Read how a model was quantised from the configuration beside its weights; empty if it is not there."""
    for file in _CONFIGS:
        if folder is not None and os.path.isfile(folder / file):
            content = parse_json(read_index(inside(folder, file)), file)
            nested = content.get("quantization_config", content if file == _CONFIGS[1] else {})
            return nested if isinstance(nested, dict) else {}
    return {}


def _weight(name: str, shape: Sequence[int], load: Any, problem: str = "") -> StoredTensor:
    if not problem:
        num_elements(f"weight {shown(name)}", tuple(shape))
    return StoredTensor(name, tuple(shape), torch.float32, load, problem=problem)


def _unknown(name: str, shape: Sequence[int], problem: str) -> StoredTensor:
    return _weight(name, shape, partial(_refuse, name, problem), problem)


def _refuse(name: str, problem: str) -> NoReturn:
    raise WeightError(f"{shown(name)} is {problem}")


def _row_scaled(owner: str, by_name: Named) -> tuple[StoredTensor, list[str]]:
    """Describe an int8 weight of bitsandbytes: W = integer x SCB of its row / 127."""
    weight, scale, form = by_name[f"{owner}.weight"], by_name[f"{owner}.SCB"], by_name.get(f"{owner}.weight_format")
    parts = [scale.name, f"{owner}.weight_format"]
    if scale.shape != weight.shape[:1]:
        return _unknown(weight.name, weight.shape, "int8 with an SCB that does not fit its rows"), parts

    def load() -> Tensor:
        if form is not None and int(form.load()) != 0:
            _refuse(weight.name, "int8 in a layout other than row by row")
        return weight.load().float().mul_(scale.load().float()[:, None] / 127)

    return _weight(weight.name, weight.shape, load), parts


def _four_bit(name: str, by_name: Named) -> tuple[StoredTensor, list[str]] | None:
    """Describe a 4-bit weight of bitsandbytes: W = code[nibble] x absmax of its block, the high nibble first."""
    states = [f"{name}{_STATE}{kind}" for kind in ("nf4", "fp4") if f"{name}{_STATE}{kind}" in by_name]
    if not states:
        return None
    parts = [*states, *(f"{name}.{part}" for part in ("absmax", "quant_map", "nested_absmax", "nested_quant_map"))]
    held, described = by_name[name], by_name[states[0]]
    if described.problem or described.num_bytes > _MOST_STATE_BYTES or described.dtype != torch.uint8:
        raise CheckpointError(f"{shown(described.name)} is not a description of {shown(name)}")
    state = parse_json(described.load().cpu().numpy().tobytes(), shown(described.name))
    match state:
        case {"shape": [int() as rows, int() as columns], "blocksize": int() as size} if (
            size > 0 < rows and columns > 0
        ):
            count, code = rows * columns, by_name.get(f"{name}.quant_map")
            absmax = _absmax(name, by_name, state, -(-count // size))
            if code is not None and code.shape == (16,) and absmax is not None and 2 * math.prod(held.shape) == count:
                load = partial(_load_four_bit, held, code, absmax, size, (rows, columns))
                return _weight(name, (rows, columns), load), parts
    return _unknown(name, held.shape, "4-bit, and its quant_state does not fit it"), parts


def _absmax(name: str, by_name: Named, state: Mapping[str, Any], count: int) -> Any:
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


def _load_four_bit(held: StoredTensor, code: StoredTensor, absmax: Any, size: int, shape: tuple[int, int]) -> Tensor:
    levels = code.load().float()
    pairs = torch.stack([levels.repeat_interleave(16), levels.repeat(16)], dim=1)  # of each byte
    return _blocks(pairs[held.load().flatten().long()].flatten(), absmax(), size).view(shape)


def _packed(owner: str, by_name: Named, config: Mapping[str, Any]) -> tuple[StoredTensor, list[str]]:
    """Describe a weight of GPTQ or AWQ: W = (integer - zero point) x scale of its group of inputs."""
    weight, groups = by_name[f"{owner}.qweight"], by_name.get(f"{owner}.g_idx")
    zeros, scales = by_name.get(f"{owner}.qzeros"), by_name.get(f"{owner}.scales")
    name, parts = f"{owner}.weight", [f"{owner}.{part}" for part in ("qzeros", "scales", "g_idx")]
    method, bits = config.get("quant_method"), config.get("bits")
    if (
        method not in ("gptq", "awq")
        or type(bits) is not int
        or bits not in (2, 4, 8)
        or (method == "awq" and bits != 4)
    ):
        said = "packed, and no quantization_config beside it says how" if method is None else "packed in a way not read"
        return _unknown(name, weight.shape, f"{said} (quant_method {shown(method)}, bits {shown(bits)})"), parts
    each, is_gptq = 32 // bits, method == "gptq"
    rows, columns = weight.shape[0] * (each if is_gptq else 1), weight.shape[1] * (1 if is_gptq else each)
    problem = _unknown(name, weight.shape, "packed, and its scales and zero points do not fit it"), parts
    if scales is None or zeros is None or len(scales.shape) != 2 or not weight.dtype == zeros.dtype == torch.int32:
        return problem
    num_groups, by_index = scales.shape[0], groups is not None and groups.shape == (rows,)
    if scales.shape[1] != columns or zeros.shape != (num_groups, columns // each):
        return problem
    if num_groups == 0 or not (by_index or rows % num_groups == 0):
        return problem
    shift = 1 if is_gptq and config.get("checkpoint_format", "gptq") != "gptq_v2" else 0

    def load() -> Tensor:
        integers, zero = _unpack(weight.load(), bits, dim=0 if is_gptq else 1), _unpack(zeros.load(), bits, dim=1)
        if not is_gptq:
            integers, zero = integers[:, _order(columns)], zero[:, _order(columns)]
        index = groups.load().long() if groups is not None and by_index else torch.arange(rows) * num_groups // rows
        if int(index.min()) < 0 or int(index.max()) >= num_groups:
            _refuse(name, "packed, with a group that has no scale")
        return integers.sub_(zero.add_(shift)[index]).float().mul_(scales.load().float()[index]).T

    return _weight(name, (columns, rows), load), parts


def _unpack(packed: Tensor, bits: int, dim: int) -> Tensor:
    """Return the integers that stand in 32 bits each, the lowest first, along a dimension."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    shifts = shifts.view(1, -1, 1) if dim == 0 else shifts.view(1, 1, -1)
    return (packed.unsqueeze(dim + 1) >> shifts).bitwise_and_(2**bits - 1).flatten(dim, dim + 1)


def _order(count: int) -> Tensor:
    return (torch.arange(0, count, 8)[:, None] + torch.tensor(_AWQ_ORDER)).flatten()


def _scaled(name: str, by_name: Named, config: Mapping[str, Any]) -> tuple[StoredTensor, list[str]] | None:
    """Describe a weight with a scale of the tensor, of each row or of each block: W = (value - zero point) x scale."""
    scale = by_name.get(f"{name}_scale", by_name.get(f"{name}_scale_inv"))
    if scale is None:
        return None
    held, zero = by_name[name], by_name.get(f"{name}_zero_point")
    (rows, columns), parts = held.shape, [scale.name, f"{name}_zero_point"]
    block = config.get("weight_block_size")
    sides: tuple[int, int]
    if math.prod(scale.shape) == 1:
        sides = (rows, columns)
    elif scale.shape in ((rows,), (rows, 1)):
        sides = (1, columns)
    elif isinstance(block, list) and len(block) == 2 and all(isinstance(side, int) and side > 0 for side in block):
        sides = (min(block[0], max(rows, 1)), min(block[1], max(columns, 1)))
    elif len(scale.shape) == 2 and 0 not in scale.shape and not (rows % scale.shape[0] or columns % scale.shape[1]):
        sides = (rows // scale.shape[0], columns // scale.shape[1])
    else:
        return _unknown(name, held.shape, f"{_short(held.dtype)} with scales that do not fit it"), parts
    grid = (-(-rows // max(sides[0], 1)), -(-columns // max(sides[1], 1)))
    if math.prod(scale.shape) != math.prod(grid) or (zero is not None and zero.shape != scale.shape):
        return _unknown(name, held.shape, f"{_short(held.dtype)} with scales that do not fit it"), parts

    def load() -> Tensor:
        values = held.load().float()
        for part, apply in ((zero, values.sub_), (scale, values.mul_)):
            if part is not None:
                wide = part.load().float().reshape(grid).repeat_interleave(sides[0], 0)[:rows]
                apply(wide if sides[1] == columns else wide.repeat_interleave(sides[1], 1)[:, :columns])
        return values

    return _weight(name, held.shape, load), parts


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
