"""What is needed before many runs are started, and saying at the end which failed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from rich.console import Console

from tempbalance.lab.jobs import Executor, Job, Settings
from tempbalance.lab.methods import unknown
from tempbalance.lab.pool import Pool
from tempbalance.lab.progress import SweepView
from tempbalance.lab.runs import OtherRunError, check_run, finished
from tempbalance.lab.sweep import sweep
from tempbalance.runlog import RunFolderError

_PACKAGES = ("lightning", "PIL", "pooch", "pytorch_optimizer", "yaml", "sklearn", "scipy", "tensorboard")
DEVICES = ("auto", "cpu", "gpu", "cuda", "mps", "tpu")
PRECISIONS = (
    "32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true", "64-true", "transformer-engine",
    "transformer-engine-float16", "32", "16", "bf16", "64",
)  # fmt: skip
_MOST_TOLD = 5  # causes quoted in a message


class SweepError(Exception):
    """Runs that failed, and what they said."""


def check_settings(device: str, precision: str) -> None:
    """Refuse, before any run does, what Lightning does not know and packages that are not there.

    Raises:
        ModuleNotFoundError: If a package of the lab is not installed.
        ValueError: If the device or the precision is unknown.
    """
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise ModuleNotFoundError(f"not installed: {', '.join(missing)}")
    for name, value, known in (("device", device, DEVICES), ("precision", precision, PRECISIONS)):
        if value not in known:
            raise ValueError(unknown(name, value, known))


def check_all(jobs: Sequence[Job], *, precision: str) -> None:
    """Refuse, before anything is started or written, what would fail or would be compared wrongly.

    Args:
        jobs: What is to be trained.
        precision: Of Lightning.

    Raises:
        ModuleNotFoundError: If a package of the lab is not installed.
        ValueError: If the precision is unknown, or a dataset is not there or not as it should be.
        OtherRunError: If a folder holds a run of another recipe.
        RunFolderError: If a file of a run is damaged.
    """
    check_settings("auto", precision)
    check_data(jobs)
    for job in jobs:
        _check(job, precision)


def check_data(jobs: Sequence[Job]) -> None:
    """Refuse data that are not there, before anything is started.

    Raises:
        ValueError: It says what is missing.
    """
    for job in {(job.recipe.kind, job.recipe.data_text): job for job in jobs}.values():
        job.recipe.check_data()


def unfit(jobs: Sequence[Job], *, precision: str) -> dict[Job, str]:
    """The jobs whose folder holds something else or is damaged, with what is wrong: the others can be trained."""
    found = {}
    for job in jobs:
        try:
            if damage := job.damage:
                raise RunFolderError(damage)
            _check(job, precision)
        except (OtherRunError, RunFolderError) as err:
            found[job] = str(err)
    return found


def _check(job: Job, precision: str) -> None:
    check_run(job.run, job.recipe, precision=precision, digest=job.recipe.own_digest())
    finished(job.run, job.recipe)


def local_pool(settings: Settings, *, num_workers: int | None) -> Pool:
    """A pool on this machine: a process for each GPU that may be used, otherwise for each core.

    Args:
        settings: Of each process; ``threads`` of ``None`` becomes its share of the cores.
        num_workers: How many at a time; ``None`` for as many as there are GPUs or cores.
    """
    gpus = _gpus() if settings["device"] in ("auto", "gpu", "cuda") else []
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    num_workers = num_workers or len(gpus) or max(1, num_cores // (settings["threads"] or 1))
    threads = settings["threads"] or max(1, num_cores // num_workers)
    return Pool(num_workers, {**settings, "threads": threads}, gpus=gpus)


def _gpus() -> list[str]:
    """The GPUs that NVIDIA's tool lists, or those of them that CUDA_VISIBLE_DEVICES leaves."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False).stdout
    found = [line for line in listed.splitlines() if line.startswith("GPU ")]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [str(i) for i in range(len(found))] if visible is None else [each for each in visible.split(",") if each]


def train_all(
    jobs: Sequence[Job], executor: Executor, console: Console, *, retries: int = 5, stop_at_failure: bool = False
) -> dict[Job, str]:
    """Train jobs and show how it goes.

    Returns:
        The jobs that failed, with what they said.
    """
    view = SweepView(jobs, console, num_slots=executor.num_slots)
    return sweep(jobs, executor, view, retries=retries, stop_at_failure=stop_at_failure)


def raise_failures(failures: Mapping[Job, str]) -> None:
    """End a command whose runs have failed.

    Raises:
        SweepError: If there are any.
    """
    if failures:
        raise SweepError(_failures_text(failures))


def _failures_text(failures: Mapping[Job, str]) -> str:
    """Each cause with one of the runs that failed of it."""
    causes = Counter(failures.values())
    told = []
    for said, number in causes.most_common(_MOST_TOLD):
        folder = next(job.folder for job, each in failures.items() if each == said)
        more = f" and {number - 1} more like it" if number > 1 else ""
        told.append(f"the run in {folder}{more} failed: {said}")
    if len(causes) > _MOST_TOLD:
        told.append(f"and {len(causes) - _MOST_TOLD} other causes")
    return "; ".join(told) + " (a traceback is in failure.txt, all a run said in output.txt)"
