"""Training several recipes, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tempbalance.lab.options import check_dataset
from tempbalance.lab.recipe import Recipe
from tempbalance.lab.resume import check_run, finished, is_own_data
from tempbalance.runlog import RunFolder, write_whole

_PACKAGES = ("lightning", "PIL", "pooch", "pytorch_optimizer", "yaml", "sklearn", "scipy", "tensorboard")
_PATIENCE = 60  # seconds for a process that is asked to stop


class CompareError(Exception):
    """A comparison of which a run failed, and what it said."""


def check_all(recipes: Sequence[Recipe], folder: Path, *, precision: str) -> None:
    """Refuse, before anything is started or written, what would fail or would be compared wrongly.

    Args:
        recipes: All of one dataset and limit.
        folder: Where their runs are or will be.
        precision: Of Lightning.

    Raises:
        ModuleNotFoundError: If a package of the lab is not installed.
        ValueError: If the dataset is not there or not as it should be.
        OtherRunError: If a folder holds a run of another recipe.
        RunFolderError: If a file of a run is damaged.
    """
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise ModuleNotFoundError(f"not installed: {', '.join(missing)}")
    first, digest = recipes[0], None
    check_dataset(first.dataset)
    if is_own_data(first):
        from tempbalance.lab.data import load_data

        digest = load_data(first.dataset, limit=first.limit, test_limit=first.test_limit).digest()
    for recipe in recipes:
        run = RunFolder(folder / recipe.name)
        check_run(run, recipe, precision=precision, digest=digest)
        finished(run)


def run_all(
    recipes: Sequence[Recipe], folder: Path, *, num_workers: int, arguments: Sequence[str], console: Console
) -> None:
    """Train each recipe in ``folder / recipe.name``, so many at a time.

    Args:
        recipes: What to train; runs that are complete already are left as they are.
        folder: Where the runs go.
        num_workers: Processes at a time.
        arguments: More arguments for ``tempbalance train``.
        console: Where progress is shown: a bar in a terminal, otherwise a line for each run that ends.

    Raises:
        CompareError: If a run fails; the others are stopped and can be gone on with.
    """
    waiting = [recipe for recipe in recipes if RunFolder(folder / recipe.name).result is None]
    total = sum(recipe.epochs for recipe in recipes)
    running: dict[str, subprocess.Popen[bytes]] = {}
    with _shown(console, total) as show, _stopped_at_the_end(running):
        while waiting or running:
            while waiting and len(running) < num_workers:
                recipe = waiting.pop(0)
                running[recipe.name] = _start(recipe, folder, arguments)
            time.sleep(0.2)
            for name, process in list(running.items()):
                if process.poll() is not None:
                    del running[name]
                    _check(process.returncode, folder / name)
                    _tell(console, folder / name)
            show(sum(len(RunFolder(folder / recipe.name).metrics) for recipe in recipes), list(running))


def _start(recipe: Recipe, folder: Path, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """In a session of its own, so that Ctrl-C reaches it through this process alone."""
    run = folder / recipe.name
    asked = run / "asked.json"
    write_whole(asked, json.dumps(recipe.to_dict(), indent=2).encode())
    command = [sys.executable, "-m", "tempbalance.cli", "train", "--recipe", str(asked), "--out", str(run), *arguments]
    with (run / "output.txt").open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)


def _check(code: int, run: Path) -> None:
    """Quote what a failed run said last.

    Raises:
        CompareError: If the code is not 0.
    """
    if code != 0:
        said = (run / "output.txt").read_text(encoding="utf-8", errors="replace").strip()
        _, found, error = f"\n{said}".rpartition("\nerror: ")
        message = error if found else said.rpartition("\n")[2] or "no message"
        raise CompareError(
            f"the run in {run} ended with exit code {code}: {message} (all it said: {run / 'output.txt'})"
        )


def _tell(console: Console, run: Path) -> None:
    result = finished(RunFolder(run))
    assert result is not None
    if not console.is_terminal:
        text = f"{run.name}: test accuracy {result['test_accuracy']:.2f} %, {seconds_text(result['seconds'])}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def seconds_text(seconds: float) -> str:
    """Whole seconds, below ten with a tenth."""
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


@contextmanager
def _stopped_at_the_end(running: dict[str, subprocess.Popen[bytes]]) -> Iterator[None]:
    """Leave no process behind."""
    try:
        yield
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def _shown(console: Console, total: int) -> Iterator[Callable[[int, list[str]], None]]:
    """One bar for all runs, in epochs."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs,"),
        TimeElapsedColumn(),
        TextColumn("elapsed"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("training", total=total)

        def show(done: int, names: list[str]) -> None:
            progress.update(task, completed=done, description=", ".join(names) or "training")

        yield show
