"""Time of one balancing by several processes against one, interleaved in one run, as a ratio with its spread.

The weights of a ResNet18, as every process of a data-parallel training holds them; one thread a process.
Run with: torchrun --standalone --nproc-per-node=2 benchmarks/many_processes.py
"""

import os

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import platform
import statistics
import time

import torch
import torch.distributed as dist

from tempbalance import Execution, TempBalance, param_groups
from tempbalance.bench.networks import build_model

ROUNDS = 11


def timed(scheduler: TempBalance, *, is_alone: bool) -> tuple[float, float]:
    """Seconds from when the processes start until the last has its rates, and of the busiest one's processor."""
    dist.barrier()
    start, processor = time.perf_counter(), time.process_time()
    if not is_alone or dist.get_rank() == 0:
        scheduler.rescore()
    busy = torch.tensor(time.process_time() - processor, dtype=torch.float64)
    dist.all_reduce(busy, dist.ReduceOp.MAX)
    return time.perf_counter() - start, float(busy)


def tell(what: str, times: list[tuple[float, float]]) -> None:
    """Medians, and the quartiles of the ratio."""
    one, together = (statistics.median(each) for each in zip(*times, strict=True))
    low, middle, high = statistics.quantiles([shared / alone for alone, shared in times], n=4)
    print(
        f"{what}: one process {one:.2f} s, {dist.get_world_size()} processes {together:.2f} s, "
        f"ratio {middle:.2f} (middle half of {ROUNDS} rounds {low:.2f} to {high:.2f})"
    )


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = build_model("resnet18")
    optimizers = [torch.optim.SGD(param_groups(model), lr=0.1) for _ in range(2)]
    shared = TempBalance(optimizers[0], model)
    alone = TempBalance(optimizers[1], model, execution=Execution(share=False))
    assert shared.last_scores == alone.last_scores
    rounds = [(timed(alone, is_alone=True), timed(shared, is_alone=False)) for _ in range(ROUNDS)]
    if dist.get_rank() == 0:
        print(f"ResNet18, one thread a process, torch {torch.__version__}, {platform.processor() or 'CPU'}")
        tell("time", [(one[0], together[0]) for one, together in rounds])
        tell("processor time of the busiest", [(one[1], together[1]) for one, together in rounds])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
