"""Progress for a person: of one run, and of a sweep while it runs or from another terminal."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, get_args

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tempbalance.lab.jobs import OUTPUT, Job, State
from tempbalance.lab.recipe import BaseRecipe
from tempbalance.runlog import Line

_MOST_READ = 1_000_000  # bytes of a run's output that are searched for warnings
_NARROW = 100  # columns of a terminal below which the learning rates are not shown


def say(console: Console, text: str) -> None:
    """Print a line as plain text."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


class RunProgress(Progress):
    """Progress of a run: a bar in a terminal, elsewhere a line for each epoch."""

    def __init__(self, console: Console, recipe: BaseRecipe, num_steps: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]},"))
        time_left = (TimeRemainingColumn(), TextColumn("left"))
        super().__init__(*columns, *time_left, console=console, disable=not console.is_terminal, transient=True)
        self.recipe, self._task = recipe, self.add_task("", total=num_steps, status="")
        self._loss, self._metrics = "", Line()

    def step(self, number: int, loss: float | None) -> None:
        """Move the bar to a step; ``loss`` is ``None`` where it is not to be shown."""
        if self.disable:
            return
        metrics, measure = self._metrics, self.recipe.measure
        self._loss = self._loss if loss is None else f"loss {loss:.3f}"
        parts = [self._loss] if self._loss else []
        if (value := metrics.get(measure.name)) is not None:
            parts.append(measure.text(value))
        if "lr_min" in metrics and self.console.width >= _NARROW:
            parts.append(f"learning rate {metrics['lr_min']:.2g} to {metrics['lr_max']:.2g}")
        epoch = min(metrics.get("epoch", 0) + 1, self.recipe.num_epochs)
        described = f"epoch {epoch} of {self.recipe.num_epochs}"
        self.update(self._task, completed=number, description=described, status=", ".join(parts))

    def epoch(self, metrics: Line) -> None:
        """Note a finished epoch."""
        self._metrics = metrics
        if self.disable:
            say(self.console, epoch_text(self.recipe, metrics))


def epoch_text(recipe: BaseRecipe, metrics: Line) -> str:
    """Describe an epoch in one line."""
    parts = [f"train loss {metrics['train_loss']:.4f}"] if "train_loss" in metrics else []
    if "train_accuracy" in metrics:
        parts.append(f"train accuracy {metrics['train_accuracy']:.2f} %")
    if (value := metrics.get(recipe.measure.name)) is not None:
        parts.append(recipe.measure.text(value))
    elif (value := metrics.get(recipe.measure.name.replace("test", "valid"))) is not None:
        parts.append(recipe.measure.text(value).replace("test", "validation", 1))
    if "lr_min" in metrics:
        parts.append(f"learning rate {metrics['lr_min']:.3g} to {metrics['lr_max']:.3g}")
    return f"epoch {metrics['epoch']} of {recipe.num_epochs}: {', '.join(parts)}"


def seconds_text(seconds: float) -> str:
    """Seconds up to two minutes, below ten with a tenth, then minutes, then hours, then days.

    Example:
        >>> [seconds_text(each) for each in (0.04, 10.4, 150, 9000, 8640000)]
        ['0.0 s', '10 s', '2.5 min', '2.5 h', '100 days']
    """
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    for unit, size, limit in (("min", 60, 120), ("h", 3600, 48)):
        if seconds / size < limit:
            return f"{seconds / size:.2g} {unit}" if seconds / size < 10 else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


