"""Results of the benchmark: a file with the seconds of every round, and tables."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tempbalance.bench.contestants import ON_CPU, ON_DEVICE, STEP, TAILS, WEIGHTWATCHER, reference_name
from tempbalance.report.tables import Entry, ResultTable, entry_text
from tempbalance.report.text import number


@dataclass(frozen=True)
class Ratio:
    """The median over the rounds and the quartiles."""

    median: float
    low: float
    high: float


@dataclass
class Times:
    """Seconds of the contestants on one network in one setting.

    Attributes:
        part: Part of the benchmark: ``speed``, ``width``, ``depth``, ``cores``, ``busy`` or ``device``.
        network: Title of the network.
        setting: The varied setting in words; empty if nothing varies.
        seconds: One number per round, by contestant.
    """

    part: str
    network: str
    setting: str = ""
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def ratio(self, over: str, under: str, other: Times | None = None) -> Ratio | None:
        """Return the ratio of two contestants' seconds in the same round; ``None`` if one was not measured.

        Args:
            over: Contestant in the numerator.
            under: Contestant in the denominator.
            other: Times that hold the denominator, if not these.
        """
        above, below = self.seconds.get(over), (other or self).seconds.get(under)
        return summarize([a / b for a, b in zip(above, below, strict=True)]) if above and below else None

    def middle(self, contestant: str) -> float | None:
        """Return the median of a contestant's seconds."""
        taken = self.seconds.get(contestant)
        return summarize(taken).median if taken else None


def summarize(values: list[float]) -> Ratio:
    """Return the median and the quartiles."""
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return Ratio(middle, low, high)


@dataclass(frozen=True)
class Memory:
    """Bytes that a contestant needs besides the network."""

    network: str
    contestant: str
    num_bytes: int


@dataclass
class Results:
    """Results of one run of the benchmark.

    Attributes:
        machine: Processor, cores, system.
        versions: Versions of Python and packages.
        num_threads: Number of torch threads.
        num_rounds: Requested rounds, without the warm-up round.
        quick: Whether networks were in their small form, whose times mean nothing.
        complete: Whether the run finished.
        notes: Skipped measurements, with the reason.
        times: Times in the order of measuring.
        memory: Memory in the order of measuring.
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
        """Return the times of one part of the benchmark."""
        return [each for each in self.times if each.part == part and each.seconds]


def write_results(results: Results, path: Path) -> None:
    """Write the results as JSON, seconds with six digits."""
    found = asdict(results)
    for each in found["times"]:
        each["seconds"] = {name: [float(f"{one:.6g}") for one in taken] for name, taken in each["seconds"].items()}
    found["times"] = [each for each in found["times"] if each["seconds"]]
    path.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")


def read_results(path: Path) -> Results:
    """Read a file of `write_results`.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If `write_results` did not write it.
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
    """Refuse results that the tables cannot show."""
    for times in results.times:
        lengths = {len(taken) for taken in times.seconds.values()}
        numbers: list[Any] = [each for taken in times.seconds.values() for each in taken]
        if len(lengths) != 1 or not numbers or not all(0 < each < math.inf for each in numbers):
            raise ValueError(f"seconds of {times.network!r} must be lists of equal length of numbers above 0")
    if not all(isinstance(each.num_bytes, int) for each in results.memory):
        raise ValueError("num_bytes must be whole numbers")
    if missing := {"cpu", "cores", "system"} - set(results.machine):
        raise ValueError(f"machine must contain {', '.join(sorted(missing))}")
    if not isinstance(results.versions, dict) or not all(isinstance(each, str) for each in results.notes):
        raise ValueError("versions must be a dict and notes must be strings")


STEPS = 390  # one epoch of 50,000 images in batches of 128
REFERENCE = "the published procedure"
_GROWTH = {
    "width": "How time grows with width: of every layer, beside the narrowest",
    "depth": "How time grows with depth, beside the shallowest",
    "cores": "How time changes with torch's threads, beside one",
}


def tables(results: Results) -> Iterator[ResultTable]:
    """Yield a table for each measured part."""
    if speed := results.of_part("speed"):
        yield _speed_table(speed)
    for part, caption in _GROWTH.items():
        if times := results.of_part(part):
            yield _growth_table(caption, times)
    if busy := results.of_part("busy"):
        yield _busy_table(busy)
    if device := results.of_part("device"):
        yield _device_table(device)
    if results.memory:
        yield _memory_table(results)


