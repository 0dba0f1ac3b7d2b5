"""Run by torchrun on two processes: trainers whose rates `test_many_processes.py` compares with a plain loop's."""

import json
import sys
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import fully_shard

from tempbalance import Execution
from tempbalance.integrations.lightning import TempBalanceCallback
from tests.integrations.contract import NUM_EPOCHS, OPTIONS, Rates, Setting
from tests.integrations.test_lightning import Balanced, Batches, Noting, Plain
from tests.integrations.test_transformers import Noting as TrainerNoting
from tests.integrations.test_transformers import build, setting_for
from tests.processes import end


class Sharded(Plain):
    """The module with its layers sharded, as Lightning's strategy asks for it."""

    def configure_model(self):
        mesh = self.device_mesh["data_parallel"]
        for layer in (self.net[2], self.net[3]):
            if list(layer.parameters()):
                fully_shard(layer, mesh=mesh)
        fully_shard(self.net, mesh=mesh)


def lightning(folder, module, strategy, *callbacks, checkpoint=None):
    trainer = Trainer(
        max_epochs=NUM_EPOCHS,
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        callbacks=list(callbacks),
        logger=False,
        use_distributed_sampler=False,
        enable_checkpointing=checkpoint is not None,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, Batches())
    return trainer


def ddp(folder, *, with_callback):
    noted, setting = Rates(), Setting()
    module = Plain(setting) if with_callback else Balanced(setting)
    callbacks = [TempBalanceCallback(**OPTIONS)] if with_callback else []
    lightning(folder, module, DDPStrategy(process_group_backend="gloo"), *callbacks, Noting(noted, None))
    return noted


def sharded_in_the_background(folder):
    """Checkpoints are saved while a scoring is under way."""
    noted, callback = Rates(), TempBalanceCallback(execution=Execution(background=True, lag=1), **OPTIONS)
    strategy = ModelParallelStrategy(process_group_backend="gloo")
    trainer = lightning(folder, Sharded(Setting()), strategy, callback, Noting(noted, None), checkpoint=folder)
    assert trainer.checkpoint_callback.best_model_path
    return noted


def trainer(folder, *, stop):
    noted, setting = Rates(), setting_for(interval=2)
    balance = {**OPTIONS, "interval": 2, "execution": Execution(background=True, lag=2)}
    if stop:
        build(folder, setting, TrainerNoting(noted, stop_after=3), balance=balance).train()
    checkpoint = str(folder / "checkpoint-3") if stop else None
    build(folder, setting, TrainerNoting(noted), balance=balance).train(resume_from_checkpoint=checkpoint)
    return noted


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    found = {
        "lightning, callback": ddp(folder / "callback", with_callback=True),
        "lightning, module": ddp(folder / "module", with_callback=False),
        "lightning, sharded": sharded_in_the_background(folder / "sharded"),
        "trainer": trainer(folder / "whole", stop=False),
        "trainer, resumed": trainer(folder / "stopped", stop=True),
    }
    rank = torch.distributed.get_rank()
    (folder / f"{rank}.json").write_text(json.dumps(found))
    end()
