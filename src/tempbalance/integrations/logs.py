"""Per-layer numbers for loggers, at bounded cost: after a scoring only, and for so many layers at most."""

from __future__ import annotations

from tempbalance.optim.param_groups import LABEL
from tempbalance.optim.scheduler import TempBalance
from tempbalance.ranking.table import LayerRow

MAX_LAYERS = 64


def layer_scalars(scheduler: TempBalance, *, max_layers: int = MAX_LAYERS) -> dict[str, float]:
    """Alpha, scale and rate of the scored layers, and of all of them alpha's smallest, mean and largest value.

    Args:
        scheduler: What was scored last, and the rates as they are now.
        max_layers: Of how many layers; of more, these are spread evenly over the depth.

    Returns:
        ``alpha/<layer>``, ``scale/<layer>``, ``lr/<layer>``, ``alpha_min``, ``alpha_mean``, ``alpha_max``; where others
        are balanced too, ``<target>_scale/<layer>``.

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
        values |= {f"{target}_scale/{row.name}": scale for target, scale in row.scales.items()}
        values[f"lr/{row.name}"] = rates[row.name]
    if alphas := [row.alpha for row in rows if row.alpha is not None]:
        values |= {"alpha_min": min(alphas), "alpha_mean": sum(alphas) / len(alphas), "alpha_max": max(alphas)}
    return values


class LayerLog:
    """Gives `layer_scalars` once for each scoring, so that what is logged is bounded by ``interval`` too.

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
        """`layer_scalars` if layers were scored since this was called last; nothing otherwise.

        Under a budget there are ``tempbalance/share``, the share of the time that scoring took, and
        ``tempbalance/oldest``, the calls of ``step`` since the oldest score, too.
        """
        if scheduler.last_scores is self._seen:  # each scoring makes a new one
            return {}
        self._seen = scheduler.last_scores
        values = layer_scalars(scheduler, max_layers=self.max_layers)
        if (spending := scheduler.spending()) is not None:
            values |= {"tempbalance/share": spending.share, "tempbalance/oldest": float(spending.oldest)}
        return values


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
