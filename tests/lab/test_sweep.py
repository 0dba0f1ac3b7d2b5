"""A sweep trains every run once, whoever else is at it, and no run stops the others."""

import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path

import pytest
import torch

from tempbalance.lab.download import DownloadError
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.jobs import CLAIM, DISK, DOWNLOAD, MEMORY, QUEUED, STALE, Ended, Job, find_cause
from tempbalance.lab.runs import TrainingError
from tempbalance.lab.sweep import SweepError, disk_text, pace_text, raise_failures, sweep
from tempbalance.runlog import take_lock
from tests.cases import assert_carries, raises

RESULT = {"test_accuracy": 50.0, "best_accuracy": 50.0, "best_epoch": 1, "seconds": 1.0}


class Silent(nullcontext):
    def __init__(self) -> None:
        super().__init__(self)
        self.told: list[tuple[str, str | None]] = []

    def update(self, running: Sequence[Job], failures: dict[Job, str]) -> None:
        assert len(running) <= 2

    def ended(self, job: Job, failure: str | None) -> None:
        self.told.append((job.folder.name, failure))


class Scripted:
    """Ends each job as the script says: a list of states for its folder's name, then ``done``."""

    num_slots = 2
    num_ahead = 0

    def __init__(self, script: dict[str, list[str]] | None = None, starts: Counter[str] | None = None) -> None:
        self.script = script or {}
        self.starts: Counter[str] = Counter() if starts is None else starts
        self.running: list[Job] = []
        self.is_closed = False

    def start(self, job: Job) -> None:
        assert (job.folder / "asked.json").exists()
        self.starts[job.folder.name] += 1
        self.running.append(job)

    def ended(self) -> list[Ended]:
        running, self.running = self.running, []
        return [self._end(job) for job in running]

    def _end(self, job: Job) -> Ended:
        states = self.script.get(job.folder.name, [])
        state = states.pop(0) if states else "done"
        if state == "died after an epoch":
            job.run.append([{"epoch": job.num_finished + 1}])
            state = "died"
        if state == "done":
            job.run.write_result(RESULT)
        if state == "failed":
            (job.folder / "failure.txt").write_text("Traceback\nValueError: too bad")
        if state == "retry":
            return Ended(job, "retry", "a download failed: no network")
        return Ended(job, state, f"{job.folder.name} {state}")

    def close(self) -> None:
        self.is_closed = True


def jobs(folder: Path, num: int = 5) -> list[Job]:
    return [Job(ImageRecipe(seed=seed), folder / f"run{seed}") for seed in range(num)]


def test_every_run_is_trained_once_and_complete_ones_are_left_alone(tmp_path):
    all_jobs = jobs(tmp_path)
    all_jobs[3].run.write_result(RESULT)
    executor, view = Scripted(), Silent()
    assert sweep(all_jobs, executor, view) == {}
    assert executor.starts == {"run0": 1, "run1": 1, "run2": 1, "run4": 1}
    assert sorted(view.told) == [(name, None) for name in ("run0", "run1", "run2", "run4")]
    assert [job.state for job in all_jobs] == ["done"] * 5
    assert executor.is_closed


def test_a_failed_run_does_not_stop_the_others_and_keeps_its_traceback(tmp_path):
    all_jobs = jobs(tmp_path)
    failures = sweep(all_jobs, Scripted({"run1": ["failed"]}), Silent())
    assert failures == {all_jobs[1]: "run1 failed"}
    assert [job.state for job in all_jobs] == ["done", "failed", "done", "done", "done"]
    assert all_jobs[1].failure == "ValueError: too bad"
    assert sweep(all_jobs, Scripted(), Silent()) == {}  # asked again, it is tried again


def test_who_compares_stops_at_the_first_failure(tmp_path):
    executor = Scripted({"run0": ["failed"], "run1": ["busy"] * 100})
    failures = sweep(jobs(tmp_path), executor, Silent(), stop_at_failure=True)
    assert len(failures) == 1
    assert executor.starts == {"run0": 1, "run1": 1}


def test_a_run_whose_process_dies_is_started_again_while_it_gets_on(tmp_path):
    executor = Scripted({"run0": ["died"] * 2, "run1": ["died after an epoch"] * 9, "run2": ["busy"]})
    assert sweep(jobs(tmp_path, 3), executor, Silent(), retries=2) == {}
    assert executor.starts == {"run0": 3, "run1": 10, "run2": 2}


