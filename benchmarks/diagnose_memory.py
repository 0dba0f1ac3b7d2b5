"""Peak memory of a diagnosis: a synthetic sharded checkpoint of 3 GB, in a process of its own.

    python benchmarks/diagnose_memory.py [--gigabytes 3] [--rows 1024] [--columns 16384] [--dtype float32]

The bound is 512 MB, with the interpreter and torch in it, plus four times the largest tensor.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

MEASURE = """
import sys, tempbalance
table = tempbalance.diagnose(sys.argv[1])
assert len(table.scored) == int(sys.argv[2]), table
print([line for line in open("/proc/self/status") if line.startswith("VmHWM")][0].split()[1])
"""


def write_checkpoint(folder: Path, weight_shape: tuple[int, int], dtype: torch.dtype, num_bytes: int) -> int:
    """Shards of four random tensors each and their index; the number of tensors."""
    size = weight_shape[0] * weight_shape[1] * dtype.itemsize
    num_tensors = max(4, round(num_bytes / size))
    names = [f"layers.{index}.weight" for index in range(num_tensors)]
    shards = [names[first : first + 4] for first in range(0, num_tensors, 4)]
    weight_map = {}
    for number, shard in enumerate(shards):
        file = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        save_file({name: torch.randn(weight_shape).to(dtype) for name in shard}, folder / file)
        weight_map.update(dict.fromkeys(shard, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return num_tensors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=3.0)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--columns", type=int, default=16384)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    options = parser.parse_args()
    dtype, shape = getattr(torch, options.dtype), (options.rows, options.columns)
    with tempfile.TemporaryDirectory() as folder:
        num_tensors = write_checkpoint(Path(folder), shape, dtype, round(options.gigabytes * 2**30))
        start = time.perf_counter()
        result = subprocess.run(
            [sys.executable, "-c", MEASURE, folder, str(num_tensors)], capture_output=True, text=True, check=True
        )
        seconds = time.perf_counter() - start
    peak, tensor = int(result.stdout) / 1024, shape[0] * shape[1] * dtype.itemsize / 2**20
    bound = 512 + 4 * tensor
    print(f"{num_tensors} tensors of {tensor:.0f} MB, {seconds:.0f} s")
    print(f"peak {peak:.0f} MB, bound {bound:.0f} MB: {'kept' if peak < bound else 'BROKEN'}")
    sys.exit(peak >= bound)


if __name__ == "__main__":
    main()
