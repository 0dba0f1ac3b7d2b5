"""Names and numbers as tables, charts and pages show them: text that stays text."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

# control, unassigned (XML cannot hold U+FFFF), format (bidi overrides, zero width), surrogate, separators
_UNSEEN = {"Cc", "Cn", "Cf", "Cs", "Zl", "Zp"}

# a colour and a sign for each verdict of a diagnosis
VERDICT_LOOKS = {
    "random-like": ("#8a63c4", "✚"),
    "under-trained": ("#a9761c", "▲"),
    "typical": ("#2f9178", "●"),
    "strongly correlated": ("#d0505a", "▼"),
    "cannot tell": ("#6f7a86", "■"),
}


def shown(value: object) -> str:
    r"""Return text in which characters that are not seen, or that change the direction of others, are escaped.

    Example:
        >>> shown("fc\x1b[31m")
        'fc\\x1b[31m'
    """
    text = str(value)
    if text.isprintable():
        return text
    return "".join(_escape(ord(char)) if unicodedata.category(char) in _UNSEEN else char for char in text)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def short(value: object, most: int = 56) -> str:
    """Return the text as shown, without its middle where it is longer than this; an empty one says so."""
    return _cut(shown(_cut(str(value) or "(no name)", most)), most)


def _cut(text: str, most: int) -> str:
    head = most // 2 - 4
    return text if len(text) <= most else f"{text[:head]}…{text[head + 1 - most :]}"


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def finite(value: Any, digits: int = 5) -> float | None:
    """Round to this many significant digits; ``None`` if the value is no number, or too large to draw."""
    return float(f"{value:.{digits}g}") if _is_finite(value) else None


def number(value: Any, digits: int = 4) -> str:
    """Return a number for a table; empty if it is not finite.

    Example:
        >>> number(2.34567), number(None), number(1234567.8), number(128)
        ('2.346', '', '1.235e+06', '128')
    """
    if not _is_finite(value):
        return ""
    return str(value) if isinstance(value, int) else f"{value:#.{digits}g}".rstrip(".")


def json_block(value: Any) -> str:
    """Return JSON that can stand inside an HTML script element; a number that is not finite is a ValueError."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
