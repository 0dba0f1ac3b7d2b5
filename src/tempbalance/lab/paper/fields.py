"""Checks of what the files of numbers hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tempbalance.errors import unknown

_KINDS = {str: "text", int: "a whole number", list: "a list", dict: "fields by name"}


def check_fields(content: Any, kinds: Mapping[str, type], *, what: str, optional: Iterable[str] = ()) -> dict[str, Any]:
    """The fields of a file, or of a part of it, if all are known, of their kind and there.

    Args:
        content: What was read.
        kinds: The type of each known field; ``object`` for any.
        what: What has these fields, for a message.
        optional: Fields that may be left out.

    Raises:
        ValueError: If a field is not known, of another type or missing, or there are none; it names the field.
    """
    if not isinstance(content, dict):
        raise ValueError(f"a {what} must be fields by name, got {content!r}")
    for name, value in content.items():
        if name not in kinds:
            raise ValueError(unknown("field", str(name), kinds))
        if not isinstance(value, kinds[name]) or isinstance(value, bool):
            raise ValueError(f"{name} must be {_KINDS[kinds[name]]}, got {value!r}")
    for name in kinds:
        if name not in content and name not in optional:
            raise ValueError(f"{name} must be given")
    return content
