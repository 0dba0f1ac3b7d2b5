"""A Ray cluster trains as this machine does, brings runs back, says what died, and leaves nothing behind."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tempbalance.cli import app
from tempbalance.lab.executors import ray as cluster
from tempbalance.lab.executors.local import Pool
from tempbalance.lab.executors.ray import Cluster
from tempbalance.lab.jobs import Ended, Executor, Job
from tempbalance.runlog import write_whole
from tests.cases import assert_carries, raises, warns
from tests.lab.campaign import SETTINGS, assert_same_run, job, processes, short_folder, tasks, trainers
from tests.lab.cut import resumed_after

ray = pytest.importorskip("ray")
Nodes = pytest.importorskip("ray.cluster_utils").Cluster
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes in /proc"),
]


def asked(root: Path, **options) -> Job:
    found = job(root, **options)
    write_whole(found.folder / "asked.json", json.dumps(found.recipe.to_dict()).encode())
    return found


def wait(executor: Executor, num: int = 1) -> list[Ended]:
    found: list[Ended] = []
    wait_until(lambda: found.extend(executor.ended()) or len(found) >= num)
    return found


def wait_until(ready: Callable[[], object], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Job:
    """A run trained by a process of this machine, never stopped."""
    found = asked(tmp_path_factory.mktemp("whole"))
    pool = Pool(1, SETTINGS)
    pool.start(found)
    assert [ended.state for ended in wait(pool)] == ["done"]
    pool.close()
    return found


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """A cluster with two CPUs below this process, which is connected to it."""
    with pytest.MonkeyPatch.context() as patch, short_folder() as folder:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("TMPDIR", folder)
        found = Nodes(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        patch.delenv("TMPDIR")
        (Path(folder) / "ray" / "ray_current_cluster").write_text(found.address)  # as `ray start` does
        handler = signal.getsignal(signal.SIGTERM)
        assert not cluster.join(None)
        assert signal.getsignal(signal.SIGTERM) is handler
        yield found
        ray.shutdown()
        found.shutdown()


@pytest.fixture
def make(nodes) -> Iterator[Callable[..., Cluster]]:
    """Makes clusters that are closed at the end."""
    made: list[Cluster] = []

    def new(**options) -> Cluster:
        made.append(Cluster(SETTINGS, **options))
        return made[-1]

    yield new
    for each in made:
        each.close()


def copies() -> list[Path]:
    """Folders of runs on the node."""
    return list(Path(os.environ["RAY_TMPDIR"]).glob("tempbalance-*"))


def test_the_cluster_that_this_machine_belongs_to_is_joined(nodes, make):
    assert ray.get_runtime_context().gcs_address == nodes.address
    make().close()
    assert ray.is_initialized()  # as the connection was there before


def test_two_runs_at_a_time_are_trained_as_on_one_machine(make, tmp_path, whole):
    there = make()
    assert there.num_slots == 2
    assert make(num_cpus=0.5).num_slots == 4
    assert there.ended() == []
    both = [asked(tmp_path / name) for name in "ab"]
    for each in both:
        there.start(each)
    ended = wait(there, 2)
    assert {(each.job, each.state, each.message) for each in ended} == {(each, "done", "") for each in both}
    for each in both:
        assert_same_run(each.folder, whole.folder)


def test_a_run_that_is_fetched_comes_back_with_its_files_and_leaves_none(make, tmp_path, whole, monkeypatch):
    monkeypatch.setattr(cluster, "_FETCH", 0.1)
    there, run = make(fetch=True), asked(tmp_path)
    there.start(run)
    wait_until(lambda: there.ended() or run.num_finished)  # the log of a run under way
    assert not run.is_done
    assert [each.state for each in wait(there)] == ["done"]
    assert_same_run(run.folder, whole.folder)
    ours, theirs = ({path.name for path in each.folder.iterdir()} for each in (run, whole))
    assert ours - theirs == {"fetched.id"}
    assert theirs - ours == {"run.lock"}
    assert run.damage == ""
    wait_until(lambda: not copies())


def test_a_fetched_run_whose_node_is_lost_goes_on_from_what_had_come_back(make, tmp_path, whole, monkeypatch):
    monkeypatch.setattr(cluster, "_FETCH", 0.0)
    there, run = make(fetch=True), asked(tmp_path)
    there.start(run)
    wait_until(lambda: there.ended() or run.num_finished > 2)
    os.kill(tasks(os.getpid())[0], signal.SIGKILL)
    assert [each.state for each in wait(there)] == ["died"]
    num_come, (copy,) = run.num_finished, copies()
    shutil.rmtree(copy)
    there.start(run)
    assert [each.state for each in wait(there)] == ["done"]
    assert_same_run(run.folder, whole.folder)
    said = (run.folder / "output.txt").read_text()
    (epoch,) = resumed_after(said)
    assert str(copy) in said
    assert 1 <= epoch <= num_come  # the log of an epoch comes before its checkpoint


@pytest.mark.parametrize(("find", "carried"), [(tasks, "died"), (trainers, "-9")])
def test_a_run_whose_process_is_killed_has_died_and_goes_on(make, tmp_path, whole, find, carried):
    there, run = make(), asked(tmp_path)
    there.start(run)
    wait_until(lambda: run.num_finished > 2)
    os.kill(find(os.getpid())[0], signal.SIGKILL)
    (ended,) = wait(there)
    assert ended.state == "died"
    assert carried in ended.message
    wait_until(lambda: run.state == "left")
    there.start(run)
    assert [each.state for each in wait(there)] == ["done"]
    assert_same_run(run.folder, whole.folder)
    assert resumed_after((run.folder / "output.txt").read_text())


@pytest.mark.parametrize("fetch", [False, True])
def test_a_run_that_fails_says_why_and_keeps_its_traceback(make, tmp_path, fetch):
    there, run = make(fetch=fetch), asked(tmp_path, dataset="nowhere.npz")
    there.start(run)
    (ended,) = wait(there)
    assert (ended.job, ended.state) == (run, "failed")
    assert "nowhere.npz" in ended.message
    assert_carries(run.failure, "ValueError", ended.message)
    assert (run.folder / "failure.txt").read_text().startswith("Traceback")
    wait_until(lambda: not copies())


def test_a_node_that_does_not_see_the_folder_says_so(make, tmp_path):
    there, run = make(), job(tmp_path)
    run.folder.mkdir()
    there.start(run)
    (ended,) = wait(there)
    assert ended.state == "failed"
    assert_carries(ended.message, run.folder / "asked.json", socket.gethostname())
    assert ended.message in run.failure


def test_a_node_that_joins_is_given_a_run_which_dies_with_it(make, tmp_path, nodes, monkeypatch):
    monkeypatch.setattr(cluster, "_LOOK", 0.0)
    there, runs = make(num_cpus=2), [asked(tmp_path / name, epochs=10_000) for name in "ab"]
    assert there.num_slots == 1
    another = nodes.add_node(num_cpus=2)
    assert there.num_slots == 2
    for each in runs:
        there.start(each)
    wait_until(lambda: all(each.num_finished for each in runs))
    nodes.remove_node(another, allow_graceful=False)
    (ended,) = wait(there)
    assert (ended.state, ended.job in runs) == ("died", True)
    assert "node" in ended.message
    wait_until(lambda: ended.job.state == "left")
    wait_until(lambda: there.num_slots == 1)


def test_closing_ends_what_runs(make, tmp_path):
    there, run = make(), asked(tmp_path, epochs=10_000)
    there.start(run)
    wait_until(lambda: run.num_finished)
    there.close()
    wait_until(lambda: run.state == "left", 30)
    assert there.ended() == []
    assert not (run.folder / "failure.txt").exists()


def test_a_request_that_no_node_meets_waits_with_a_warning_and_one_for_nothing_is_refused(make):
    with warns(UserWarning, "1 CPU", "2 GPU"):
        assert make(num_gpus=2).num_slots == 1
    for needs in ({"num_cpus": 0}, {"num_cpus": -1, "num_gpus": 2}):
        with raises(ValueError, f"num_cpus={needs['num_cpus']}"):
            make(**needs)


ALONE = """
import json, os, signal, sys
from pathlib import Path
import ray
from tempbalance.lab.executors.ray import Cluster
from tests.cases import raises
from tests.lab.campaign import SETTINGS, below, tasks
from tests.lab.executors.test_ray import asked, wait, wait_until

