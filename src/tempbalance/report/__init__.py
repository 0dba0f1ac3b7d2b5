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

__all__ = ["diagnosis_charts", "diagnosis_page", "runs_charts", "runs_page", "save_figures"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "chart" if name == "save_figures" else name.partition("_")[0]
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return __all__
