"""TempBalance: the schedule's learning rate times the scale of each group's layer."""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from tempbalance.errors import warn
from tempbalance.execution.background import Background
from tempbalance.execution.budget import Budgeted, Spending
from tempbalance.execution.distributed import SharedScoring, find_ranks
from tempbalance.execution.inline import Execution, Inline
from tempbalance.model.layers import Layer, find_layers
from tempbalance.model.sharded import unwrap
from tempbalance.optim.param_groups import check_belonging, check_same_parameters, flatten, held_by
from tempbalance.optim.rates import Balanced, Rate, check_target, put_back, was_changed
from tempbalance.optim.state import Options, Scored, check_state, labels_of, make_state
from tempbalance.ranking.assign import Assignment, ScaleRange
from tempbalance.ranking.compare import Blending, Comparison, Scales, check_group_by, scales_of, unit_of
from tempbalance.ranking.scoring import hints
from tempbalance.ranking.table import LayerRow, LayerTable
from tempbalance.spectral.score import ScoreFunction, ScoreName
from tempbalance.spectral.tail import TailFunction, TailName

_NONE: Mapping[str, float] = {}


class TempBalance(LRScheduler):
    """Train each layer at the base learning rate times a scale set by its weight spectrum (Algorithm 1).

    Layers are scored on construction and then every ``interval`` calls of `step`. Layers with a larger score get a
    larger learning rate. Call `step` where the schedule would be stepped, and let nothing else step the schedule.

    Args:
        optimizer: Built from `param_groups`, or prepared by `split_param_groups`. Groups without a label keep scale 1.
        model: The model whose layers are ranked; wrappers are looked through.
        schedule: Any torch scheduler on the same optimizer, or None for constant base rates.

    Scores and scales:
        scale_range: Smallest and largest scale; the paper's (0.5, 1.5).
        score: Number that layers are ranked by: ``alpha`` (the paper), ``alpha_weighted``, ``log_alpha_norm``,
            ``spectral_norm``, ``stable_rank``, ``frobenius_norm``, ``entropy``, or a function of eigenvalues and fit.
        tail: How the tail of a spectrum is fitted: ``median`` (the paper), ``median_published`` (its code),
            ``goodness_of_fit``, ``peak``, or a function from eigenvalues, ascending, to a `TailFit`.
        tail_fraction: With a median, the fraction of eigenvalues in the tail; the paper's 1/2.
        assignment: From scores to scales: ``linear`` (the paper, Eq. 2), ``sqrt``, ``log2``, ``step``, ``sigmoid``,
            ``power``, or a function of scores by layer and the scale range. Controls: ``shuffled``, ``mean``, also as
            ``shuffled:sqrt:7``; or scales by kind of layer, such as ``{"embedding": 5.0}``, without spectra.
        balance: The values of a param group that are balanced, with the scales of the smallest and the largest score:
            ``{"lr": (0.5, 1.5), "weight_decay": (1.5, 0.5)}``. None balances the learning rate within ``scale_range``.

    When layers are scored:
        interval: Calls of `step` between scorings.
        start: Calls of `step` before the first scoring; scales are 1 until then.
        stop: Calls of `step` after which no layer is scored and scales stay as they are; None never stops.

    Which layers are scored:
        score_first: Score the first layer too, which the authors' code skips. After an input embedding no layer counts
            as the first.
        score_last: Score the last layer too. The authors' code skips it.
        score_embeddings: Rank each ``nn.Embedding`` like a layer, also if it is the first or the last.
        min_eigenvalues: Skip layers whose matrices have a shorter side: their alpha is too uncertain.
        exclude: Name patterns, as in a shell, of layers to skip.
        fused: Name patterns of weights that hold several projections side by side, with their number or their sizes:
            ``{"*.qkv": 3}``.
        roots: Names of submodules to rank each on its own, such as ``["generator", "discriminator"]``.

    Beyond the paper:
        comparison: How layers are compared, a `Comparison`.
        execution: When and where scoring runs, an `Execution`.

    A value that something else sets between two steps is the new base value. Where all groups are multiplied by one
    factor, as in a decay by hand, the base values are multiplied by it. Schedules that compute from the initial rate,
    such as LambdaLR, overwrite both, as in torch.

    Raises:
        ValueError, TypeError: If an option is out of range, or optimizer, model and schedule do not belong together.
        RuntimeError: If the processes that share hold different models or options, or make different calls.
        TempBalanceError: If a weight has no spectrum (NaN, Inf, meta, lazy, complex, sparse); it names the layer.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        schedule: LRScheduler | None = None,
        *,
        scale_range: ScaleRange = (0.5, 1.5),
        score: ScoreName | ScoreFunction = "alpha",
        tail: TailName | TailFunction = "median",
        tail_fraction: float = 0.5,
        assignment: Assignment = "linear",
        balance: Mapping[str, ScaleRange] | None = None,
        interval: int = 1,
        start: int = 0,
        stop: int | None = None,
        score_first: bool = False,
        score_last: bool = False,
        score_embeddings: bool = False,
        min_eigenvalues: int = 50,
        exclude: Sequence[str] = (),
        fused: Mapping[str, int | Sequence[int]] | None = None,
        roots: Sequence[str] = (),
        comparison: Comparison | None = None,
        execution: Execution | None = None,
    ) -> None:
        comparison = Comparison() if comparison is None else comparison
        execution = Execution() if execution is None else execution
        given = locals() | {"fused": fused or {}}  # the keywords are the fields of Options
        self.options = Options(**{each.name: given[each.name] for each in fields(Options)})
        if isinstance(schedule, TempBalance):
            raise TypeError("schedule must be a scheduler of torch, got TempBalance")
        self.model = unwrap(model, keep=["FullyShardedDataParallel"])  # the wrapper alone knows its pieces
        self.optimizer, self.schedule = optimizer, schedule
        self.last_scores: dict[str, float] = {}
        self.last_scales: Mapping[str, float] = {}
        self._schedule_steps = 1  # in a call of `step`; accelerate takes as many as there are processes
        self._scales: Scales = {}  # by target; those of the learning rate are last_scales
        self._blending = Blending()
        self._rows: Sequence[LayerRow] = ()
        self._calls, self._num_set, self._is_retired = -1, 0, False
        self._warned: set[str] = set()
        self._source, is_due = _source(self.options.execution), self.options.is_due(0)
        rows, source, check = None, self._source, partial(self._check_belonging, model)
        if source.acts_at(0, is_due=is_due):
            rows, source = source.rows_at(self._scoring("TempBalance()", 0, check), is_due=is_due)
        else:
            check()
        rows = self._scaled(rows)
        self._is_doubtful = _take_over(optimizer, self)  # nothing was written before
        self._labels = labels_of(optimizer)
        targets = dict.fromkeys(("lr", *self.options.scaling.targets))
        self._balanced = {target: Balanced(optimizer, target) for target in targets}
        self._schedule_mark = self._mark()
        self._take_effect(rows, source, 0)
        self._warn_of_hints()
        super().__init__(optimizer)

    def _initial_step(self) -> None:
        """Write the first learning rates, where torch's schedulers take their first step."""
        self._calls = 0
        self._step_count = 1
        self._write_rates()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not self._is_retired:
            self.optimizer._tempbalance = weakref.ref(self)  # type: ignore[attr-defined]

    @property
    def last_epoch(self) -> int:
        """Number of calls of `step`."""
        return self._calls

    @last_epoch.setter
    def last_epoch(self, value: int) -> None:
        if value < self._calls:  # SequentialLR sets the schedulers that it is given back by one
            raise RuntimeError("TempBalance must be outermost: give the other schedulers to it as `schedule`")
        self._calls = value

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step the schedule, score the layers if a scoring is due, and write the learning rates.

        Args:
            *args: Arguments of the schedule's ``step``, such as the metric of ReduceLROnPlateau.
            **kwargs: The same by name.

        Raises:
            TempBalanceError: If a weight has become NaN or infinite; nothing has changed then.
        """
        call = self._calls + 1
        is_due = self.options.is_due(call)
        rows, source, is_checked = None, self._source, False
        if source.acts_at(call, is_due=is_due):
            scoring = self._scoring(f"step() {call}", call, partial(self._check_step, args, kwargs))
            rows, source = source.rows_at(scoring, is_due=is_due)
            rows, is_checked = self._scaled(rows), scoring.is_planned
        if not is_checked:
            self._check_step(args, kwargs)
        self._refresh_bases()
        if self.schedule is not None:
            self._step_schedule(self.schedule, args, kwargs)
        self._take_effect(rows, source, call)
        self._calls = call
        self._step_count += 1
        self._write_rates()

    def get_lr(self) -> list[Rate]:
        """Return the schedule's learning rate times the scale of each group's layer."""
        self._balanced["lr"].refresh()
        return self._balanced["lr"].scaled(self.last_scales)

    def rescore(self) -> None:
        """Score the layers now, whatever ``interval``, ``start`` and ``stop`` say, and write the learning rates.

        Raises:
            TempBalanceError: If a weight has no spectrum; nothing has changed then.
        """
        scoring = self._scoring(f"rescore() after {self._calls} steps", self._calls, self._check_active)
        rows, source = self._source.rows_at(scoring, is_due=True, now=True)
        rows = self._scaled(rows)
        self._refresh_bases()
        self._take_effect(rows, source, self._calls)
        self._write_rates()

    def wait(self) -> None:
        """Wait for a scoring that runs in the background; its scales still take effect when they are due.

        Processes that share must call this together. Afterwards `state_dict` needs no other process.
        """
        self._source.wait()

    def restore(self) -> None:
        """Put the base rates back and release the optimizer; call this before building another schedule on it."""
        self._check_active()
        self._refresh_bases()
        self._write_rates()
        put_back(self.optimizer)
        self._retire()

    def table(self) -> LayerTable:
        """Return the rows of the last scoring, with the present scales, or the reason why a layer is skipped."""
        labels, held = labels_of(self.optimizer), held_by(self.optimizer)
        foreign = [row.name for row in self._rows if row.score is not None and row.name not in labels]
        layers = {layer.name: layer for layer in find_layers(self.model)} if foreign or not self._rows else {}
        if not self._rows:
            return LayerTable([LayerRow(each.name, each.shape, reason="not scored yet") for each in layers.values()])
        rows = []
        for row in self._rows:
            scales = {target: self._scales[target][row.name] for target in row.scales}
            now = replace(row, scale=self.last_scales.get(row.name, 1.0), scales=scales)
            if row.name in foreign and row.name in layers:
                shares = "shares a param group with other layers: give param_groups a smaller min_eigenvalues"
                is_other = held.isdisjoint(layers[row.name].parameters)
                now = replace(row, scale=1.0, scales={}, reason="trained by another optimizer" if is_other else shares)
            rows.append(now)
        return LayerTable(rows)

    def spending(self) -> Spending | None:
        """Return the time that scoring has taken and the age of the scores on this process; None without a budget."""
        return self._source.spending(self._calls) if isinstance(self._source, Budgeted) else None

    def __repr__(self) -> str:
        schedule = type(self.schedule).__name__ if self.schedule is not None else "no schedule"
        return f"<TempBalance of {len(self.last_scores)} scored layers with {schedule}, {self._calls} steps>"

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings and tensors, which load with ``weights_only=True``; functions are not saved.

        A scoring that runs in the background is waited for, and this process solves the share of the others too.
        Nothing is gathered, so that one process alone can save.

        Raises:
            RuntimeError: If weights are sharded and a scoring is under way: call `wait` on every process first.
        """
        for each in self._balanced.values():
            each.refresh()
        scored = Scored(tuple(self._rows), self.last_scores, self._blending, self._source.state())
        return self._state() | {"scored": scored.to_text()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state, and write its learning rates.

        Options come from the state, as with torch's schedulers; a warning lists those that differ from the ones given.
        Functions are those that this scheduler was built with.

        Args:
            state_dict: From `state_dict`.

        Raises:
            ValueError: If the state belongs to other groups or another kind of schedule, or was saved with a function
                that this scheduler was not built with; nothing has changed then.
        """
        self._check_in_charge()
        state = copy.deepcopy(state_dict)
        scored = check_state(state, self._state(), self.optimizer)
        options = self.options.from_state(state["options"])
        source = _source(options.execution)
        source.load(scored.source)
        if different := options.differences(self.options):
            warn(f"the state's options replace the ones given: {', '.join(different)}")
        if self.schedule is not None:
            before = copy.deepcopy(self.schedule.state_dict())
            try:
                self.schedule.load_state_dict(state["schedule"])
            except Exception as err:  # torch's schedulers check after they have changed
                self.schedule.load_state_dict(before)
                raise ValueError(f"the state's schedule does not load: {err}") from err
            self._schedule_mark = self._mark()
        put_back(self.optimizer)  # targets that the state may not balance
        self.options, self._source = options, source
        self._calls, self._step_count, self.base_lrs = state["last_epoch"], state["step_count"], state["base_lrs"]
        self._balanced = {target: Balanced(self.optimizer, target, each) for target, each in state["bases"].items()}
        self._rows, self.last_scores, self._blending = scored.rows, dict(scored.scores), scored.blending
        for group, driven in zip(self.optimizer.param_groups, state["driven"], strict=True):
            group.update({key: tuple(value) if key == "betas" else value for key, value in driven.items()})
        self._is_doubtful = False
        self._write_rates()

    def _state(self) -> dict[str, Any]:
        values = {"last_epoch": self.last_epoch, "step_count": self._step_count, "options": self.options.to_state()}
        values |= {"bases": {target: each.bases for target, each in self._balanced.items()}, "base_lrs": self.base_lrs}
        return make_state(values, self.optimizer, self.schedule)

    def _scoring(self, name: str, call: int, check: Callable[[], None]) -> SharedScoring:
        how, placed, find = self.options.execution, _device(self.optimizer), partial(self._find, check)
        return SharedScoring(name, call, find, self.options, how.share, how.device, self._rows, placed)

    def _find(self, check: Callable[[], None]) -> tuple[list[Layer], dict[str, Any]]:
        """Check the call; return the layers, and the options that must be the same on all processes."""
        check()
        layers, state, group_by = find_layers(self.model), self.options.to_state(), self.options.comparison.group_by
        check_same_parameters(layers, self.optimizer)
        if callable(group_by):  # a function's text does not say what it does
            state["groups"] = [unit_of(layer.name, group_by) for layer in layers]
        return layers, state

    def _scaled(self, rows: Sequence[LayerRow] | None) -> Sequence[LayerRow] | None:
        return None if rows is None else self.options.scaling.compared(rows, self._rows)

    def _take_effect(self, rows: Sequence[LayerRow] | None, source: Inline, call: int) -> None:
        self._source = source
        if rows is not None:
            self._blending = Blending(call, self._scales, scales_of(rows, self.options.scaling.targets))
            self.last_scores = {row.name: row.compared for row in rows if row.compared is not None}
            self._rows = rows
            if len(self.last_scores) < 2:
                reasons = "; ".join(sorted({row.reason for row in rows if row.reason})) or "the model has no layers"
                found = f"{'one' if self.last_scores else 'no'} layer is scored, which leaves nothing to balance"
                self._warn_once("layers", f"{found}: all train at the base rate ({reasons})")

    def _warn_once(self, subject: str, message: str) -> None:
        if subject not in self._warned:
            self._warned.add(subject)
            warn(message)

    def _warn_of_hints(self) -> None:
        if find_ranks(self.options.execution.share).rank == 0:
            for line in hints(self._rows, find_layers(self.model), self.options):
                warn(line)

    def _step_schedule(self, schedule: LRScheduler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Step the schedule on base values: many continue from the present value, and scales must not compound."""
        for each in self._balanced.values():
            each.unscale()
        try:
            for _ in range(self._schedule_steps):
                schedule.step(*args, **kwargs)
        except BaseException:
            self._write_rates()
            raise
        finally:
            self._schedule_mark = self._mark()
        for each in self._balanced.values():
            each.read()

    def _mark(self) -> list[tuple[Any, ...]]:
        """Return a value that changes when the schedule, or one inside it, is stepped."""
        schedules = flatten([self.schedule])
        return [(getattr(each, "last_epoch", None), getattr(each, "T_cur", None)) for each in schedules]

    def _refresh_bases(self) -> None:
        """Read base values that something else has set; warn once if it competes with the schedule or with scales."""
        changed, is_decay = {target: each.refresh() for target, each in self._balanced.items()}["lr"]
        self._num_set = self._num_set + 1 if changed and not is_decay else 0  # calls in a row before which it was so
        names = [self._labels[index] for index in changed if index < len(self._labels)]
        if self.schedule is not None and changed:
            found = f"something else set the learning rates of groups {names}, which the schedule may overwrite"
            self._warn_once("rates", f"{found}: let one `schedule` set them all")
        elif self._num_set > 1:
            found = f"the learning rates of groups {names} are set before each step, which trains without scales"
            self._warn_once("rates", f"{found}: give the rates to TempBalance as `schedule`, such as a LambdaLR")

    def _write_rates(self) -> None:
        self._scales = self._blending.at(self._calls, steps=self.options.comparison.blend)
        self.last_scales = self._scales.get("lr", _NONE)
        for target, each in self._balanced.items():
            written = each.write(self._scales.get(target, _NONE))
            if target == "lr":
                self._last_lr = written

    def _retire(self) -> None:
        self._is_retired = True
        if isinstance(self._source, Background):
            self._source = Inline()  # a scoring under way is given up

    def _check_belonging(self, model: nn.Module) -> None:
        check_belonging(self.optimizer, model, self.schedule)
        check_group_by(self.options.comparison.group_by, [layer.name for layer in find_layers(model)])
        for target in self.options.scaling.targets:
            check_target(self.optimizer, target)

    def _check_active(self) -> None:
        self._check_in_charge()
        if self._is_doubtful:
            raise RuntimeError(
                "an earlier TempBalance scaled the learning rates, which then changed: load the state_dict of this, "
                "restore() the earlier one before you change rates, or set base rates and build TempBalance once more"
            )

    def _check_in_charge(self) -> None:
        if self._is_retired:
            raise RuntimeError("restored, or replaced by another TempBalance on this optimizer: use that one")
        labels = labels_of(self.optimizer)[: len(self._labels)]
        if labels != self._labels:
            found = f"the param groups' labels have changed from {self._labels} to {labels}"
            raise RuntimeError(f"{found}: a state without them was loaded, or groups were replaced")

    def _check_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._check_active()
        if isinstance(self.schedule, ReduceLROnPlateau) and not args and "metrics" not in kwargs:
            raise TypeError("step() needs the metric that ReduceLROnPlateau watches: scheduler.step(metrics)")
        if self.schedule is None and (args or kwargs):
            raise TypeError(f"step() takes no arguments without a schedule, got {(*args, *kwargs)}")
        if self._mark() != self._schedule_mark:
            rule = "TempBalance steps it, and nothing else may"
            advice = "to continue all the same, call restore() and build TempBalance again"
            raise RuntimeError(f"something else stepped the schedule: {rule}; {advice}")
        if self.schedule is None and self._calls == 0 and not getattr(self.optimizer, "_opt_called", False):
            warn("scheduler.step() was called before optimizer.step(): call it after")
        if "accelerate.scheduler" in sys.modules and find_ranks(self.options.execution.share).size > 1:
            if self._calls > 0 and not getattr(self.optimizer, "_opt_called", True):
                found = "step() was called twice after one optimizer.step(), as accelerate does on several processes"
                advice = "prepare TempBalance with tempbalance.integrations.accelerate.prepare_scheduler"
                self._warn_once("steps", f"{found}: {advice}")
            self.optimizer._opt_called = False  # type: ignore[attr-defined]  # torch sets it with optimizer.step()


def _source(execution: Execution) -> Inline:
    if execution.background:
        return Background(execution.lag)
    return Inline() if execution.budget is None else Budgeted(execution.budget)


def _device(optimizer: Optimizer) -> str:
    groups = getattr(optimizer, "param_groups", ())  # an optimizer of the wrong type is refused later
    return next((each.device.type for group in groups for each in group["params"]), "cpu")


def _take_over(optimizer: Optimizer, scheduler: TempBalance) -> bool:
    """Put back the rates that an earlier TempBalance has scaled, and retire it; return whether they were changed since.

    The base rates are then not known until a state is loaded; if the earlier scheduler still exists, that is an error.
    """
    earlier = getattr(optimizer, "_tempbalance", lambda: None)()
    is_changed = any(map(was_changed, optimizer.param_groups))
    if earlier is not None and not earlier._is_retired:
        if is_changed:
            raise ValueError(
                "the learning rates have changed since an earlier TempBalance on this optimizer scaled them: call "
                "restore() on the earlier one before you set rates or build a schedule"
            )
        earlier._retire()
    put_back(optimizer)
    optimizer._tempbalance = weakref.ref(scheduler)  # type: ignore[attr-defined]
    return is_changed
