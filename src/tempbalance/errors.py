"""Errors by what went wrong, the words they share, and warnings that point at the caller's line."""

from __future__ import annotations

import difflib
import math
import os
import reprlib
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import TypeVar

T = TypeVar("T")
_OURS = str(Path(__file__).parent) + os.sep
_LONGEST = 80  # characters of a value that an error quotes
_PLAIN = (str, int, float, bool, NoneType, list, tuple, dict)


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


def check_count(name: str, value: int, *, least: int) -> None:
    """Refuse an option that is not a whole number at or above a limit."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_fraction(name: str, value: object, *, zero: bool = False) -> None:
    """Refuse an option that is not a number between 0 and 1, or 0 where that is allowed."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1 or (value == 0 and not zero):
        raise ValueError(f"{name} must satisfy 0 {'<=' if zero else '<'} {name} < 1, got {value!r}")


def check_flag(name: str, value: object) -> None:
    """Refuse an option that is neither True nor False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


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


class _Quotes(reprlib.Repr):
    """Repr of plain values, three levels deep and six values wide; of others, only the type."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring = 3, _LONGEST

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if abs(x) < 2**128 else "a very large int"

    def repr1(self, x: object, level: int) -> str:
        return super().repr1(x, level) if type(x) in _PLAIN else f"a {type(x).__name__[:40]}"


def quoted(value: object) -> str:
    """Return the repr of a value that comes from a file or a user, cut to 80 characters; nesting is not unfolded.

    Example:
        >>> quoted("tbb"), quoted((0.5, 1.5)), len(quoted("x" * 10**6))
        ("'tbb'", '(0.5, 1.5)', 80)
    """
    text = _Quotes().repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return a sentence about an unknown name, with the closest known names, or all of them if none is close."""
    names = list(known)
    if close := difflib.get_close_matches(name[:_LONGEST].lower().replace("-", "_"), names, n=3):
        return f"unknown {what} {quoted(name)}: did you mean {' or '.join(map(repr, close))}?"
    return f"unknown {what} {quoted(name)}: known are {', '.join(names)}"
