"""A diagnosis of a large checkpoint under a memory limit, against reading the file and the eigenvalue solves alone.

    python benchmarks/large_checkpoint.py [--gigabytes 3] [--limit 4] [--width 2048] [--dtype bfloat16] [--shuffle]

A safetensors file of Llama-like blocks, inner width 2.75 times the width, random weights. One after the other: the file
is read twice, the second time from the system's memory, which counts; the spectra of the same matrices are worked out
from memory as the library does, side by side on all cores, without a file and without a limit; `tempbalance diagnose`
runs in a process whose address space (ulimit -v) is limited. Linux only. --rounds repeats all of it but the writing.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import save_file

from tempbalance.spectral.matrices import cut_matrix
from tempbalance.spectral.workers import spectra

BOUND = 1.3
CHUNK = 2**24


def make_weights(width: int, dtype: torch.dtype, num_bytes: int) -> dict[str, torch.Tensor]:
    """Whole blocks, as many as come nearest to the size."""
    inner = round(2.75 * width)
    attention = {f"self_attn.{each}_proj": (width, width) for each in "qkvo"}
    shapes = {**attention, "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width)}
    shapes["mlp.down_proj"] = (width, inner)
    block = sum(rows * columns for rows, columns in shapes.values()) * dtype.itemsize
    return {
        f"model.layers.{number}.{name}.weight": torch.randn(shape).mul_(0.02).to(dtype)
        for number in range(max(1, round(num_bytes / block)))
        for name, shape in shapes.items()
    }


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def read(path: Path) -> None:
    buffer = bytearray(CHUNK)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def solve(weights: dict[str, torch.Tensor]) -> None:
    spectra(part for weight in weights.values() for part in cut_matrix(weight))


def diagnose(path: Path, limit: int, more: list[str], peaks: list[int]) -> None:
    """In a process of its own with the limit set before it starts; its peak of resident memory in kB is noted.

    Raises:
        SystemExit: If it fails; what it said stands before.
    """
    command = [sys.executable, "-m", "tempbalance.cli", "diagnose", str(path), "--format", "csv", *more]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        preexec_fn=partial(resource.setrlimit, resource.RLIMIT_AS, (limit, limit)),
    )
    status = Path(f"/proc/{process.pid}/status")
    while process.poll() is None:  # what the system tells of a child that has ended counts the parent's memory too
        peaks += [int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        time.sleep(0.1)
    if process.returncode:
        sys.exit(f"tempbalance diagnose ended with code {process.returncode} under a limit of {limit / 2**30:.1f} GB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=3.0)
    parser.add_argument("--limit", type=float, default=4.0, help="of the address space, in GB")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--shuffle", action="store_true", help="count beyond the edge after shuffling too, as usual")
    parser.add_argument("--folder", help="where the file goes for the time")
    options = parser.parse_args()
    more = [] if options.shuffle else ["--no-shuffle"]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "model.safetensors"
        weights = make_weights(options.width, getattr(torch, options.dtype), round(options.gigabytes * 2**30))
        save_file(weights, path)
        size = path.stat().st_size / 2**30
        num_threads = torch.get_num_threads()
        print(
            f"{size:.2f} GB, {len(weights)} matrices, {options.dtype}, {num_threads} threads, torch {torch.__version__}"
        )
        ratios: list[float] = []
        peaks: list[int] = []
        for _ in range(options.rounds):
            first, second = seconds(partial(read, path)), seconds(partial(read, path))
            solved = seconds(partial(solve, weights))
            taken = seconds(partial(diagnose, path, round(options.limit * 2**30), more, peaks))
            ratios.append(taken / (second + solved))
            print(
                f"reading {first:.1f} s, again {second:.1f} s; solves {solved:.1f} s; diagnose {taken:.1f} s: "
                f"{ratios[-1]:.2f} times reading and solves"
            )
    kept = median(ratios) <= BOUND
    print(f"peak resident memory of diagnose {peaks[-1] / 2**10:.0f} MB, address space limited to {options.limit:g} GB")
    print(f"median {median(ratios):.2f}, bound {BOUND}: {'kept' if kept else 'BROKEN'}")
    sys.exit(not kept)


if __name__ == "__main__":
    main()