def test_a_run_that_dies_in_the_same_epoch_again_and_again_has_failed(tmp_path):
    (job,) = jobs(tmp_path, 1)
    executor = Scripted({"run0": ["died after an epoch", "died", "died", "died"]})
    assert sweep([job], executor, Silent(), retries=2) == {job: "run0 died, 3 times in epoch 2"}
    assert executor.starts == {"run0": 3}
    assert job.state == "failed"


def test_two_sweeps_over_the_same_runs_train_each_of_them_once(tmp_path):
    starts: Counter[str] = Counter()
    found: list[dict[Job, str]] = []
    threads = [
        threading.Thread(target=lambda: found.append(sweep(jobs(tmp_path, 20), Scripted(starts=starts), Silent())))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{}] * 4
    assert starts == Counter({f"run{i}": 1 for i in range(20)})


def test_a_run_that_another_process_has_is_waited_for(tmp_path):
    first, second = jobs(tmp_path, 2)
    first.folder.mkdir()
    lock = take_lock(first.folder / "claim.lock")
    assert lock is not None
    assert first.state == "running"
    executor, view = Scripted(), Silent()
    threading.Timer(0.5, lambda: (first.run.write_result(RESULT), lock.release())).start()
    assert sweep([first, second], executor, view) == {}
    assert executor.starts == {"run1": 1}
    assert view.told == [("run1", None), ("run0", None)]


def test_a_run_that_fails_elsewhere_has_failed_here_too(tmp_path):
    (job,) = jobs(tmp_path, 1)
    job.folder.mkdir()
    lock = take_lock(job.folder / "claim.lock")
    assert lock is not None
    (job.folder / "failure.txt").write_text("Traceback\nValueError: elsewhere")
    threading.Timer(0.5, lock.release).start()
    executor = Scripted()
    assert sweep([job], executor, Silent()) == {job: "ValueError: elsewhere"}
    assert executor.starts == {}


def test_an_old_failure_is_no_answer_to_a_new_try(tmp_path):
    (job,) = jobs(tmp_path, 1)
    job.folder.mkdir()
    (job.folder / "failure.txt").write_text("Traceback\nValueError: last week")
    assert job.state == "failed"
    lock = take_lock(job.folder / "claim.lock")
    assert lock is not None
    threading.Timer(0.05, lock.release).start()  # as one does who only looks
    executor = Scripted()
    assert sweep([job], executor, Silent()) == {}
    assert executor.starts == {"run0": 1}
    assert not (job.folder / "failure.txt").exists()


def test_a_process_that_dies_after_its_last_word_has_not_failed(tmp_path):
    class Late(Scripted):
        def _end(self, job: Job) -> Ended:
            job.run.write_result(RESULT)
            return Ended(job, "died", "too late")

    (job,) = jobs(tmp_path, 1)
    assert sweep([job], Late(), Silent(), retries=0) == {}
    assert job.state == "done"


def test_a_run_that_leaves_damaged_files_has_failed_and_stops_no_other(tmp_path):
    class Damaging(Scripted):
        def _end(self, job: Job) -> Ended:
            if job.folder.name != "run1":
                return super()._end(job)
            (job.folder / "metrics.jsonl").write_text("garbage\n")
            return Ended(job, "died", "killed")

    all_jobs = jobs(tmp_path, 3)
    failures = sweep(all_jobs, Damaging(), Silent())
    assert list(failures) == [all_jobs[1]]
    assert_carries(failures[all_jobs[1]], "metrics.jsonl", "line 1")


def test_the_executor_is_closed_and_claims_are_released_whatever_happens(tmp_path):
    class Broken(Scripted):
        def ended(self) -> list[Ended]:
            raise KeyboardInterrupt

    all_jobs, executor = jobs(tmp_path), Broken()
    with pytest.raises(KeyboardInterrupt):
        sweep(all_jobs, executor, Silent())
    assert executor.is_closed
    assert {job.state for job in all_jobs} == {"left"}


def test_a_failure_that_may_pass_is_tried_again_after_a_pause_and_a_bounded_number_of_times(tmp_path, monkeypatch):
    monkeypatch.setattr("tempbalance.lab.sweep._RETRY_PAUSES", (0.2, 0.3, 0.4))
    first, second = jobs(tmp_path, 2)
    executor = Scripted({"run0": ["retry"] * 3, "run1": ["retry"] * 9})
    begun = time.monotonic()
    failures = sweep([first, second], executor, Silent())
    assert time.monotonic() - begun > 0.9
    assert list(failures) == [second]
    assert_carries(failures[second], "a download failed", "4 times in epoch 1")
    assert executor.starts == {"run0": 4, "run1": 4}
    assert (first.state, second.state) == ("done", "failed")
    with raises(SweepError, "1 run failed", second.folder, "4 times", second.folder / "failure.txt"):
        raise_failures(failures)


