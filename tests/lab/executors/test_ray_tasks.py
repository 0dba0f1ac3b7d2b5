"""What a sweep asks of a cluster and makes of its answers; Ray itself is in `test_cluster`."""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tempbalance.lab.executors import ray as cluster
from tempbalance.lab.executors.ray import Cluster
from tempbalance.lab.jobs import Ended, Job
from tests.cases import raises, warns
from tests.lab import stub_worker
from tests.lab.campaign import SETTINGS, job
from tests.lab.ray_stand_in import RayError, RayStandIn


@pytest.fixture
def ray(monkeypatch, tmp_path) -> Iterator[RayStandIn]:
    """Two nodes with three CPUs together, on this machine; their temporary folder is ``node``."""
    stand_in = RayStandIn(2, 1)

    def join(address: str | None) -> bool:
        stand_in.connected = True
        return address is None

    monkeypatch.setitem(sys.modules, "ray", stand_in)
    monkeypatch.setattr(cluster, "join", join)
    monkeypatch.setattr(cluster, "_pools", {})
    monkeypatch.setattr(cluster, "_PAUSE", 0.01)
    (tmp_path / "node").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "node"))
    monkeypatch.chdir(tmp_path)
    stub_worker.install(monkeypatch, tmp_path)
    yield stand_in
    for pool in cluster._pools.values():
        pool.close()


@pytest.fixture
def asked(tmp_path) -> Callable[[str], Job]:
    """Jobs whose folders have a name and the recipe."""

    def new(name: str) -> Job:
        found = Job(job(tmp_path).recipe, tmp_path / "runs" / name)
        found.folder.mkdir(parents=True)
        found.ask()
        return found

    return new


def until_ended(there: Cluster) -> Ended:
    for _ in range(100):
        if found := there.ended():
            (ended,) = found
            return ended
    raise AssertionError("it does not end")


def test_without_ray_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        Cluster(SETTINGS)
    assert caught.value.name == "ray"


@pytest.mark.parametrize(("needs", "num_slots"), [({}, 3), ({"num_cpus": 2}, 1), ({"num_cpus": 0.5}, 6)])
def test_the_nodes_that_live_have_room_for_so_many(ray, needs, num_slots):
    there = Cluster(SETTINGS, **needs)
    assert there.num_slots == num_slots
    assert there.ended() == []


def test_a_run_has_a_gpu_where_the_cluster_has_any_and_more_tasks_than_slots_are_submitted(ray):
    assert Cluster(SETTINGS).needs == (1, 0)
    ray.gpus = 2
    there = Cluster({**SETTINGS, "device": "auto"})
    assert (there.needs, there.num_slots) == ((1, 1), 3)  # the second node has one CPU
    assert there._settings["device"] == "auto"
    assert Cluster(SETTINGS, num_cpus=0, num_gpus=0.25).num_slots == 16
    assert Cluster({**SETTINGS, "device": "auto"}, num_gpus=0)._settings["device"] == "cpu"
    assert Cluster(SETTINGS, num_gpus=2)._settings["devices"] == 2
    with raises(ValueError, "1.5"):
        Cluster(SETTINGS, num_gpus=1.5)
    assert there.num_ahead == 3
    ray.cpus = (1000,)
    assert Cluster(SETTINGS, num_gpus=0).num_ahead == 64


def test_nodes_that_join_are_noticed(ray, monkeypatch):
    monkeypatch.setattr(cluster, "_LOOK", 0.0)
    there = Cluster(SETTINGS)
    ray.cpus = (2, 1, 4)
    assert there.num_slots == 7


@pytest.mark.parametrize("needs", [{"num_cpus": 0}, {"num_cpus": -1, "num_gpus": 2}])
def test_a_request_for_nothing_is_refused(ray, needs):
    with raises(ValueError, f"num_cpus={needs['num_cpus']}"):
        Cluster(SETTINGS, **needs)


