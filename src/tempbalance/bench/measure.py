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
from pathlib import Path

import torch

from tempbalance.bench.contestants import (
    Subject,
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
from tempbalance.bench.networks import NETWORKS
from tempbalance.bench.results import Memory, Results, Times
from tempbalance.errors import unknown
from tempbalance.lab.runs import versions

PARTS = ("speed", "memory", "growth", "busy")
DEVICE = "device"  # measured alone
QUIET, BUSY = "nothing else runs", "another process keeps a core busy"
_WIDTHS = (0.5, 1.0, 1.5)  # the paper's: 256, 512 and 768 channels in the last stage
_DEPTHS = ("resnet18", "resnet34", "resnet101")
_GROWS = "resnet18"

Entry = tuple[Times, Turn]
ShowProgress = Callable[[str, int, int], None]  # current measurement, turns done, all turns


@dataclass(frozen=True)
class Options:
    """Options of the benchmark.

    Attributes:
        networks: Keys of `NETWORKS`.
        parts: Values of `PARTS`.
        num_rounds: Number of rounds after the warm-up round.
        num_threads: Number of torch threads; torch's default if ``None``.
        quick: Whether networks are built in their small form.
        device: The device of the part ``device``.
    """

    networks: Sequence[str] = tuple(NETWORKS)
    parts: Sequence[str] = PARTS
    num_rounds: int = 5
    num_threads: int | None = None
    quick: bool = False
    device: str | None = None


def check_parts(names: Sequence[str]) -> tuple[str, ...]:
    """Return the parts without duplicates; raise ValueError if one is unknown."""
    for name in names:
        if name not in PARTS:
            raise ValueError(unknown("part", name, PARTS))
    return tuple(dict.fromkeys(names))


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
    machine, versions = describe_machine(), describe_versions()
    return Results(machine, versions, num_threads, options.num_rounds, options.quick, notes=notes)


def measure(options: Options, results: Results, progress: ShowProgress) -> None:
    """Measure all parts and add each to the results.

    After an interruption the results hold all complete rounds.

    Args:
        options: Options of the benchmark.
        results: Results to add to.
        progress: Callback for the progress.
    """
    with threads(results.num_threads):
        if DEVICE in options.parts:
            for name in options.networks:
                _rounds(f"{NETWORKS[name].title} on {options.device}", _device(name, options), results, progress)
        if "speed" in options.parts:
            for name in options.networks:
                _rounds(f"speed of {NETWORKS[name].title}", _speed(name, options), results, progress)
        if "growth" in options.parts:
            _rounds("growth with width", _width(options), results, progress)
            _rounds("growth with depth", _depth(options), results, progress)
            _rounds("growth with cores", _cores(options, results.num_threads), results, progress)
        if "busy" in options.parts:
            _rounds("beside a busy process", _busy(options), results, progress)
        if "memory" in options.parts and can_measure_memory():
            for name in options.networks:
                _memory(name, options, results, progress)
    results.complete = True


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
    """Measure each contestant on the first network: alone, then beside a busy process."""
    name = options.networks[0]
    quiet, busy = (Times("busy", NETWORKS[name].title, setting) for setting in (QUIET, BUSY))
    subject = make_subject(name, quick=options.quick)
    turns = [*library_turns(subject), reference_turn(subject)]
    return [entry for turn in turns for entry in ((quiet, turn), (busy, beside_busy_core(turn)))]


def _memory(name: str, options: Options, results: Results, progress: ShowProgress) -> None:
    title, what = NETWORKS[name].title, f"memory of {NETWORKS[name].title}"
    turns = [turn.name for turn in all_turns(make_subject(name, quick=True))]
    for place, turn in enumerate(turns):
        progress(f"{what}: {turn}", place, len(turns))
        num_bytes = measure_memory(name, turn, num_threads=results.num_threads, quick=options.quick)
        results.memory.append(Memory(title, turn, num_bytes))
    progress(what, len(turns), len(turns))


# ends when its standard input closes, so also when this process is killed
_CODE = """
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
    command = [sys.executable, "-c", _CODE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "busy\n":
                raise ChildProcessError("the process that keeps a core busy did not start")
            yield process
        finally:
            process.kill()


def beside_busy_core(turn: Turn) -> Turn:
    """Return the same contestant while another process keeps a core busy."""

    def run() -> dict[str, float]:
        with busy_core():
            return turn.run()

    return Turn(turn.name, run)


_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def can_measure_memory() -> bool:
    """Whether the system reports the peak memory of a process and can reset it, as Linux does."""
    return _STATUS.exists() and _RESET.exists()


def measure_memory(network: str, turn: str, *, num_threads: int, quick: bool = False) -> int:
    """Return the bytes by which a contestant's turn raises the peak memory of a new process.

    Raises:
        ChildProcessError: If the process fails.
    """
    command = [sys.executable, "-m", "tempbalance.bench.measure", network, turn, str(num_threads)]
    result = subprocess.run([*command, *(["quick"] if quick else [])], capture_output=True, text=True)
    if result.returncode:
        last = result.stderr.strip().rpartition("\n")[2]
        reason = f"exit code {result.returncode}: {last}"
        raise ChildProcessError(f"the process that measures the memory of {turn} on {network} failed, {reason}")
    return int(result.stdout.split()[-1])


def _run(subject: Subject, turn: str) -> int:
    """Return the bytes by which a contestant's turn raises the peak memory of this process."""
    (chosen,) = [each for each in all_turns(subject) if each.name == turn]
    before = _status("VmRSS")
    _RESET.write_text("5")  # sets the peak to the present use
    chosen.run()
    return _status("VmHWM") - before


def _status(key: str) -> int:
    (line,) = [line for line in _STATUS.read_text().splitlines() if line.startswith(key)]
    return int(line.split()[1]) * 1024


def _main(network: str, turn: str, num_threads: str, *more: str) -> None:
    with threads(int(num_threads)):
        _run(make_subject(network, quick=True), turn)  # loads libraries and starts threads
        print(_run(make_subject(network, quick="quick" in more), turn))


_PACKAGES = ("tempbalance", "torch", "numpy", "weightwatcher", "powerlaw")
_CPUS = Path("/proc/cpuinfo")


def describe_machine() -> dict[str, str | int]:
    """Return the processor, the number of usable cores and the system."""
    names = [line.partition(":")[2].strip() for line in _lines(_CPUS) if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine() or "unknown",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
    }


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []


def describe_versions() -> dict[str, str]:
    """Return the versions of Python and of the measured packages."""
    return versions(_PACKAGES)


if __name__ == "__main__":
    _main(*sys.argv[1:])
