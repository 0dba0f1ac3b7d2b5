"""A sweep trains every run once, whoever else is at it, and no run stops the others."""

import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.jobs import Ended, Job
from tempbalance.lab.sweep import sweep
from tempbalance.runlog import take_lock
from tests.cases import assert_carries

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
