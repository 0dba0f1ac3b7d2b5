"""Per-layer numbers for loggers, at bounded cost: after a scoring only, and for so many layers at most."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tempbalance.groups import LABEL
from tempbalance.scheduler import TempBalance
from tempbalance.table import LayerRow

MAX_LAYERS = 64

Write = Callable[[dict[str, float], int], None]


def layer_scalars(scheduler: TempBalance, *, max_layers: int = MAX_LAYERS) -> dict[str, float]:
    """Alpha, scale and rate of the scored layers, and of all of them alpha's smallest, mean and largest value.

    Args:
        scheduler: What was scored last, and the rates as they are now.
        max_layers: Of how many layers; of more, these are spread evenly over the depth.

    Returns:
        ``alpha/<layer>``, ``scale/<layer>``, ``lr/<layer>``, ``alpha_min``, ``alpha_mean``, ``alpha_max``.

    Raises:
        ValueError: If ``max_layers`` is negative.
    """
    if max_layers < 0:
        raise ValueError(f"max_layers must be at least 0, got {max_layers!r}")
    rates = _rates(scheduler)
    rows = [row for row in scheduler.table() if row.score is not None and row.name in rates]
    values: dict[str, float] = {}
    for row in _spread(rows, max_layers):
        if row.alpha is not None:
            values[f"alpha/{row.name}"] = row.alpha
        values[f"scale/{row.name}"] = row.scale
        values[f"lr/{row.name}"] = rates[row.name]
    if alphas := [row.alpha for row in rows if row.alpha is not None]:
        values |= {"alpha_min": min(alphas), "alpha_mean": sum(alphas) / len(alphas), "alpha_max": max(alphas)}
    return values


class LayerLog:
    """Hands `layer_scalars` on whenever layers were scored since it was last called.

    Args:
        write: Is given the values and the step, such as what `to_tensorboard` gives.
        max_layers: As in `layer_scalars`.

    Example:
        >>> log = LayerLog(lambda values, step: print(step, *values))
        >>> # after each scheduler.step(): log(scheduler, step)
    """

    def __init__(self, write: Write, *, max_layers: int = MAX_LAYERS) -> None:
        self.write, self.max_layers = write, max_layers
        self._seen: object = None

    def __call__(self, scheduler: TempBalance, step: int) -> None:
        """Write if there is something new."""
        if scheduler.last_scores is not self._seen:  # each scoring makes a new one
            self._seen = scheduler.last_scores
            if values := layer_scalars(scheduler, max_layers=self.max_layers):
                self.write(values, step)


def to_tensorboard(writer: Any) -> Write:
    """What writes values with a ``SummaryWriter``."""

    def write(values: dict[str, float], step: int) -> None:
        for tag, value in values.items():
            writer.add_scalar(tag, value, step)

    return write


def table_text(scheduler: TempBalance) -> str:
    """The scheduler's table as TensorBoard and others show it with its columns: indented."""
    return "\n".join(f"    {line}" for line in str(scheduler.table()).splitlines())


def _rates(scheduler: TempBalance) -> dict[str, float]:
    """Each layer's rate: that of the group with its weight, where its bias is in another."""
    groups = [group for group in scheduler.optimizer.param_groups if LABEL in group and group["params"]]
    groups.sort(key=lambda group: max(each.dim() for each in group["params"]))
    return {group[LABEL]: float(group["lr"]) for group in groups}


def _spread(rows: list[LayerRow], number: int) -> list[LayerRow]:
    if len(rows) <= number:
        return rows
    return [rows[index * (len(rows) - 1) // max(number - 1, 1)] for index in range(number)]
