"""The parts of the benchmark, measured in rounds: each times every contestant once, in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tempbalance.bench.busy import beside_busy_core
from tempbalance.bench.contestants import (
    Turn,
    all_turns,
    device_turns,
    has_weightwatcher,
    library_turns,
    make_subject,
    reference_turn,
    threads,
    with_threads,
)
from tempbalance.bench.machine import describe_machine, describe_versions
from tempbalance.bench.memory import can_measure_memory, measure_memory
from tempbalance.bench.networks import NETWORKS
from tempbalance.bench.results import Memory, Results, Times
from tempbalance.errors import unknown

PARTS = ("speed", "memory", "growth", "busy")
DEVICE = "device"  # measured alone
QUIET, BUSY = "nothing else runs", "another process keeps a core busy"
_WIDTHS = (0.5, 1.0, 1.5)  # the paper's: 256, 512 and 768 channels in the last stage
_DEPTHS = ("resnet18", "resnet34", "resnet101")
_GROWS = "resnet18"

Entry = tuple[Times, Turn]
Tell = Callable[[str, int, int], None]  # what is measured, how many turns are done, of how many


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        networks: Keys of `NETWORKS`.
        parts: Of `PARTS`.
        num_rounds: Beside one that warms up.
        num_threads: Of torch; without it as torch has them.
        quick: Networks in their small form.
        device: The device of the part ``device``.
    """

    networks: Sequence[str] = tuple(NETWORKS)
    parts: Sequence[str] = PARTS
    num_rounds: int = 5
    num_threads: int | None = None
    quick: bool = False
    device: str | None = None


def check_parts(names: Sequence[str]) -> tuple[str, ...]:
    """The parts, each once.

    Raises:
        ValueError: If one is unknown.
    """
    for name in names:
        if name not in PARTS:
            raise ValueError(unknown("part", name, PARTS))
    return tuple(dict.fromkeys(names))


def check_device(name: str) -> None:
    """Refuse a device that is not an accelerator of this machine.

    Raises:
        ValueError: If it is none.
    """
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as err:
        reason = str(err).splitlines()[0]
        raise ValueError(f"device must be an accelerator of this machine, got {name!r}: {reason}") from err
    if device.type in ("cpu", "meta"):
        raise ValueError(f"device must be an accelerator, such as cuda, got {name!r}: the rest is measured on the CPU")


def new_results(options: Options) -> Results:
    """Nothing measured yet."""
    num_threads = options.num_threads or torch.get_num_threads()
    notes = [] if has_weightwatcher() else ["WeightWatcher is not installed: nothing is compared with it"]
    if "memory" in options.parts and not can_measure_memory():
        notes.append("this system does not tell the peak memory of a process: it is not measured")
    machine, versions = describe_machine(), describe_versions()
    return Results(machine, versions, num_threads, options.num_rounds, options.quick, notes=notes)


def measure(options: Options, results: Results, tell: Tell) -> None:
    """Add what is measured to the results as it comes; after an interruption they have all rounds that were whole.

    Args:
        options: What to measure.
        results: Where to.
        tell: Is told how it goes.
    """
    with threads(results.num_threads):
        if DEVICE in options.parts:
            for name in options.networks:
                _rounds(f"{NETWORKS[name].title} on {options.device}", _device(name, options), results, tell)
        if "speed" in options.parts:
            for name in options.networks:
                _rounds(f"speed of {NETWORKS[name].title}", _speed(name, options), results, tell)
        if "growth" in options.parts:
            _rounds("growth with width", _width(options), results, tell)
            _rounds("growth with depth", _depth(options), results, tell)
            _rounds("growth with cores", _cores(options, results.num_threads), results, tell)
        if "busy" in options.parts:
            _rounds("beside a busy process", _busy(options), results, tell)
        if "memory" in options.parts and can_measure_memory():
            for name in options.networks:
                _memory(name, options, results, tell)
    results.complete = True


def _rounds(what: str, entries: Sequence[Entry], results: Results, tell: Tell) -> None:
    """Take turns; the first round warms up and is not kept, and neither is one that is not whole."""
    results.times += {id(times): times for times, _ in entries}.values()
    total = len(entries) * (results.num_rounds + 1)
    for number in range(results.num_rounds + 1):
        taken = []
        for place, (times, turn) in enumerate(entries):
            tell(f"{what}: {turn.name}", number * len(entries) + place, total)
            taken.append((times, turn.run()))
        for times, seconds in taken if number else []:
            for name, each in seconds.items():
                times.seconds.setdefault(name, []).append(each)
    tell(what, total, total)


def _speed(name: str, options: Options) -> list[Entry]:
    times = Times("speed", NETWORKS[name].title)
    return [(times, turn) for turn in all_turns(make_subject(name, quick=options.quick))]


def _device(name: str, options: Options) -> list[Entry]:
    assert options.device is not None
    times = Times(DEVICE, NETWORKS[name].title, options.device)
    subject = make_subject(name, quick=options.quick, device=options.device)
    return [(times, turn) for turn in device_turns(subject)]


def _width(options: Options) -> list[Entry]:
    entries = []
    for width in _WIDTHS:
        times = Times("width", NETWORKS[_GROWS].title, f"width {width:g}")
        entries += [(times, turn) for turn in _growing(_GROWS, options, width)]
    return entries


def _depth(options: Options) -> list[Entry]:
    entries = []
    for name in _DEPTHS:
        times = Times("depth", NETWORKS[name].title)
        entries += [(times, turn) for turn in _growing(name, options)]
    return entries


def _cores(options: Options, num_threads: int) -> list[Entry]:
    turns = _growing(_GROWS, options)
    entries = []
    for number in sorted({1, num_threads}):
        times = Times("cores", NETWORKS[_GROWS].title, f"{number} thread{'s' if number > 1 else ''}")
        entries += [(times, with_threads(turn, number)) for turn in turns]
    return entries


def _growing(name: str, options: Options, width: float = 1.0) -> list[Turn]:
    subject = make_subject(name, width=width, quick=options.quick)
    return [*library_turns(subject), reference_turn(subject, ["median"])]


def _busy(options: Options) -> list[Entry]:
    """Of the first network: each contestant alone, then beside the busy process."""
    name = options.networks[0]
    quiet, busy = (Times("busy", NETWORKS[name].title, setting) for setting in (QUIET, BUSY))
    subject = make_subject(name, quick=options.quick)
    turns = [*library_turns(subject), reference_turn(subject)]
    return [entry for turn in turns for entry in ((quiet, turn), (busy, beside_busy_core(turn)))]


def _memory(name: str, options: Options, results: Results, tell: Tell) -> None:
    title, what = NETWORKS[name].title, f"memory of {NETWORKS[name].title}"
    turns = [turn.name for turn in all_turns(make_subject(name, quick=True))]
    for place, turn in enumerate(turns):
        tell(f"{what}: {turn}", place, len(turns))
        num_bytes = measure_memory(name, turn, num_threads=results.num_threads, quick=options.quick)
        results.memory.append(Memory(title, turn, num_bytes))
    tell(what, len(turns), len(turns))