class Times:
    """Seconds an epoch takes, from the runs that exist."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._found: dict[tuple[Any, ...], list[float]] = {}
        self._guessed: dict[tuple[Any, ...], float] = {}
        for job in jobs:
            self.learn(job)

    def learn(self, job: Job) -> None:
        """Learn the time per epoch from a run: its result if complete, else the ages of its files."""
        if (result := job.result) is not None:
            if "diverged" not in result:
                self._found.setdefault(job.recipe.pace, []).append(result["seconds"] / job.recipe.num_epochs)
        elif num_finished := job.num_finished:
            begun, now = ((job.folder / name).stat().st_mtime for name in ("recipe.json", "metrics.jsonl"))
            self._guessed[job.recipe.pace] = max(now - begun, 0) / num_finished

    def left(self, jobs: Iterable[Job]) -> tuple[float, int]:
        """Return the seconds of unfinished jobs in sequence, and how many of them have no known time."""
        seconds, num_unknown = 0.0, 0
        for job in jobs:
            known = self._found.get(job.recipe.pace)
            each = median(known) if known else self._guessed.get(job.recipe.pace)
            if each is None:
                num_unknown += 1
            else:
                seconds += each * (job.recipe.num_epochs - job.num_finished)
        return seconds, num_unknown


def time_text(times: Times, jobs: Sequence[Job], num_slots: int) -> str:
    """Describe the time that unfinished jobs take, ``num_slots`` at a time."""
    if not jobs:
        return "nothing to do"
    seconds, num_unknown = times.left(jobs)
    if num_unknown == len(jobs):
        return "time not known: no run like these has finished an epoch here"
    text = f"about {seconds_text(seconds / min(num_slots, len(jobs)))} to go, {num_slots} at a time"
    return text + (f", not counting {num_unknown} unlike any that exist" if num_unknown else "")


def count_text(counts: Counter[str]) -> str:
    """Describe how many runs are done, running, waiting, failed and left."""
    return ", ".join(f"{counts[name]} {name}" for name in get_args(State) if counts[name] or name != "waiting")


def job_labels(jobs: Sequence[Job]) -> dict[Job, str]:
    """Describe each job by its options that differ from the other jobs'; by its folder if none differs."""
    keys = {job: job.recipe.to_dict() for job in jobs}
    used = {name for job in jobs for name in job.recipe.key}
    names = [name for name in dict.fromkeys(name for key in keys.values() for name in key) if name in used]
    varied = [name for name in names if len({repr(key[name]) for key in keys.values() if name in key}) > 1]
    silent = ("dataset", "model", "method")  # shown without their names
    return {
        job: ", ".join(str(key[name]) if name in silent else f"{name} {key[name]}" for name in varied if name in key)
        or job.folder.name
        for job, key in keys.items()
    }


def running_table(running: Iterable[Job], jobs: Sequence[Job]) -> Table:
    """Return a table of the running jobs with their epochs."""
    labels = job_labels(jobs)
    table = Table.grid(padding=(0, 2))
    for job in running:
        metrics = job.run.metrics
        value = metrics[-1].get(job.recipe.measure.name) if metrics else None
        outcome = "" if value is None else job.recipe.measure.text(value)
        epoch = f"epoch {min(len(metrics) + 1, job.recipe.num_epochs)} of {job.recipe.num_epochs}"
        table.add_row(Text(labels[job]), epoch, outcome)
    return table


class SweepView:
    """Progress of a sweep: a bar, counts and running jobs in a terminal, else a line per finished run."""

    def __init__(self, jobs: Sequence[Job], console: Console, *, num_slots: int) -> None:
        self.jobs, self.console, self.num_slots = jobs, console, num_slots
        self._done = {job for job in jobs if job.is_done}
        self._begun = {job: 0 if job in self._done else job.num_finished for job in jobs}
        self._times = Times(self._done)
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._next, self._warned = 0.0, set[str]()

    def __enter__(self) -> SweepView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, running: Sequence[Job], failures: dict[Job, str]) -> None:
        """Redraw, a few times a second."""
        if self._live is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + 0.5
        for job in running:
            self._begun[job] = job.num_finished
            self._times.learn(job)
        left = [job for job in self.jobs if job not in self._done and job not in failures]
        counts = Counter(done=len(self._done), running=len(running), failed=len(failures))
        counts["left"] = len(self.jobs) - counts.total()
        total = sum(job.recipe.num_epochs for job in self.jobs)
        finished_epochs = sum(job.recipe.num_epochs if job in self._done else self._begun[job] for job in self.jobs)
        bar = Table.grid(padding=(0, 2))
        text = f"{finished_epochs:,} of {total:,} epochs; {count_text(counts)}"
        bar.add_row(ProgressBar(total=total, completed=finished_epochs, width=30), Text(text))
        time_left = Text(time_text(self._times, left, self.num_slots), style="dim")
        self._live.update(Group(bar, time_left, running_table(running, self.jobs)), refresh=True)

    def ended(self, job: Job, failure: str | None) -> None:
        """Record the end of a job. Print it if there is no bar; always print failures and new warnings."""
        text = f"failed: {failure}"
        if failure is None:
            self._done.add(job)
            self._times.learn(job)
            result, measure = job.result, job.recipe.measure
            assert result is not None
            if "diverged" in result:
                text = f"diverged in epoch {result['diverged_epoch']}"
            else:
                text = f"{measure.text(result[measure.name])}, {seconds_text(result['seconds'])}"
        if self._live is None or failure is not None:
            say(self.console, f"{job.folder.name}{': ' if failure is None else ' '}{text}")
        for warning in _warnings_in(job.folder / OUTPUT):
            if warning not in self._warned:
                self._warned.add(warning)
                say(self.console, f"{job.folder.name}: {warning}")


def _warnings_in(output: Path) -> list[str]:
    """Return the lines of warnings in the output of a run."""
    if not output.is_file():  # another machine has it
        return []
    with output.open("rb") as file:
        text = file.read(_MOST_READ).decode(errors="replace")
    return [line for line in text.splitlines() if line.startswith("warning: ")]
