"""What a run was made with."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("tempbalance", "torch", "numpy", "lightning", "pytorch_optimizer")


def versions(packages: Sequence[str] = _PACKAGES) -> dict[str, str]:
    """The version of Python and of each package that matters."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
