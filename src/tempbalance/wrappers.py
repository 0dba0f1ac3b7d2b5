"""Looking through what wraps a module: DataParallel, DDP, torch.compile, FSDP1, activation checkpointing.

Wrappers are told by their type. One whose module was never imported cannot be around any model, so nothing is imported
to look for it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torch import nn

# module and class of the wrapper, attribute that holds what it wraps
_WRAPPERS = (
    ("torch.nn.parallel", "DataParallel", "module"),
    ("torch.nn.parallel", "DistributedDataParallel", "module"),
    ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel", "module"),
    ("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "ActivationWrapper", "_checkpoint_wrapped_module"),
)


def unwrap(module: nn.Module, *, keep: Sequence[str] = ()) -> nn.Module:
    """The bare module inside any number of wrappers.

    Args:
        module: The module.
        keep: Names of wrappers that are not looked through.
    """
    for path, name, attribute in _WRAPPERS:
        wrapper = getattr(sys.modules.get(path), name, None)
        if wrapper is not None and isinstance(module, wrapper) and name not in keep:
            return unwrap(getattr(module, attribute), keep=keep)
    return module
