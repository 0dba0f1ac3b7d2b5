"""Predicted against measured time of one balancing, on one and on two processes, interleaved in one run.

Each round calibrates, predicts and balances three times, so that both sides meet the same load; the shortest balancing
counts, as the shortest of three measurements counts in a calibration. One thread a process. On a machine that is busy
with other things, --processor-time compares processor seconds, those of the busiest rank.
Run with: python benchmarks/estimate.py [--rounds N] [--networks resnet18,gpt2,llama_block] [--processor-time]
Estimates for large models, exact and with windows: python benchmarks/estimate.py --scale
"""

import argparse
import os

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import socket
import statistics
import time
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tempbalance import Comparison, TempBalance, param_groups
from tempbalance.bench.estimate import calibrate, estimate, sides_of
from tempbalance.bench.networks import NETWORKS, build_model
from tempbalance.model.layers import find_layers
from tempbalance.ranking.scoring import Scoring

BALANCINGS = 3  # in each round
NETWORKS_MEASURED = ("resnet18", "gpt2", "llama_block")
# width, inner width, key and value width, blocks: Llama 2 7 B and 70 B
LLAMAS = {"7 B": (4096, 11008, 4096, 32), "70 B": (8192, 28672, 1024, 80)}
RANKS = (8, 64, 512)
WINDOWS = (None, 1024, 512)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--networks", default=",".join(NETWORKS_MEASURED))
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--scale", action="store_true")
    options = parser.parse_args()
    if options.scale:
        scale()
        return
    names = options.networks.split(",")
    for num_ranks in (1, 2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        mp.spawn(compare, (num_ranks, port, names, options.rounds, options.processor_time), nprocs=num_ranks)


def compare(rank: int, num_ranks: int, port: int, names: list[str], num_rounds: int, processor: bool) -> None:
    """Measure on all ranks, and predict on the first."""
    warnings.simplefilter("ignore")
    clock = time.process_time if processor else time.perf_counter
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=num_ranks)
    for name in names:
        model = build_model(name)
        layers = find_layers(model)
        scheduler = TempBalance(torch.optim.SGD(param_groups(model), lr=0.1), model)
        ratios, times = [], []
        for _ in range(num_rounds):
            predicted = 0.0
            if rank == 0:
                calibration = calibrate(
                    sides_of(layers, Scoring()), num_at_a_time=1 if processor else num_ranks, clock=clock
                )
                predicted = estimate(layers, num_ranks=num_ranks, num_threads=1, calibration=calibration).seconds
            seconds = min(balance(scheduler, clock) for _ in range(BALANCINGS))
            times.append(seconds)
            ratios.append(predicted / seconds)
        if rank == 0:
            found = " ".join(f"{ratio:.2f}" for ratio in ratios)
            print(
                f"{NETWORKS[name].title}, {num_ranks} process{'es' * (num_ranks > 1)}: measured "
                f"{statistics.median(times):.2f} s, predicted over measured {statistics.median(ratios):.2f} ({found})",
                flush=True,
            )
    dist.destroy_process_group()


def balance(scheduler: TempBalance, clock: Callable[[], float]) -> float:
    """Balance once on all ranks and return the seconds of the busiest."""
    dist.barrier()
    start = clock()
    scheduler.rescore()
    busiest = torch.tensor(clock() - start, dtype=torch.float64)
    dist.all_reduce(busiest, dist.ReduceOp.MAX)
    return float(busiest)


def llama(width: int, inner: int, key: int, num_blocks: int) -> torch.nn.Module:
    """The linear layers of a Llama without memory for their weights, between an embedding and a head."""
    sides = [(width, width), (width, key), (width, key), (width, width), (width, inner), (width, inner), (inner, width)]
    with torch.device("meta"):
        blocks = [
            torch.nn.Sequential(*(torch.nn.Linear(*each, bias=False) for each in sides)) for _ in range(num_blocks)
        ]
        return torch.nn.Sequential(torch.nn.Embedding(32000, width), *blocks, torch.nn.Linear(width, 32000)).bfloat16()


def scale() -> None:
    """Print estimates of large models, one thread a rank."""
    torch.set_num_threads(1)
    models = {name: find_layers(llama(*shape)) for name, shape in LLAMAS.items()}
    scorings = {windows: Scoring(comparison=Comparison(windows=windows)) for windows in WINDOWS}
    sides = {side for layers in models.values() for each in scorings.values() for side in sides_of(layers, each)}
    calibration = calibrate(sorted(sides), most_side=4096, clock=time.process_time)
    print("| model | solved | ranks | seconds | memory, GB | received if sharded, GB |")
    print("| --- " * 6 + "|")
    for name, layers in models.items():
        for windows, scoring in scorings.items():
            for num_ranks in RANKS:
                found = estimate(layers, scoring, num_ranks=num_ranks, num_threads=1, calibration=calibration)
                solved = "whole" if windows is None else f"windows of {windows}"
                cells = (found.seconds - found.compare_seconds, found.memory / 1e9, found.sharded_traffic / 1e9)
                print(
                    f"| {name} | {solved} | {num_ranks} |", " | ".join(f"{each:.3g}" for each in cells), "|", flush=True
                )


if __name__ == "__main__":
    main()
