"""Train jobs on a Ray cluster; each run is a task that requests its share of a node.

A task starts a `Pool` of one process that trains its run. This process has its main thread, signals and standard
output to itself as on a single machine, and a SIGTERM by which Ray ends a task is no failure of the run. It ends with
Ray's process, which ends with the driver. Ray does not retry tasks: the sweep restarts a job that died with its
process or its node. More tasks are submitted than there is room for, so that an autoscaler adds nodes.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tempbalance.lab.executors.local import Pool
from tempbalance.lab.jobs import ASKED, FAILURE, OUTPUT, QUEUED, Ended, Job, Settings, check_gpus, failure_of, with_gpus
from tempbalance.runlog import LOGS, write_whole

_LOOK = 5.0  # seconds until nodes that have come or gone are noticed
_LEAST_AHEAD, _MOST_AHEAD = 2, 64  # tasks beyond the slots of the present nodes
_FETCH = 60.0  # seconds between two times that the files of a run under way are fetched
_PATIENCE = 10.0  # seconds for tasks to end
_PAUSE = 0.1  # seconds between two looks at the process that trains
_REACH = 15.0  # seconds to connect to an address
_ANSWER = 60.0  # seconds until Ray has answered there: one, but for a machine that has much to do

Files = dict[str, bytes]


class Cluster:
    """Executor that trains jobs as Ray tasks.

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
        task_options = {"num_cpus": num_cpus, "num_gpus": num_gpus, "max_retries": 0, "num_returns": "streaming"}
        self._train = self._ray.remote(**task_options)(train_run)
        if not self._count():
            lacking = "no node of the Ray cluster has the {:g} CPUs and {:g} GPUs that a run takes".format(*self.needs)
            if started:
                self.close()
                raise ValueError(lacking)
            warnings.warn(f"{lacking}: runs wait until one joins", stacklevel=2)

    @property
    def num_slots(self) -> int:
        """Number of runs that the present nodes can train at a time, at least 1."""
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK
            self._num_slots = self._count()
        return max(1, self._num_slots)

    @property
    def place_text(self) -> str:
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
        copy: tuple[Files, str] | None = None
        if self._fetch:
            (job.folder / FAILURE).unlink(missing_ok=True)
            copy = pack(job.folder), f"tempbalance-{job.folder.name}-{_mark(job.folder)}"
        write_whole(job.folder / QUEUED, b"")
        there = replace(job, folder=job.folder.absolute())
        self._running[job] = self._train.remote(there, self._settings, Path.cwd(), copy, _FETCH)

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
    """Return a mark that distinguishes a run's copies on nodes from those of other folders and of earlier runs here."""
    path = folder / "fetched.id"
    if not path.exists():
        write_whole(path, uuid.uuid4().hex[:12].encode())
    return path.read_text(encoding="utf-8")


# A run writes its logs before its checkpoint, and its result last.
_FILES = ("recipe.json", *LOGS, OUTPUT, FAILURE, "best.ckpt", "last.ckpt", "result.json")


def pack(folder: Path) -> Files:
    """Return the files of a run in a state from which it can resume, even while it trains.

    They are read in reverse order, so that a result comes with its checkpoint and logs, and the logs reach at least as
    far as the checkpoint.
    """
    files = {}
    for name in reversed(_FILES):
        with suppress(FileNotFoundError):
            files[name] = (folder / name).read_bytes()
    return files


def unpack(files: Files, folder: Path) -> None:
    """Write a run's files so that it can resume from them, whenever this process is killed."""
    for name in _FILES:
        if name in files:
            write_whole(folder / name, files[name])


class Part(NamedTuple):
    """Message of a node: files of a run that is fetched; at last how its process ended, with its folder there."""

    node: str
    files: Files
    ended: Ended | None = None


# Pools of this Ray process by their settings, reused because loading the libraries is slow. They end with the process:
# at the end of the driver, or of a task that has a GPU.
_pools: dict[str, Pool] = {}


def train_run(
    job: Job, settings: Settings, directory: Path, copy: tuple[Files, str] | None, every: float
) -> Iterator[Part]:
    """Train a run on a node; paths are relative to ``directory`` where the node has it.

    ``copy`` has the present files of a run that is fetched, and the name of its folder here; ``None`` is for a folder
    that is shared. An empty part comes when the node begins, the files of a run that is fetched whenever ``every``
    seconds have passed, and at last how the run ended.
    """
    import ray

    if directory.is_dir():
        os.chdir(directory)
    if copy is not None:
        job = _settled(job, *copy)
    elif not (asked := job.folder / ASKED).exists():
        raise FileNotFoundError(
            f"{asked} is not there on {socket.gethostname()}: all nodes must share the runs' folder, or runs be fetched"
        )
    node = ray.get_runtime_context().get_node_id()
    yield Part(node, {})
    key = json.dumps(settings)
    pool = _pools.setdefault(key, Pool(1, settings))
    try:
        pool.start(job)
        sent, due = job.num_finished, time.monotonic() + every
        while not (ended := pool.ended()):
            time.sleep(_PAUSE)
            if copy is not None and time.monotonic() > due and job.num_finished != sent:
                sent, due = job.num_finished, time.monotonic() + every
                yield Part(node, pack(job.folder))
        yield Part(node, {} if copy is None else pack(job.folder), ended[0])
    except BaseException:
        _pools.pop(key).close()
        raise


def _settled(job: Job, files: Files, name: str) -> Job:
    """Return a job in a folder of this node, from the local files or the sent ones, whichever are further."""
    job = replace(job, folder=Path(tempfile.gettempdir()) / name)
    if not job.run.is_begun or job.num_finished < files.get("metrics.jsonl", b"").count(b"\n"):
        unpack(files, job.folder)
    job.ask()
    return job


def remove_run(folder: Path) -> None:
    """Remove the folder of a run that was fetched."""
    shutil.rmtree(folder)


def join(address: str | None) -> bool:
    """Join the cluster at an address, or start one on this machine; return whether it was started.

    ``None`` is ``RAY_ADDRESS`` or what ``ray start`` has started here, and if that does not run, a new one.
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


def _find(asked: str) -> str:
    """Return the address for Ray: ``local`` to start a cluster, ``auto`` for that of this machine."""
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
    """Return why the cluster at an address, or of this machine, cannot be joined; empty if it answers.

    Ray itself would try for minutes.
    """
    note = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray" / "ray_current_cluster"  # where Ray notes its last one
    known = address or (note.read_text(encoding="utf-8").strip() if note.is_file() else "")
    if _is_address(known):
        host, _, port = known.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH).close()
        except OSError as err:
            return str(err)
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", *(["--address", address] if address else [])]
    try:
        status = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER)
    except subprocess.TimeoutExpired:
        return f"something listens there, but has not answered as Ray within {_ANSWER:g} s"
    return (status.stderr.strip().rpartition("\n")[2] or "ray status failed") if status.returncode else ""


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
