"""Results of the benchmark: a file with the seconds of every round, and tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from tempbalance.bench.contestants import ON_CPU, ON_DEVICE, STEP, TAILS, WEIGHTWATCHER, reference_name
from tempbalance.report.tables import Entry, ResultTable, entry_text
from tempbalance.report.text import number

STEPS = 390  # one epoch of 50,000 images in batches of 128
REFERENCE = "the published procedure"
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Machine(TypedDict):
    """The machine of a measurement."""

    cpu: str
    cores: int
    system: str


class Ratio(NamedTuple):
    """The median over the rounds and the quartiles."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{number(self.median, 3)} ({number(self.low, 3)} to {number(self.high, 3)})"


@dataclass
class Times:
    """Seconds of the contestants on one network in one setting, one number per round."""

    part: str  # of the benchmark: speed, width, depth, cores, busy or device
    network: str
    setting: str = ""  # what varies, in words
    seconds: dict[str, list[Seconds]] = field(default_factory=dict)

    def ratio(self, over: str, under: str, other: Times | None = None) -> Ratio | None:
        """Return the ratio of two contestants' seconds in the same round; ``other`` may hold the second one's."""
        above, below = self.seconds.get(over), (other or self).seconds.get(under)
        return summarize([a / b for a, b in zip(above, below, strict=True)]) if above and below else None

    def middle(self, contestant: str) -> float | None:
        """Return the median of a contestant's seconds."""
        taken = self.seconds.get(contestant)
        return summarize(taken).median if taken else None


def summarize(values: list[float]) -> Ratio:
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
    """Results of one run of the benchmark, in the order of measuring."""

    machine: Machine
    versions: dict[str, str]
    num_threads: int  # of torch
    num_rounds: int  # asked for, without the warm-up round
    quick: bool  # whether networks were in their small form, whose times mean nothing
    complete: bool = False
    notes: list[str] = field(default_factory=list)  # on skipped measurements
    times: list[Times] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)

    def of_part(self, part: str) -> list[Times]:
        return [each for each in self.times if each.part == part and each.seconds]


def write_results(results: Results, path: Path) -> None:
    """Write the results as JSON, seconds with six digits."""
    found = asdict(results)
    for each in found["times"]:
        each["seconds"] = {name: [float(f"{one:.6g}") for one in taken] for name, taken in each["seconds"].items()}
    found["times"] = [each for each in found["times"] if each["seconds"]]
    path.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")


def read_results(path: Path) -> Results:
    """Read a file of `write_results`."""
    try:
        results = TypeAdapter(Results).validate_json(path.read_bytes())
        for times in results.times:
            lengths = {len(taken) for taken in times.seconds.values()}
            if len(lengths) != 1 or 0 in lengths:
                raise ValueError(f"seconds of {times.network!r} must be lists of equal length")
    except ValueError as err:
        reason = " ".join(str(err).split())[:300]
        raise ValueError(f"{path} must be a file that tempbalance bench --out wrote: {reason}") from err
    return results


def tables(results: Results) -> Iterator[ResultTable]:
    """Yield a table for each measured part."""
    for part, make in _TABLES.items():
        if times := results.of_part(part):
            yield make(times)
    if results.memory:
        names = list(dict.fromkeys(each.contestant for each in results.memory))
        found = {(each.network, each.contestant): f"{each.num_bytes / 2**20:.0f}" for each in results.memory}
        networks = dict.fromkeys(each.network for each in results.memory)
        rows = [[network, *(found.get((network, name)) for name in names)] for network in networks]
        yield ResultTable("Peak memory beside the network, MB", ("network", *names), rows)


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


def _speed_table(measured: Sequence[Times]) -> ResultTable:
    columns = ("network", "tail", "seconds", f"times as fast as {REFERENCE}", f"as fast as {WEIGHTWATCHER}")
    rows: list[list[Entry]] = []
    for times, tail in product(measured, TAILS):
        step = times.ratio(tail, STEP)
        against = (times.ratio(reference_name(tail), tail), times.ratio(WEIGHTWATCHER, tail))
        share = None if step is None else f"{number(100 * step.median / STEPS, 2)} %"
        rows.append([times.network, tail, _seconds(times, tail), *map(_text, against), _text(step), share])
    return ResultTable("One balancing", (*columns, "training steps it takes", f"of {STEPS} steps"), rows)


def _growth_table(measured: Sequence[Times], caption: str) -> ResultTable:
    rows = [
        [times.network, times.setting, name, _seconds(times, name), _text(times.ratio(name, name, measured[0]))]
        for times, name in product(measured, (*TAILS, reference_name("median")))
    ]
    return ResultTable(caption, ("network", "setting", "tail", "seconds", "times the first"), rows)


def _busy_table(measured: Sequence[Times]) -> ResultTable:
    rows: list[list[Entry]] = []
    for times, tail in product(measured, TAILS):
        slower, faster = times.ratio(tail, tail, measured[0]), times.ratio(reference_name(tail), tail)
        rows.append([times.network, times.setting, tail, _seconds(times, tail), _text(slower), _text(faster)])
    columns = ("network", "beside", "tail", "seconds", "times the quiet", f"times as fast as {REFERENCE}")
    return ResultTable("While another process keeps a core busy", columns, rows)


def _device_table(measured: Sequence[Times]) -> ResultTable:
    rows: list[list[Entry]] = []
    for times in measured:
        faster = times.ratio(ON_CPU, ON_DEVICE)
        use = "the device" if faster is not None and faster.median >= 1 else 'device="cpu"'
        seconds = (_seconds(times, each) for each in (ON_DEVICE, ON_CPU))
        rows.append([times.network, times.setting, *seconds, _text(faster), use])
    columns = ("network", "device", f"seconds {ON_DEVICE}", f"seconds {ON_CPU}", "times as fast on the device", "use")
    return ResultTable("One balancing with median of weights on a device", columns, rows)


def _seconds(times: Times, contestant: str) -> str:
    return number(times.middle(contestant), 3)


def _text(ratio: Ratio | None) -> str | None:
    return None if ratio is None else str(ratio)


_TABLES: Mapping[str, Callable[[Sequence[Times]], ResultTable]] = {
    "speed": _speed_table,
    "width": partial(_growth_table, caption="How time grows with width: of every layer, beside the narrowest"),
    "depth": partial(_growth_table, caption="How time grows with depth, beside the shallowest"),
    "cores": partial(_growth_table, caption="How time changes with torch's threads, beside one"),
    "busy": _busy_table,
    "device": _device_table,
}
