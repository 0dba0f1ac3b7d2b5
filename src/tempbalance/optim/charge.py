"""Who may step a scheduler, and which one is in charge of an optimizer."""

from __future__ import annotations

import weakref
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, SequentialLR

from tempbalance.execution.distributed import find_ranks
from tempbalance.optim.rates import put_back, was_changed

OUTERMOST = (
    "TempBalance goes outermost: give the chain or sequence of schedulers to it as `schedule`, "
    "TempBalance(optimizer, model, schedule), and step only TempBalance"
)


def check_caller(caller: Any) -> None:
    """Refuse what would step it wrongly.

    Raises:
        RuntimeError: If it is inside a chain of schedulers, or prepared by accelerate for several processes.
    """
    if isinstance(caller, ChainedScheduler | SequentialLR):
        raise RuntimeError(OUTERMOST)
    if type(caller).__name__ == "AcceleratedScheduler" and not caller.split_batches and find_ranks(True).size > 1:
        raise RuntimeError(
            "accelerate steps a scheduler once for each process: prepare TempBalance with "
            "tempbalance.integrations.accelerate.prepare_scheduler, so that its interval means optimizer steps"
        )


def take_over(optimizer: Optimizer, scheduler: LRScheduler) -> bool:
    """Put back the rates that an earlier TempBalance has scaled, and retire it.

    Returns:
        Whether the rates were changed since, as by a schedule that was built on them, so that the base rates are not
        known until a state is loaded.

    Raises:
        ValueError: If they were changed and the earlier one is still there.
    """
    earlier = getattr(optimizer, "_tempbalance", lambda: None)()
    is_changed = any(map(was_changed, optimizer.param_groups))
    if earlier is not None and not earlier._is_retired:
        if is_changed:
            raise ValueError(
                "the rates have changed since an earlier TempBalance on this optimizer scaled them, so the base rates "
                "are not known: call restore() on the earlier one before you set rates or build a schedule"
            )
        earlier._retire()
    put_back(optimizer)
    optimizer._tempbalance = weakref.ref(scheduler)  # type: ignore[attr-defined]
    return is_changed
