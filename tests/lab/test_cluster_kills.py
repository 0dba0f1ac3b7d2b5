"""A sweep on a Ray cluster survives the death of its processes, of Ray's and of its driver."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tempbalance.lab.executors.local import Pool
from tempbalance.lab.executors.ray import Cluster
from tempbalance.lab.jobs import Job
from tempbalance.lab.progress import SweepView
from tempbalance.lab.sweep import sweep
from tests.lab.campaign import (
    SETTINGS,
    assert_all_trained_alike,
    assert_same_run,
    chosen,
    disturb,
    head,
    job,
    short_folder,
    tasks,
    trainers,
)

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes in /proc"),
]


def test_a_sweep_killed_time_and_again_ends_with_the_results_of_an_undisturbed_one(tmp_path, monkeypatch, undisturbed):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    killed = tmp_path / "killed"
    with head() as (address, ray):

        def find(kind: str, _: int) -> list[int]:
            return tasks(ray) if kind == "task" else trainers(ray)

        kills = chosen(["task"] * 4 + ["trainer"] * 3 + ["driver"] * 3)
        disturb(killed, address, kills=kills, find=find, seed=0)
    assert_all_trained_alike(killed, undisturbed)


NUM_RUNS = 40


class Disturbed(SweepView):
    """Kills two nodes and adds one, each when this number of runs is complete."""

    def __init__(self, jobs: Sequence[Job], nodes: Any, workers: list[Any]) -> None:
        super().__init__(jobs, Console(stderr=True), num_slots=3)
        kill = partial(nodes.remove_node, allow_graceful=False)
        self.num_ended = 0
        self.moments = {
            8: partial(kill, workers[0]),
            16: partial(kill, workers[1]),
            24: partial(nodes.add_node, num_cpus=1),
        }

    def ended(self, job: Job, failure: str | None) -> None:
        assert failure is None, failure
        self.num_ended += 1
        if self.num_ended in self.moments:
            self.moments.pop(self.num_ended)()


def test_two_nodes_of_three_killed_and_one_added_change_no_result(tmp_path, monkeypatch):
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    options = [
        {"seed": seed, "method": method, "epochs": 2} for method in ("cal", "tb") for seed in range(NUM_RUNS // 2)
    ]
    whole, disturbed = ([job(tmp_path / name, **each) for each in options] for name in ("whole", "disturbed"))
    assert sweep(whole, Pool(2, SETTINGS), SweepView(whole, Console(stderr=True), num_slots=2)) == {}
    with short_folder() as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        nodes = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        try:
            workers = [nodes.add_node(num_cpus=1) for _ in range(2)]
            executor = Cluster(SETTINGS, address=nodes.address)
            assert executor.num_slots == 3
            view = Disturbed(disturbed, nodes, workers)
            assert sweep(disturbed, executor, view) == {}
        finally:
            nodes.shutdown()
    assert (view.num_ended, view.moments) == (NUM_RUNS, {})
    for ours, theirs in zip(disturbed, whole, strict=True):
        assert_same_run(ours.folder, theirs.folder)
