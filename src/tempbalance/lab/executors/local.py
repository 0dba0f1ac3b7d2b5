"""Train jobs in worker processes on this machine, each with its share of the cores or GPUs.

Run as a module, this file is a worker: it trains one run after another while its parent lives. It reads a line of JSON
for each run, ``{"folder": ..., "settings": {...}}``, and answers with ``{"state": ..., "message": ...}``. The recipe is
in ``asked.json`` of the folder. The worker ends when its input closes; the run resumes from its last checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, Any

from rich.console import Console

from tempbalance.lab.jobs import ASKED, FAILURE, OUTPUT, Ended, Job, Settings, check_gpus, failure_of, with_gpus
from tempbalance.lab.options import read_options
from tempbalance.lab.recipe import make_recipe
from tempbalance.lab.runs import DivergedError, InterruptedRunError
from tempbalance.runlog import BusyRunError, RunFolder

_PATIENCE = 10  # seconds for a process whose input has ended


class Pool:
    """Pool of worker processes, which are started on demand and restarted if they die.

    ``gpus`` are named as in ``CUDA_VISIBLE_DEVICES``, and used in turn if there are more processes.
    """

    num_ahead = 0

    def __init__(self, num_workers: int, settings: Settings, *, gpus: Sequence[str] = ()) -> None:
        self.num_slots, self._settings, self._gpus = num_workers, settings, gpus
        self._answers: SimpleQueue[tuple[_Worker, bytes]] = SimpleQueue()
        self._workers: list[_Worker | None] = [None] * num_workers

    @property
    def place_text(self) -> str:
        threads = self._settings["threads"]
        of_each = f"GPU {' or '.join(dict.fromkeys(self._gpus))}" if self._gpus else "no GPU"
        each = "1 thread" if threads == 1 else f"{threads} threads"
        return f"on this machine: {self.num_slots} at a time with {of_each}, {each} each"

    def start(self, job: Job) -> None:
        place = next(i for i, worker in enumerate(self._workers) if worker is None or worker.job is None)
        worker = self._workers[place] or _Worker(self._environment(place), self._answers)
        self._workers[place] = worker
        worker.give(job, self._settings)

    def _environment(self, place: int) -> dict[str, str]:
        # a run on several devices must start its own processes, even if srun or torchrun has started this one
        own = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
        if not self._gpus:
            return {**own, "OMP_NUM_THREADS": str(self._settings["threads"])}
        gpu = self._gpus[place % len(self._gpus)]
        return {**own, **dict.fromkeys(_VISIBLE, gpu)}

    def ended(self) -> list[Ended]:
        found: list[Ended] = []
        while True:
            try:
                worker, line = self._answers.get_nowait()
            except Empty:
                return found
            job, worker.job = worker.job, None
            if not line and worker in self._workers:
                self._workers[self._workers.index(worker)] = None
            if job is not None:
                whole = line.endswith(b"\n")  # not cut off by a kill
                found.append(Ended(job, **json.loads(line)) if whole else Ended(job, "died", worker.last_words()))

    def close(self) -> None:
        workers = [worker for worker in self._workers if worker is not None]
        for worker in workers:
            worker.close()
        for worker in workers:
            worker.wait()


class _Worker:
    """Worker process in a new session, so that Ctrl-C does not reach it directly."""

    def __init__(self, environment: dict[str, str], answers: SimpleQueue[tuple[_Worker, bytes]]) -> None:
        self.job: Job | None = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._input = self._process.stdin
        Thread(target=self._listen, args=(answers,), daemon=True).start()

    def _listen(self, answers: SimpleQueue[tuple[_Worker, bytes]]) -> None:
        for line in self._process.stdout or ():
            answers.put((self, line))
        self._process.wait()
        answers.put((self, b""))

    def give(self, job: Job, settings: Settings) -> None:
        """Send a job; if the process is dead, its empty answer reports that."""
        self.job = job
        task = json.dumps({"folder": str(job.folder), "settings": settings}) + "\n"
        try:
            self._input.write(task.encode())
            self._input.flush()
        except BrokenPipeError:
            self._process.wait()

    def last_words(self) -> str:
        """Return the exit code and the last line of the process's stderr."""
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip().rpartition("\n")[2]
        return f"its process ended with exit code {self._process.returncode}" + (f": {said}" if said else "")

    def close(self) -> None:
        """End its input, and so the process."""
        with suppress(BrokenPipeError):
            self._input.close()

    def wait(self) -> None:
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def local_pool(settings: Settings, *, num_workers: int | None, gpus: float | None = None) -> Pool:
    """Return a pool on this machine: by default a process for each GPU, or share of one, otherwise for each core.

    ``gpus`` of ``None`` are 1 for each run if the machine has any, ``threads`` a process's share of the cores.
    """
    found = find_gpus() if settings["device"] in ("auto", "gpu", "cuda") else []
    gpus = min(1, len(found)) if gpus is None else gpus
    check_gpus(gpus)
    if gpus > len(found):
        raise ValueError(f"gpus must be at most the {len(found)} of this machine, got {gpus:g}")
    width = max(1, int(gpus))
    groups = [",".join(found[i : i + width]) for i in range(0, len(found) - width + 1, width)] if gpus else []
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    num_shares = len(groups) * (int(1 / gpus) if 0 < gpus < 1 else 1)
    num_workers = num_workers or num_shares or max(1, num_cores // (settings["threads"] or 1))
    threads = settings["threads"] or max(1, num_cores // num_workers)
    return Pool(num_workers, {**with_gpus(settings, gpus), "threads": threads}, gpus=groups)


_LAUNCHERS = ("SLURM_", "TORCHELASTIC_", "LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_")
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_TOOLS = (("nvidia-smi", ("-L",), "GPU "), ("rocm-smi", ("--showid", "--csv"), "card"))


def find_gpus() -> list[str]:
    """Return the GPUs that may be used: those that CUDA_VISIBLE_DEVICES names, or all that the vendor's tool lists.

    ``TEMPBALANCE_GPUS`` sets their number, for tests on a machine without any.
    """
    if simulated := os.environ.get("TEMPBALANCE_GPUS"):
        return [str(i) for i in range(int(simulated))]
    for name, arguments, line in _TOOLS:
        if (tool := shutil.which(name)) is not None:
            listed = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False).stdout
            num_found = sum(each.startswith(line) for each in listed.splitlines())
            visible = next((os.environ[each] for each in _VISIBLE if each in os.environ), None)
            if num_found:
                return list(map(str, range(num_found))) if visible is None else list(filter(None, visible.split(",")))
    return []


def main() -> None:
    """Train the runs that standard input asks for, one after another."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    tasks: SimpleQueue[dict[str, Any]] = SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            tasks.put(json.loads(line))
        os._exit(0)

    Thread(target=read, daemon=True).start()
    while True:
        task = tasks.get()
        state, message = work(Path(task["folder"]), task["settings"])
        print(json.dumps({"state": state, "message": message}), file=answers, flush=True)


def work(folder: Path, settings: Settings) -> tuple[str, str]:
    """Train the run that a folder's ``asked.json`` asks for; return a state of `Ended` and a message.

    The run's messages go to ``output.txt``, the traceback of a failure to ``failure.txt``; a run that diverges leaves
    that as its result.
    """
    answer = None
    try:
        (folder / FAILURE).unlink(missing_ok=True)
        with (folder / OUTPUT).open("a", encoding="utf-8") as output, warnings.catch_warnings():
            answer = _train(folder, settings, output)
    except OSError as err:  # of the log, which a full disk does not take
        answer = answer or failure_of(folder, err)
    return answer


def _train(folder: Path, settings: Settings, output: IO[str]) -> tuple[str, str]:
    from tempbalance.lab.train import train

    try:
        recipe = make_recipe(read_options(folder / ASKED))
        train(recipe, folder, console=Console(file=output, width=200), **settings)
    except BusyRunError as err:
        return "busy", str(err)
    except InterruptedRunError as err:  # a SIGTERM: the run is to resume somewhere
        return "died", str(err)
    except DivergedError as err:
        output.write(f"{err}\n")
        if RunFolder(folder).result is None:
            RunFolder(folder).write_result(err.result)
    except Exception as err:
        answer = failure_of(folder, err)
        output.write(f"{traceback.format_exc()}{answer[1]}\n")
        return answer
    return "done", ""


if __name__ == "__main__":
    main()
