"""Processes of this machine: they train, fail, die, are started again, and never outlive who started them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tempbalance.lab.executors import local
from tempbalance.lab.executors.local import Pool
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.jobs import Ended, Job
from tempbalance.lab.sweep import sweep
from tempbalance.lab.train import train
from tempbalance.runlog import RunFolder, take_lock, write_whole
from tests.cases import raises
from tests.lab import stub_worker
from tests.lab.cut import resumed_after

SETTINGS = {"device": "cpu", "precision": "32-true", "threads": 1, "cache": None, "log_every": 10, "tensorboard": False}
SETTINGS["checkpoint_every"] = 0  # after every epoch, so that a killed run resumes
SMALL = {"dataset": "digits", "model": "mlp", "width": 0.25, "limit": 300, "epochs": 3}


def asked(folder: Path, **options) -> Job:
    job = Job(ImageRecipe.from_dict({**SMALL, **options}), folder)
    write_whole(folder / "asked.json", json.dumps(job.recipe.to_dict()).encode())
    return job


def wait(pool: Pool, seconds: float = 120) -> list[Ended]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := pool.ended():
            return found
        time.sleep(0.05)
    raise AssertionError("nothing has ended")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """A pool of one; every test leaves it without a job."""
    found = Pool(1, SETTINGS)
    yield found
    found.close()


@pytest.fixture
def stubs(monkeypatch, tmp_path) -> Iterator[Pool]:
    """A pool of two that trains nothing: how a job ends follows from its folder's name."""
    stub_worker.install(monkeypatch, tmp_path)
    found = Pool(2, SETTINGS)
    yield found
    found.close()


def test_a_process_is_used_again_and_two_jobs_at_a_time_have_two(stubs, tmp_path):
    jobs = [asked(tmp_path / name) for name in "abc"]
    stubs.start(jobs[0])
    assert wait(stubs) == [Ended(jobs[0], "done", "")]
    pid = stubs._workers[0]._process.pid
    for each in jobs[1:]:
        stubs.start(each)
    found = wait(stubs)
    if len(found) < 2:
        found += wait(stubs)
    assert {(each.job, each.state) for each in found} == {(each, "done") for each in jobs[1:]}
    assert stubs._workers[0]._process.pid == pid != stubs._workers[1]._process.pid


def train_next(pool: Pool, job: Job) -> Ended:
    """Train a job after a process died; it dies too where it was given before that death was heard of."""
    pool.start(job)
    (ended,) = wait(pool)
    if ended.state == "died":
        pool.start(job)
        (ended,) = wait(pool)
    return ended


@pytest.mark.parametrize(("name", "carried"), [("dies", "-9"), ("speaks", "last words"), ("cut", "exit code")])
def test_a_process_that_ends_with_its_job_is_replaced(stubs, tmp_path, name, carried):
    stubs.start(asked(tmp_path / name))
    (ended,) = wait(stubs)
    assert ended.state == "died"
    assert carried in ended.message
    job = asked(tmp_path / "next")
    assert train_next(stubs, job) == Ended(job, "done", "")


def test_a_process_that_died_without_a_job_takes_none_along(stubs, tmp_path):
    stubs.start(asked(tmp_path / "first"))
    assert [each.state for each in wait(stubs)] == ["done"]
    process = stubs._workers[0]._process
    process.kill()
    process.wait()
    job = asked(tmp_path / "second")
    assert train_next(stubs, job) == Ended(job, "done", "")


