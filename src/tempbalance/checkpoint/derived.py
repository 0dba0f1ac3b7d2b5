"""Weights computed from stored tensors: dequantised, masked and normed weights, and products of LoRA factors.

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
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tempbalance.checkpoint.tensors import (
    StoredTensor,
    inside,
    num_elements,
    parse_json,
    read_json,
    refuse,
    require,
    unreadable,
)
from tempbalance.errors import CheckpointError, WeightError, quoted

PART = "part of a weight, scored with it"
_MOST_STATE_BYTES, _MOST_COMPARED = 1 << 16, 5_000_000
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the place of each column among the eight in an integer
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
_PLAIN_PATTERN = re.compile(r"\^?(?:[\w-]|\\?\.)+")

Part = Any  # a StoredTensor, or None if there is no tensor of the name
Made = tuple[tuple[int, ...], Callable[[], Tensor]]  # the shape of a weight, and how it is computed
Config = Mapping[str, Any]


def _fits(part: Part, *shape: int, dtype: torch.dtype | None = None) -> bool:
    return part is not None and part.shape == shape and dtype in (None, part.dtype)


def _four_bit(held: StoredTensor, _: Config, described: StoredTensor, *parts: Part) -> Made:
    """Compute a 4-bit weight of bitsandbytes: W = code[nibble] x absmax of its block, the high nibble first.

    The absmax may be quantised too: absmax = code[byte] x absmax of its block + offset.
    """
    absmax, code, nested, nested_code = parts
    if described.num_bytes > _MOST_STATE_BYTES or described.dtype != torch.uint8:
        refuse(f"4-bit, and {quoted(described.name)} does not describe it")
    try:
        state = parse_json(described.load().cpu().numpy().tobytes(), quoted(described.name))
    except CheckpointError as err:
        refuse(f"4-bit, and {err}")
    match state:
        case {"shape": [int() as rows, int() as columns], "blocksize": int() as size} if min(rows, columns, size) > 0:
            num_blocks = -(-rows * columns // size)
        case _:
            refuse("4-bit, and its quant_state has no shape and blocksize")
    fits = _fits(code, 16) and _fits(absmax, num_blocks) and 2 * math.prod(held.shape) == rows * columns
    if nested is not None:
        match state:
            case {"nested_offset": float() as offset, "nested_blocksize": int() as nested_size} if nested_size > 0:
                are_bytes = _fits(absmax, num_blocks, dtype=torch.uint8)
                fits &= are_bytes and _fits(nested, -(-num_blocks // nested_size)) and _fits(nested_code, 256)
            case _:
                fits = False
    if not fits:
        refuse("4-bit, and its quant_state does not fit it")

    def load() -> Tensor:
        scales, levels = absmax.load(), code.load().float()
        if nested is not None:
            scales = _scale_blocks(nested_code.load().float()[scales.long()], nested.load().float(), nested_size)
            scales += offset
        pairs = torch.stack([levels.repeat_interleave(16), levels.repeat(16)], dim=1)  # of each byte
        values = pairs[held.load().flatten().long()].flatten()
        return _scale_blocks(values, scales.float(), size).view(rows, columns)

    return (rows, columns), load


def _scale_blocks(values: Tensor, scales: Tensor, size: int) -> Tensor:
    """Multiply each block of a vector with its scale, in place."""
    whole = len(values) // size * size
    values[:whole].view(-1, size).mul_(scales[: whole // size, None])
    values[whole:].mul_(scales[-1:])
    return values


def _packed(held: StoredTensor, config: Config, zeros: Part, scales: Part, groups: Part) -> Made:
    """Compute a weight of GPTQ or AWQ: W = (integer - zero point) x scale of its group of inputs."""
    method, bits = config.get("quant_method"), config.get("bits")
    if type(bits) is not int or (method, bits) not in (("gptq", 2), ("gptq", 4), ("gptq", 8), ("awq", 4)):
        said = "packed, and no quantization_config beside it says how" if method is None else "packed in a way not read"
        refuse(f"{said} (quant_method {quoted(method)}, bits {quoted(bits)})")
    each, is_gptq = 32 // bits, method == "gptq"
    rows, columns = held.shape[0] * (each if is_gptq else 1), held.shape[1] * (1 if is_gptq else each)
    num_groups = scales.shape[0] if scales is not None and scales.shape else 0
    by_index = _fits(groups, rows)
    fits = num_groups > 0 and _fits(scales, num_groups, columns) and (by_index or rows % num_groups == 0)
    if not fits or not _fits(zeros, num_groups, columns // each, dtype=torch.int32):
        refuse("packed, and its scales and zero points do not fit it")
    shift = 1 if is_gptq and config.get("checkpoint_format", "gptq") != "gptq_v2" else 0

    def load() -> Tensor:
        integers, zero = _unpack(held.load(), bits, dim=0 if is_gptq else 1), _unpack(zeros.load(), bits, dim=1)
        if not is_gptq:
            order = (torch.arange(0, columns, 8)[:, None] + torch.tensor(_AWQ_ORDER)).flatten()
            integers, zero = integers[:, order], zero[:, order]
        index = groups.load().long() if by_index else torch.arange(rows) * num_groups // rows
        if int(index.min()) < 0 or int(index.max()) >= num_groups:
            refuse("packed, with a group that has no scale")
        return integers.sub_(zero.add_(shift)[index]).float().mul_(scales.load().float()[index]).T

    return (columns, rows), load


def _unpack(packed: Tensor, bits: int, dim: int) -> Tensor:
    """Unpack 32-bit integers along a dimension, the lowest bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    shifts = shifts.view(1, -1, 1) if dim == 0 else shifts.view(1, 1, -1)
    return (packed.unsqueeze(dim + 1) >> shifts).bitwise_and_(2**bits - 1).flatten(dim, dim + 1)


