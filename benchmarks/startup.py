"""How long ``tempbalance diagnose`` of a small checkpoint takes beside importing torch alone, in one interleaved run.

python benchmarks/startup.py [--megabytes 2] [--rounds 9] [--format safetensors] [--processor-time]

On a busy machine measure processor time, with OMP_NUM_THREADS=1: idle threads of several would count too.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import save_file

BOUND = 1.5


def seconds(command: list[str], is_processor_time: bool) -> float:
    def now() -> float:
        times = os.times()
        return times.children_user + times.children_system if is_processor_time else time.perf_counter()

    start = now()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return now() - start


def write_checkpoint(path: Path, num_bytes: int) -> None:
    """Square layers of 128 with random weights, 64 kB each."""
    torch.manual_seed(0)
    weights = {f"layers.{number}.weight": torch.randn(128, 128) for number in range(max(1, num_bytes // 2**16))}
    (save_file if path.suffix == ".safetensors" else torch.save)(weights, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--format", choices=["safetensors", "pt"], default="safetensors")
    parser.add_argument("--processor-time", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"model.{options.format}"
        write_checkpoint(path, round(options.megabytes * 2**20))
        ways = {
            "import torch": [sys.executable, "-c", "import torch"],
            "diagnose": [sys.executable, "-c", "from tempbalance.cli import app; app()", "diagnose", str(path)],
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.rounds + 1):
            for name, command in ways.items():
                times[name].append(seconds(command, options.processor_time))
    medians = {name: median(taken[1:]) for name, taken in times.items()}  # the first round warms up
    ratio = medians["diagnose"] / medians["import torch"]
    for name, taken in times.items():
        print(f"{name:14} median {medians[name]:.2f} s ({min(taken[1:]):.2f} to {max(taken[1:]):.2f})")
    print(f"ratio {ratio:.2f}, bound {BOUND}: {'kept' if ratio < BOUND else 'BROKEN'}")
    sys.exit(ratio >= BOUND)


if __name__ == "__main__":
    main()
