"""Several processes in one run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.train import train
from tempbalance.runlog import RunFolder

pytestmark = pytest.mark.slow

OPTIONS = {"dataset": "digits", "model": "mlp", "width": 0.25, "method": "tb+snr", "epochs": 3, "limit": 201}
RECIPE = {**OPTIONS, "batch_size": 50}  # the last batch has one image, fewer than there are processes

SCRIPT = """
from pathlib import Path
from lightning.fabric.utilities import rank_zero_only
from tempbalance.lab.recipe import make_recipe, read_recipe
from tempbalance.lab.runs import Recorder
from tempbalance.lab.train import train
from tempbalance.runlog import RunFolder

write = RunFolder.write_result
RunFolder.write_result = lambda run, result: print("result", flush=True) or write(run, result)

recipe = make_recipe(read_recipe(Path("recipe.yaml")))
found = []
finish = Recorder.finish
Recorder.finish = lambda self, result: found.append(result["test_accuracy"]) or finish(self, result)
train(recipe, Path("run"), device="cpu", devices=2)
print(f"rank {rank_zero_only.rank}: {found[0]!r}", flush=True)
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
    assert resumed.stderr.count("going on after epoch 2") == resumed.stderr.count("epoch 3 of 3: train loss") == 1
    assert "epoch 2 of 3: train loss" not in resumed.stderr
    assert resumed.stdout.count("test accuracy") == 1

    train(ImageRecipe.from_dict(RECIPE), tmp_path / "alone", device="cpu")
    for ours, theirs in zip(before, RunFolder(tmp_path / "alone").metrics, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
