"""What was measured, as it is kept: every second of every round, so that tables and charts can be made again."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Ratio:
    """The median over the rounds, and between which values their middle half lies."""

    median: float
    low: float
    high: float


@dataclass
class Times:
    """What contestants took on one network in one setting.

    Attributes:
        part: Of the benchmark: ``speed``, ``width``, ``depth``, ``cores``, ``busy`` or ``device``.
        network: Its title.
        setting: What is varied, in words; empty where nothing is.
        seconds: By contestant, one number a round.
    """

    part: str
    network: str
    setting: str = ""
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def ratio(self, over: str, under: str, other: Times | None = None) -> Ratio | None:
        """Seconds of one contestant over those of another in the same round; ``None`` if one was not measured.

        Args:
            over: The contestant above the line.
            under: The one below it.
            other: Where the one below stands, if not here.
        """
        above, below = self.seconds.get(over), (other or self).seconds.get(under)
        return summarize([a / b for a, b in zip(above, below, strict=True)]) if above and below else None

    def middle(self, contestant: str) -> float | None:
        """The median of its seconds."""
        taken = self.seconds.get(contestant)
        return summarize(taken).median if taken else None


def summarize(values: list[float]) -> Ratio:
    """Median and middle half."""
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return Ratio(middle, low, high)


@dataclass(frozen=True)
class Memory:
    """Bytes that a contestant takes beside the network."""

    network: str
    contestant: str
    num_bytes: int


@dataclass
class Results:
    """All that a run of the benchmark found.

    Attributes:
        machine: Processor, cores, system.
        versions: Of Python and packages.
        num_threads: Of torch.
        num_rounds: How many were asked for, the one that warms up not counted.
        quick: Whether networks were in their small form, whose times mean nothing.
        complete: Whether it came to its end.
        notes: What was left out, and why.
        times: In the order of measuring.
        memory: The same.
    """

    machine: dict[str, str | int]
    versions: dict[str, str]
    num_threads: int
    num_rounds: int
    quick: bool
    complete: bool = False
    notes: list[str] = field(default_factory=list)
    times: list[Times] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)

    def of_part(self, part: str) -> list[Times]:
        """What was measured in a part of the benchmark."""
        return [each for each in self.times if each.part == part and each.seconds]


def write_results(results: Results, path: Path) -> None:
    """Keep them as JSON; seconds have six digits."""
    found = asdict(results)
    for each in found["times"]:
        each["seconds"] = {name: [float(f"{one:.6g}") for one in taken] for name, taken in each["seconds"].items()}
    found["times"] = [each for each in found["times"] if each["seconds"]]
    path.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")


def read_results(path: Path) -> Results:
    """What `write_results` kept.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is none of these.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        results = Results(**found)
        results.times = [Times(**each) for each in found["times"]]
        results.memory = [Memory(**each) for each in found["memory"]]
        _check(results)
    except (ValueError, TypeError, KeyError, AttributeError) as err:
        raise ValueError(f"{path} must be a file that tempbalance bench --out wrote: {err!r}") from err
    return results


def _check(results: Results) -> None:
    """Refuse what tables could not be made from.

    Raises:
        ValueError: If something is missing; if seconds are not above 0, or not as many for each contestant.
        TypeError, AttributeError: If something is of another kind.
    """
    for times in results.times:
        lengths = {len(taken) for taken in times.seconds.values()}
        numbers: list[Any] = [each for taken in times.seconds.values() for each in taken]
        if len(lengths) != 1 or not numbers or not all(0 < each < math.inf for each in numbers):
            raise ValueError(f"seconds of {times.network!r} must be lists of equal length of numbers above 0")
    if not all(isinstance(each.num_bytes, int) for each in results.memory):
        raise ValueError("num_bytes must be whole numbers")
    if missing := {"cpu", "cores", "system"} - set(results.machine):
        raise ValueError(f"machine must tell {', '.join(sorted(missing))}")
    if not isinstance(results.versions, dict) or not all(isinstance(each, str) for each in results.notes):
        raise ValueError("versions must be by name, and notes be text")
