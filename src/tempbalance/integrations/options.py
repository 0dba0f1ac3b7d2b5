"""The options of TempBalance, where a trainer builds it later."""

from __future__ import annotations

import inspect
from typing import Any

from tempbalance.optim.scheduler import TempBalance


def check_options(
    options: dict[str, Any], *, required: tuple[str, ...] = (), without: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Options of `TempBalance`, refused here rather than when the training starts.

    Args:
        options: By name.
        required: Those that have to be there.
        without: Those that mean nothing here.

    Raises:
        TypeError: If there is no such option, or a required one is missing.
    """
    parameters = inspect.signature(TempBalance).parameters
    known = [name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY and name not in without]
    if unknown := [name for name in options if name not in known]:
        raise TypeError(f"there is no option {unknown[0]!r} here: there are {', '.join(known)}")
    if missing := [name for name in required if name not in options]:
        raise TypeError(
            f"option {missing[0]!r} is needed: this trainer steps its scheduler after every optimizer step, and to "
            "score as often costs more than the training; 'interval' is the number of optimizer steps between scorings"
        )
    return options
