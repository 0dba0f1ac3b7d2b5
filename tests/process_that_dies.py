"""A training of two processes with a checkpoint a step, of which the second is killed; torchrun starts this file.

Arguments: a folder, the step in which to die, and the options of TempBalance as JSON. Started again, it goes on from
the checkpoint and is not killed any more.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.cases import train_step
from tests.processes import balanced, batch, deep_mlp, end

NUM_STEPS = 6


def run(model, options: dict, checkpoint: Path | None = None, before_step=lambda step: None) -> list[list[float]]:
    """The rates after each step; those of steps before the checkpoint are in it."""
    optimizer, scheduler = balanced(model, **options)
    rates: list[list[float]] = []
    if checkpoint is not None and checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        rates = state["rates"]
    for step in range(len(rates), NUM_STEPS):
        train_step(model, optimizer, batch(step))
        before_step(step)
        scheduler.step()
        rates.append([group["lr"] for group in optimizer.param_groups])
        if checkpoint is not None and dist.get_rank() == 0:
            parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
            torch.save({**{key: part.state_dict() for key, part in parts.items()}, "rates": rates}, f"{checkpoint}.new")
            os.replace(f"{checkpoint}.new", checkpoint)
        if checkpoint is not None:
            dist.barrier()
    return rates


def main(folder: str, last_step: str, options: str) -> None:
    dist.init_process_group("gloo")
    mark = Path(folder) / "died"

    def before_step(step: int) -> None:
        if step == int(last_step) and dist.get_rank() == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    model = DistributedDataParallel(deep_mlp())
    rates = run(model, json.loads(options), Path(folder) / "checkpoint.pt", before_step)
    weights = [parameter.tolist() for parameter in model.module.parameters()]
    (Path(folder) / f"{dist.get_rank()}.json").write_text(json.dumps([rates, weights]))
    del model
    end()


if __name__ == "__main__":
    main(*sys.argv[1:])