def _row_scaled(held: StoredTensor, _: Config, scale: StoredTensor, form: Part) -> Made:
    """Compute an int8 weight of bitsandbytes: W = integer x SCB of its row / 127."""
    if scale.shape != held.shape[:1] or (form is not None and (form.shape or int(form.load()))):
        refuse("int8 with an SCB that does not fit its rows, or in a layout other than row by row")
    return held.shape, lambda: held.load().float().mul_(scale.load().float()[:, None] / 127)


def _scaled(held: StoredTensor, config: Config, scale: StoredTensor, zero: Part) -> Made:
    """Compute a weight with a scale of the tensor, of each row or of each block: W = (value - zero point) x scale."""
    rows, columns = held.shape
    sides = (rows, columns)  # of a block
    match scale.shape, config.get("weight_block_size"):
        case ((count,) | (count, 1), _) if count == rows > 1:
            sides = (1, columns)
        case (_, [int() as height, int() as width]) if min(height, width) > 0 and math.prod(scale.shape) > 1:
            sides = (min(height, rows), min(width, columns))
        case ((down, across), _) if down and across and not (rows % down or columns % across):
            sides = (rows // down, columns // across)
    grid = (-(-rows // sides[0]), -(-columns // sides[1])) if all(sides) else (0, 0)
    if not math.prod(scale.shape) == math.prod(grid) > 0 or (zero is not None and zero.shape != scale.shape):
        refuse(f"{_dtype(held)} with scales that do not fit it")

    def load() -> Tensor:
        values = held.load().float()
        for part, apply in ((zero, values.sub_), (scale, values.mul_)):
            if part is not None:
                wide = part.load().float().reshape(grid).repeat_interleave(sides[0], 0)[:rows]
                apply(wide if sides[1] == columns else wide.repeat_interleave(sides[1], 1)[:, :columns])
        return values

    return held.shape, load


def _masked(held: StoredTensor, _: Config, mask: StoredTensor) -> Made:
    """Compute a pruned weight."""
    _check_fit(mask.shape == held.shape and not mask.dtype.is_complex, held, mask)
    return held.shape, lambda: held.load() * mask.load().to(held.dtype)


def _normed(held: StoredTensor, _: Config, size: StoredTensor) -> Made:
    """Compute a weight of weight norm: W = direction x size / norm of the direction."""
    dims = [dim for dim, length in enumerate(size.shape) if length == 1]
    is_along = size.shape == tuple(1 if dim in dims else side for dim, side in enumerate(held.shape))
    _check_fit((is_along or size.shape == ()) and size.dtype.is_floating_point, held, size)

    def load() -> Tensor:
        direction = held.load()
        return direction.mul(size.load() / torch.linalg.vector_norm(direction, dim=dims or None, keepdim=True))

    return held.shape, load


def _spectrally_normed(held: StoredTensor, _: Config, left: StoredTensor, right: StoredTensor) -> Made:
    """Compute a weight of spectral norm: W = weight / (u' weight v); its outputs may be the second dimension."""
    count = math.prod(held.shape)
    fits = [(left.shape, right.shape) == ((side,), (count // max(side, 1),)) for side in held.shape[:2]]
    _check_fit(any(fits) and left.dtype == right.dtype == held.dtype, held, left, right)

    def load() -> Tensor:
        weight = held.load()
        matrix = weight if fits[0] else weight.transpose(0, 1)
        return weight.div(left.load() @ (matrix.flatten(1) @ right.load()))

    return held.shape, load


def _dtype(tensor: StoredTensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check_fit(fits: bool, held: StoredTensor, *parts: StoredTensor) -> None:
    """Refuse parts of a weight that torch would broadcast or convert."""
    if not fits:
        kinds = [f"{' x '.join(map(str, each.shape))} {_dtype(each)}" for each in (*parts, held)]
        refuse(f"{quoted(parts[0].name)} ({' and '.join(kinds[:-1])}) does not fit {kinds[-1]}")


class _Rule(NamedTuple):
    """How a weight is computed from a tensor and others, whose names begin alike."""

    stem: str  # end of the tensor's name
    weight: str  # end of the weight's name
    needs: tuple[str, ...]  # ends of the names of others that must be there
    make: Callable[..., Made]
    options: tuple[str, ...] = ()  # others that may be there
    dtypes: tuple[torch.dtype, ...] = ()  # of matrices that are quantised; empty for weights that are not

    def is_for(self, tensor: StoredTensor, by_name: Mapping[str, StoredTensor]) -> bool:
        is_kind = len(tensor.shape) == 2 and tensor.dtype in self.dtypes if self.dtypes else len(tensor.shape) > 1
        module = tensor.name.removesuffix(self.stem)
        return is_kind and tensor.name.endswith(self.stem) and all(module + each in by_name for each in self.needs)


_PATH = "parametrizations.weight."
_FOUR_BIT = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map")
_RULES = (
    _Rule("qweight", "weight", (), _packed, ("qzeros", "scales", "g_idx"), (torch.int32,)),
    _Rule("weight", "weight", ("SCB",), _row_scaled, ("weight_format",), (torch.int8,)),
    _Rule("", "", (".quant_state.bitsandbytes__nf4",), _four_bit, _FOUR_BIT, (torch.uint8,)),
    _Rule("", "", (".quant_state.bitsandbytes__fp4",), _four_bit, _FOUR_BIT, (torch.uint8,)),
    _Rule("", "", ("_scale",), _scaled, ("_zero_point",), (torch.int8, *_FLOAT8)),
    _Rule("", "", ("_scale_inv",), _scaled, ("_zero_point",), (torch.int8, *_FLOAT8)),
    _Rule("weight_orig", "weight", ("weight_mask",), _masked),
    _Rule("weight_orig", "weight", ("weight_u", "weight_v"), _spectrally_normed),
    _Rule("weight_v", "weight", ("weight_g",), _normed),
    _Rule(f"{_PATH}original1", "weight", (f"{_PATH}original0",), _normed),
    _Rule(f"{_PATH}original", "weight", (f"{_PATH}0._u", f"{_PATH}0._v"), _spectrally_normed),
)


def derive_weights(tensors: Sequence[StoredTensor], folder: Path | None) -> list[StoredTensor]:
    """Replace tensors of which a weight is made by the weight, and mark the others that it is made of.

    The folder may have a configuration that says how quantised weights are packed.
    """
    by_name = {tensor.name: tensor for tensor in tensors}
    made: dict[str, StoredTensor] = {}
    parts: set[str] = set()
    names = set(by_name)
    config = cache(partial(_config, folder))
    for tensor in by_name.values():
        rule = next((rule for rule in _RULES if rule.is_for(tensor, by_name)), None)
        if rule is None:
            continue
        module = tensor.name.removesuffix(rule.stem)
        name = tensor.name if module + rule.weight in names else module + rule.weight
        others = [module + each for each in (*rule.needs, *rule.options)]
        dtype = torch.float32 if rule.dtypes else tensor.dtype
        try:
            for each in (tensor, *filter(None, map(by_name.get, others))):
                if each.problem:
                    refuse(f"{quoted(each.name)} is {each.problem}")
            shape, load = rule.make(tensor, config(), *map(by_name.get, others))
            num_elements(f"weight {quoted(name)}", shape)
            made[tensor.name] = StoredTensor(name, shape, dtype, load, tensor.tie)
        except WeightError as err:  # one weight that cannot be computed
            made[tensor.name] = unreadable(tensor.shape, str(err), dtype, name)
        names.add(name)
        parts.update(others)
    return [
        made[name] if name in made else replace(tensor, problem=PART) if name in parts else tensor
        for name, tensor in by_name.items()
    ]


def _config(folder: Path | None) -> Config:
    """Read how a model was quantised from the configuration beside its weights; empty if it is not there."""
    for file, is_whole in (("config.json", False), ("quantize_config.json", True)):
        if folder is not None and os.path.isfile(folder / file):
            content = read_json(inside(folder, file))
            nested = content.get("quantization_config", content if is_whole else {})
            return nested if isinstance(nested, dict) else {}
    return {}


# LoRA as peft saves it: each pair of factors is the product that it adds to a weight


def lora_products(tensors: Sequence[StoredTensor], config: Config) -> list[StoredTensor]:
    """Return the products of an adapter's factors, and the other tensors under the names of the model."""
    kind, alpha, alpha_of = config.get("peft_type"), config.get("lora_alpha"), config.get("alpha_pattern") or {}
    if kind != "LORA":
        raise CheckpointError(f"is an adapter of type {quoted(kind)}; only LORA is read")
    if not isinstance(alpha_of, dict) or not all(_is_number(value) for value in (alpha, *alpha_of.values())):
        raise CheckpointError("the configuration needs numbers for lora_alpha and in alpha_pattern")
    require(len(alpha_of) * len(tensors) <= _MOST_COMPARED, f"the configuration has {len(alpha_of):,} patterns")
    for pattern in alpha_of:  # a regular expression from a file could run for years
        if not _PLAIN_PATTERN.fullmatch(pattern):
            raise CheckpointError(f"the configuration has the alpha_pattern {quoted(pattern)}; only names are read")
    factors: dict[str, dict[str, StoredTensor]] = {}
    others: list[StoredTensor] = []
    for tensor in tensors:
        name = tensor.name.removeprefix("base_model.model.")
        if match := re.fullmatch(r"(.+)\.lora_(?:embedding_)?([AB])(?:\.weight)?", name):
            factors.setdefault(match[1], {})[match[2]] = tensor
        else:
            others.append(replace(tensor, name=name))
    products = []
    for layer, pair in factors.items():
        own = next((alpha_of[each] for each in alpha_of if _is_meant(each, layer)), alpha)
        products.append(_product(layer, pair, own, is_root=config.get("use_rslora") is True))
    return products + others


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30


def _is_meant(pattern: str, layer: str) -> bool:
    name = pattern.replace("\\.", ".")
    return layer == name.removeprefix("^") or (not name.startswith("^") and layer.endswith(f".{name}"))


def _product(layer: str, pair: Mapping[str, StoredTensor], alpha: Any, *, is_root: bool) -> StoredTensor:
    """Describe scale x B @ A by a small matrix with its singular values: with B = Qb Rb and A' = Qa Ra it is Rb Ra'.

    The scale is alpha / r, or alpha / sqrt(r) for rank-stabilised adapters.
    """
    if len(pair) < 2:
        return unreadable(pair[min(pair)].shape, f"lora_{min(pair)} without its partner", name=layer)
    down, up = pair["A"], pair["B"]
    rank = down.shape[0] if down.shape else 0
    fits = min(len(down.shape), len(up.shape)) > 1 and rank > 0 and math.prod(up.shape[1:]) == rank
    is_real = down.dtype.is_floating_point and up.dtype.is_floating_point
    if not fits or not is_real or down.problem or up.problem:
        return unreadable(down.shape, "made of a lora_A and a lora_B that cannot be multiplied", name=layer)
    dtype = torch.float64 if torch.float64 in (down.dtype, up.dtype) else torch.float32
    scale: float = alpha / (math.sqrt(rank) if is_root else rank)

    def load() -> Tensor:
        of_down: Tensor = torch.linalg.qr(down.load().flatten(1).T.to(dtype), mode="r").R
        of_up: Tensor = torch.linalg.qr(up.load().flatten(1).to(dtype), mode="r").R
        return scale * of_up @ of_down.T

    return StoredTensor(layer, (up.shape[0], math.prod(down.shape[1:])), dtype, load, rank=rank)
