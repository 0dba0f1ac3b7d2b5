"""Has what the lab uses of Ray, in this process: tasks run when somebody asks for what they yield."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    """Ray's own trouble: a worker or a node that died."""


class RayTaskError(RayError):
    """An error of the task."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"Traceback\n{type(cause).__name__}: {cause}")
        self.cause = cause


class Stream:
    """What a task yields, one after the other."""

    def __init__(self, parts: Iterator[Any] | None) -> None:
        self.parts, self.problem = parts, None

    def __next__(self) -> Any:
        if self.problem is not None:
            raise self.problem
        try:
            part = next(self.parts)
            if part.ended is not None:
                next(self.parts, None)  # Ray lets a task run to its end
        except Exception as err:
            raise RayTaskError(err) from err
        return part


class RayStandIn:
    """A cluster whose nodes have this number of CPUs and GPUs each."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
    util = SimpleNamespace(
        scheduling_strategies=SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: (node, soft))
    )

    def __init__(self, *cpus: int, gpus: int = 0) -> None:
        self.cpus, self.gpus, self.connected = cpus, gpus, False
        self.started: list[Stream] = []
        self.cancelled: list[Stream] = []

    def remote(self, **options: Any) -> Any:
        def decorate(function: Any) -> Any:
            def start(*arguments: Any) -> Stream:
                self.started.append(Stream(function(*arguments)))
                return self.started[-1]

            return SimpleNamespace(remote=start)

        return decorate

    def nodes(self) -> list[dict[str, Any]]:
        dead = {"Alive": False, "Resources": {"CPU": 100}}
        return [dead, *({"Alive": True, "Resources": self._has(each)} for each in self.cpus)]

    def _has(self, cpus: int) -> dict[str, int]:
        return {"CPU": cpus, "GPU": self.gpus} if self.gpus else {"CPU": cpus}

    def wait(self, streams: list[Stream], *, num_returns: int, timeout: float) -> tuple[list[Stream], list[Stream]]:
        assert num_returns == len(streams)
        return streams, []

    def get(self, part: Any) -> Any:
        return part

    def cancel(self, stream: Stream, *, force: bool) -> None:
        assert force
        self.cancelled.append(stream)

    def is_initialized(self) -> bool:
        return self.connected

    def shutdown(self) -> None:
        self.connected = False

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "node")
