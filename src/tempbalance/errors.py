"""Errors by what went wrong, warnings at the caller's line, quoted values, and a check that many options share."""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_OURS = str(Path(__file__).parent) + os.sep


class TempBalanceError(Exception):
    """Base of every error about the values of a weight, a spectrum or a score; a bad option is a ValueError."""


class WeightError(TempBalanceError):
    """A weight that has no spectrum: NaN, Inf, meta, lazy, complex, sparse."""


class TailError(TempBalanceError):
    """A spectrum whose tail has no exponent: zero, flat, too short, or rounding noise."""


class ScoreError(TempBalanceError):
    """A score that cannot become a scale: not finite, or outside what the assignment takes."""


class CheckpointError(TempBalanceError):
    """A file or folder that holds no readable weights, or is refused."""


def warn(message: str) -> None:
    """Warn at the first line outside this package, which is the line that a user can change."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"TempBalance: {message}", stacklevel=level)


_MOST_QUOTED = 80


def quoted(value: object) -> str:
    """Return a value that comes from a file for a message: in quotes, control characters escaped, cut."""
    if isinstance(value, str):
        return repr(value if len(value) <= _MOST_QUOTED else value[: _MOST_QUOTED - 3] + "...")
    if isinstance(value, int) and abs(value) < 2**63:
        return str(value)
    return f"a {type(value).__name__}"


def check_count(name: str, value: int, *, least: int) -> None:
    """Refuse an option that is not a whole number at or above a limit.

    Raises:
        ValueError: If it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_finite(value: T, name: str) -> T:
    """Return a number, or lists and mappings of values, unless a number in it is NaN or infinite.

    Raises:
        ValueError: If one is.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    if isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            check_finite(each, name)
    return value
