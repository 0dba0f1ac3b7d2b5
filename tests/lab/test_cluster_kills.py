"""A sweep on a Ray cluster survives the death of its processes, of Ray's and of its driver."""

from pathlib import Path

import pytest

from tests.lab.campaign import assert_all_trained_alike, chosen, disturb, head, tasks, trainers

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
