"""Low-rank adapters: the merged weight, base + scaling x product, in the layouts people use.

peft keeps dictionaries of adapters beside a ``base_layer``; loralib and hand-written ones keep one pair beside the
weight or beside a wrapped layer. They are told by what they hold, so that none of the packages is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tempbalance.errors import WeightError
from tempbalance.spectral.eigenvalues import check_weight

_PAIRS = (("lora_A", "lora_B"), ("lora_a", "lora_b"))
_BASES = ("base_layer", "base", "linear", "conv", "original", "layer")


def has_lora(module: nn.Module) -> bool:
    """Whether a module is made to add a low-rank product to a weight, active or not."""
    held = any(all(isinstance(getattr(module, name, None), nn.Module | Tensor) for name in pair) for pair in _PAIRS)
    return held and base_of(module) is not None


def base_of(module: nn.Module) -> nn.Module | None:
    """The module whose weight the product is added to: one inside, or the module itself."""
    for name in _BASES:
        base = getattr(module, name, None)
        if isinstance(base, nn.Module) and isinstance(getattr(base, "weight", None), Tensor):
            return base
    return module if isinstance(getattr(module, "weight", None), Tensor) else None


def merged_weight(module: nn.Module, base: Tensor) -> Tensor:
    """The weight that the module applies.

    Args:
        module: One for which `has_lora` holds.
        base: The weight without the product.

    Raises:
        WeightError: If the weight has no spectrum, or the product does not have its shape.
    """
    check_weight(base)
    if any(getattr(module, name, False) for name in ("merged", "disable_adapters", "disabled")):
        return base
    merged = base.detach().to(torch.promote_types(base.dtype, torch.float32))
    is_transposed = getattr(module, "fan_in_fan_out", False) or is_conv1d(base_of(module))
    with torch.autocast(base.device.type, enabled=False):
        for down, up, scaling in _pairs(module):
            product = _product(down.detach().to(merged), up.detach().to(merged), base.shape, is_transposed)
            merged = merged + scaling * product
    return merged


def is_conv1d(module: object) -> bool:
    """Whether a module is the ``Conv1D`` of GPT-2, a Linear with its weight transposed."""
    return any(kind.__name__ == "Conv1D" for kind in type(module).__mro__)


def _product(down: Tensor, up: Tensor, shape: torch.Size, is_transposed: bool) -> Tensor:
    """The product in the weight's orientation; ``x @ A @ B`` keeps its factors the other way round."""
    down, up = down.flatten(1), up.flatten(1)
    if up.shape[1] == down.shape[0]:
        product = (up @ down).T if is_transposed else up @ down
        if product.shape == shape or (len(shape) > 2 and product.numel() == shape.numel()):
            return product.reshape(shape)
    if down.shape[1] == up.shape[0] and (down @ up).T.shape == shape:
        return (down @ up).T
    raise WeightError(f"a LoRA pair {tuple(down.shape)}, {tuple(up.shape)} does not multiply to the base weight")


def _pairs(module: nn.Module) -> list[tuple[Tensor, Tensor, float]]:
    """Each active pair (down, up) with its scaling."""
    for down_name, up_name in _PAIRS:
        down, up = getattr(module, down_name, None), getattr(module, up_name, None)
        if isinstance(down, nn.ModuleDict) and isinstance(up, nn.ModuleDict):
            active = getattr(module, "active_adapters", list(down.keys()))
            keys = [key for key in down if key in up and key in active]
            return [(_tensor(down[key]), _tensor(up[key]), _scaling(module, key)) for key in keys]
        if isinstance(down, nn.Module | Tensor) and isinstance(up, nn.Module | Tensor):
            return [(_tensor(down), _tensor(up), _scaling(module, None))]
    return []


def _tensor(factor: Any) -> Tensor:
    weight = factor if isinstance(factor, Tensor) else factor.weight
    assert isinstance(weight, Tensor)
    return weight


def _scaling(module: nn.Module, key: str | None) -> float:
    scaling = getattr(module, "scaling", None)
    if isinstance(scaling, Mapping):
        return float(scaling[key])
    if scaling is not None:
        return float(scaling)
    alpha = getattr(module, "lora_alpha", getattr(module, "alpha", None))
    rank = getattr(module, "r", getattr(module, "rank", None))
    return float(alpha) / float(rank) if alpha is not None and rank else 1.0
