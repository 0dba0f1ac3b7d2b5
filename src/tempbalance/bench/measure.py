"""Parts of the benchmark, measured in rounds: each round times every contestant once.

Memory is measured in a separate process for each contestant:
python -m tempbalance.bench.measure NETWORK CONTESTANT NUM_THREADS [quick]
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from tempbalance.bench import contestants
from tempbalance.bench.contestants import Turn, has_weightwatcher, library_turns, make_subject, reference_turn, threads
from tempbalance.bench.networks import NETWORKS
from tempbalance.bench.results import Machine, Memory, Results, Times
from tempbalance.lab.runs import versions

PARTS = ("speed", "memory", "growth", "busy")
DEVICE = "device"  # measured alone
_WIDTHS = (0.5, 1.0, 1.5)  # the paper's: 256, 512 and 768 channels in the last stage
_DEPTHS = ("resnet18", "resnet34", "resnet101")
_GROWS = "resnet18"
_STATUS, _RESET, _CPUS = Path("/proc/self/status"), Path("/proc/self/clear_refs"), Path("/proc/cpuinfo")

Entry = tuple[Times, Turn]
ShowProgress = Callable[[str, int, int], None]  # current measurement, turns done, all turns


@dataclass(frozen=True)
class Options:
    """Options of the benchmark."""

    networks: Sequence[str] = tuple(NETWORKS)
    parts: Sequence[str] = PARTS
    num_rounds: int = 5  # after one to warm up
    num_threads: int | None = None  # None for torch's default
    quick: bool = False  # whether networks are built in their small form
    device: str | None = None  # of the part `device`


def check_device(name: str) -> None:
    """Raise ValueError unless the device is an accelerator of this machine."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as err:
        reason = str(err).splitlines()[0]
        raise ValueError(f"device must be an accelerator of this machine, got {name!r}: {reason}") from err
    if device.type in ("cpu", "meta"):
        raise ValueError(f"device must be an accelerator, such as cuda, got {name!r}: the rest is measured on the CPU")


def new_results(options: Options) -> Results:
    """Return empty results that describe the machine and the options."""
    num_threads = options.num_threads or torch.get_num_threads()
    notes = [] if has_weightwatcher() else ["WeightWatcher is not installed: nothing is compared with it"]
    if "memory" in options.parts and not can_measure_memory():
        notes.append("this system does not report the peak memory of a process: memory is not measured")
    return Results(describe_machine(), describe_versions(), num_threads, options.num_rounds, options.quick, notes=notes)


def measure(options: Options, results: Results, progress: ShowProgress) -> None:
    """Measure all parts and add each to the results, which after an interruption hold all complete rounds."""
    with threads(results.num_threads):
        for what, entries in _measurements(options, results.num_threads):
            _rounds(what, entries, results, progress)
        if "memory" in options.parts and can_measure_memory():
            for name in options.networks:
                _memory(name, options, results, progress)
    results.complete = True


def _measurements(options: Options, num_threads: int) -> Iterator[tuple[str, list[Entry]]]:
    """Yield what is measured in common rounds: the contestants, each with the times that it belongs to."""

    def growing(name: str, width: float = 1.0) -> list[Turn]:
        subject = make_subject(name, width=width, quick=options.quick)
        return [*library_turns(subject), reference_turn(subject, ["median"])]

    titles = {name: network.title for name, network in NETWORKS.items()}
    if DEVICE in options.parts and options.device is not None:
        for name in options.networks:
            times = Times(DEVICE, titles[name], options.device)
            subject = make_subject(name, quick=options.quick, device=options.device)
            yield f"{titles[name]} on {options.device}", _belonging(times, contestants.device_turns(subject))
    if "speed" in options.parts:
        for name in options.networks:
            turns = contestants.all_turns(make_subject(name, quick=options.quick))
            yield f"speed of {titles[name]}", _belonging(Times("speed", titles[name]), turns)
    if "growth" in options.parts:
        wide = {width: Times("width", titles[_GROWS], f"width {width:g}") for width in _WIDTHS}
        deep = {name: Times("depth", titles[name]) for name in _DEPTHS}
        cores = {n: Times("cores", titles[_GROWS], f"{n} thread{'s' * (n > 1)}") for n in sorted({1, num_threads})}
        turns = growing(_GROWS)
        yield "growth with width", [e for width, each in wide.items() for e in _belonging(each, growing(_GROWS, width))]
        yield "growth with depth", [e for name, each in deep.items() for e in _belonging(each, growing(name))]
        yield (
            "growth with cores",
            [(times, turn.within(partial(threads, number))) for number, times in cores.items() for turn in turns],
        )
    if "busy" in options.parts:  # each contestant on the first network: alone, then beside a busy process
        name = options.networks[0]
        quiet = Times("busy", titles[name], "nothing else runs")
        busy = Times("busy", titles[name], "another process keeps a core busy")
        subject = make_subject(name, quick=options.quick)
        turns = [*library_turns(subject), reference_turn(subject)]
        yield "beside a busy process", [e for turn in turns for e in ((quiet, turn), (busy, turn.within(busy_core)))]


