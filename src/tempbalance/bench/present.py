"""What was measured, as tables for people."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tempbalance.bench.contestants import ON_CPU, ON_DEVICE, STEP, TAILS, WEIGHTWATCHER, reference_name
from tempbalance.bench.results import Ratio, Results, Times
from tempbalance.report.tables import Entry, ResultTable, entry_text
from tempbalance.report.text import number

STEPS = 390  # of an epoch of 50,000 images in batches of 128
REFERENCE = "the published procedure"
_GROWTH = {
    "width": "How time grows with width: of every layer, beside the narrowest",
    "depth": "How time grows with depth, beside the shallowest",
    "cores": "How time changes with torch's threads, beside one",
}


def tables(results: Results) -> Iterator[ResultTable]:
    """A table for each part that was measured."""
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
    """What was measured on and with, and whether that means anything."""
    machine, num_threads = results.machine, results.num_threads
    told = [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}",
        f"{num_threads} {'thread' if num_threads == 1 else 'threads'} of torch",
        ", ".join(f"{name} {each}" for name, each in results.versions.items()),
        *(["small forms of the networks, whose times mean nothing"] if results.quick else []),
        *(["stopped before its end"] if not results.complete else []),
    ]
    return "; ".join(told)


def setting_text(results: Results) -> str:
    """The same with the rounds, and what was left out."""
    most = "" if results.complete else "up to "
    rounds = f"{most}{results.num_rounds} interleaved rounds: medians, with the middle half of the rounds in brackets"
    return ". ".join([machine_text(results), rounds, *results.notes]) + "."


def to_markdown(results: Results) -> str:
    """All tables for a page, under a line that tells machine and versions."""
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
