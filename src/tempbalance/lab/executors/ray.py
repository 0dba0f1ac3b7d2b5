"""Training on a Ray cluster, where a run is a task that asks for its share of a node."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from tempbalance.lab.executors.ray_node import Task, pack, remove_run, train_run, unpack
from tempbalance.lab.jobs import FAILURE, Ended, Job, Settings
from tempbalance.runlog import write_whole

_LOOK = 5.0  # seconds until nodes that have come or gone are noticed
_FETCH = 60.0  # seconds between two times that the files of a run under way are fetched
_PATIENCE = 10.0  # seconds for tasks to end


class Cluster:
    """Trains jobs as tasks of Ray.

    A task has its run trained by a process that it starts, a `Pool` of one, not by Ray's own: that process has its main
    thread, signals, standard output and threads to itself as on a single machine, and a SIGTERM by which Ray ends a
    task is no failure of the run. It ends when its input does, so it outlives neither Ray's process nor, as Ray ends
    those of a driver that is gone, this one.

    Ray does not retry the tasks: a job that ``died``, with its process or its node, is for the sweep to start again.

    The nodes need this package, and the data: a known dataset is downloaded into each node's ``cache`` where that is
    not shared, somebody's own is looked for under the path in the recipe.

    Args:
        settings: Of each process that trains; without ``threads``, one for each of its cores.
        num_cpus: How many cores a run takes.
        num_gpus: How many GPUs a run takes; below 1 for several runs on one.
        address: ``HOST:PORT`` of a cluster's head. ``None`` for the cluster that this machine belongs to
            (``RAY_ADDRESS``, or what ``ray start`` has started here), or if none runs, for one that is started on this
            machine and ends with this object. A connection that this process has already is used as it is.
        fetch: For folders of this machine alone: a run is trained in the temporary folder of its node, and its files
            come back every minute and at the end, but for the log of Tensorboard.

    Raises:
        ModuleNotFoundError: If Ray is not installed.
        ConnectionError: If the cluster does not answer.
        ValueError: If the address is none, or a cluster was started here and has not what a run takes.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        num_cpus: float = 1,
        num_gpus: float = 0,
        address: str | None = None,
        fetch: bool = False,
    ) -> None:
        import ray

        if min(num_cpus, num_gpus) < 0 or num_cpus + num_gpus == 0:
            raise ValueError(f"a run must take CPUs or GPUs, got num_cpus={num_cpus:g} and num_gpus={num_gpus:g}")
        self._ray: Any = ray
        own = {
            "cache": settings["cache"] and str(Path(settings["cache"]).absolute()),
            "threads": settings["threads"] or max(1, int(num_cpus)),
        }
        self._settings, self._needs, self._fetch = {**settings, **own}, (num_cpus, num_gpus), fetch
        self._train = self._ray.remote(
            num_cpus=num_cpus, num_gpus=num_gpus, max_retries=0, num_returns="streaming"
        )(train_run)  # fmt: skip
        self._running: dict[Job, Any] = {}
        self._removals: list[Any] = []
        self._num_slots, self._next_look = 0, 0.0
        self._connected = not ray.is_initialized()
        started = self._connected and join(address)
        self._check_room(started)

    def _check_room(self, started: bool) -> None:
        """Refuse what a cluster of this machine cannot do, and warn of what others cannot do yet."""
        if self._count():
            return
        told = "no node of the Ray cluster has the {:g} CPUs and {:g} GPUs that a run takes".format(*self._needs)
        if started:
            self.close()
            raise ValueError(told)
        warnings.warn(f"{told}: runs wait until one joins", stacklevel=3)

    @property
    def num_slots(self) -> int:
        """How many runs the nodes that there are can do at a time, at least 1."""
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK
            self._num_slots = self._count()
        return max(1, self._num_slots)

    def _count(self) -> int:
        needs = [(name, need) for name, need in zip(("CPU", "GPU"), self._needs, strict=True) if need > 0]
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        return sum(min(int(node.get(name, 0) / need) for name, need in needs) for node in nodes)

    def start(self, job: Job) -> None:
        """Give a job to the cluster; it waits there while others have taken the room."""
        task = Task(replace(job, folder=job.folder.absolute()), self._settings, Path.cwd())
        if self._fetch:
            (job.folder / FAILURE).unlink(missing_ok=True)
            name = f"tempbalance-{job.folder.name}-{_mark(job.folder)}"
            task = replace(task, files=pack(job.folder), name=name, every=_FETCH)
        self._running[job] = self._train.remote(task)

    def ended(self) -> list[Ended]:
        """The jobs that have ended since the last call; files that have come back are put into their folders."""
        if not self._running:
            return []
        ready, _ = self._ray.wait(list(self._running.values()), num_returns=len(self._running), timeout=0)
        jobs = [job for job, stream in self._running.items() if stream in ready]
        return [ended for job in jobs if (ended := self._receive(job)) is not None]

    def _receive(self, job: Job) -> Ended | None:
        """Take what a node has sent."""
        errors = self._ray.exceptions
        try:
            part = self._ray.get(next(self._running[job]))
        except errors.RayTaskError as err:
            write_whole(job.folder / FAILURE, str(err).encode())
            ended = Ended(job, "failed", " ".join(str(err.cause).split()))
        except errors.RayError as err:
            ended = Ended(job, "died", str(err).strip().partition("\n")[0].partition(". ")[0])
        else:
            unpack(part.files, job.folder)
            if part.ended is None:
                return None
            ended = replace(part.ended, job=job)
            if part.files and ended.state in ("done", "failed"):
                self._remove(part.node, part.ended.job.folder)
        del self._running[job]
        return ended

    def _remove(self, node: str, folder: Path) -> None:
        """Remove a run that was fetched from its node."""
        there = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        remove = self._ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(remove_run)
        self._removals.append(remove.remote(folder))

    def close(self) -> None:
        """Stop whatever is running, and the cluster if it was started here."""
        if not self._ray.is_initialized():
            return
        streams = list(self._running.values())
        self._running.clear()
        for stream in streams:
            self._ray.cancel(stream, force=True)
        if last := [*streams, *self._removals]:
            self._ray.wait(last, num_returns=len(last), timeout=_PATIENCE)
        self._removals.clear()
        if self._connected:
            self._connected = False
            self._ray.shutdown()