def test_what_no_node_has_is_refused_of_a_cluster_started_here_and_waited_for_elsewhere(ray):
    with raises(ValueError, "1 CPU", "2 GPU"):
        Cluster(SETTINGS, num_gpus=2)
    assert not ray.connected
    with warns(UserWarning, "1 CPU", "2 GPU"):
        assert Cluster(SETTINGS, num_gpus=2, address="head:6379").num_slots == 1


def test_a_run_is_trained_in_the_folder_that_is_shared(ray, asked):
    there, run = Cluster({**SETTINGS, "threads": None, "cache": "cache"}, num_cpus=2), asked("run")
    assert there._settings["threads"] == 2
    assert there._settings["cache"] == str(Path.cwd() / "cache")
    there.start(run)
    assert until_ended(there) == Ended(run, "done", "")
    assert run.num_finished == 2
    assert there.ended() == []
    there.close()
    assert not ray.connected
    there.close()


def test_one_process_trains_one_run_after_another(ray, asked):
    there = Cluster(SETTINGS)
    for name in ("a", "b"):
        there.start(asked(name))
        assert until_ended(there).state == "done"
    assert len(cluster._pools) == 1


@pytest.mark.parametrize(("name", "state", "carried"), [("fails", "failed", "too bad"), ("dies", "died", "-9")])
def test_a_run_that_fails_and_one_whose_process_is_killed_are_told_apart(ray, asked, name, state, carried):
    there = Cluster(SETTINGS)
    there.start(asked(name))
    ended = until_ended(there)
    assert ended.state == state
    assert carried in ended.message


def test_a_task_that_ray_has_lost_has_died_with_the_first_sentence_of_the_reason(ray, asked):
    there, run = Cluster(SETTINGS), asked("run")
    there.start(run)
    ray.started[0].problem = RayError("The node died. It had no memory.\nSee the logs")
    assert until_ended(there) == Ended(run, "died", "The node died")


def test_a_folder_that_the_node_does_not_see_is_a_failure_with_its_traceback(ray, tmp_path):
    there, run = Cluster(SETTINGS), job(tmp_path)
    run.folder.mkdir()
    there.start(run)
    ended = until_ended(there)
    assert ended.state == "failed"
    assert str(run.folder / "asked.json") in ended.message
    assert "FileNotFoundError" in (run.folder / "failure.txt").read_text()


def test_a_run_that_is_fetched_comes_back_and_leaves_nothing(ray, asked, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "_FETCH", 0.0)
    there, run = Cluster(SETTINGS, fetch=True), asked("long")
    (run.folder / "failure.txt").write_text("Traceback\nValueError: last week")
    there.start(run)
    assert run.is_queued
    assert there.ended() == []  # the node has begun
    assert not run.is_queued
    assert there.ended() == []  # the log of a run under way has come
    assert run.num_finished == 2
    assert until_ended(there) == Ended(run, "done", "")
    assert {path.name for path in run.folder.iterdir()} == {
        "asked.json", "fetched.id", "metrics.jsonl", "recipe.json", "result.json",
    }  # fmt: skip
    assert list((tmp_path / "node").glob("tempbalance-long-*")) == []


def test_closing_cancels_what_runs(ray, asked):
    there = Cluster(SETTINGS)
    there.start(asked("waits"))
    there.close()
    assert ray.cancelled == ray.started
    assert there.ended() == []


def test_a_task_that_is_cancelled_takes_its_process_along(ray, asked, monkeypatch):
    monkeypatch.setattr("tempbalance.lab.executors.local._PATIENCE", 0.1)
    there = Cluster(SETTINGS, fetch=True)
    there.start(asked("waits"))
    (stream,) = ray.started

    def interrupt(_):
        raise KeyboardInterrupt

    assert there.ended() == []  # the node has begun
    monkeypatch.setattr(cluster, "time", SimpleNamespace(sleep=interrupt, monotonic=time.monotonic))
    with pytest.raises(KeyboardInterrupt):
        next(stream.parts)
    assert cluster._pools == {}