folder, epochs, *killed = sys.argv[1:]
run = asked(Path(folder), epochs=int(epochs))
if not killed:
    with raises(ValueError, "1 CPU", "99 GPU"):
        Cluster(SETTINGS, num_gpus=99)
    assert not ray.is_initialized()
there = Cluster(SETTINGS)
there.start(run)
wait_until(lambda: run.num_finished)
Path(folder, "pids").write_text(json.dumps(below(os.getpid())))
if killed:
    os.kill(os.getpid(), signal.SIGKILL)
os.kill(tasks(os.getpid())[0], signal.SIGKILL)
assert wait(there)[0].state == "died"
there.start(run)
assert wait(there)[0].state == "done"
Path(folder, "pids").write_text(json.dumps(below(os.getpid())))
there.close()
there.close()
"""


def run_alone(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A driver on a machine whose last cluster was killed; nothing of its own cluster is left ten seconds later."""
    with short_folder() as folder:
        address = Path(folder) / "ray" / "ray_current_cluster"
        address.parent.mkdir()
        address.write_text("127.0.0.1:1")
        environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": folder}
        driver = subprocess.run(
            [sys.executable, "-c", ALONE, *arguments],
            cwd=Path(__file__).parents[3],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        wait_until(lambda: not any(folder in command for _, command in processes().values()), 10)
        return driver


def test_a_cluster_started_here_trains_without_a_word_and_leaves_no_process(tmp_path, whole):
    driver = run_alone(str(tmp_path), "30")
    assert (driver.returncode, driver.stderr) == (0, "")
    assert all("raylet" in line or not line for line in driver.stdout.splitlines())  # which says that a worker died
    assert_same_run(job(tmp_path).folder, whole.folder)
    assert_all_end(tmp_path, 30)


def assert_all_end(folder: Path, seconds: float) -> None:
    """Wait until every process that was below the driver has ended: Ray's, its agents, and those that train."""
    noted = {int(pid): command for pid, (_, command) in json.loads((folder / "pids").read_text()).items()}
    for kind in ("gcs_server", "raylet", "Agent", "tempbalance.lab.executors.local"):
        assert any(kind in command for command in noted.values()), (kind, noted)
    wait_until(lambda: not {pid for pid, (_, command) in processes().items() if command and pid in noted}, seconds)


def test_no_process_outlives_a_driver_that_is_killed(tmp_path):
    driver = run_alone(str(tmp_path), "10000", "killed")
    assert (driver.returncode, driver.stdout, driver.stderr) == (-signal.SIGKILL, "", "")
    assert_all_end(tmp_path, 10)
    run = job(tmp_path, epochs=10_000)
    assert run.state == "left"
    assert not (run.folder / "failure.txt").exists()


def test_a_run_on_two_devices_is_trained_by_a_task_as_on_one_machine(nodes, tmp_path, monkeypatch):
    """Two gloo processes stand for two GPUs; the node was started by srun, which has started nothing else."""
    monkeypatch.setenv("SLURM_NTASKS", "1")
    settings = {**SETTINGS, "devices": 2}
    here, there = (asked(tmp_path / name, epochs=2, method="tb") for name in ("here", "there"))
    for executor, each in ((Pool(1, settings), here), (Cluster(settings), there)):
        executor.start(each)
        assert [(ended.state, ended.message) for ended in wait(executor)] == [("done", "")]
        executor.close()
        assert each.run.recipe["devices"] == 2
    assert_same_run(there.folder, here.folder)


def test_status_follows_a_sweep_that_runs_on_a_cluster(nodes, tmp_path):
    where = ("start", "--preset", "smoke", "--out", str(tmp_path / "runs"))
    command = [sys.executable, "-m", "tempbalance.cli", "study", "run", *where, "--device", "cpu"]
    with (tmp_path / "log").open("wb") as log:
        sweep = subprocess.Popen([*command, "--ray-address", nodes.address], stdout=log, stderr=log)
    found: list[Counter[str]] = []
    try:
        while sweep.poll() is None:
            text = CliRunner().invoke(app, ["study", "status", *where]).stdout
            found.append(Counter({kind: int(number) for number, kind in re.findall(r"(\d+) (\w+)[,\n]", text)}))
    finally:
        sweep.kill()
        sweep.wait()
    assert sweep.returncode == 0, (tmp_path / "log").read_text()
    assert {each["failed"] for each in found} == {0}
    # two CPUs; a run may end and the next begin while status looks at one folder after another
    assert 2 <= max(each["running"] for each in found) <= 3
    assert any(each["waiting"] for each in found)  # in Ray's queue
    done = [each["done"] for each in found]
    assert done == sorted(done)
    assert "6 done, 0 running, 0 failed, 0 left" in CliRunner().invoke(app, ["study", "status", *where]).stdout
