"""What a run was made with."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version


def versions() -> dict[str, str]:
    """The version of Python and of each package that matters."""
    found = {"python": platform.python_version()}
    for package in ("tempbalance", "torch", "numpy", "lightning", "pytorch_optimizer"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
