"""Adapters: the weight that an adapted layer applies.

Knows LoRA, DoRA, AdaLoRA, LoHa and LoKr as peft, loralib, torchtune and hand-written modules keep them. Modules are
recognised by their attributes, so none of these packages is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tempbalance.errors import WeightError
from tempbalance.spectral.eigenvalues import check_weight

_PAIRS = (("lora_A", "lora_B"), ("lora_a", "lora_b"), ("lora_embedding_A", "lora_embedding_B"))
_BASES = ("base_layer", "base", "linear", "conv", "original", "layer")
_ADDED = ("lora_", "hada_", "lokr_")  # the adapters of peft whose `get_delta_weight` is added to the base weight


def is_adapted(module: nn.Module) -> bool:
    return bool(_tuner_names(module) or _has_pair(module)) and base_of(module) is not None


def base_of(module: nn.Module) -> nn.Module | None:
    """Return the module with the base weight: one inside, or the module itself."""
    for name in _BASES:
        base = getattr(module, name, None)
        if isinstance(base, nn.Module) and _stored(base) is not None:
            return base
    return module if isinstance(getattr(module, "weight", None), Tensor) else None


def is_quantized(base: nn.Module) -> bool:
    stored = _stored(base)
    return not (stored.is_floating_point() or stored.is_complex()) or _dequantizer(base) is not None


def dequantized(base: nn.Module) -> Tensor:
    method = _dequantizer(base)
    weight: Tensor = _stored(base) if method is None else method()
    return weight


def _stored(base: nn.Module) -> Any:
    """Return the tensor that holds a module's weight, packed or not; None if there is none."""
    found = (getattr(base, name, None) for name in ("weight", "qweight", "W_q"))
    return next((each for each in found if isinstance(each, Tensor)), None)


def _dequantizer(base: nn.Module) -> Callable[[], Tensor] | None:
    stored = _stored(base)
    # every tensor has a method `dequantize`, which cannot unpack integers
    has_own = stored.is_quantized or type(stored).dequantize is not Tensor.dequantize
    candidates = [(base, "dequantize"), (stored, "get_original_weight"), *([(stored, "dequantize")] if has_own else [])]
    methods = (getattr(owner, name, None) for owner, name in candidates)
    return next((method for method in methods if callable(method)), None)


def why_not_merged(module: nn.Module) -> str:
    """Say why the merged weight of an adapted module is not known; empty if it is."""
    names, base = _tuner_names(module), base_of(module)
    variants = getattr(module, "lora_variant", {})
    unknown = [type(each).__name__ for each in variants.values() if not type(each).__name__.startswith("Dora")]
    if unknown or (names and not names[0].startswith(_ADDED)):
        return f"adapter {(unknown or names)[0]!r}: its merged weight is not known"
    if getattr(base, "groups", 1) > 1 and _has_pair(module):
        return "LoRA beside a grouped convolution: there is no merged weight"
    assert base is not None
    if is_quantized(base) and _dequantizer(base) is None:
        return f"base weight is quantised ({dequantized(base).dtype}) and has no method to dequantise it"
    return ""


def merged_weight(module: nn.Module, base: Tensor) -> Tensor:
    """Return the weight that an adapted module applies, given its base weight, dequantised."""
    check_weight(base)
    if any(getattr(module, name, False) for name in ("merged", "disable_adapters", "disabled")):
        return base
    merged = base = base.detach().to(torch.promote_types(base.dtype, torch.float32))
    inputs = [dim for dim in range(base.dim()) if dim != int(_is_transposed(module))]
    with torch.autocast(base.device.type, enabled=False), torch.no_grad():
        for key, delta in _deltas(module, base):
            merged = merged + delta
            if (magnitude := _magnitude(module, key)) is not None:
                # DoRA: merged = magnitude * (base + delta) / ||base + delta||, the norm taken over each output's inputs
                norm = torch.linalg.vector_norm(base + delta, dim=inputs, keepdim=True)
                merged = magnitude.to(merged).reshape(norm.shape) / norm * merged
    return merged