def test_closing_kills_a_process_that_does_not_end_with_its_input(stubs, tmp_path, monkeypatch):
    monkeypatch.setattr("tempbalance.lab.executors.local._PATIENCE", 0.1)
    stubs.start(asked(tmp_path / "waits"))
    process = stubs._workers[0]._process
    stubs.close()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_one_process_trains_one_run_after_another_as_a_run_alone_is_trained(pool, tmp_path):
    pids = []
    for seed in (43, 37):
        pool.start(asked(tmp_path / str(seed), seed=seed))
        (ended,) = wait(pool)
        assert (ended.state, ended.message) == ("done", "")
        pids.append(pool._workers[0]._process.pid)
    assert pids[0] == pids[1]
    train(ImageRecipe.from_dict({**SMALL, "seed": 37}), tmp_path / "alone", device="cpu")
    for name in ("metrics.jsonl", "layers.jsonl"):
        assert (tmp_path / "37" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    assert "epoch 3 of 3: train loss" in (tmp_path / "37" / "output.txt").read_text()


@pytest.mark.slow
def test_a_failing_run_leaves_its_traceback_and_the_process_goes_on(pool, tmp_path):
    pool.start(asked(tmp_path / "bad", dataset="nowhere.npz"))
    (ended,) = wait(pool)
    assert ended.state == "failed"
    assert "nowhere.npz" in ended.message
    said = (tmp_path / "bad" / "failure.txt").read_text()
    assert said.startswith("Traceback")
    assert "nowhere.npz" in said
    pool.start(asked(tmp_path / "good"))
    assert [each.state for each in wait(pool)] == ["done"]
    write_whole(tmp_path / "bad" / "asked.json", (tmp_path / "good" / "asked.json").read_bytes())
    pool.start(Job(ImageRecipe.from_dict(SMALL), tmp_path / "bad"))
    assert [each.state for each in wait(pool)] == ["done"]
    assert not (tmp_path / "bad" / "failure.txt").exists()


@pytest.mark.slow
def test_a_run_that_diverges_is_done_and_not_trained_again(pool, tmp_path):
    job = asked(tmp_path / "bad", lr=1e30)
    for _ in range(2):
        pool.start(job)
        assert [each.state for each in wait(pool)] == ["done"]
        assert (job.state, job.result["diverged_epoch"]) == ("done", 1)
        assert "the loss is" in job.result["diverged"]
    assert not (tmp_path / "bad" / "failure.txt").exists()
    assert (tmp_path / "bad" / "output.txt").read_text().count("the loss is") == 2  # the second time as it is on record
    assert RunFolder(tmp_path / "bad").metrics == []


@pytest.mark.slow
def test_a_run_that_another_process_trains_is_busy(pool, tmp_path):
    job = asked(tmp_path / "run")
    lock = take_lock(tmp_path / "run" / "run.lock")
    assert lock is not None
    pool.start(job)
    (ended,) = wait(pool)
    lock.release()
    assert ended.state == "busy"
    assert str(tmp_path / "run") in ended.message


@pytest.mark.slow
def test_a_killed_process_is_told_and_the_next_one_goes_on(pool, tmp_path):
    job = asked(tmp_path / "run", epochs=400)
    pool.start(job)
    while job.num_finished < 2:
        time.sleep(0.05)
    os.kill(pool._workers[0]._process.pid, signal.SIGKILL)
    (ended,) = wait(pool)
    assert ended.state == "died"
    assert "-9" in ended.message
    before = job.num_finished
    pool.start(job)
    while job.num_finished <= before:
        time.sleep(0.05)
    assert resumed_after((tmp_path / "run" / "output.txt").read_text())
    os.kill(pool._workers[0]._process.pid, signal.SIGKILL)
    assert [each.state for each in wait(pool)] == ["died"]


@pytest.mark.slow
def test_a_process_that_is_asked_to_end_leaves_no_failure(pool, tmp_path):
    job = asked(tmp_path / "run", epochs=400)
    pool.start(job)
    while job.num_finished < 1:
        time.sleep(0.05)
    os.kill(pool._workers[0]._process.pid, signal.SIGTERM)
    (ended,) = wait(pool)
    assert ended.state == "died"
    assert not (tmp_path / "run" / "failure.txt").exists()


SCRIPT = """
import sys, time
from pathlib import Path
from tempbalance.lab.jobs import Job
from tempbalance.lab.executors.local import Pool
from tempbalance.lab.options import read_options
from tempbalance.lab.recipe import make_recipe
folder = Path(sys.argv[1])
pool = Pool(1, {settings!r})
pool.start(Job(make_recipe(read_options(folder / "asked.json")), folder))
print(pool._workers[0]._process.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.slow
def test_no_process_outlives_the_one_that_started_it(tmp_path):
    asked(tmp_path / "run", epochs=4000)
    command = [sys.executable, "-c", SCRIPT.format(settings=SETTINGS), str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pid = int(driver.stdout.readline())
        while not RunFolder(tmp_path / "run").metrics:
            time.sleep(0.05)
        driver.kill()
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the worker still trains")
    assert take_lock(tmp_path / "run" / "run.lock", patience=5) is not None


FREE = {**SETTINGS, "threads": None, "device": "auto"}


@pytest.fixture
def eight_cores(monkeypatch) -> None:
    monkeypatch.setattr(local.os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(local.shutil, "which", lambda _: None)
    for name in ("TEMPBALANCE_GPUS", *local._VISIBLE):
        monkeypatch.delenv(name, raising=False)


def test_a_process_has_its_share_of_the_cores(eight_cores):
    alone = local.local_pool(FREE, num_workers=None)
    assert (alone.num_slots, alone._settings["threads"], alone._settings["device"]) == (8, 1, "cpu")
    pair = local.local_pool(FREE, num_workers=2)
    assert (pair.num_slots, pair._settings["threads"]) == (2, 4)
    assert pair._environment(0)["OMP_NUM_THREADS"] == "4"
    with raises(ValueError, "at most the 0", "1"):
        local.local_pool(FREE, num_workers=None, gpus=1)


@pytest.mark.parametrize(
    ("gpus", "visible"),
    [
        (None, ["0", "1", "2", "3"]),
        (1, ["0", "1", "2", "3"]),
        (0.5, ["0", "1", "2", "3"] * 2),
        (2, ["0,1", "2,3"]),
        (3, ["0,1,2"]),
    ],
)
def test_a_process_has_one_gpu_or_a_share_of_one_or_several(eight_cores, monkeypatch, gpus, visible):
    monkeypatch.setenv("TEMPBALANCE_GPUS", "4")
    pool = local.local_pool(FREE, num_workers=None, gpus=gpus)
    found = [pool._environment(place) for place in range(pool.num_slots)]
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        assert [each[name] for each in found] == visible
    assert pool._settings["device"] == "auto"
    assert pool._settings.get("devices", 1) == max(1, int(gpus or 1))
    for device, wanted in (("cpu", None), ("auto", 0)):
        on_cpu = local.local_pool({**FREE, "device": device}, num_workers=None, gpus=wanted)
        assert on_cpu._settings["device"] == "cpu"
        assert "CUDA_VISIBLE_DEVICES" not in on_cpu._environment(0)
    with raises(ValueError, "1.5"):
        local.local_pool(FREE, num_workers=None, gpus=1.5)


def test_a_process_does_not_know_that_srun_or_torchrun_has_started_the_sweep(monkeypatch):
    names = ("SLURM_NTASKS", "TORCHELASTIC_RUN_ID", "LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_ADDR")
    for name in names:
        monkeypatch.setenv(name, "1")
    found = Pool(1, {"threads": 1})._environment(0)
    assert not {*names} & {*found}
    assert found["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nvidia-smi", "echo 'GPU 0: one'; echo 'GPU 1: two'; echo"),
        ("rocm-smi", "echo device,id; echo card0,7; echo card1,7"),
    ],
)
def test_gpus_of_both_vendors_are_found_unless_they_are_hidden(eight_cores, monkeypatch, tmp_path, name, says):
    tool = tmp_path / name
    tool.write_text(f"#!/bin/sh\n{says}\n")
    tool.chmod(0o755)
    monkeypatch.setattr(local.shutil, "which", lambda each: str(tool) if each == name else None)
    assert local.find_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert local.find_gpus() == ["1"]


def test_four_devices_keep_four_runs_going_with_one_each(eight_cores, monkeypatch, tmp_path):
    monkeypatch.setenv("TEMPBALANCE_GPUS", "4")
    stub_worker.install(monkeypatch, tmp_path)
    jobs = [asked(tmp_path / "runs" / f"notes{i}", seed=i) for i in range(12)]
    pool = local.local_pool(FREE, num_workers=None)
    most = 0

    class Watching(nullcontext):
        def update(self, running, failures) -> None:
            nonlocal most
            most = max(most, len(running))

        def ended(self, job, failure) -> None:
            assert failure is None

    assert sweep(jobs, pool, Watching()) == {}
    assert most == 4
    devices = Counter((job.folder / "device").read_text() for job in jobs)
    assert sorted(devices) == ["0", "1", "2", "3"]
    assert sum(devices.values()) == 12
