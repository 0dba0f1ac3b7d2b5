"""Charts and one HTML page: of a diagnosis, and of the lab's runs.

The names are loaded when they are first used, and Altair with them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tempbalance.report.chart import save_figures
    from tempbalance.report.diagnosis import diagnosis_charts, diagnosis_page
    from tempbalance.report.runs import runs_charts, runs_page

_MODULES = {
    "diagnosis_charts": "diagnosis",
    "diagnosis_page": "diagnosis",
    "runs_charts": "runs",
    "runs_page": "runs",
    "save_figures": "chart",
}

__all__ = ["diagnosis_charts", "diagnosis_page", "runs_charts", "runs_page", "save_figures"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
