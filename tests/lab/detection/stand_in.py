"""A package that trains through the same callbacks as ultralytics, with a small network and no images."""

import contextlib
import io
from pathlib import Path
from types import SimpleNamespace

import torch

from tests.cases import mlp


class FakeYolo:
    """Has what the lab uses of a model of ultralytics.

    Class attributes say what goes wrong, and what trainings there were.
    """

    stop_at = None  # (event, epoch) at which `problem` is called
    problem = None
    trained: list[dict] = []  # noqa: RUF012
    tested: list[dict] = []  # noqa: RUF012

    def __init__(self, source, task):
        assert task == "detect"
        self.source, self.callbacks = source, {}

    def add_callback(self, event, function):
        self.callbacks.setdefault(event, []).append(function)

    def train(self, **options):
        FakeYolo.trained.append({"source": self.source, **options})
        trainer = FakeTrainer(self, options)
        with contextlib.ExitStack() as stack:
            stack.callback(lambda: trainer.run("teardown"))
            trainer.train()

    def val(self, **options):
        state = torch.load(io.BytesIO(Path(self.source).read_bytes()), weights_only=True)
        FakeYolo.tested.append({"epoch": state["epoch"] + 1, **options})
        share = TESTED[state["epoch"]]
        return SimpleNamespace(results_dict={"metrics/mAP50(B)": share + 0.1, "metrics/mAP50-95(B)": share})


TESTED = (0.31, 0.52, 0.54)  # mAP on the test images after each epoch, where a checkpoint is tested


class FakeTrainer:
    def __init__(self, model, options):
        self.yolo, self.options, self.model = model, options, mlp()
        self.batch_size, self.start_epoch = options["batch"], 0
        self.last = Path(options["save_dir"]) / "weights" / "last.pt"
        if options["resume"]:
            state = torch.load(io.BytesIO(Path(model.source).read_bytes()), weights_only=True)
            self.model.load_state_dict(state["model"])
            self.start_epoch = state["epoch"] + 1
        named = {"weight": [], "bn": []}
        for parameter in self.model.parameters():
            named["weight" if parameter.dim() > 1 else "bn"].append(parameter)
        self.optimizer = torch.optim.Adam([{"params": each} for each in named.values()], lr=options["lr0"])

    def run(self, event):
        if (event, getattr(self, "epoch", None)) == FakeYolo.stop_at:
            FakeYolo.problem(self)
        for callback in self.yolo.callbacks.get(event, []):
            callback(self)

    def label_loss_items(self, items):
        return {f"train/{name}": value for name, value in items.items()}

    def train(self):
        self.run("on_pretrain_routine_end")
        self.run("on_train_start")
        for epoch in range(self.start_epoch, self.options["epochs"]):
            self.epoch = epoch
            self.run("on_train_epoch_start")
            for group in self.optimizer.param_groups:
                group["lr"] = self.options["lr0"] * (1 - self.epoch / self.options["epochs"])
            torch.manual_seed(self.epoch)
            self.model(torch.randn(8, 64)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.tloss = {"box_loss": 2.0, "cls_loss": 1.0 + self.epoch}
            self.run("on_train_epoch_end")
            share = {0: 0.3, 1: 0.6, 2: 0.5}.get(self.epoch, 0.1)
            self.metrics = {"metrics/mAP50(B)": share + 0.1, "metrics/mAP50-95(B)": share}
            self.last.parent.mkdir(parents=True, exist_ok=True)
            torch.save({"epoch": self.epoch, "model": self.model.state_dict()}, self.last)
            self.run("on_model_save")
            self.run("on_fit_epoch_end")
        self.run("on_train_end")


PACKAGE = SimpleNamespace(YOLO=FakeYolo, __version__="0.0", utils=SimpleNamespace(DEFAULT_CFG_DICT={"cls_remap": True}))
