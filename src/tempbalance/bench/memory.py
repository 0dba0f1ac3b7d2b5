"""Memory that a contestant takes beside the network, each in a process of its own.

python -m tempbalance.bench.memory NETWORK CONTESTANT NUM_THREADS [quick]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tempbalance.bench.contestants import Subject, all_turns, make_subject, threads

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def can_measure_memory() -> bool:
    """Whether the system tells the peak of a process and lets it be reset: Linux does."""
    return _STATUS.exists() and _RESET.exists()


def measure_memory(network: str, turn: str, *, num_threads: int, quick: bool = False) -> int:
    """Bytes by which the peak of a fresh process is above what it held before the contestant's turn.

    Args:
        network: A key of `NETWORKS`.
        turn: The contestant's name.
        num_threads: Of torch.
        quick: The small form.

    Raises:
        ChildProcessError: If the process fails.
    """
    command = [sys.executable, "-m", "tempbalance.bench.memory", network, turn, str(num_threads)]
    result = subprocess.run([*command, *(["quick"] if quick else [])], capture_output=True, text=True)
    if result.returncode:
        last = result.stderr.strip().rpartition("\n")[2]
        told = f"exit code {result.returncode}: {last}"
        raise ChildProcessError(f"the process that measures the memory of {turn} on {network} failed, {told}")
    return int(result.stdout.split()[-1])


def _run(subject: Subject, turn: str) -> int:
    """Bytes by which the peak of this process grows in a contestant's turn."""
    (chosen,) = [each for each in all_turns(subject) if each.name == turn]
    before = _status("VmRSS")
    _RESET.write_text("5")  # the peak becomes what is held now
    chosen.run()
    return _status("VmHWM") - before


def _status(key: str) -> int:
    (line,) = [line for line in _STATUS.read_text().splitlines() if line.startswith(key)]
    return int(line.split()[1]) * 1024


def _main(network: str, turn: str, num_threads: str, *more: str) -> None:
    with threads(int(num_threads)):
        _run(make_subject(network, quick=True), turn)  # loads libraries and starts threads
        print(_run(make_subject(network, quick="quick" in more), turn))


if __name__ == "__main__":
    _main(*sys.argv[1:])
