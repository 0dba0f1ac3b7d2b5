"""A sweep that is killed again and again, for the tests of those who train: run as a script it is the driver."""

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

from tempbalance.lab.executors.local import Pool
from tempbalance.lab.executors.ray import Cluster
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.jobs import Executor, Job
from tempbalance.lab.progress import SweepView
from tempbalance.lab.recipe import SEEDS
from tempbalance.lab.sweep import sweep
from tempbalance.runlog import RunFolder
from tests.lab.cut import resumed_after

SETTINGS = {
    "device": "cpu", "precision": "32-true", "threads": 1, "cache": None, "log_every": 50, "tensorboard": False,
    "checkpoint_every": 0,
}  # fmt: skip
EPOCHS = 30
SMALL = {"dataset": "digits", "model": "mlp", "width": 0.25, "limit": 300}
METHODS = ("cal", "tb", "tb+snr")

Processes = dict[int, tuple[int, str]]


def job(root: Path, **options) -> Job:
    recipe = ImageRecipe(**{**SMALL, "epochs": EPOCHS, **options})
    return Job(recipe, root / recipe.id)


def is_thorough() -> bool:
    """Whether ``make test-kills`` asks for the whole campaign."""
    return os.environ.get("TEMPBALANCE_KILLS") == "all"


def jobs(root: Path) -> list[Job]:
    """Three recipes with two seeds each, or with all five seeds in a thorough campaign."""
    seeds = SEEDS if is_thorough() else SEEDS[:2]
    return [job(root, method=method, seed=seed) for method in METHODS for seed in seeds]


def drive(root: Path, address: str | None = None) -> int:
    """Train all, with two processes on this machine or on the cluster at an address; how many have failed."""
    executor: Executor = Cluster(SETTINGS, address=address) if address else Pool(2, SETTINGS)
    every = jobs(root)
    return len(sweep(every, executor, SweepView(every, Console(stderr=True), num_slots=2)))


def start_driver(root: Path, *address: str) -> subprocess.Popen[bytes]:
    """A driver in a process of its own; what it says is kept beside the runs."""
    with root.with_suffix(".log").open("ab") as log:
        command = [sys.executable, "-m", "tests.lab.campaign", str(root), *address]
        return subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=log, stderr=log)


def chosen(kills: list[str]) -> list[str]:
    """All of them in a thorough campaign, otherwise one of each kind."""
    return kills if is_thorough() else list(dict.fromkeys(kills))


def disturb(root: Path, *address: str, kills: list[str], find: Callable[[str, int], list[int]], seed: int) -> None:
    """Have all trained while something is killed at random instants, spread over most of the epochs.

    Args:
        root: Where the runs are kept.
        address: Of a cluster.
        kills: What is killed, in any order: ``driver``, which is then started again, or what `find` knows.
        find: Gives the processes of a kind that there are, and is told the driver's.
        seed: Of the instants, the order and the choice.
    """
    rng = random.Random(seed)
    marks = sorted(rng.uniform(0, 0.8 * EPOCHS * len(jobs(root))) for _ in kills)
    driver = start_driver(root, *address)
    try:
        for mark, kind in zip(marks, rng.sample(kills, len(kills)), strict=True):
            wait_for(partial(has_come_to, root, mark), driver, root)
            time.sleep(rng.uniform(0, 1))
            if kind == "driver":
                driver.kill()
                driver.wait()
                driver = start_driver(root, *address)
            else:
                os.kill(rng.choice(wait_for(partial(find, kind, driver.pid), driver, root)), 9)
        assert driver.wait(600) == 0, said(root)
    finally:
        driver.kill()
        driver.wait()


def wait_for(look: Callable, driver: subprocess.Popen[bytes], root: Path):
    """Wait until there is something, which must be before the driver ends."""
    deadline = time.monotonic() + 600
    while not (found := look()):
        assert driver.poll() is None, f"the driver has ended with {driver.returncode}: {said(root)}"
        assert time.monotonic() < deadline, f"nothing moves: {said(root)}"
        time.sleep(0.02)
    return found


def has_come_to(root: Path, mark: float) -> bool:
    """Whether so many epochs of all runs are finished."""
    return sum(each.num_finished for each in jobs(root)) >= mark


def said(root: Path) -> str:
    return root.with_suffix(".log").read_text(errors="replace")[-3000:]


def assert_all_trained_alike(root: Path, whole: Path) -> None:
    """Every run is equal to the bit to that of a sweep that was not disturbed."""
    assert len(list(root.glob("*/result.json"))) == len(list(whole.glob("*/result.json"))) == len(jobs(root))
    for ours, theirs in zip(jobs(root), jobs(whole), strict=True):
        assert_same_run(ours.folder, theirs.folder)
        assert ours.state == "done"
        assert not (ours.folder / "failure.txt").exists()
    assert any(resumed_after(path.read_text()) for path in root.glob("*/output.txt"))


def assert_same_run(ours: Path, theirs: Path) -> None:
    for name in ("metrics.jsonl", "layers.jsonl"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), f"{ours / name} differs"
    assert RunFolder(ours).result["test_accuracy"] == RunFolder(theirs).result["test_accuracy"]


def processes() -> Processes:
    """The parent and the command of each process."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        found[int(folder.name)] = parent, command
    return found


def below(*pids: int) -> Processes:
    """The processes that some have started, directly or not."""
    everything, found = processes(), {}
    layer = set(pids)
    while layer:
        layer = {pid for pid, (parent, _) in everything.items() if parent in layer}
        found.update({pid: everything[pid] for pid in layer})
    return found


def tasks(pid: int) -> list[int]:
    """Processes of Ray, below one, that have a run to train."""
    return [each for each, (_, command) in below(pid).items() if command.startswith("ray::train_run")]


def trainers(pid: int) -> list[int]:
    """Processes that train for those."""
    return list(below(*tasks(pid)))


HEAD = """
import ray
context = ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
print(context.address_info["gcs_address"], flush=True)
input()
"""


@contextmanager
def head() -> Iterator[tuple[str, int]]:
    """A Ray cluster with two CPUs that outlives its drivers: its address, and the process that all others are below."""
    with short_folder() as folder:
        environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": folder}
        for _ in range(5):  # on a busy machine Ray gives up on its own processes
            process = subprocess.Popen(
                [sys.executable, "-c", HEAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            )
            if address := process.stdout.readline().strip():
                break
            process.kill()
            process.communicate()
            time.sleep(5)
        try:
            assert address, "Ray has not started"
            yield address, process.pid
        finally:
            process.kill()
            process.communicate()


def short_folder() -> tempfile.TemporaryDirectory:
    """For Ray's files, among them sockets, whose path must be short."""
    return tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True)


if __name__ == "__main__":
    sys.exit(drive(Path(sys.argv[1]), *sys.argv[2:]))
