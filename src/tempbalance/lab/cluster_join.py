"""Joining a Ray cluster, or starting one, within a bounded time and without a word on the terminal."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from typing import Any

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
