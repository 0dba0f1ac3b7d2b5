"""Several processes in one run."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tempbalance.lab.executors.local import Pool
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.jobs import Job
from tempbalance.lab.train import train
from tempbalance.runlog import RunFolder

pytestmark = pytest.mark.slow

OPTIONS = {"dataset": "digits", "model": "mlp", "width": 0.25, "method": "tb+snr", "epochs": 3, "limit": 201}
RECIPE = {**OPTIONS, "batch_size": 50}  # the last batch has one image, fewer than there are processes
SETTINGS = {"device": "cpu", "devices": 2, "precision": "32-true", "threads": 1, "cache": None, "log_every": 10}


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=240
    )


def test_two_processes_train_as_one_does_and_one_of_them_tells(tmp_path):
    (tmp_path / "recipe.yaml").write_text(json.dumps({**RECIPE, "stop_after": 2}))
    command = ("-m", "tempbalance.cli", "train", "--recipe", "recipe.yaml", "--out", "run")
    both = python(*command, "--device", "cpu", "--devices", "2", cwd=tmp_path)
    assert both.returncode == 0, both.stderr
    assert both.stdout.count("test accuracy") == 1
    assert both.stderr.count("epoch 2 of 2: train loss") == 1
    run = RunFolder(tmp_path / "run")
    assert run.recipe["devices"] == 2

    train(ImageRecipe.from_dict({**RECIPE, "stop_after": 2}), tmp_path / "alone", device="cpu")
    for ours, theirs in zip(run.metrics, RunFolder(tmp_path / "alone").metrics, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


def test_a_run_on_two_devices_goes_on_after_a_kill_from_a_sweep_that_waits_on_its_input(tmp_path):
    whole = Job(ImageRecipe.from_dict(RECIPE), tmp_path / "whole")
    killed = Job(ImageRecipe.from_dict({**RECIPE, "seed": 43}), tmp_path / "killed")
    for job, kill_at in ((whole, None), (killed, 1), (killed, None)):
        job.ask()
        pool = Pool(1, {**SETTINGS, "checkpoint_every": 0})
        try:
            pool.start(job)
            deadline = time.monotonic() + 200
            while not (ended := pool.ended()) and time.monotonic() < deadline:
                time.sleep(0.05)
                if kill_at is not None and (job.folder / "last.ckpt").exists():
                    pool._workers[0]._process.kill()
                    kill_at = None
        finally:
            pool.close()
        assert [each.state for each in ended] in (["done"], ["died"]), ended
    assert whole.run.result["test_accuracy"] == killed.run.result["test_accuracy"]
    assert (whole.folder / "metrics.jsonl").read_bytes() == (killed.folder / "metrics.jsonl").read_bytes()
    assert others() == []


def others() -> list[str]:
    """Processes of runs on several devices that are still there, other than those that are just ending."""
    deadline = time.monotonic() + 20
    while found := [text for text in _commands() if "tempbalance.lab.train" in text]:
        if time.monotonic() > deadline:
            return found
        time.sleep(0.1)
    return []


def _commands() -> list[str]:
    mine = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environment = (path / "environ").read_bytes()
            if b"PYTEST_CURRENT_TEST=tests/lab/test_processes.py" in environment:
                mine.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return mine