def machine_text(results: Results) -> str:
    """Describe the machine and the versions, and warn if the times mean nothing."""
    machine, num_threads = results.machine, results.num_threads
    texts = [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}",
        f"{num_threads} {'thread' if num_threads == 1 else 'threads'} of torch",
        ", ".join(f"{name} {each}" for name, each in results.versions.items()),
        *(["small forms of the networks, whose times mean nothing"] if results.quick else []),
        *(["stopped before its end"] if not results.complete else []),
    ]
    return "; ".join(texts)


def setting_text(results: Results) -> str:
    """Describe the machine, the versions, the rounds and the skipped measurements."""
    most = "" if results.complete else "up to "
    rounds = f"{most}{results.num_rounds} interleaved rounds: medians, with the middle half of the rounds in brackets"
    return ". ".join([machine_text(results), rounds, *results.notes]) + "."


def to_markdown(results: Results) -> str:
    """Return all tables in Markdown, under a line with machine and versions."""
    blocks = [setting_text(results)]
    for table in tables(results):
        rule = ["---:" if table.is_number(i) else "---" for i in range(len(table.columns))]
        rows = [table.columns, rule, *([entry_text(each) for each in row] for row in table.rows)]
        blocks += [f"{table.caption}:", "\n".join(f"| {' | '.join(row)} |" for row in rows)]
    return "\n\n".join(blocks) + "\n"


def _speed_table(measured: list[Times]) -> ResultTable:
    columns = ("network", "tail", "seconds", f"times as fast as {REFERENCE}", f"as fast as {WEIGHTWATCHER}")
    rows: list[list[Entry]] = []
    for times, tail in product(measured, TAILS):
        step = times.ratio(tail, STEP)
        against = (times.ratio(reference_name(tail), tail), times.ratio(WEIGHTWATCHER, tail))
        share = None if step is None else f"{number(100 * step.median / STEPS, 2)} %"
        rows.append([times.network, tail, _seconds(times, tail), *map(_text, against), _text(step), share])
    return ResultTable("One balancing", (*columns, "training steps it takes", f"of {STEPS} steps"), rows)


def _growth_table(caption: str, measured: list[Times]) -> ResultTable:
    rows: list[list[Entry]] = []
    for times, name in product(measured, (*TAILS, reference_name("median"))):
        grown = times.ratio(name, name, measured[0])
        rows.append([times.network, times.setting, name, _seconds(times, name), _text(grown)])
    return ResultTable(caption, ("network", "setting", "tail", "seconds", "times the first"), rows)


def _busy_table(measured: list[Times]) -> ResultTable:
    rows: list[list[Entry]] = []
    for times, tail in product(measured, TAILS):
        slower, faster = times.ratio(tail, tail, measured[0]), times.ratio(reference_name(tail), tail)
        rows.append([times.network, times.setting, tail, _seconds(times, tail), _text(slower), _text(faster)])
    columns = ("network", "beside", "tail", "seconds", "times the quiet", f"times as fast as {REFERENCE}")
    return ResultTable("While another process keeps a core busy", columns, rows)


def _device_table(measured: list[Times]) -> ResultTable:
    rows: list[list[Entry]] = []
    for times in measured:
        faster = times.ratio(ON_CPU, ON_DEVICE)
        use = "the device" if faster is not None and faster.median >= 1 else 'device="cpu"'
        seconds = (_seconds(times, each) for each in (ON_DEVICE, ON_CPU))
        rows.append([times.network, times.setting, *seconds, _text(faster), use])
    columns = ("network", "device", f"seconds {ON_DEVICE}", f"seconds {ON_CPU}", "times as fast on the device", "use")
    return ResultTable("One balancing with median of weights on a device", columns, rows)


def _memory_table(results: Results) -> ResultTable:
    names = list(dict.fromkeys(each.contestant for each in results.memory))
    by_network: dict[str, dict[str, int]] = {}
    for each in results.memory:
        by_network.setdefault(each.network, {})[each.contestant] = each.num_bytes
    rows = [
        [network, *(f"{found[name] / 2**20:.0f}" if name in found else None for name in names)]
        for network, found in by_network.items()
    ]
    return ResultTable("Peak memory beside the network, MB", ("network", *names), rows)


def _seconds(times: Times, contestant: str) -> str:
    return number(times.middle(contestant), 3)


def _text(ratio: Ratio | None) -> str | None:
    if ratio is None:
        return None
    return f"{number(ratio.median, 3)} ({number(ratio.low, 3)} to {number(ratio.high, 3)})"
