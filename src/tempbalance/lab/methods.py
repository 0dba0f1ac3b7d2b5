"""The paper's methods: each an optimizer, a schedule, a balance and a regulariser."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Method:
    """How to train.

    Attributes:
        optimizer: Its name in `tempbalance.lab.images.optimizers.OPTIMIZERS`.
        balanced: Whether layers get scales; otherwise they are only scored.
        regularized: Whether the spectral norm is regularised.
        restarts: Whether the cosine restarts.
    """

    optimizer: str = "sgd"
    balanced: bool = False
    regularized: bool = False
    restarts: bool = False


METHODS: dict[str, Method] = {
    "cal": Method(),
    "snr": Method(regularized=True),
    "tb": Method(balanced=True),
    "tb+snr": Method(balanced=True, regularized=True),
    "sgdr": Method(restarts=True),
    "lars": Method("lars"),
    "lookahead": Method("lookahead"),
    "sgdp": Method("sgdp"),
    "tb+sgdp": Method("sgdp", balanced=True),
    "adam": Method("adam"),
    "adamw": Method("adamw"),
    "adamp": Method("adamp"),
    "lamb": Method("lamb"),
    "tb+adam": Method("adam", balanced=True),
    "tb+adamw": Method("adamw", balanced=True),
}


def find_method(name: str) -> Method:
    """A method by its name; ``tb+`` goes before any that is not balanced, but for ``cal``: that is ``tb``.

    Raises:
        ValueError: If there is no such method; it names the closest.
    """
    if name in METHODS:
        return METHODS[name]
    base = METHODS.get(name.removeprefix("tb+"))
    if base is None:
        raise ValueError(unknown("method", name, METHODS))
    method = replace(base, balanced=True)
    if same := [known for known, each in METHODS.items() if each == method]:
        raise ValueError(f"unknown method {name!r}: that is {same[0]!r}")
    return method


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """A sentence about a name that is not known, with the closest ones that are, or all where none is close."""
    names = list(known)
    if close := difflib.get_close_matches(name.lower().replace("-", "_"), names, n=3):
        return f"unknown {what} {name!r}: did you mean {' or '.join(map(repr, close))}?"
    return f"unknown {what} {name!r}: known are {', '.join(names)}"