def _belonging(times: Times, turns: Sequence[Turn]) -> list[Entry]:
    return [(times, turn) for turn in turns]


def _rounds(what: str, entries: Sequence[Entry], results: Results, progress: ShowProgress) -> None:
    """Time each entry once a round; drop the first round, which warms up, and an incomplete one."""
    results.times += {id(times): times for times, _ in entries}.values()
    total = len(entries) * (results.num_rounds + 1)
    for number in range(results.num_rounds + 1):
        taken = []
        for place, (times, turn) in enumerate(entries):
            progress(f"{what}: {turn.name}", number * len(entries) + place, total)
            taken.append((times, turn.run()))
        for times, seconds in taken if number else []:
            for name, each in seconds.items():
                times.seconds.setdefault(name, []).append(each)
    progress(what, total, total)


def _memory(name: str, options: Options, results: Results, progress: ShowProgress) -> None:
    title, what = NETWORKS[name].title, f"memory of {NETWORKS[name].title}"
    turns = [turn.name for turn in contestants.all_turns(make_subject(name, quick=True))]
    for place, turn in enumerate(turns):
        progress(f"{what}: {turn}", place, len(turns))
        num_bytes = measure_memory(name, turn, num_threads=results.num_threads, quick=options.quick)
        results.memory.append(Memory(title, turn, num_bytes))
    progress(what, len(turns), len(turns))


# ends when its standard input closes, so also when this process is killed
_BUSY = """
import os, sys, threading
def end():
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=end, daemon=True).start()
print("busy", flush=True)
while True:
    pass
"""


@contextmanager
def busy_core() -> Iterator[subprocess.Popen[str]]:
    """Keep one core busy with another process within the context."""
    command = [sys.executable, "-c", _BUSY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "busy\n":
                raise ChildProcessError("the process that keeps a core busy did not start")
            yield process
        finally:
            process.kill()


def can_measure_memory() -> bool:
    """Whether the system reports the peak memory of a process and can reset it, as Linux does."""
    return _STATUS.exists() and _RESET.exists()


def measure_memory(network: str, turn: str, *, num_threads: int, quick: bool = False) -> int:
    """Return the bytes by which a contestant's turn raises the peak memory of a new process."""
    command = [sys.executable, "-m", "tempbalance.bench.measure", network, turn, str(num_threads)]
    result = subprocess.run([*command, *(["quick"] if quick else [])], capture_output=True, text=True)
    if result.returncode:
        reason = f"exit code {result.returncode}: {result.stderr.strip().rpartition(chr(10))[2]}"
        raise ChildProcessError(f"the process that measures the memory of {turn} on {network} failed, {reason}")
    return int(result.stdout.split()[-1])


def _raised_peak(network: str, turn: str, *, quick: bool) -> int:
    """Return the bytes by which a contestant's turn raises the peak memory of this process."""
    (chosen,) = [each for each in contestants.all_turns(make_subject(network, quick=quick)) if each.name == turn]
    before = _status("VmRSS")
    _RESET.write_text("5")  # sets the peak to the present use
    chosen.run()
    return _status("VmHWM") - before


def _status(key: str) -> int:
    (line,) = [line for line in _STATUS.read_text().splitlines() if line.startswith(key)]
    return int(line.split()[1]) * 1024


def _main(network: str, turn: str, num_threads: str, *more: str) -> None:
    with threads(int(num_threads)):
        _raised_peak(network, turn, quick=True)  # loads libraries and starts threads
        print(_raised_peak(network, turn, quick="quick" in more))


def describe_machine() -> Machine:
    """Return the processor, the number of usable cores and the system."""
    lines = _CPUS.read_text(encoding="utf-8", errors="replace").splitlines() if _CPUS.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine() or "unknown",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
    }


def describe_versions() -> dict[str, str]:
    """Return the versions of Python and of the measured packages."""
    return versions(("tempbalance", "torch", "numpy", "weightwatcher", "powerlaw"))


if __name__ == "__main__":
    _main(*sys.argv[1:])
