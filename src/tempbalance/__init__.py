"""Train each layer of a neural network at a learning rate set by its weight spectrum.

Names are loaded on first use: a bare import loads nothing but the standard library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tempbalance.diagnosis import diagnose as diagnose
    from tempbalance.diagnosis.allocation import allocate as allocate
    from tempbalance.errors import CheckpointError as CheckpointError
    from tempbalance.errors import ScoreError as ScoreError
    from tempbalance.errors import TailError as TailError
    from tempbalance.errors import TempBalanceError as TempBalanceError
    from tempbalance.errors import WeightError as WeightError
    from tempbalance.execution.inline import Execution as Execution
    from tempbalance.model.layers import Layer as Layer
    from tempbalance.model.layers import find_layers as find_layers
    from tempbalance.optim.param_groups import param_groups as param_groups
    from tempbalance.optim.param_groups import split_param_groups as split_param_groups
    from tempbalance.optim.scheduler import TempBalance as TempBalance
    from tempbalance.ranking.assign import assign as assign
    from tempbalance.ranking.compare import Comparison as Comparison
    from tempbalance.ranking.table import LayerRow as LayerRow
    from tempbalance.ranking.table import LayerTable as LayerTable
    from tempbalance.spectral.score import compute_score as compute_score
    from tempbalance.spectral.tail import TailFit as TailFit
    from tempbalance.spectral.tail import fit_tail as fit_tail
    from tempbalance.spectral.workers import spectrum as spectrum

__version__ = "0.1.0"

_MODULES = {
    "CheckpointError": "errors",
    "Comparison": "ranking.compare",
    "Execution": "execution.inline",
    "Layer": "model.layers",
    "LayerRow": "ranking.table",
    "LayerTable": "ranking.table",
    "ScoreError": "errors",
    "TailError": "errors",
    "TailFit": "spectral.tail",
    "TempBalance": "optim.scheduler",
    "TempBalanceError": "errors",
    "WeightError": "errors",
    "allocate": "diagnosis.allocation",
    "assign": "ranking.assign",
    "compute_score": "spectral.score",
    "diagnose": "diagnosis",
    "find_layers": "model.layers",
    "fit_tail": "spectral.tail",
    "param_groups": "optim.param_groups",
    "spectrum": "spectral.workers",
    "split_param_groups": "optim.param_groups",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
