"""Unwrapping of modules and gathering of sharded weights.

Sharded weights are DTensors, as ``fully_shard`` (FSDP2) and tensor parallelism make them, or pieces of the flat
parameter of FullyShardedDataParallel (FSDP1) with ``use_orig_params=True``. A type whose module was never imported
cannot be in any model, so nothing is imported to look for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import Parameter

# module and class of the wrapper, attribute that holds the wrapped module
_WRAPPERS = (
    ("torch.nn.parallel", "DataParallel", "module"),
    ("torch.nn.parallel", "DistributedDataParallel", "module"),
    ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel", "module"),
    ("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "ActivationWrapper", "_checkpoint_wrapped_module"),
)


def unwrap(module: nn.Module, *, keep: Sequence[str] = ()) -> nn.Module:
    """Return the bare module inside any number of wrappers, or the first wrapper whose name is in ``keep``."""
    for path, name, attribute in _WRAPPERS:
        if name not in keep and _is_instance(module, path, name):
            return unwrap(getattr(module, attribute), keep=keep)
    return module


@dataclass(eq=False)
class Sharded:
    """A parameter of which this process holds a part."""

    parameter: Parameter  # the part, as the module and the optimizer hold it
    shape: torch.Size  # of the whole parameter
    collect: Callable[[], Tensor]  # returns the whole parameter
    places: list[tuple[nn.Module, str]] = field(default_factory=list)  # modules that hold it, with its name there

    def gather(self) -> Tensor:
        """Return the whole parameter. All processes that hold a part must call this, in the same order."""
        return self.collect()

    def stand_in(self) -> Tensor:
        return torch.zeros((), dtype=self.parameter.dtype, device=self.parameter.device).expand(self.shape)


def find_sharded(model: nn.Module) -> list[Sharded]:
    """Return the sharded parameters of a model, after resharding those that FSDP2 left whole in the forward pass."""
    if "torch.distributed.tensor" not in sys.modules and "torch.distributed.fsdp" not in sys.modules:
        return []
    flat = _flattened(model)
    found: dict[Parameter, Sharded] = {}
    for module in model.modules():
        if _is_instance(module, "torch.distributed.fsdp", "FSDPModule"):
            module.reshard()  # type: ignore[operator]
        for key, parameter in module._parameters.items():
            if parameter is not None and (parameter in flat or is_dtensor(parameter)):
                whole = Sharded(parameter, parameter.shape, partial(_full_tensor, parameter))
                found.setdefault(parameter, flat.get(parameter, whole)).places.append((module, key))
    lost = [each for each in model.parameters() if getattr(each, "_fsdp_flattened", False) and each not in flat]
    if lost and all(each.dim() <= 1 for each in lost):  # their module does not know the shapes of its pieces
        raise ValueError("the model is what FullyShardedDataParallel wraps: pass the FullyShardedDataParallel itself")
    return list(found.values())


@contextmanager
def replaced(sharded: Sequence[Sharded], make: Callable[[Sharded], Tensor]) -> Iterator[dict[Parameter, Parameter]]:
    """Replace sharded parameters in their modules for a while, and yield the one that each new parameter stands for."""
    stands_for: dict[Parameter, Parameter] = {}
    try:
        for each in sharded:
            other = Parameter(make(each), requires_grad=each.parameter.requires_grad)
            stands_for[other] = each.parameter
            for module, key in each.places:
                module._parameters[key] = other
        yield stands_for
    finally:
        for each in sharded:
            for module, key in each.places:
                module._parameters[key] = each.parameter


def is_dtensor(tensor: Tensor) -> bool:
    return _is_instance(tensor, "torch.distributed.tensor", "DTensor")


def _is_instance(value: object, path: str, name: str) -> bool:
    kind = getattr(sys.modules.get(path), name, None)
    return kind is not None and isinstance(value, kind)


def _full_tensor(parameter: Any) -> Tensor:
    """Return the whole of a DTensor; an offloaded one is first moved to the device of its process group."""
    whole: Tensor = parameter.detach().to(parameter.device_mesh.device_type).full_tensor()
    return whole


def _flattened(model: nn.Module) -> dict[Parameter, Sharded]:
    """Return the parameters that FSDP1 has flattened into one and sharded."""
    found: dict[Parameter, Sharded] = {}
    for module in model.modules():
        is_wrapper = _is_instance(module, "torch.distributed.fsdp", "FullyShardedDataParallel")
        handle: Any = module._handle if is_wrapper else None
        if handle is None:
            continue
        if handle.flat_param._params is None:
            raise ValueError("build FullyShardedDataParallel with use_orig_params=True, or use fully_shard")
        if any(handle.flat_param._param_extensions):
            raise ValueError("FullyShardedDataParallel around tensor parallel layers is not supported: use fully_shard")
        for index, parameter in enumerate(handle.flat_param._params if handle.uses_sharded_strategy else ()):
            shape = handle.flat_param._shapes[index]
            found[parameter] = Sharded(parameter, shape, partial(_gather_piece, handle, index))
    return found


def _gather_piece(handle: Any, index: int) -> Tensor:
    """Gather one of the parameters that FSDP1 has flattened: each process adds its piece to zeros."""
    flat, piece = handle.flat_param, handle.flat_param._shard_param_infos[index]
    shape, stride = flat._shapes[index], flat._strides[index]
    whole = torch.zeros(shape.numel(), dtype=flat._params[index].dtype, device=handle.device)
    if piece.in_shard:
        start = piece.intra_param_start_idx
        whole[start : start + piece.numel_in_shard] = flat._params[index].detach()
    torch.distributed.all_reduce(whole, group=handle.process_group)
    return whole.as_strided(shape, stride)
