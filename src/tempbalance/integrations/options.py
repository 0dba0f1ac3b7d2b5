"""The options of TempBalance, where a trainer builds it later."""

from __future__ import annotations

import inspect
from typing import Any

from tempbalance.scheduler import TempBalance


def check_options(options: dict[str, Any], *, required: tuple[str, ...] = ()) -> dict[str, Any]:
    """Options of `TempBalance`, refused here rather than when the training starts.

    Raises:
        TypeError: If there is no such option, or a required one is missing.
    """
    known = [name for name, each in inspect.signature(TempBalance).parameters.items() if each.kind is each.KEYWORD_ONLY]
    if unknown := [name for name in options if name not in known]:
        raise TypeError(f"TempBalance has no option {unknown[0]!r}: there are {', '.join(known)}")
    if missing := [name for name in required if name not in options]:
        raise TypeError(
            f"option {missing[0]!r} is needed: this trainer steps its scheduler after every optimizer step, and spectra "
            "so often would cost more than the training; 'interval' is the number of optimizer steps between scorings"
        )
    return options
