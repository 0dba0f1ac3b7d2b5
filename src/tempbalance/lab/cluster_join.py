"""Joining a Ray cluster, or starting one, within a bounded time and without a word on the terminal."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from typing import Any

_PATIENCE = 15.0  # seconds for a cluster to answer


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
    found = _find(address)
    try:
        ray.init(found or "local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as err:
        raise ConnectionError(f"cannot {f'join the Ray cluster at {found}' if found else 'start Ray'}: {err}") from err
    ray._private.worker._worker_logs_enabled = False  # otherwise dead workers are told of on standard output
    return found is None


def _find(address: str | None) -> str | None:
    """The address of the cluster to join; ``None`` if one is to be started.

    Raises:
        ConnectionError: If the one that was asked for does not answer.
        ValueError: If the address is none.
    """
    from ray._private import services

    asked = address or os.environ.get("RAY_ADDRESS") or "auto"
    if asked not in ("auto", "local") and not _is_address(asked):
        raise ValueError(f"the address of a Ray cluster must be HOST:PORT of its head, got {asked!r}")
    canonical: Any = services.canonicalize_bootstrap_address
    found: str | None = canonical(None if asked == "auto" else asked)
    if found is None or not (problem := _problem(found)):
        return found
    if asked == "auto":  # it was killed and has left its address
        return None
    raise ConnectionError(f"no Ray cluster answers at {asked}: {problem}")


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and "/" not in host and port.isdecimal() and 0 < int(port) < 1 << 16


def _problem(address: str) -> str:
    """Why a cluster cannot be joined; empty if it answers. Ray itself would try for minutes, and say so."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()
    except OSError as err:
        return str(err)
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        status = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        return f"something listens there, but has not answered as Ray within {_PATIENCE:g} s"
    return (status.stderr.strip().rpartition("\n")[2] or "ray status failed") if status.returncode else ""
