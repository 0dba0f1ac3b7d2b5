"""Train each layer of a neural network at the temperature that its own weight spectrum asks for.

Names are loaded when they are first used: importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tempbalance.core.assign import assign
    from tempbalance.core.score import compute_score
    from tempbalance.core.spectrum import spectrum
    from tempbalance.core.tail import TailFit, fit_tail
    from tempbalance.diagnosis import diagnose
    from tempbalance.errors import CheckpointError, ScoreError, TailError, TempBalanceError, WeightError
    from tempbalance.groups import param_groups, split_param_groups
    from tempbalance.layers import Layer, find_layers
    from tempbalance.scheduler import TempBalance
    from tempbalance.table import LayerRow, LayerTable

__version__ = "0.1.0"

_MODULES = {
    "CheckpointError": "errors",
    "Layer": "layers",
    "LayerRow": "table",
    "LayerTable": "table",
    "ScoreError": "errors",
    "TailError": "errors",
    "TailFit": "core.tail",
    "TempBalance": "scheduler",
    "TempBalanceError": "errors",
    "WeightError": "errors",
    "assign": "core.assign",
    "compute_score": "core.score",
    "diagnose": "diagnosis",
    "find_layers": "layers",
    "fit_tail": "core.tail",
    "param_groups": "groups",
    "spectrum": "core.spectrum",
    "split_param_groups": "groups",
}

__all__ = [
    "CheckpointError",
    "Layer",
    "LayerRow",
    "LayerTable",
    "ScoreError",
    "TailError",
    "TailFit",
    "TempBalance",
    "TempBalanceError",
    "WeightError",
    "assign",
    "compute_score",
    "diagnose",
    "find_layers",
    "fit_tail",
    "param_groups",
    "spectrum",
    "split_param_groups",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