def is_conv1d(module: object) -> bool:
    return any(kind.__name__ == "Conv1D" for kind in type(module).__mro__)


def _tuner_names(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the adapters' attributes in a layer of peft; empty for other modules."""
    names = getattr(module, "adapter_layer_names", ())
    return tuple(names) if isinstance(getattr(module, "base_layer", None), nn.Module) else ()


def _has_pair(module: nn.Module) -> bool:
    return any(all(isinstance(getattr(module, name, None), nn.Module | Tensor) for name in pair) for pair in _PAIRS)


def _is_transposed(module: nn.Module) -> bool:
    """Whether the output dimension of the base weight is its second."""
    base = base_of(module)
    return bool(getattr(module, "fan_in_fan_out", False)) or is_conv1d(base) or isinstance(base, nn.Embedding)


def _deltas(module: nn.Module, base: Tensor) -> Iterator[tuple[str | None, Tensor]]:
    names = _tuner_names(module)
    if names and (not names[0].startswith("lora_") or "lora_E" in names):
        compute: Any = module.get_delta_weight  # LoHa, LoKr and AdaLoRA
        held = {key for name in names for key in getattr(module, name, ())}
        yield from ((key, compute(key).to(base)) for key in _active(module, held))
        return
    for key, down, up in _pairs(module):
        yield key, _scaling(module, key) * _product(down.to(base), up.to(base), base.shape, _is_transposed(module))


def _product(down: Tensor, up: Tensor, shape: torch.Size, is_transposed: bool) -> Tensor:
    """Multiply in the weight's orientation; ``x @ A @ B`` keeps its factors the other way round."""
    down, up = down.flatten(1), up.flatten(1)
    if up.shape[1] == down.shape[0]:
        product = (up @ down).T if is_transposed else up @ down
        if product.shape == shape or (len(shape) > 2 and product.numel() == shape.numel()):
            return product.reshape(shape)
    if down.shape[1] == up.shape[0] and (down @ up).T.shape == shape:
        return (down @ up).T
    raise WeightError(f"a LoRA pair {tuple(down.shape)}, {tuple(up.shape)} does not multiply to the base weight")


def _pairs(module: nn.Module) -> Iterator[tuple[str | None, Tensor, Tensor]]:
    for names in _PAIRS:
        down, up = (getattr(module, name, None) for name in names)
        if isinstance(down, nn.ModuleDict | nn.ParameterDict) and isinstance(up, nn.ModuleDict | nn.ParameterDict):
            for key in _active(module, set(down) & set(up)):
                yield key, _tensor(down[key]), _tensor(up[key])
        elif isinstance(down, nn.Module | Tensor) and isinstance(up, nn.Module | Tensor):
            yield None, _tensor(down), _tensor(up)


def _active(module: nn.Module, held: set[str]) -> list[str]:
    return [key for key in getattr(module, "active_adapters", sorted(held)) if key in held]


def _magnitude(module: nn.Module, key: str | None) -> Tensor | None:
    """Return the magnitudes of a DoRA adapter, one for each output; ``None`` for other adapters."""
    by_key = dict(getattr(module, "lora_magnitude_vector", None) or {})
    found = getattr(module, "magnitude", None) if key is None else by_key.get(key)
    return None if found is None else _tensor(found)


def _tensor(factor: Any) -> Tensor:
    weight: Tensor = factor if isinstance(factor, Tensor) else factor.weight
    return weight.detach()


def _scaling(module: nn.Module, key: str | None) -> float:
    scaling = getattr(module, "scaling", None)
    if scaling is not None:
        return float(scaling[key] if isinstance(scaling, Mapping) else scaling)
    alpha = getattr(module, "lora_alpha", getattr(module, "alpha", None))
    rank = getattr(module, "r", getattr(module, "rank", None))
    return float(alpha) / float(rank) if alpha is not None and rank else 1.0
