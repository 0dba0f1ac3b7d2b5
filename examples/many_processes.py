"""DDP or FSDP2 with saving and resuming, on two processes:

    torchrun --standalone --nproc-per-node=2 examples/many_processes.py [--shard]

Run it twice: the second time it goes on from the checkpoint of the first.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import tempbalance

EPOCHS, WIDTH = 3, 128
IS_SHARDED = "--shard" in sys.argv
FOLDER = Path("checkpoint-sharded" if IS_SHARDED else "checkpoint-ddp")

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [module for _ in range(5) for module in (nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU())]
model = nn.Sequential(*layers, nn.Linear(WIDTH, 10))
inputs = torch.randn(512, WIDTH)
targets = torch.tanh(inputs @ torch.randn(WIDTH, 10) / 4)
if IS_SHARDED:  # first, and then the optimizer
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
else:
    model = DistributedDataParallel(model)

optimizer = torch.optim.AdamW(tempbalance.param_groups(model), lr=2e-3)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2 * EPOCHS)
scheduler = tempbalance.TempBalance(optimizer, model, cosine)  # on every process, which share the spectra


def states() -> dict:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "scheduler": scheduler.state_dict()}


if FOLDER.exists():
    found = states()
    dcp.load(found, checkpoint_id=FOLDER)
    set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
    scheduler.load_state_dict(found["scheduler"])

for _ in range(EPOCHS):
    generator = torch.Generator().manual_seed(scheduler.last_epoch)
    order = torch.randperm(len(inputs), generator=generator)[dist.get_rank() :: dist.get_world_size()]
    for batch in order.split(32):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs[batch]), targets[batch])
        loss.backward()
        optimizer.step()
    scheduler.step()
    if dist.get_rank() == 0:
        print(f"epoch {scheduler.last_epoch}: loss {loss.item():.4f}")
scheduler.wait()  # for a scoring in the background, before what is saved of sharded weights; here there is none
dcp.save(states(), checkpoint_id=FOLDER)
if dist.get_rank() == 0:
    print(scheduler.table())
dist.destroy_process_group()
