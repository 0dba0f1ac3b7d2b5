"""What each process does in the tests of many processes: torchrun starts this file with a folder and names of cases.

Every case gives plain values, which are written to the folder, one file a process.
"""

import copy
import faulthandler
import gc
import json
import multiprocessing
import os
import pickle
import socket
import sys
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ExponentialLR

import tempbalance.execution.budget
import tempbalance.execution.distributed
import tempbalance.ranking.scoring
from tempbalance import TempBalance, find_layers, param_groups, split_param_groups
from tempbalance.execution.distributed import Ranks
from tempbalance.model.sharded import Sharded
from tests.cases import mlp, nested, train_step

SIZES = (64, 96, 80, 72, 88, 104, 68, 60)
NUM_STEPS = 3
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def deep_mlp() -> nn.Sequential:
    """Seven layers, five of which are scored."""
    return mlp(SIZES)


class Attention(nn.Module):
    """Fused q, k, v, a tied head and a low-rank adapter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(128, 64)
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.adapted = Adapted(64, 64, rank=4)
        self.norm = nn.LayerNorm(64)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(64, 64))
        self.head = nn.Linear(64, 128, bias=False)
        self.head.weight = self.embedding.weight


class Adapted(nn.Linear):
    def __init__(self, inputs: int, outputs: int, *, rank: int) -> None:
        super().__init__(inputs, outputs)
        self.lora_A = nn.Parameter(torch.randn(rank, inputs))
        self.lora_B = nn.Parameter(torch.randn(outputs, rank))


def balanced(model, **options):
    optimizer = torch.optim.SGD(param_groups(model), lr=0.1, momentum=0.9)
    return optimizer, TempBalance(optimizer, model, ExponentialLR(optimizer, 0.9), **nested(options))


def record(scheduler) -> dict:
    return {
        "scores": scheduler.last_scores,
        "scales": scheduler.last_scales,
        "rows": [row.to_dict() for row in scheduler.table()],
        "rates": {group["layer"]: group["lr"] for group in scheduler.optimizer.param_groups},
    }


def batch(step: int) -> torch.Tensor:
    return torch.randn(8, SIZES[0], generator=torch.Generator().manual_seed(step))


def train(model, **options) -> list[dict]:
    """The same batches on every process, so that the mean of their gradients is that of one."""
    optimizer, scheduler = balanced(model, **options)
    records = [record(scheduler)]
    for step in range(NUM_STEPS):
        train_step(model, optimizer, batch(step))
        with torch.no_grad():
            model(batch(0))  # validation leaves some wrappers in another state than training does
        scheduler.step()
        records.append(record(scheduler))
    return records


def error(function, *args, **kwargs) -> list[str]:
    try:
        function(*args, **kwargs)
    except Exception as err:
        return [type(err).__name__, str(err)]
    return ["nothing", ""]


def rank() -> int:
    return dist.get_rank()


@case
def ddp():
    return train(DistributedDataParallel(deep_mlp()))


@case
def shares_of_the_work():
    """What is solved here, and what is sent."""
    sent, solved = [], []
    gather_objects, spectra = dist.all_gather_object, tempbalance.ranking.scoring.spectra

    def noted_gather(found, value, *args, **kwargs):
        sent.append((len(pickle.dumps(value)), kinds(value)))
        return gather_objects(found, value, *args, **kwargs)

    def noted_spectra(parts, **kwargs):
        parts = list(parts)
        solved.extend(tuple(part.slices.shape) for part in parts)
        return spectra(parts, **kwargs)

    with (
        patch.object(dist, "all_gather_object", noted_gather),
        patch.object(tempbalance.ranking.scoring, "spectra", noted_spectra),
    ):
        balanced(deep_mlp())
    return {"bytes": [size for size, _ in sent], "kinds": sorted(set.union(*(each for _, each in sent))),
            "solved": solved}  # fmt: skip


def kinds(value) -> set[str]:
    found = {type(value).__name__}
    if isinstance(value, list | tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            found |= kinds(each)
    return found


@case
def a_weight_that_is_nan():
    """On all, then on one process; after each, the weight is repaired and training goes on."""
    model = deep_mlp()
    _, scheduler = balanced(model)
    found = {"before": record(scheduler)}
    for where, ranks in {"all": (0, 1), "first": (0,), "second": (1,)}.items():
        with torch.no_grad():
            good = model[9].weight[0, 0].clone()
            if rank() in ranks:
                model[9].weight[0, 0] = torch.nan
            found[where] = error(scheduler.step)
            found[f"after {where}"] = record(scheduler)
            model[9].weight[0, 0] = good
    scheduler.step()
    found["steps"] = scheduler.last_epoch
    return found


@case
def functions_that_fail():
    """Each on the one process that is given the layer of 104 x 88."""

    def score(error_type, eigenvalues, fit):
        if len(eigenvalues) == 88 and float(eigenvalues.sum()) == widest:
            raise error_type("no idea")
        return fit.alpha

    model = deep_mlp()
    widest = float(tempbalance.spectrum(model[12].weight).sum())
    return [
        error(balanced, model, score=lambda *given, kind=kind: score(kind, *given))
        for kind in (ValueError, ArithmeticError)
    ]


def stepped_by_one():
    """The second process steps the schedule beside TempBalance."""
    optimizer, scheduler = balanced(deep_mlp())
    if rank() == 1:
        optimizer.step()
        scheduler.schedule.step()
    scheduler.step()


@case
def processes_that_disagree():
    other = {"seed": rank()}
    model = deep_mlp()
    _, scheduler = balanced(model)
    _, ahead = balanced(model, interval=2)
    if rank() == 1:
        ahead.step()
    return {
        "shapes": error(balanced, mlp((64, 96, 80 + rank(), 72, 60))),
        "number of layers": error(balanced, mlp(SIZES[: 6 + rank()])),
        "options": error(balanced, model, tail_fraction=0.5 - 0.1 * rank()),
        "range": error(balanced, model, scale_range=(0.5, 1.5 + rank())),
        "weights": error(balanced, mlp(SIZES, **other)),
        "calls": error(scheduler.step if rank() == 0 else scheduler.rescore),
        "steps": error(ahead.rescore),
        "one steps the schedule": error(stepped_by_one),
        "plan": error(balanced, model, fused={"9": 2 + 3 * rank()}),
        "frozen": error(balanced, freeze(deep_mlp(), rank() == 1)),
        "after all": train(DistributedDataParallel(deep_mlp()))[-1],
    }


def freeze(model, is_frozen):
    model[6].requires_grad_(not is_frozen)
    return model


@case
def not_shared():
    return train(mlp(SIZES, seed=rank()), share=False)


@case
def a_group_of_pairs():
    """Of four processes, two and two train a model together."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine, other = pairs[rank() // 2], pairs[1 - rank() // 2]
    model = mlp(SIZES, seed=rank() // 2)
    _, scheduler = balanced(model, share=mine)
    twin = copy.deepcopy(scheduler)
    twin.step()
    return {
        "records": train(mlp(SIZES, seed=rank() // 2), share=mine),
        "stranger": error(balanced, model, share=other),
        "pickled": error(pickle.dumps, scheduler),
        "twin": twin.last_epoch,
    }


def fsdp2(model, **options):
    for index in (3, 6, 9):
        fully_shard(model[index], **options)
    fully_shard(model, **options)
    return model


def fsdp1(model, **options):
    options = {"use_orig_params": True, "device_id": torch.device("cpu"), **options}
    model[6] = FullyShardedDataParallel(model[6], **options)
    return FullyShardedDataParallel(model, **options)


def tensor_parallel(model):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(model, mesh, {"6": ColwiseParallel(), "9": RowwiseParallel()})


@case
def sharded_by_fsdp2():
    return train(fsdp2(deep_mlp()))


@case
def sharded_by_fsdp2_and_offloaded():
    return train(fsdp2(deep_mlp(), offload_policy=CPUOffloadPolicy(pin_memory=False)))


@case
def sharded_by_fsdp2_and_not_shared():
    return train(fsdp2(deep_mlp()), share=False)


@case
def sharded_by_fsdp1():
    return train(fsdp1(deep_mlp()))


@case
def sharded_by_fsdp1_after_the_optimizer():
    """The parameters stay the same objects."""
    model = deep_mlp()
    optimizer = torch.optim.SGD(param_groups(model), lr=0.1, momentum=0.9)
    return [record(TempBalance(optimizer, fsdp1(model)))]


@case
def sharded_by_fsdp1_for_gradients_only():
    return train(fsdp1(deep_mlp(), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP))


@case
def replicated_by_fsdp1():
    return train(fsdp1(deep_mlp(), sharding_strategy=ShardingStrategy.NO_SHARD))


@case
def after_validation_in_bfloat16():
    """Validation leaves layers gathered, in the precision that they are applied in."""
    model = fsdp2(deep_mlp(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    before = param_groups(model)
    optimizer = torch.optim.SGD(before, lr=0.1, momentum=0.9)
    with torch.no_grad():
        model(batch(0))
    is_gathered = type(model[12].weight).__name__
    scheduler = TempBalance(optimizer, model)
    with torch.no_grad():
        model(batch(0))
    after = param_groups(model)
    identities = [[list(map(id, group["params"])) for group in groups] for groups in (before, after)]
    return {
        "record": record(scheduler),
        "gathered": is_gathered,
        "same groups": identities[0] == identities[1],
    }


@case
def a_sharded_weight_that_is_nan():
    """In the first layer that is gathered, on the process that solves it; the others have more to gather."""
    found = {}
    for name, shard in {"fsdp2": fsdp2, "fsdp1": fsdp1}.items():
        model = shard(deep_mlp())
        optimizer, scheduler = balanced(model)
        (weight, *_) = next(group["params"] for group in optimizer.param_groups if group["layer"] == "12")
        piece = weight.to_local() if name == "fsdp2" else weight.detach()
        good = piece.detach().clone()
        with torch.no_grad():
            piece.fill_(torch.nan)
        before = record(scheduler)
        told = error(scheduler.step)
        is_same = record(scheduler) == before
        with torch.no_grad():
            piece.copy_(good)
        scheduler.step()
        found[name] = [told, is_same, scheduler.last_epoch]
    return found


@case
def tensor_parallel_layers():
    return train(TensorParallel())


class TensorParallel(nn.Module):
    """Pairs of layers, the first split by its outputs and the second by its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = deep_mlp()
        pairs = {"layers.3": ColwiseParallel(), "layers.6": RowwiseParallel()}
        self.layers[4] = nn.Identity()  # a normalisation between the two would see a part of its input
        parallelize_module(self, init_device_mesh("cpu", (dist.get_world_size(),)), pairs)

    def forward(self, inputs):
        return self.layers(inputs)


@case
def on_a_mesh_of_two_by_two():
    """Replicated and sharded; split by tensor parallelism and sharded."""
    hybrid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = deep_mlp()
    parallelize_module(model, both["tensor"], {"3": ColwiseParallel(), "6": RowwiseParallel()})
    return {
        "hybrid": train(fsdp2(deep_mlp(), mesh=hybrid)),
        "both": record(balanced(fully_shard(model, mesh=both["data"]))[1]),
    }


@case
def sharded_attention():
    """Fused, tied and adapted weights, and what is known of them without any communication."""
    found = {}
    for name, shard in {"whole": lambda model: model, "fsdp2": fully_shard, "fsdp1": flat}.items():
        model = shard(Attention())
        with patch.object(dist, "all_reduce", None), patch.object(Sharded, "gather", None):
            layers = [(each.name, each.shape, each.skipped) for each in find_layers(model)]
            groups = [(group.get("layer"), len(group["params"])) for group in param_groups(model)]
        _, scheduler = balanced(model, score_first=True, score_last=True)
        found[name] = {"layers": layers, "groups": groups, **record_of_groups(scheduler)}
    return found


def flat(model):
    return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))


def record_of_groups(scheduler):
    return {"scores": scheduler.last_scores, "scales": scheduler.last_scales}


@case
def in_the_background():
    """Replicated and sharded, saved by one process or by all; each rank has its own share of what is under way."""
    options = {"background": True, "interval": 2, "lag": 2}
    _, sharded = balanced(fsdp2(deep_mlp()), **options)
    found = {
        "too early": error(sharded.state_dict),
        "too early to copy": error(copy.deepcopy, sharded._source),
    }
    sharded.wait()
    found["saved sharded"] = json.loads(sharded.state_dict()["scored"])["source"]
    _, replicated = balanced(DistributedDataParallel(deep_mlp()), **options)
    found["saved by one"] = json.loads(replicated.state_dict()["scored"])["source"] if rank() == 0 else None
    for scheduler in (sharded, replicated):
        scheduler.step()
        scheduler.step()
    spoiled = deep_mlp()
    _, bad = balanced(spoiled, **options)
    bad.rescore()
    with torch.no_grad():
        spoiled[9].weight[0, 0] = torch.nan
    bad.step()
    bad.step()
    bad.step()
    return {
        **found,
        "after two": [record(sharded), record(replicated)],
        "error": error(bad.step),
        "replicated": train(DistributedDataParallel(deep_mlp()), **options),
        "sharded": train(fsdp2(deep_mlp()), **options),
    }


class Clock:
    """Time that passes by some seconds a call of step, and by others for a unit of cost."""

    def __init__(self, step: float, pace: float) -> None:
        self.now, self.step, self.pace, self.asked = 0.0, step, pace, 0

    def __call__(self) -> float:
        return self.now

    def solve(self, jobs, *args, **kwargs) -> None:
        self.now += self.pace * sum(job.cost for job in jobs)
        tempbalance.ranking.scoring.solve(jobs, *args, **kwargs)

    def exchange(self, ranks, call, exchange=Ranks.exchange):
        self.asked += call.endswith("budget")
        return exchange(ranks, call)


def run_with(clock, model, *, num_steps=NUM_STEPS, **options):
    """What is found with a clock of one's own, how old scores are after each step, and how often rank 0 was asked."""
    records, ages = [], []
    with (
        patch.object(tempbalance.execution.budget, "clock", clock),
        patch.object(tempbalance.execution.distributed, "solve", clock.solve),
        patch.object(Ranks, "exchange", lambda *given: clock.exchange(*given)),
    ):
        optimizer, scheduler = balanced(model, **options)
        records.append(record(scheduler))
        for step in range(num_steps):
            train_step(model, optimizer, batch(step))
            clock.now += clock.step
            scheduler.step()
            records.append(record(scheduler))
            ages.append(scheduler.spending().ages)
        share = scheduler.spending().share
    return {"records": records, "ages": ages, "asked": clock.asked, "share": share}


@case
def within_a_budget():
    """By the clock of the first process there is time for some layers; by that of the second, for none or all."""
    found = {}
    for name, shard in {"ddp": DistributedDataParallel, "fsdp2": fsdp2, "fsdp1": fsdp1}.items():
        for second in (1e-6, 1e6):
            clock = Clock(1.0, 1e-7) if rank() == 0 else Clock(second, 1e-7)
            found[f"{name} {second}"] = run_with(clock, shard(deep_mlp()), num_steps=40, budget=0.1)
    found["large"] = run_with(Clock(1e6, 1e-7), DistributedDataParallel(deep_mlp()), budget=0.9)["records"]
    found["other budgets"] = error(balanced, deep_mlp(), budget=0.1 + 0.1 * rank())
    return found


@case
def memory_of_gathering():
    """The largest number of gathered entries that are alive at a time, in layers of 128 x 128."""
    found = {}
    for name, shard in {"fsdp2": fsdp2, "fsdp1": fsdp1}.items():
        model = shard(mlp((128,) * 12))
        storages, peaks, gather = [], [], Sharded.gather

        def noted(each, storages=storages, peaks=peaks, gather=gather):
            whole = gather(each)
            storages.append((StorageWeakRef(whole.untyped_storage()), whole.nbytes))
            peaks.append(sum(size for storage, size in storages if not storage.expired()) / (128 * 128 * 4))
            return whole

        with patch.object(Sharded, "gather", noted):
            balanced(model)
        found[name] = max(peaks)
    return found


@case
def bad_use():
    def built_before(shard):
        model = deep_mlp()
        optimizer = torch.optim.SGD(param_groups(model), lr=0.1)
        return error(TempBalance, optimizer, shard(model))

    def split_before():
        model = deep_mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        fsdp2(model)
        split_param_groups(optimizer, model)
        TempBalance(optimizer, model)

    with torch.device("meta"):
        meta = fsdp2(deep_mlp())
    wrapped = fsdp1(deep_mlp())
    sharded = fsdp2(deep_mlp())
    optimizer = torch.optim.SGD(param_groups(sharded), lr=0.1)
    return {
        "before fsdp2": built_before(fsdp2),
        "before tensor parallel": built_before(tensor_parallel),
        "split before": error(split_before),
        "other model": error(TempBalance, torch.optim.SGD([torch.zeros(2, requires_grad=True)]), sharded),
        "meta": error(balanced, meta),
        "flat parameters": error(param_groups, fsdp1(deep_mlp(), use_orig_params=False)),
        "bare": error(find_layers, wrapped.module),
        "one layer alone": error(find_layers(sharded)[1].weight),
        "another model of the same names": error(TempBalance, optimizer, fsdp2(deep_mlp())),
    }


def in_forks(num_processes: int, main, *arguments: object) -> list[int]:
    """Call a function on forks of this process, which find each other as torchrun's do; gives their exit codes.

    A fork has imported everything already, so that this takes a second where torchrun takes ten.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    forks = [
        context.Process(target=_fork, args=(rank, num_processes, port, main, arguments))
        for rank in range(num_processes)
    ]
    for each in forks:
        each.start()
    for each in forks:
        each.join()
    return [each.exitcode for each in forks]


def _fork(rank: int, num_processes: int, port: int, main, arguments: tuple) -> None:
    settings = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_processes, "MASTER_PORT": port}
    os.environ.update({"MASTER_ADDR": "localhost", **{name: str(value) for name, value in settings.items()}})
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(100, exit=True, file=sys.__stderr__)  # if it hangs
    main(*arguments)


def main(folder: str, names: list[str]) -> None:
    dist.init_process_group("gloo")
    found = {name: CASES[name]() for name in names}
    (Path(folder) / f"{rank()}.json").write_text(json.dumps(found))
    end()


def end() -> None:
    """Wait for the others, then destroy the process groups, once nothing else holds them.

    A DistributedDataParallel that outlives this would hold the last reference: then torch joins gloo's threads while it
    has the GIL, which one of them may wait for, and hangs; or it leaves them to abort at the interpreter's end.
    """
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
