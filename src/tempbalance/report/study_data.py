"""What the charts of studies are made of: plain numbers with the names that people read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tempbalance.report.text import finite, shown

T = TypeVar("T")


@dataclass(frozen=True)
class Bar:
    """One bar: a method, an assignment, a range or a tail in a panel.

    Attributes:
        panel: Network and data.
        label: Stands under the bar.
        mean, std: Over the seeds; a mean of ``None`` leaves the place empty.
        crosses: Mean of each hyperparameter setting that was tried.
        paper: The paper's mean.
        seconds, seconds_std: Mean and standard deviation of what it takes.
    """

    panel: str
    label: str
    mean: float | None
    std: float | None
    crosses: tuple[float, ...] = ()
    paper: float | None = None
    seconds: float | None = None
    seconds_std: float | None = None


@dataclass(frozen=True)
class Dot:
    """One point of a line: the mean and standard deviation of a series (a method) at ``x``, and the paper's mean."""

    panel: str
    series: str
    x: float
    mean: float | None
    std: float | None
    paper: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Timing:
    """Seconds of one epoch of training and of one balancing, with their standard deviations."""

    panel: str
    label: str
    epoch: float | None
    epoch_std: float | None
    balancing: float | None
    balancing_std: float | None


@dataclass(frozen=True)
class StepNorm:
    """Norm of a layer's gradient at a step, which is counted from the start of training."""

    epoch: int
    step: int
    layer: str
    norm: float | None


@dataclass(frozen=True)
class StepSpectrum:
    """Spectrum of a layer at a step, which is counted from the start of training."""

    epoch: int
    step: int
    layer: str
    eigenvalues: tuple[float, ...]


@dataclass(frozen=True)
class Alphas:
    """Alpha of every layer and seed of a method (``label``) in a panel."""

    panel: str
    label: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class LayerTrack:
    """Alpha and rate of each layer over the epochs: ``alpha[layer][epoch]``, ``None`` where there is none."""

    panel: str
    epochs: tuple[int, ...]
    layers: tuple[str, ...]
    alpha: tuple[tuple[float | None, ...], ...]
    rate: tuple[tuple[float | None, ...], ...]

    def __post_init__(self) -> None:
        for quantity in ("alpha", "rate"):
            lengths = [len(row) for row in getattr(self, quantity)]
            if lengths != [len(self.epochs)] * len(self.layers):
                raise ValueError(
                    f"{quantity} of track {shown(self.panel)!r} must have {len(self.layers)} rows (layers) of "
                    f"{len(self.epochs)} values (epochs), got rows of {lengths}"
                )


def check(items: Sequence[T], what: str, key: Callable[[T], object] | None = None) -> None:
    """Refuse what cannot be drawn.

    Raises:
        ValueError: If there is nothing, or several items are of one key.
    """
    if not items:
        raise ValueError(f"the chart needs at least one {what}, got none")
    counts = Counter(map(key, items)) if key else {}
    for place, count in counts.items():
        if count > 1:
            raise ValueError(f"each {what} must have a place of its own, got {count} at {shown(place)}")


def numbered(names: Iterable[str]) -> dict[str, int]:
    """Each different name and its number, in the order of appearance."""
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def evenly(values: Sequence[T], most: int) -> list[T]:
    """At most so many of the values, evenly chosen, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(place * (len(values) - 1) / (most - 1))] for place in range(most)]


def ends(mean: float | None, std: float | None) -> tuple[float | None, float | None]:
    """One standard deviation below and above the mean; ``None`` where either is missing."""
    middle, error = finite(mean, 9), finite(std, 9)
    if middle is None or error is None:
        return None, None
    return finite(middle - error, 9), finite(middle + error, 9)


def zoomed(values: Iterable[float | None]) -> tuple[float, float] | None:
    """A range that holds the values with some room around them; ``None`` if there is no value."""
    there = [value for value in values if value is not None]
    if not there:
        return None
    low, high = min(there), max(there)
    room = 0.12 * (high - low) or 0.02 * abs(high) or 1.0
    return low - room, high + room
