"""A pool of processes on this machine, each with its share of the cores or a GPU of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO

from tempbalance.lab.jobs import Ended, Job, Settings

_PATIENCE = 10  # seconds for a process whose input has ended


class Pool:
    """Trains jobs in processes that are started when first needed and again when they die.

    Args:
        num_workers: How many at a time.
        settings: Of each.
        gpus: Names of the GPUs for CUDA that the processes share out among them; none for the CPU.
    """

    def __init__(self, num_workers: int, settings: Settings, *, gpus: Sequence[str] = ()) -> None:
        self._num_workers, self._settings, self._gpus = num_workers, settings, gpus
        self._answers: SimpleQueue[tuple[_Worker, bytes]] = SimpleQueue()
        self._workers: list[_Worker | None] = [None] * num_workers

    @property
    def num_slots(self) -> int:
        """How many at a time."""
        return self._num_workers

    def start(self, job: Job) -> None:
        """Give a job to a process that has none."""
        place = next(i for i, worker in enumerate(self._workers) if worker is None or worker.job is None)
        worker = self._workers[place] or _Worker(self._environment(place), self._answers)
        self._workers[place] = worker
        worker.give(job, self._settings)

    def _environment(self, place: int) -> dict[str, str]:
        if not self._gpus:
            return {**os.environ, "OMP_NUM_THREADS": str(self._settings["threads"])}
        return {**os.environ, "CUDA_VISIBLE_DEVICES": self._gpus[place % len(self._gpus)]}

    def ended(self) -> list[Ended]:
        """The jobs that have ended since the last call."""
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
        """Stop whatever is running."""
        workers = [worker for worker in self._workers if worker is not None]
        for worker in workers:
            worker.close()
        for worker in workers:
            worker.wait()


class _Worker:
    """A process in a session of its own, so that Ctrl-C reaches it through this one alone."""

    def __init__(self, environment: dict[str, str], answers: SimpleQueue[tuple[_Worker, bytes]]) -> None:
        self.job: Job | None = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tempbalance.lab.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=environment,
            start_new_session=True,
        )
        Thread(target=self._listen, args=(answers,), daemon=True).start()

    def _listen(self, answers: SimpleQueue[tuple[_Worker, bytes]]) -> None:
        for line in _pipe(self._process.stdout):
            answers.put((self, line))
        self._process.wait()
        answers.put((self, b""))

    def give(self, job: Job, settings: Settings) -> None:
        """Have it train a job; if the process is dead, that is heard of as its answer."""
        self.job = job
        task = json.dumps({"folder": str(job.folder), "settings": settings}) + "\n"
        try:
            _pipe(self._process.stdin).write(task.encode())
            _pipe(self._process.stdin).flush()
        except BrokenPipeError:
            self._process.wait()

    def last_words(self) -> str:
        """How the process ended, and the last line it said."""
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip().rpartition("\n")[2]
        return f"its process ended with exit code {self._process.returncode}" + (f": {said}" if said else "")

    def close(self) -> None:
        """End its input, and so the process."""
        try:
            _pipe(self._process.stdin).close()
        except BrokenPipeError:
            self._process.wait()

    def wait(self) -> None:
        """Until it has ended."""
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
