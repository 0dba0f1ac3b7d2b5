"""Sweeps: train many runs, each once however many sweeps work on them, and let no failure stop the others."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.filesize import decimal

from tempbalance.errors import unknown
from tempbalance.lab.jobs import CLAIM, FAILURE, OUTPUT, QUEUED, RETRIES, Ended, Executor, Job, failure_of
from tempbalance.lab.progress import SweepView
from tempbalance.lab.runs import SPEEDS, OtherRunError, TrainingError, check_run, disk_needed
from tempbalance.runlog import RunFolderError, take_lock

if TYPE_CHECKING:
    from filelock import BaseFileLock


_PACKAGES = ("lightning", "PIL", "pooch", "pytorch_optimizer", "yaml", "sklearn", "scipy", "tensorboard")
DEVICES = ("auto", "cpu", "gpu", "cuda", "mps", "tpu")
PRECISIONS = (
    "32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true", "64-true", "transformer-engine",
    "transformer-engine-float16", "32", "16", "bf16", "64",
)  # fmt: skip


class SweepError(Exception):
    """Runs that failed, each with its message and its log."""


def check_settings(device: str, precision: str, speed: Sequence[str] = ()) -> None:
    """Refuse, before any run does, names that Lightning does not know and packages that are not installed."""
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise ModuleNotFoundError(f"not installed: {', '.join(missing)}")
    given = [("device", device, DEVICES), ("precision", precision, PRECISIONS)]
    for name, value, known in (*given, *(("speed", each, SPEEDS) for each in speed)):
        if value not in known:
            raise ValueError(unknown(name, value, known))


def check_all(jobs: Sequence[Job], *, precision: str, speed: Sequence[str] = ()) -> None:
    """Refuse, before anything is started or written, what would fail or would be compared wrongly."""
    check_settings("auto", precision, speed)
    check_data(jobs)
    for err in unfit(jobs, precision=precision, speed=speed).values():
        raise err


def check_data(jobs: Sequence[Job]) -> None:
    """Refuse data that are not there, before anything is started."""
    for job in {(job.recipe.kind, job.recipe.data_text): job for job in jobs}.values():
        job.recipe.check_data()


def unfit(jobs: Sequence[Job], *, precision: str, speed: Sequence[str] = ()) -> dict[Job, Exception]:
    """Return the jobs whose folder has another run or is damaged, with the reason."""
    found: dict[Job, Exception] = {}
    for job in jobs:
        known = None if job.recipe.kind == "detection" else speed  # which ignores them
        try:
            if damage := job.damage:
                raise RunFolderError(damage)
            check_run(job.run, job.recipe, precision=precision, speed=known, digest=job.recipe.own_digest())
        except (OtherRunError, RunFolderError) as err:
            found[job] = err
    return found


def raise_failures(failures: Mapping[Job, object]) -> None:
    """Raise SweepError if runs have failed; it names each with its message and its log."""
    if failures:
        lines = [f"{job.folder}: {said} (log: {log_of(job)})" for job, said in failures.items()]
        raise SweepError(f"{len(lines)} run{'s' * (len(lines) != 1)} failed\n" + "\n".join(lines))


def log_of(job: Job) -> Path:
    """Return the file that says most about a failure of a job."""
    return next((path for name in (FAILURE, OUTPUT) if (path := job.folder / name).exists()), job.folder)


def disk_text(jobs: Sequence[Job], folder: Path, num_slots: int, *, keep_checkpoints: bool = False) -> str:
    """Return the disk that unfinished jobs need, at most and when complete, and what is free in their folder."""
    needs = sorted(disk_needed(job.recipe, keep_checkpoints=keep_checkpoints) for job in jobs)
    kept = sum(each.kept for each in needs)
    peak = kept + sum(each.peak - each.kept for each in needs[-num_slots:])
    place = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    free = shutil.disk_usage(place).free
    warning = ": this is too little" if free < peak else ""
    each = " with one checkpoint each" if keep_checkpoints else ""
    return f"disk{each}: about {decimal(kept)} when complete, {decimal(peak)} at most; {decimal(free)} free{warning}"


_RECENT = 20  # runs that the pace is computed from


def pace_text(done: Sequence[Job], num_left: int, *, now: float) -> str:
    """Return the runs per hour and the expected end, from when the last runs ended; empty if that is not known."""
    ends = sorted(path.stat().st_mtime for job in done if (path := job.folder / "result.json").exists())[-_RECENT:]
    begins = [path.stat().st_mtime for job in done if (path := job.folder / "recipe.json").exists()]
    since = ends[0] if len(ends) == _RECENT else min(begins, default=math.inf if done else now)
    if not ends or now - since < 1:
        return ""
    rate = 3600 * len(ends) / (now - since)
    end = datetime.fromtimestamp(now + 3600 * num_left / rate).astimezone()
    return f"{rate:.3g} runs an hour over the last {len(ends)}" + (
        f"; at this pace the last ends on {end:%Y-%m-%d at %H:%M}" if num_left else ""
    )


_PAUSE = 0.1  # seconds between two looks
_PATIENCE = 0.2  # seconds for who only looks whether a run is claimed
_LATER = 1.0  # seconds until a run that another process has is looked at again
_RETRY_PAUSES = (20.0, 60.0, 180.0)  # seconds before each retry after a failure that may pass


def train_all(
    jobs: Sequence[Job], executor: Executor, console: Console, *, retries: int = 5, stop_at_failure: bool = False
) -> dict[Job, str]:
    """Train jobs as `sweep` does and show how it goes."""
    view = SweepView(jobs, console, num_slots=executor.num_slots)
    return sweep(jobs, executor, view, retries=retries, stop_at_failure=stop_at_failure)


def sweep(
    jobs: Sequence[Job], executor: Executor, view: SweepView, *, retries: int = 5, stop_at_failure: bool = False
) -> dict[Job, str]:
    """Train jobs until each is complete or has failed; return those that failed, with what they said.

    A job is claimed before it is started, so that of several sweeps over the same folders one trains it and the others
    take the next one, or wait for it when there is none. A job that dies, or fails for a reason that may pass, is
    restarted at most ``retries`` times in the same epoch, after such a failure as often as `RETRIES` says and after
    pauses. The executor is closed at the end, whatever happens.
    """
    going = _Sweep(jobs, executor, view, retries)
    try:
        with view, closing(executor):
            while going.waiting or going.claims:
                going.start_jobs()
                for ended in executor.ended():
                    going.end(ended)
                view.update([job for job in going.claims if not job.is_queued], going.failures)
                if stop_at_failure and going.failures:
                    break
                time.sleep(_PAUSE)
    finally:
        for lock in going.claims.values():
            lock.release()
    return going.failures


class _Sweep:
    def __init__(self, jobs: Sequence[Job], executor: Executor, view: SweepView, retries: int) -> None:
        self.executor, self.view, self.retries = executor, view, retries
        self.waiting = [job for job in jobs if not job.is_done]
        self.claims: dict[Job, BaseFileLock] = {}
        self.failures: dict[Job, str] = {}
        self.troubles: dict[Job, tuple[int, int]] = {}  # how many since how many epochs
        self.not_before: dict[Job, float] = {}
        self.elsewhere: set[Job] = set()

    def start_jobs(self) -> None:
        """Start jobs in order, as far as there is room."""
        now = time.monotonic()
        for job in list(self.waiting):
            if len(self.claims) >= self.executor.num_slots + self.executor.num_ahead:
                return
            if self.not_before.get(job, 0) <= now:
                self._try(job)

    def _try(self, job: Job) -> None:
        """Start a job unless it is done or another process has it."""
        try:
            job.folder.mkdir(parents=True, exist_ok=True)
            lock = take_lock(job.folder / CLAIM, patience=_PATIENCE)
            if lock is None:
                self.elsewhere.add(job)
                self.not_before[job] = time.monotonic() + _LATER
                return
            failed_elsewhere = job in self.elsewhere and (job.folder / FAILURE).exists()
            if job.is_done or failed_elsewhere:
                lock.release()
                self._finish(job, job.failure if failed_elsewhere else None)
                return
            self.claims[job] = lock
            for name in (FAILURE, QUEUED):  # so that those that others find are of this try
                (job.folder / name).unlink(missing_ok=True)
            job.ask()
            self.executor.start(job)
            self.waiting.remove(job)
        except OSError as err:  # of the folder: a full disk, a stale network file
            self.waiting.remove(job)
            self.end(Ended(job, *failure_of(job.folder, err)))

    def end(self, ended: Ended) -> None:
        """Note that a job is complete or has failed, or try it again later."""
        job, state, message = ended.job, ended.state, ended.message
        pause = _LATER if state == "busy" else 0.0
        if damage := job.damage:
            state, message = "failed", damage
        elif state == "died" and job.is_done:
            state = "done"
        elif state in ("died", "retry"):
            number, most = self._count_trouble(job), self.retries
            if state == "retry":
                most = min(most, next((times for cause, times in RETRIES.items() if message.startswith(cause)), 0))
                pause = _RETRY_PAUSES[min(number, len(_RETRY_PAUSES)) - 1]
            if number > most:
                message = f"{message}, {number} times in epoch {job.num_finished + 1}"
                state, message = failure_of(job.folder, TrainingError(message))
        if (lock := self.claims.pop(job, None)) is not None:
            lock.release()
        if state in ("done", "failed"):
            self._finish(job, None if state == "done" else message)
        else:
            self.waiting.append(job)
            self.not_before[job] = time.monotonic() + pause

    def _count_trouble(self, job: Job) -> int:
        """Count deaths and failures that may pass, since the last finished epoch."""
        num_finished = job.num_finished
        number, since = self.troubles.get(job, (0, num_finished))
        number = number + 1 if num_finished <= since else 1  # epochs since the checkpoint are trained again
        self.troubles[job] = (number, max(since, num_finished))
        return number

    def _finish(self, job: Job, failure: str | None) -> None:
        if job in self.waiting:
            self.waiting.remove(job)
        if failure is not None:
            self.failures[job] = failure
        self.view.ended(job, failure)
