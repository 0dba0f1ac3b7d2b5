"""What the paper's text states: numbers outside its tables, and what it claims of those inside."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tempbalance.lab.options import read_options
from tempbalance.lab.paper.fields import check_fields

_STATEMENT = {"value": object, "says": str, "note": str}


@dataclass(frozen=True)
class PaperStatement:
    """One thing that the text states.

    Attributes:
        name: Short.
        section: The title of the section that states it.
        says: What, in our words.
        value: The number, or numbers: a tuple of them, or some by name. ``None`` for a claim without any.
        note: What does not fit it, in the tables or elsewhere.
    """

    name: str
    section: str
    says: str
    value: Any = None
    note: str | None = None


@cache
def paper_statements() -> Mapping[str, PaperStatement]:
    """All statements by name, in the order of the text.

    Example:
        >>> paper_statements()["interval"].value
        390
    """
    return read_statements(Path(__file__).with_name("text.yaml"))


def stated(name: str) -> Any:
    """Return the value of a statement."""
    return paper_statements()[name].value


def read_statements(path: Path) -> dict[str, PaperStatement]:
    """The statements in a YAML file, checked: sections by title, and in each its statements by name.

    Raises:
        ValueError: If anything is missing, not known or no number; it names the file, the statement and the value.
    """
    found: dict[str, PaperStatement] = {}
    for section, statements in read_options(path).items():
        if not isinstance(statements, dict):
            raise ValueError(f"{path}: {section!r}: a section must be statements by name, got {statements!r}")
        for name, content in statements.items():
            try:
                if name in found:
                    raise ValueError("a statement must be made once")
                found[name] = _statement(name, section, content)
            except ValueError as err:
                raise ValueError(f"{path}: {name!r}: {err}") from err
    return found


def _statement(name: str, section: str, content: Any) -> PaperStatement:
    fields = check_fields(content, _STATEMENT, what="statement", optional=("value", "note"))
    value = _numbers(fields["value"]) if "value" in fields else None
    return PaperStatement(name, section, fields["says"], value, fields.get("note"))


def _numbers(value: Any) -> Any:
    """Numbers as they are, lists of them as tuples."""
    if isinstance(value, dict):
        return {name: _numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return tuple(_numbers(each) for each in value)
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"value must be numbers, got {value!r}")
    return value