def test_a_disk_that_takes_no_recipe_fails_its_run_alone(tmp_path, monkeypatch):
    ask = Job.ask

    def full(job: Job) -> None:
        if job.folder.name == "run0":
            raise OSError(errno.ENOSPC, "No space left on device")
        ask(job)

    monkeypatch.setattr(Job, "ask", full)
    first, second = jobs(tmp_path, 2)
    failures = sweep([first, second], Scripted(), Silent())
    assert_carries(failures[first], "the disk is full", first.folder)
    assert (first.state, second.state) == ("failed", "done")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (MemoryError(), MEMORY),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), MEMORY),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), MEMORY),
        (OSError(errno.ENOSPC, "No space left on device"), DISK),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), DISK),
        (OSError(errno.ESTALE, "Stale file handle"), STALE),
        (DownloadError("cifar10 could not be downloaded"), DOWNLOAD),
        (ValueError("too bad"), None),
        (FileNotFoundError(errno.ENOENT, "not there"), None),
    ],
)
def test_causes_of_failures_are_found_also_behind_other_errors(error, cause):
    assert find_cause(error) is cause
    with pytest.raises(TrainingError) as caught:
        raise TrainingError("epoch 3 cannot be written") from error
    assert find_cause(caught.value) is cause


def test_the_pace_and_the_disk_of_a_sweep(tmp_path):
    all_jobs = jobs(tmp_path, 4)
    assert pace_text([], 4, now=1e9) == ""
    for number, job in enumerate(all_jobs[:2]):
        job.folder.mkdir()
        for name, seconds in (("recipe.json", 1000), ("result.json", 2000 + 1800 * number)):
            (job.folder / name).write_text("{}")
            os.utime(job.folder / name, (seconds, seconds))
    text = pace_text(all_jobs[:2], 2, now=1000 + 7200)
    end = datetime.fromtimestamp(1000 + 2 * 7200).astimezone()
    assert_carries(text, "1 runs an hour", "last 2", f"{end:%Y-%m-%d at %H:%M}")
    assert_carries(disk_text(all_jobs, tmp_path / "not" / "there", 2), "disk: about", "MB", "free")


@pytest.mark.parametrize(("cause", "num_tries"), [(MEMORY, 2), (DOWNLOAD, 4), (STALE, 4)])
def test_each_cause_has_its_number_of_retries(tmp_path, monkeypatch, cause, num_tries):
    monkeypatch.setattr("tempbalance.lab.sweep._RETRY_PAUSES", (0.0, 0.0, 0.0))

    class Failing(Scripted):
        def _end(self, job: Job) -> Ended:
            return Ended(job, "retry", f"{cause}: too bad")

    (job,) = jobs(tmp_path, 1)
    executor = Failing()
    failures = sweep([job], executor, Silent())
    assert executor.starts[job.folder.name] == num_tries
    assert_carries(failures[job], cause, f"{num_tries} times")


def test_a_run_that_a_cluster_has_not_started_waits(tmp_path):
    (job,) = jobs(tmp_path, 1)
    job.folder.mkdir()
    (job.folder / QUEUED).touch()
    assert job.state == "left"  # nobody has it: the file is of a sweep that was killed
    lock = take_lock(job.folder / CLAIM)
    assert lock is not None
    assert job.state == "waiting"
    (job.folder / QUEUED).unlink()
    assert job.state == "running"
    lock.release()


def test_a_mark_that_a_killed_sweep_has_left_is_removed(tmp_path):
    (job,) = jobs(tmp_path, 1)
    job.folder.mkdir()
    (job.folder / QUEUED).touch()
    sweep([job], Scripted(), Silent())
    assert not job.is_queued


def test_a_folder_that_refuses_the_mark_fails_its_run_alone(tmp_path):
    class Refusing(Scripted):
        def start(self, job: Job) -> None:
            if job.folder.name == "run0":
                raise OSError(errno.ENOSPC, "No space left on device")
            super().start(job)

    first, second = jobs(tmp_path, 2)
    failures = sweep([first, second], Refusing(), Silent())
    assert_carries(failures[first], "the disk is full", first.folder)
    assert (first.state, second.state) == ("failed", "done")
