"""A sweep on this machine survives the death of any of its processes."""

from pathlib import Path

import pytest

from tests.lab.campaign import assert_all_trained_alike, below, chosen, disturb

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes in /proc"),
]


def workers(_: str, driver: int) -> list[int]:
    return [pid for pid, (_, command) in below(driver).items() if "tempbalance.lab.executors.local" in command]


def test_a_sweep_killed_time_and_again_ends_with_the_results_of_an_undisturbed_one(tmp_path, undisturbed):
    killed = tmp_path / "killed"
    disturb(killed, kills=chosen(["worker"] * 6 + ["driver"] * 4), find=workers, seed=0)
    assert_all_trained_alike(killed, undisturbed)
