"""Per-layer numbers for loggers: only after a scoring, and for at most ``max_layers`` layers."""

from __future__ import annotations

import logging

from tempbalance.optim.param_groups import LABEL
from tempbalance.optim.scheduler import TempBalance
from tempbalance.ranking.table import LayerRow

MAX_LAYERS = 64


def layer_scalars(scheduler: TempBalance, *, max_layers: int = MAX_LAYERS) -> dict[str, float]:
    """Return ``alpha/<layer>``, ``scale/<layer>``, ``lr/<layer>``, ``alpha_min``, ``alpha_mean`` and ``alpha_max``.

    Each other balanced target has ``<target>_scale/<layer>``. If more than ``max_layers`` layers were scored, that many
    are spread evenly over the depth.
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
        values |= {f"{target}_scale/{row.name}": scale for target, scale in row.scales.items()}
        values[f"lr/{row.name}"] = rates[row.name]
    if alphas := [row.alpha for row in rows if row.alpha is not None]:
        values |= {"alpha_min": min(alphas), "alpha_mean": sum(alphas) / len(alphas), "alpha_max": max(alphas)}
    return values


class LayerLog:
    """Return `layer_scalars` once per scoring, so that ``interval`` bounds the log too.

    Args:
        max_layers: As in `layer_scalars`.

    Example:
        >>> log = LayerLog(max_layers=8)
        >>> def after_each_step(scheduler, writer, step):
        ...     for tag, value in log.news(scheduler).items():
        ...         writer.add_scalar(tag, value, step)  # a SummaryWriter of TensorBoard
    """

    def __init__(self, *, max_layers: int = MAX_LAYERS) -> None:
        self.max_layers = max_layers
        self._seen: object = None

    def news(self, scheduler: TempBalance) -> dict[str, float]:
        """Return `layer_scalars` if layers were scored since the last call, else an empty dict.

        With a budget, the dict also has ``tempbalance/share``, the share of the time spent on scoring, and
        ``tempbalance/oldest``, the calls of ``step`` since the oldest score.
        """
        if scheduler.last_scores is self._seen:  # each scoring makes a new dict
            return {}
        self._seen = scheduler.last_scores
        values = layer_scalars(scheduler, max_layers=self.max_layers)
        if (spending := scheduler.spending()) is not None:
            values |= {"tempbalance/share": spending.share, "tempbalance/oldest": float(spending.oldest)}
        return values


def log_table(scheduler: TempBalance) -> None:
    logging.getLogger("tempbalance").info("layers at the end of the training\n%s", scheduler.table())


def table_text(scheduler: TempBalance) -> str:
    """Return the scheduler's table indented, so that TensorBoard keeps its columns."""
    return "\n".join(f"    {line}" for line in str(scheduler.table()).splitlines())


def _rates(scheduler: TempBalance) -> dict[str, float]:
    """Return the learning rate of each layer's weight, whose bias may be in another group."""
    groups = [group for group in scheduler.optimizer.param_groups if LABEL in group and group["params"]]
    groups.sort(key=lambda group: max(each.dim() for each in group["params"]))
    return {group[LABEL]: float(group["lr"]) for group in groups}


def _spread(rows: list[LayerRow], number: int) -> list[LayerRow]:
    if len(rows) <= number:
        return rows
    return [rows[index * (len(rows) - 1) // max(number - 1, 1)] for index in range(number)]
