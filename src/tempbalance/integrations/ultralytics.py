"""ultralytics' training, balanced through plain callbacks; the package is neither imported nor subclassed.

Its warm-up, schedule, checkpoints and logs use its own few param groups, which stay as they are. They are split by
layer only while the optimizer steps: each part then has its group's learning rate times its scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from tempbalance.integrations.logs import log_table
from tempbalance.integrations.options import ScalesAlone
from tempbalance.optim.param_groups import LABEL, param_groups
from tempbalance.optim.scheduler import TempBalance

Group = dict[str, Any]


def balance(model: Any, **options: Any) -> UltralyticsBalance:
    """Add the callbacks to an ultralytics model, or any object with ``add_callback(event, function)``.

    Call it before the model's ``train``. The options are those of `UltralyticsBalance`, which is returned.
    """
    found = UltralyticsBalance(**options)
    for event, callback in found.callbacks().items():
        model.add_callback(event, callback)
    return found


class UltralyticsBalance:
    """Callbacks that give each layer a balanced learning rate.

    Args:
        **options: Options of `TempBalance`. ``interval`` and ``start`` are in epochs. A resumed training is scored
            again, because ultralytics resumes from averaged weights in half precision.

    Attributes:
        scheduler: A `TempBalance` with the last scores and the table, once the training has started.
    """

    def __init__(self, **options: Any) -> None:
        self._scales = ScalesAlone(options)
        self.scheduler: TempBalance | None = None
        self._parts: list[tuple[int, Group]] = []
        self._optimizer: Optimizer | None = None
        self._own: list[Group] | None = None  # the optimizer's groups, while it steps with others
        self._hooks: list[Any] = []

    def callbacks(self) -> dict[str, Callable[[Any], None]]:
        return {
            "on_train_start": self.on_train_start,
            "on_train_epoch_start": self.on_train_epoch_start,
            "on_train_end": self.on_train_end,
            "teardown": self.restore,
        }

    def on_train_start(self, trainer: Any) -> None:
        """Hook into the optimizer, which is already restored if the training resumes from a checkpoint."""
        self.restore()
        self._optimizer = optimizer = trainer.optimizer
        self._parts = [
            (index, {key: part[key] for key in ("params", "param_names", LABEL) if key in part})
            for index, group in enumerate(optimizer.param_groups)
            for part in param_groups(trainer.model, [group])
        ]
        self.scheduler = self._scales.make_scheduler([part for _, part in self._parts], trainer.model)
        self._hooks = [
            optimizer.register_step_pre_hook(self._split),
            optimizer.register_step_post_hook(self._put_back),
        ]

    def on_train_epoch_start(self, trainer: Any) -> None:
        """Score the layers if due."""
        assert self.scheduler is not None, "on_train_start was not called"
        is_first = trainer.epoch >= self._scales.start and not self.scheduler.last_scores
        if is_first or self._scales.is_due(trainer.epoch):
            self.scheduler.rescore()

    def on_train_end(self, trainer: Any) -> None:
        assert self.scheduler is not None, "on_train_start was not called"
        log_table(self.scheduler)

    def restore(self, trainer: Any = None) -> None:
        """Remove the hooks, so that the optimizer steps at its own learning rates."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._optimizer is not None and self._own is not None:  # a step that ended with an error
            self._put_back(self._optimizer)

    def _split(self, optimizer: Optimizer, *_: Any) -> None:
        assert self.scheduler is not None
        own = self._own = optimizer.param_groups
        scales = self.scheduler.last_scales
        optimizer.param_groups = [
            {**own[index], **part, "lr": own[index]["lr"] * scales.get(part.get(LABEL, ""), 1.0)}
            for index, part in self._parts
        ]

    def _put_back(self, optimizer: Optimizer, *_: Any) -> None:
        assert self._own is not None
        optimizer.param_groups, self._own = self._own, None
