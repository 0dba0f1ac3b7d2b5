"""The paper's methods: each an optimizer, a schedule, a balance and a regulariser."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """How to train.

    Attributes:
        optimizer: Its name in `tempbalance.lab.optimizers`.
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
    """A method by its name; ``tb+`` goes before any.

    Raises:
        ValueError: If there is no such method; it names the closest.
    """
    if name in METHODS:
        return METHODS[name]
    base = METHODS.get(name.removeprefix("tb+"))
    if base is None:
        raise ValueError(unknown("method", name, METHODS))
    return Method(base.optimizer, True, base.regularized, base.restarts)


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """A sentence about a name that is not known, with the closest ones that are."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names
    return f"unknown {what} {name!r}: did you mean {' or '.join(map(repr, close))}?"
