"""Several processes in one run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.training import train
from tempbalance.runlog import RunFolder

pytestmark = pytest.mark.slow

OPTIONS = {"dataset": "digits", "model": "mlp", "width": 0.25, "method": "tb+snr", "epochs": 3, "limit": 201}
RECIPE = {**OPTIONS, "batch_size": 50}  # the last batch has one image, fewer than there are processes

SCRIPT = """
from pathlib import Path
from lightning.pytorch import Callback
from tempbalance.lab.recipe import ImageRecipe
from tempbalance.lab.task import read_recipe
from tempbalance.lab.training import train
from tempbalance.runlog import RunFolder

write = RunFolder.write_result
RunFolder.write_result = lambda run, result: print("result", flush=True) or write(run, result)

class Tell(Callback):
    def on_train_end(self, trainer, module):
        print(f"rank {trainer.global_rank}: {module.metrics['test_accuracy']!r}", flush=True)

recipe = ImageRecipe.from_dict(read_recipe(Path("recipe.yaml"), ImageRecipe))
train(recipe, Path("run"), accelerator="cpu", devices=2, callbacks=[Tell()])
"""


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=240
    )


def test_two_processes_train_as_one_does_and_one_of_them_tells(tmp_path):
    (tmp_path / "recipe.yaml").write_text(json.dumps(RECIPE))
    (tmp_path / "script.py").write_text(SCRIPT)
    both = python("script.py", cwd=tmp_path)
    assert both.returncode == 0, both.stderr
    run = RunFolder(tmp_path / "run")
    accuracy = run.result["test_accuracy"]
    assert sorted(both.stdout.splitlines()) == [f"rank 0: {accuracy}", f"rank 1: {accuracy}", "result"]
    before = run.metrics
    assert [line["epoch"] for line in before] == [1, 2, 3]
    assert run.recipe["devices"] == 2

    (run.path / "result.json").unlink()
    (run.path / "last.ckpt").unlink()
    command = ("-m", "tempbalance.cli", "train", "--recipe", "recipe.yaml", "--out", "run")
    resumed = python(*command, "--device", "cpu", "--devices", "2", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert run.metrics == before
    assert resumed.stderr.count("going on after epoch 2") == resumed.stderr.count("epoch 3: train loss") == 1
    assert "epoch 2: train loss" not in resumed.stderr
    assert resumed.stdout.count("test accuracy") == 1

    train(ImageRecipe.from_dict(RECIPE), tmp_path / "alone", accelerator="cpu")
    for ours, theirs in zip(before, RunFolder(tmp_path / "alone").metrics, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
