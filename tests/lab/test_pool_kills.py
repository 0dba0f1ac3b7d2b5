"""A sweep on this machine survives the death of any of its processes."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tempbalance.lab.executors.local import Pool
from tempbalance.lab.progress import SweepView
from tempbalance.lab.sweep import sweep
from tests.cases import assert_carries
from tests.lab.campaign import SETTINGS, assert_all_trained_alike, assert_same_run, below, chosen, disturb, jobs
from tests.lab.kills import small_disk

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


def test_on_a_full_disk_every_run_fails_with_a_sentence_and_completes_once_there_is_room(tmp_path, undisturbed):
    with small_disk(tmp_path / "small") as mounted:
        if not mounted:
            pytest.skip("mount is not permitted")
        every, filler = jobs(tmp_path / "small" / "runs"), tmp_path / "small" / "filler"
        filler.write_bytes(b"\0" * (shutil.disk_usage(tmp_path / "small").free - 2**16))
        failures = sweep(every, Pool(2, SETTINGS), SweepView(every, Console(stderr=True), num_slots=2))
        assert set(failures) == set(every)
        for each, message in failures.items():
            assert_carries(message, "the disk is full", each.folder)
            assert not each.is_done
            assert not list(each.folder.glob("*.tmp*"))
        filler.unlink()
        assert sweep(every, Pool(2, SETTINGS), SweepView(every, Console(stderr=True), num_slots=2)) == {}
        for ours, theirs in zip(every, jobs(undisturbed), strict=True):
            assert_same_run(ours.folder, theirs.folder)


@pytest.mark.parametrize(("part", "rounds"), [("train", 3), ("compare", 2), ("disk", 2), ("damage", 3)])
def test_the_small_form_of_the_campaign(part, rounds):
    command = [sys.executable, "-m", "tests.lab.kills", "--seed", "0", "--rounds", str(rounds), "--parts", part]
    found = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stdout + found.stderr[-3000:]
    assert found.stdout.startswith("seed 0\n")
    assert f"{part}: " in found.stdout
