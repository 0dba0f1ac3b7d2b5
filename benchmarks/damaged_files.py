"""Damaged checkpoints: random byte flips and truncations of four formats, each read in full.

    python benchmarks/damaged_files.py [--count 2000] [--seed 0]

A damaged file must be refused in one line, or give the same bits for every tensor; where the format has no checksums,
for every tensor but the one that the damage lies in. Prints how many were refused and read, the longest processor time
for one file, and the peak of resident memory; ends with code 1 if a file gave another error, took more than ten
seconds, changed a tensor that it must not, or memory reached 1 GB.
"""

import argparse
import io
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

from tempbalance.checkpoint import read_checkpoint
from tempbalance.errors import TempBalanceError

MOST_SECONDS, MOST_BYTES = 10, 2**30
CHECKED = ("zip", "npz")  # formats with checksums


def make_weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {f"layers.{number}.{part}": torch.randn(shape)
            for number in range(6) for part, shape in (("weight", (20, 30)), ("bias", (20,)))}  # fmt: skip


def make_files(weights: dict[str, torch.Tensor]) -> dict[str, bytes]:
    files = {"safetensors": save(weights)}
    for name, use_zip in (("zip", True), ("pickle", False)):
        buffer = io.BytesIO()
        held = {"state_dict": weights, "epoch": 3, "args": argparse.Namespace(lr=0.1, path=Path("a"))}
        torch.save(held, buffer, _use_new_zipfile_serialization=use_zip)
        files[name] = buffer.getvalue()
    buffer = io.BytesIO()
    np.savez(buffer, **{name: weight.numpy() for name, weight in weights.items()})
    return {**files, "npz": buffer.getvalue()}


def damage(content: bytes, draw: random.Random) -> bytes:
    """Another byte somewhere, or an end that comes too early."""
    position = draw.randrange(len(content))
    if draw.random() < 0.2:
        return content[:position]
    return content[:position] + bytes([content[position] ^ draw.randrange(1, 256)]) + content[position + 1 :]


def outcome(path: Path, weights: dict[str, torch.Tensor], most_changed: int) -> str:
    """``refused``, ``read``, or what is wrong with the reader."""
    try:
        found = {tensor.name: tensor.load() for tensor in read_checkpoint(path).tensors}
    except TempBalanceError as err:
        return "refused" if str(err).isprintable() and len(str(err)) < 1000 else f"said {err!r}"
    except BaseException as err:
        return f"raised {err!r}"
    changed = [name for name in weights if name in found and not same_bits(found[name], weights[name])]
    return "read" if len(changed) <= most_changed else f"changed {changed}"


def same_bits(value: torch.Tensor, known: torch.Tensor) -> bool:
    is_alike = (value.shape, value.dtype) == (known.shape, known.dtype)
    return is_alike and value.contiguous().numpy().tobytes() == known.numpy().tobytes()


def run(folder: Path, count: int, seed: int) -> dict[str, dict[str, float]]:
    """Read damaged files and count what came of them.

    Raises:
        AssertionError: If the reader did anything but refuse or read.
    """
    weights, draw = make_weights(), random.Random(seed)
    files, path = make_files(weights), folder / "a.pt"
    found = {name: {"refused": 0, "read": 0, "seconds": 0.0} for name in files}
    for number in range(count):
        name = list(files)[number % len(files)]
        path.write_bytes(damage(files[name], draw))
        start = time.process_time()
        result = outcome(path, weights, most_changed=0 if name in CHECKED else 1)
        seconds = time.process_time() - start
        assert result in ("refused", "read"), f"file {number} of seed {seed} ({name}): {result}"
        assert seconds < MOST_SECONDS, f"file {number} of seed {seed} ({name}) took {seconds:.1f} s"
        found[name][result] += 1
        found[name]["seconds"] = max(found[name]["seconds"], seconds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder), options.count, options.seed)
    for name, counts in found.items():
        refused, read, seconds = counts.values()
        print(f"{name:12} {refused:5.0f} refused in one line, {read:5.0f} read, longest {1000 * seconds:.0f} ms")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"peak of resident memory {peak / 2**20:.0f} MB, bound {MOST_BYTES / 2**20:.0f} MB")
    sys.exit(peak >= MOST_BYTES)


if __name__ == "__main__":
    main()
