"""What is needed before many runs are started, and saying at the end which failed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec

from rich.console import Console

from tempbalance.lab.jobs import Executor, Job, Settings
from tempbalance.lab.options import check_dataset
from tempbalance.lab.pool import Pool
from tempbalance.lab.recipe import Recipe
from tempbalance.lab.resume import check_run, finished, is_own_data
from tempbalance.lab.sweep import sweep
from tempbalance.lab.view import SweepView

_PACKAGES = ("lightning", "PIL", "pooch", "pytorch_optimizer", "yaml", "sklearn", "scipy", "tensorboard")
_MOST_TOLD = 5  # failures quoted in a message


class SweepError(Exception):
    """Runs that failed, and what they said."""


def check_all(jobs: Sequence[Job], *, precision: str) -> None:
    """Refuse, before anything is started or written, what would fail or would be compared wrongly.

    Args:
        jobs: What is to be trained.
        precision: Of Lightning.

    Raises:
        ModuleNotFoundError: If a package of the lab is not installed.
        ValueError: If a dataset is not there or not as it should be.
        OtherRunError: If a folder holds a run of another recipe.
        RunFolderError: If a file of a run is damaged.
    """
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise ModuleNotFoundError(f"not installed: {', '.join(missing)}")
    for dataset in dict.fromkeys(job.recipe.dataset for job in jobs):
        check_dataset(dataset)
    digests: dict[tuple[str, int | None, int | None], str | None] = {}
    for job in jobs:
        recipe = job.recipe
        data = (recipe.dataset, recipe.limit, recipe.test_limit)
        if data not in digests:
            digests[data] = _digest(recipe) if is_own_data(recipe) else None
        check_run(job.run, recipe, precision=precision, digest=digests[data])
        finished(job.run)


def _digest(recipe: Recipe) -> str:
    from tempbalance.lab.data import load_data

    return load_data(recipe.dataset, limit=recipe.limit, test_limit=recipe.test_limit).digest()


def local_pool(settings: Settings, *, num_workers: int | None) -> Pool:
    """A pool on this machine: a process for each GPU that may be used, otherwise for each core.

    Args:
        settings: Of each process; ``threads`` of ``None`` becomes its share of the cores.
        num_workers: How many at a time; ``None`` for as many as there are GPUs or cores.
    """
    gpus = _gpus() if settings["device"] in ("auto", "gpu", "cuda") else []
    num_cores = os.cpu_count() or 1
    num_workers = num_workers or len(gpus) or max(1, num_cores // (settings["threads"] or 1))
    threads = settings["threads"] or max(1, num_cores // num_workers)
    return Pool(num_workers, {**settings, "threads": threads}, gpus=gpus)


def _gpus() -> list[int]:
    """The GPUs that NVIDIA's tool lists, or those of them that CUDA_VISIBLE_DEVICES leaves."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False).stdout
    found = [line for line in listed.splitlines() if line.startswith("GPU ")]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (
        list(range(len(found))) if visible is None else [int(each) for each in visible.split(",") if each.isdecimal()]
    )


def train_all(
    jobs: Sequence[Job], executor: Executor, console: Console, *, retries: int = 5, stop_at_failure: bool = False
) -> None:
    """Train jobs and show how it goes.

    Raises:
        SweepError: If any failed, when all others are complete, or at once if that is asked for.
    """
    view = SweepView(jobs, console, num_slots=executor.num_slots)
    failures = sweep(jobs, executor, view, retries=retries, stop_at_failure=stop_at_failure)
    if failures:
        told = [f"the run in {job.folder} failed: {said}" for job, said in list(failures.items())[:_MOST_TOLD]]
        if len(failures) > _MOST_TOLD:
            told.append(f"and {len(failures) - _MOST_TOLD} more")
        raise SweepError("; ".join(told) + " (a traceback is in failure.txt, all a run said in output.txt)")
