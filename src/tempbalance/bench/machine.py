"""What was measured on, and with."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from tempbalance.lab.runs import versions

_PACKAGES = ("tempbalance", "torch", "numpy", "weightwatcher", "powerlaw")
_CPUS = Path("/proc/cpuinfo")


def describe_machine() -> dict[str, str | int]:
    """Processor, cores that we may use, and system."""
    names = [line.partition(":")[2].strip() for line in _lines(_CPUS) if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine() or "unknown",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
    }


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []


def describe_versions() -> dict[str, str]:
    """Of Python and of the packages that are measured."""
    return versions(_PACKAGES)
