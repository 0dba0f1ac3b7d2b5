"""How a sweep stands, for a person."""

import io
import os
import re
from collections import Counter
from pathlib import Path

from rich.console import Console

from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.jobs import Job
from tempbalance.lab.language.recipe import LanguageRecipe
from tempbalance.lab.progress import SweepView, Times, count_text, job_labels, running_table, seconds_text, time_text
from tempbalance.lab.study import known_jobs
from tempbalance.lab.sweep import SweepError, raise_failures, train_all
from tests.cases import assert_carries, raises

RESULT = {"test_accuracy": 61.25, "best_accuracy": 61.25, "best_epoch": 1}


def job(folder: Path, name: str, *, seconds: float | None = None, finished: int = 0, **options) -> Job:
    found = Job(ImageRecipe(epochs=10, **options), folder / name)
    found.run.write_recipe({"recipe": found.recipe.to_dict()})
    found.run.append([{"epoch": i + 1, "test_accuracy": 10.0 * i} for i in range(finished)])
    if seconds is not None:
        found.run.write_result({**RESULT, "seconds": seconds})
    return found


def test_seconds_are_told_in_the_unit_they_are_thought_of():
    values = (0.04, 9.94, 10.4, 119, 150, 3600, 7100, 9000, 90_000, 200_000)
    assert [seconds_text(each) for each in values] == [
        "0.0 s", "9.9 s", "10 s", "119 s", "2.5 min", "60 min", "118 min", "2.5 h", "25 h", "2 days",
    ]  # fmt: skip


def test_the_time_left_is_that_of_like_runs_shared_among_those_at_a_time(tmp_path):
    for name, seconds in (("a", 100.0), ("b", 300.0), ("c", 200.0)):
        job(tmp_path, name, seconds=seconds)
    times = Times(known_jobs(tmp_path))
    left = [job(tmp_path, f"left{i}", finished=5 * i, seed=i) for i in (0, 1)]
    assert times.left(left) == (20.0 * 10 + 20.0 * 5, 0)
    assert_carries(time_text(times, left, 2), "2.5 min", "2 at a time")
    other = job(tmp_path, "other", model="vgg16")
    assert_carries(time_text(times, [*left, other], 3), "100 s", "3 at a time", "not counting 1")
    assert "not known" in time_text(times, [other], 2)
    assert not re.search(r"\d", time_text(times, [], 2))


def test_a_run_under_way_tells_its_time_by_its_files(tmp_path):
    new = job(tmp_path, "new")
    assert Times([new]).left([new]) == (0.0, 1)
    found = job(tmp_path, "run", finished=2)
    os.utime(found.folder / "recipe.json", (1000, 1000))
    os.utime(found.folder / "metrics.jsonl", (1030, 1030))
    assert Times([found]).left([found]) == (15.0 * 8, 0)


def test_counts_and_epochs_are_told(tmp_path):
    assert count_text(Counter(done=3, left=2)) == "3 done, 0 running, 0 failed, 2 left"
    console = Console(file=io.StringIO(), width=100)
    jobs = [job(tmp_path, "run", finished=2), job(tmp_path, "new", seed=1)]
    console.print(running_table(jobs, jobs))
    lines = console.file.getvalue().splitlines()
    assert "seed 43  epoch 3 of 10  test accuracy 10.00 %" in lines[0]
    assert "seed 1   epoch 1 of 10" in lines[1]


class Once:
    num_ahead = 0
    num_slots = 1

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.job = fails, None

    def start(self, job):
        self.job = job

    def ended(self):
        from tempbalance.lab.jobs import Ended

        found, self.job = self.job, None
        if found is None:
            return []
        if self.fails:
            return [Ended(found, "failed", "the [bold]loss[/] is nan")]
        found.run.write_result({**RESULT, "seconds": 12.0})
        return [Ended(found, "done")]

    def close(self):
        pass


def test_where_there_is_no_terminal_each_run_that_ends_is_a_line(tmp_path):
    console = Console(file=io.StringIO(), width=100)
    train_all([job(tmp_path, "run")], Once(), console)
    assert_carries(console.file.getvalue(), "run", "61.25 %", "12 s")
    assert console.file.getvalue().count("\n") == 1


def test_in_a_terminal_the_whole_sweep_is_shown(tmp_path):
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    jobs = [
        job(tmp_path, "done", seconds=100.0),
        job(tmp_path, "run", finished=4, seed=1),
        job(tmp_path, "other", seed=2),
    ]
    with SweepView(jobs, console, num_slots=2) as view:
        view.update([jobs[1]], {})
    text = console.file.getvalue()
    assert_carries(text, "14 of 30 epochs", "1 done, 1 running, 0 failed, 1 left", "80 s", "2 at a time")
    assert "seed 1  epoch 5 of 10  test accuracy 30.00 %" in text


def test_failed_runs_are_named_when_all_others_are_complete(tmp_path):
    console = Console(file=io.StringIO(), width=100)
    failures = train_all([job(tmp_path, "run")], Once(fails=True), console)
    assert_carries(console.file.getvalue(), "run", "the [bold]loss[/] is nan")
    assert console.file.getvalue().count("\n") == 1
    with raises(SweepError, tmp_path / "run", "the [bold]loss[/] is nan"):
        raise_failures(failures)
    raise_failures({})


def test_every_failure_is_named_with_its_log(tmp_path):
    jobs = [job(tmp_path, f"run{i}", seed=i) for i in range(9)]
    (jobs[3].folder / "output.txt").write_text("epoch 1")
    with raises(SweepError, "9 runs failed", jobs[3].folder / "output.txt") as caught:
        raise_failures(dict.fromkeys(jobs, "too bad"))
    assert str(caught.value).count("too bad") == 9


def test_runs_under_way_are_named_by_what_tells_them_apart(tmp_path):
    jobs = [job(tmp_path, f"{a}{s}", assignment=a, seed=s) for a in ("sqrt", "log2") for s in (43, 37)]
    assert list(job_labels(jobs).values()) == [
        "seed 43, assignment sqrt", "seed 37, assignment sqrt", "seed 43, assignment log2", "seed 37, assignment log2",
    ]  # fmt: skip
    assert job_labels(jobs[:1]) == {jobs[0]: "sqrt43"}


def test_runs_that_cannot_be_read_do_not_spoil_an_estimate(tmp_path):
    job(tmp_path, "good", seconds=10.0)
    (tmp_path / "run").mkdir()
    for content in ('{"recipe": {"modell": "mlp"}}', "{", "{}", '{"recipe": 3}'):
        (tmp_path / "run" / "recipe.json").write_text(content)
        assert [each.folder.name for each in known_jobs(tmp_path)] == ["good"]


def test_jobs_of_several_kinds_are_told_apart_by_the_options_that_each_has(tmp_path):
    images, text = ImageRecipe(dataset="digits", epochs=3), LanguageRecipe(dataset="pydoc", model="gpt", iterations=7)
    jobs = [Job(each, tmp_path / each.id) for each in (images, text)]
    assert list(job_labels(jobs).values()) == ["digits, resnet18, lr 0.1", "pydoc, gpt, lr 0.001"]
