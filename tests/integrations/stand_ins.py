"""A scheduler and a trainer of ours that behave as those of timm and ultralytics, where these are absent."""

import copy
import math
import warnings
from types import SimpleNamespace

import torch
from torch.optim.lr_scheduler import LambdaLR

from tests.integrations.contract import batches, loss_of, make_net


class LrScaleSchedule:
    """As timm's: told the time, it writes each group's base rate x a factor x the group's ``lr_scale``."""

    def __init__(self, optimizer, shape, *, t_in_epochs=True):
        self.optimizer, self.shape, self.t_in_epochs = optimizer, shape, t_in_epochs
        self.base_values = [group.setdefault("initial_lr", group["lr"]) for group in optimizer.param_groups]
        self.update_groups([base * shape(0) for base in self.base_values])

    def update_groups(self, values):
        for group, value in zip(self.optimizer.param_groups, values, strict=True):
            group["lr"] = value * group.get("lr_scale", 1.0)

    def step(self, epoch, metric=None):
        if self.t_in_epochs:
            self.update_groups([base * self.shape(epoch) for base in self.base_values])

    def step_update(self, num_updates, metric=None):
        if not self.t_in_epochs:
            self.update_groups([base * self.shape(num_updates) for base in self.base_values])

    def state_dict(self):
        return {"base_values": self.base_values}

    def load_state_dict(self, state):
        self.base_values = state["base_values"]


class YoloTrainer:
    """As ultralytics': three groups, a warm-up from ``initial_lr``, a LambdaLR, averages in half precision."""

    epochs, warmup, warmup_bias_lr = 4, 6, 0.1

    def __init__(self, callbacks, *, checkpoint=None):
        self.callbacks, self.model, self.start_epoch = callbacks, make_net(), 0
        self.optimizer = self._build_optimizer()
        self.lf = lambda epoch: 0.5 * (1 + math.cos(math.pi * epoch / self.epochs))
        self.scheduler = LambdaLR(self.optimizer, self.lf)
        self.average = copy.deepcopy(self.model)
        if checkpoint is not None:
            self.model.load_state_dict({key: value.float() for key, value in checkpoint["average"].items()})
            self.optimizer.load_state_dict(copy.deepcopy(checkpoint["optimizer"]))
            self.start_epoch = checkpoint["epoch"] + 1
        self.scheduler.last_epoch = self.start_epoch - 1
        self.run("on_pretrain_routine_end")

    def _build_optimizer(self):
        named = list(self.model.named_parameters())
        kinds = {
            "bias": [each for name, each in named if "bias" in name],
            "weight": [each for name, each in named if each.dim() > 1],
            "bn": [each for name, each in named if each.dim() == 1 and "bias" not in name],
        }
        groups = [{"params": each, "param_group": kind} for kind, each in kinds.items()]
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True)

    def run(self, event):
        for callback in self.callbacks.get(event, []):
            callback(self)

    def train(self, *, stop_after=None, fail_at=None):
        """To the end, or to the end of an epoch; a checkpoint comes back."""
        try:
            self.run("on_train_start")
            for epoch in range(self.start_epoch, self.epochs):
                self.epoch = epoch
                self._train_epoch(fail_at)
                if self.epoch == stop_after:
                    break
            self.run("on_train_end")
        finally:
            self.run("teardown")
        average = {key: value.half() for key, value in self.average.state_dict().items()}
        return {"epoch": self.epoch, "average": average, "optimizer": copy.deepcopy(self.optimizer.state_dict())}

    def _train_epoch(self, fail_at):
        self.run("on_train_epoch_start")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is stepped before the optimizer
            self.scheduler.step()
        for index, batch in enumerate(batches()):
            self._warm_up(index + self.epoch * len(batches()))
            loss_of(self.model, batch).backward()
            if fail_at == (self.epoch, index):
                self.optimizer.param_groups[0]["momentum"] = "none"  # so that the step raises
            self.optimizer.step()
            self.optimizer.zero_grad()
            for one, other in zip(self.average.parameters(), self.model.parameters(), strict=True):
                one.data.lerp_(other.data, 0.1)
            self.run("on_train_batch_end")

    def _warm_up(self, step):
        for group in self.optimizer.param_groups if step <= self.warmup else ():
            low = self.warmup_bias_lr if group["param_group"] == "bias" else 0.0
            high = group["initial_lr"] * self.lf(self.epoch)
            group["lr"] = low + (high - low) * step / self.warmup


def collector():
    """What has ``add_callback``, as a model of ultralytics has, and the callbacks that were added."""
    callbacks = {}
    model = SimpleNamespace(add_callback=lambda event, function: callbacks.setdefault(event, []).append(function))
    return model, callbacks