def _mark(folder: Path) -> str:
    """Tells a run's copies on nodes from those of other folders, and of one that was removed and begun again."""
    path = folder / "fetched.id"
    if not path.exists():
        write_whole(path, uuid.uuid4().hex[:12].encode())
    return path.read_text(encoding="utf-8")


_REACH = 15.0  # seconds until somebody takes the call
_ANSWER = 60.0  # seconds until that is Ray: a second, but for a machine that has much to do


def join(address: str | None) -> bool:
    """Join the cluster at an address, or start one on this machine.

    Args:
        address: ``HOST:PORT`` of its head; ``None`` for ``RAY_ADDRESS`` or what ``ray start`` has started here, and if
            that does not run, for a new one.

    Returns:
        Whether it was started.

    Raises:
        ConnectionError: If a cluster that was asked for does not answer, or none can be started.
        ValueError: If the address is none.
    """
    import ray
    import ray._private.worker

    logging.getLogger("ray").setLevel(logging.ERROR)
    handler = signal.getsignal(signal.SIGTERM)
    found = _find(address or os.environ.get("RAY_ADDRESS") or "auto")
    try:
        ray.init(found, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as err:  # of every kind
        told = "start Ray" if found == "local" else f"join the Ray cluster at {found}"
        raise ConnectionError(f"cannot {told}: {err}") from err
    if signal.getsignal(signal.SIGTERM) is not handler is not None:
        signal.signal(signal.SIGTERM, handler)  # Ray has set its own, which ends the process without a word
    ray._private.worker._worker_logs_enabled = False  # otherwise dead workers are told of on standard output
    return found == "local"


def _find(asked: str) -> str:
    """The address for Ray: ``local`` to start a cluster, ``auto`` for that of this machine, whose token Ray finds.

    Raises:
        ConnectionError: If a cluster at an address does not answer.
        ValueError: If the address is none.
    """
    from ray._private import services

    if asked not in ("auto", "local") and not _is_address(asked):
        raise ValueError(f"the address of a Ray cluster must be HOST:PORT of its head, got {asked!r}")
    canonical: Any = services.canonicalize_bootstrap_address
    found: str | None = canonical(None if asked == "auto" else asked)
    if found is None:
        return "local"
    problem = _problem(found)
    if asked == "auto":  # the address may be left from a cluster that was killed
        return "local" if problem and "AuthenticationError" not in problem else "auto"
    if problem:
        raise ConnectionError(f"cannot join the Ray cluster at {asked}: {problem}")
    return found


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and "/" not in host and port.isdecimal() and 0 < int(port) < 1 << 16


def _problem(address: str) -> str:
    """Why a cluster cannot be joined; empty if it answers. Ray itself would try for minutes, and say so."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH).close()
    except OSError as err:
        return str(err)
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        status = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER)
    except subprocess.TimeoutExpired:
        return f"something listens there, but has not answered as Ray within {_ANSWER:g} s"
    return (status.stderr.strip().rpartition("\n")[2] or "ray status failed") if status.returncode else ""
