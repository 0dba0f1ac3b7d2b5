"""Train jobs on a Ray cluster; each run is a task that requests its share of a node."""

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
from tempbalance.lab.jobs import FAILURE, QUEUED, Ended, Job, Settings, check_gpus, failure_of, with_gpus
from tempbalance.runlog import write_whole

_LOOK = 5.0  # seconds until nodes that have come or gone are noticed
_LEAST_AHEAD, _MOST_AHEAD = 2, 64  # tasks beyond the slots of the present nodes
_FETCH = 60.0  # seconds between two times that the files of a run under way are fetched
_PATIENCE = 10.0  # seconds for tasks to end


class Cluster:
    """Executor that trains jobs as Ray tasks.

    A task starts a `Pool` of one process that trains its run. This process has its main thread, signals and standard
    output to itself as on a single machine, and a SIGTERM by which Ray ends a task is no failure of the run. It ends
    with Ray's process, which ends with the driver.

    Ray does not retry tasks: the sweep restarts a job that died with its process or its node. More tasks are submitted
    than there is room for, so that an autoscaler adds nodes.

    The nodes need this package and the data. A known dataset is downloaded into each node's ``cache`` unless that is
    shared; another one is read from the path in the recipe.

    Args:
        settings: Settings of each process that trains; by default one thread per core.
        num_cpus: Cores per run.
        num_gpus: GPUs per run, a fraction to share one; ``None`` for 1 if the cluster has any, otherwise 0.
        address: ``HOST:PORT`` of a cluster's head. ``None`` for this machine's cluster (``RAY_ADDRESS``, or started by
            ``ray start``). If none runs, a local cluster is started, which ends with this object. An existing
            connection of this process is used.
        fetch: Whether the nodes do not share the folders of runs. A run is then trained in a temporary folder of its
            node, and its files except the TensorBoard log are fetched every minute and at the end.

    Raises:
        ModuleNotFoundError: If Ray is not installed.
        ConnectionError: If the cluster does not answer.
        ValueError: If the address is invalid, or the local cluster has too few CPUs or GPUs for a run.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        num_cpus: float = 1,
        num_gpus: float | None = None,
        address: str | None = None,
        fetch: bool = False,
    ) -> None:
        import ray

        check_gpus(num_gpus or 0)
        if num_cpus < 0 or (num_cpus == 0 and not num_gpus):
            raise ValueError(f"a run must take CPUs or GPUs, got num_cpus={num_cpus:g} and num_gpus={num_gpus or 0:g}")
        self._ray: Any = ray
        self._running: dict[Job, Any] = {}
        self._removals: list[Any] = []
        self._num_slots, self._next_look = 0, 0.0
        self._connected = not ray.is_initialized()
        started = self._connected and join(address)
        if num_gpus is None:
            num_gpus = min(1, sum(node.get("GPU", 0) for node in self._nodes()))
        own = {
            "cache": settings["cache"] and str(Path(settings["cache"]).absolute()),
            "threads": settings["threads"] or max(1, int(num_cpus)),
        }
        self._settings, self.needs, self._fetch = {**with_gpus(settings, num_gpus), **own}, (num_cpus, num_gpus), fetch
        self._train = self._ray.remote(
            num_cpus=num_cpus, num_gpus=num_gpus, max_retries=0, num_returns="streaming"
        )(train_run)  # fmt: skip
        self._check_room(started)

    def _check_room(self, started: bool) -> None:
        """Refuse a run that a local cluster has no room for; warn if another cluster has no room yet."""
        if self._count():
            return
        lacking = "no node of the Ray cluster has the {:g} CPUs and {:g} GPUs that a run takes".format(*self.needs)
        if started:
            self.close()
            raise ValueError(lacking)
        warnings.warn(f"{lacking}: runs wait until one joins", stacklevel=3)

    @property
    def num_slots(self) -> int:
        """Number of runs that the present nodes can train at a time, at least 1."""
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK
            self._num_slots = self._count()
        return max(1, self._num_slots)

    @property
    def place_text(self) -> str:
        """Description of the nodes and of the CPUs and GPUs per run."""
        nodes = len(self._nodes())
        needs = "{:g} CPUs and {:g} GPUs".format(*self.needs)
        return f"on Ray: {self.num_slots} at a time on {nodes} node{'s' * (nodes != 1)}, {needs} each"

    @property
    def num_ahead(self) -> int:
        """Number of tasks that wait in Ray's queue, so that an autoscaler adds nodes for them."""
        return min(max(_LEAST_AHEAD, self.num_slots), _MOST_AHEAD)

    def _nodes(self) -> list[dict[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _count(self) -> int:
        needs = [(name, need) for name, need in zip(("CPU", "GPU"), self.needs, strict=True) if need > 0]
        return sum(min(int(node.get(name, 0) / need + 1e-9) for name, need in needs) for node in self._nodes())

    def start(self, job: Job) -> None:
        """Give a job to the cluster; it waits there while others have taken the room."""
        task = Task(replace(job, folder=job.folder.absolute()), self._settings, Path.cwd())
        if self._fetch:
            (job.folder / FAILURE).unlink(missing_ok=True)
            name = f"tempbalance-{job.folder.name}-{_mark(job.folder)}"
            task = replace(task, files=pack(job.folder), name=name, every=_FETCH)
        write_whole(job.folder / QUEUED, b"")
        self._running[job] = self._train.remote(task)

    def ended(self) -> list[Ended]:
        """Return the jobs that have ended since the last call; write fetched files to their folders."""
        if not self._running:
            return []
        ready, _ = self._ray.wait(list(self._running.values()), num_returns=len(self._running), timeout=0)
        jobs = [job for job, stream in self._running.items() if stream in ready]
        return [ended for job in jobs if (ended := self._receive(job)) is not None]

    def _receive(self, job: Job) -> Ended | None:
        """Take what a node has sent; the first part comes when it starts the run."""
        errors = self._ray.exceptions
        try:
            part = self._ray.get(next(self._running[job]))
        except errors.RayTaskError as err:
            write_whole(job.folder / FAILURE, str(err).encode())
            ended = Ended(job, "failed", " ".join(str(err.cause).split()))
        except errors.RayError as err:
            ended = Ended(job, "died", str(err).strip().partition("\n")[0].partition(". ")[0])
        else:
            try:
                (job.folder / QUEUED).unlink(missing_ok=True)
                unpack(part.files, job.folder)
            except OSError as err:  # of this machine's disk
                self._ray.cancel(self._running[job], force=True)
                ended = Ended(job, *failure_of(job.folder, err))
            else:
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

    logging.getLogger("ray").setLevel(logging.ERROR)
    handler = signal.getsignal(signal.SIGTERM)
    found = _find(address or os.environ.get("RAY_ADDRESS") or "auto")
    try:
        context: Any = ray.init(found, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as err:  # of every kind
        task = "start Ray" if found == "local" else f"join the Ray cluster at {found}"
        raise ConnectionError(f"cannot {task}: {err}") from err
    if signal.getsignal(signal.SIGTERM) is not handler is not None:
        signal.signal(signal.SIGTERM, handler)  # Ray has set its own, which ends the process without a word
    if found == "local":
        _end_with_driver(context.address_info["session_dir"])
    return found == "local"


# Kills the processes of a session once its driver is gone, however that ended: Ray's agents notice only after a minute.
# Ray renames its agents and workers, which are known by the session's files that they have open.
_WATCHER = """
import glob, os, sys, time
session = sys.argv[1]
sys.stdin.read()
time.sleep(2)
for name in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{name}/cmdline", "rb") as file:
            command = file.read()
        is_ours = session.encode() in command and int(name) != os.getpid()
        if command.startswith(b"ray::"):
            is_ours = any(session in os.readlink(each) for each in glob.glob(f"/proc/{name}/fd/*"))
        if is_ours:
            os.kill(int(name), 9)
    except OSError:  # it has ended
        pass
"""


def _end_with_driver(session: str) -> None:
    """Have a process end what is left of a session that was started here when this process is gone."""
    if not Path("/proc/self").exists():
        return
    # it is not waited for: its input ends with this process
    _watchers.append(
        subprocess.Popen(
            [sys.executable, "-S", "-c", _WATCHER, session],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    )


_watchers: list[subprocess.Popen[bytes]] = []  # the ends of their pipes must stay open


def _find(asked: str) -> str:
    """Return the address for Ray: ``local`` to start a cluster, ``auto`` for that of this machine.

    Raises:
        ConnectionError: If a cluster at an address does not answer.
        ValueError: If the address is none.
    """
    if asked == "local":
        return asked
    if asked == "auto":  # the address that Ray remembers may be left from a cluster that was killed
        problem = _problem(None)
        return "local" if problem and "AuthenticationError" not in problem else "auto"
    if not _is_address(asked):
        raise ValueError(f"the address of a Ray cluster must be HOST:PORT of its head, got {asked!r}")
    if problem := _problem(asked):
        raise ConnectionError(f"cannot join the Ray cluster at {asked}: {problem}")
    return asked


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and "/" not in host and port.isdecimal() and 0 < int(port) < 1 << 16


def _problem(address: str | None) -> str:
    """Return why a cluster cannot be joined; empty if it answers. Ray itself would try for minutes, and say so.

    Args:
        address: Of its head; ``None`` for the cluster of this machine.
    """
    command = [sys.executable, "-m", "ray.scripts.scripts", "status"]
    if address is not None:
        command += ["--address", address]
    if _is_address(known := address or _remembered()):
        host, _, port = known.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH).close()
        except OSError as err:
            return str(err)
    try:
        status = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER)
    except subprocess.TimeoutExpired:
        return f"something listens there, but has not answered as Ray within {_ANSWER:g} s"
    return (status.stderr.strip().rpartition("\n")[2] or "ray status failed") if status.returncode else ""


def _remembered() -> str:
    """Return the address of the cluster that was last started on this machine, as Ray notes it; empty if none is."""
    note = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray" / "ray_current_cluster"
    return note.read_text(encoding="utf-8").strip() if note.is_file() else ""
