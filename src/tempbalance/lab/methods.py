"""The paper's methods, each an optimizer with a schedule, balancing and a regulariser, and its seeds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tempbalance.errors import unknown

SEEDS = (43, 37, 13, 51, 71)  # the paper's


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
    """Return a method by its name; ``tb+`` balances any other method, but balanced ``cal`` is called ``tb``.

    Raises:
        ValueError: If there is no such method, with the closest name.
    """
    if name in METHODS:
        return METHODS[name]
    base = METHODS.get(name.removeprefix("tb+"))
    if base is None:
        raise ValueError(unknown("method", name, METHODS))
    method = replace(base, balanced=True)
    if same := [known for known, each in METHODS.items() if each == method]:
        raise ValueError(f"unknown method {name!r}: it is called {same[0]!r}")
    return method
