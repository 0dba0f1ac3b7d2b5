"""TempBalance: the base schedule's rate times the scale of each group's own layer."""

from __future__ import annotations

import copy
import json
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from torch import nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from tempbalance.execution.background import Pending
from tempbalance.execution.budget import Entry, Ledger, Spending, check_budget
from tempbalance.execution.distributed import Choose, SharedScoring, check_share, find_ranks
from tempbalance.model.layers import Layer, find_layers
from tempbalance.model.sharded import unwrap
from tempbalance.optim.charge import OUTERMOST, check_caller, take_over
from tempbalance.optim.param_groups import LABEL, check_belonging
from tempbalance.optim.rates import (
    Rate,
    check_target,
    note_written,
    own_rates,
    put_back,
    read_bases,
    read_rates,
    was_changed,
    write_rates,
)
from tempbalance.optim.state import (
    VERSIONS,
    check_state,
    driven_by,
    labels_of,
    loaded_options,
    mark_of,
    plain,
    schedule_types,
)
from tempbalance.ranking.assign import AssignmentFunction, AssignmentName, ScaleRange
from tempbalance.ranking.compare import Blending, Comparing, GroupFunction, KeepMean, scales_of, unit_of
from tempbalance.ranking.scoring import ReferenceName, Scoring, check_count
from tempbalance.ranking.table import LayerRow, LayerTable
from tempbalance.spectral.matrices import Windows
from tempbalance.spectral.score import ScoreFunction, ScoreName
from tempbalance.spectral.tail import TailFunction, TailName


@dataclass(frozen=True)
class _Scored:
    """What a call has worked out, before any of it takes effect: rows, what is under way, and what it took."""

    rows: list[LayerRow] | None = None
    started: Pending | None = None
    entry: Entry | None = None

    @contextmanager
    def cancelling(self) -> Iterator[None]:
        """Give up what was started if what follows it fails."""
        try:
            yield
        except BaseException:
            if self.started is not None:
                self.started.cancel()
            raise


class TempBalance(LRScheduler):
    """Train each layer at the base rate times a scale that its weight's spectrum asks for (Algorithm 1).

    Layers are scored on construction and then every ``interval`` calls of `step`; layers with a larger score get a
    larger rate. Call `step` where the base schedule would be stepped, and nothing else steps that.

    Args:
        optimizer: Built from `param_groups`, or prepared by `split_param_groups`. Groups without a label keep scale 1.
        model: The model whose layers are ranked, whichever optimizer holds them; wrappers are looked through.
        schedule: Any scheduler of torch on the same optimizer, or none for constant base rates.
        scale_range: Smallest and largest scale; the paper's (0.5, 1.5).
        tail: How a spectrum's tail is fitted: ``median`` (the paper), ``goodness_of_fit``, ``peak``, or a function from
            eigenvalues, ascending, to a `TailFit`.
        tail_fraction: With ``median``, the fraction of eigenvalues in the tail; the paper's 1/2.
        score: What layers are ranked by: ``alpha`` (the paper), ``alpha_weighted``, ``log_alpha_norm``,
            ``spectral_norm``, ``stable_rank``, ``frobenius_norm``, ``entropy``, or a function of eigenvalues and fit.
        assignment: From scores to scales: ``linear`` (the paper, Eq. 2), ``sqrt``, ``log2``, ``step``, ``sigmoid``,
            ``power``, or a function of scores by layer and the scale range.
        interval: Calls of `step` between scorings.
        start: Calls of `step` before the first scoring; scales are 1 until then.
        score_first: Whether the first layer is scored; an input embedding counts as the first. The authors' code leaves
            it out, Algorithm 1 does not.
        score_last: Whether the last layer is scored, likewise.
        min_eigenvalues: Layers, and parts of layers, with fewer are left out: their alpha is too uncertain.
        exclude: Name patterns, as in a shell, of layers to leave out.
        fused: Name patterns of weights that hold several projections side by side, with their number or their sizes:
            ``{"*.qkv": 3}``.
        share: Whether the processes of torch.distributed, where that is in use, share the spectra among them; all of
            them then have to build it and step it together. A process group shares among its processes only, False
            lets each process score a model of its own.
        background: Copy the weights to the CPU and score them there in a thread, while training goes on. The new scales
            take effect ``lag`` calls of `step` later, which waits for them if it must, so that a run stays
            reproducible; until the first ones do, all are 1.
        lag: With ``background``, the number of those calls, at most ``interval``.
        budget: The share of the training's time that scoring may take: at 0.02, a scoring that is due refreshes as many
            layers as 2 % of the time so far pay for, in turn the most changed and the longest unrefreshed; the others
            keep their scores. With None all are refreshed, and nothing depends on the clock.
        reference: With ``random``, alpha is divided by what the same fit gives for a random matrix of the same shape,
            so that layers are compared by what training did to them; with None, the paper, it is taken as it is.
        windows: Take the eigenvalues of square windows of a matrix, pooled, so that every matrix has the same aspect
            ratio: ``square`` for windows as wide as the smaller side, or their side; None for whole matrices.
        keep_mean: Divide scales by their mean, so that they average to 1 over the scored layers, each counted once, or
            with ``parameters`` as often as its weight has entries. Scales may then leave ``scale_range``.
        shrink: Draw each score toward the layers' mean as far as its standard error is large against the spread between
            layers (`tempbalance.ranking.compare.shrunk`), so that noise does not become a learning rate.
        smooth: How much the scores of before count when layers are scored again, 0 <= smooth < 1: at 0.9 layers are
            compared by nine tenths of what they were compared by, and one tenth of their new scores.
        blend: Calls of `step` over which new scales are reached, in equal parts; 1 is at once.
        group_by: Makes one score of several layers, their mean: a pattern of the first words of their names, as
            ``transformer.h.*`` for the blocks of a GPT-2, or a function from a layer's name to its group's, or to None.
        balance: What is balanced, any number in a param group, with the scales of the smallest and of the largest
            score; ``{"lr": (0.5, 1.5), "weight_decay": (1.5, 0.5)}`` has decay fall where the rate rises. None is the
            rate alone, within ``scale_range``. A value that something else sets between steps is a new base value.

    Raises:
        ValueError, TypeError: If an option is out of range, or optimizer, model and schedule do not belong together.
        RuntimeError: If the processes that share hold different models or options, or make different calls.
        TempBalanceError: If a weight has no spectrum (NaN, Inf, meta, lazy, complex, integer, sparse); it names the
            layer.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        schedule: LRScheduler | None = None,
        *,
        scale_range: ScaleRange = (0.5, 1.5),
        tail: TailName | TailFunction = "median",
        tail_fraction: float = 0.5,
        score: ScoreName | ScoreFunction = "alpha",
        assignment: AssignmentName | AssignmentFunction = "linear",
        interval: int = 1,
        start: int = 0,
        score_first: bool = False,
        score_last: bool = False,
        min_eigenvalues: int = 50,
        exclude: Sequence[str] = (),
        fused: Mapping[str, int | Sequence[int]] | None = None,
        share: bool | ProcessGroup = True,
        background: bool = False,
        lag: int = 1,
        budget: float | None = None,
        reference: ReferenceName | None = None,
        windows: Windows | None = None,
        keep_mean: KeepMean = False,
        shrink: bool = False,
        smooth: float = 0.0,
        blend: int = 1,
        group_by: str | GroupFunction | None = None,
        balance: Mapping[str, ScaleRange] | None = None,
    ) -> None:
        self.comparing = Comparing(scale_range, assignment, keep_mean, shrink, smooth, group_by, balance)
        check_count("interval", interval, least=1)
        check_count("start", start, least=0)
        self.scoring = Scoring(
            tail,
            tail_fraction,
            score,
            score_first,
            score_last,
            min_eigenvalues,
            exclude,
            fused or {},
            reference,
            windows,
        )
        if shrink and score != "alpha":
            raise ValueError(f"shrink needs standard errors, which only score 'alpha' has, got score={score!r}")
        check_count("blend", blend, least=1)
        self.blend = blend
        self.interval, self.start = interval, start
        self.share = check_share(share)
        check_count("lag", lag, least=1)
        if background and lag > interval:
            raise ValueError(f"lag must be at most interval, {interval}, got {lag}")
        self.background, self.lag = background, lag
        check_budget(budget, background=background)
        self.budget = budget
        self._ledger = None if budget is None else Ledger(budget)
        if isinstance(schedule, TempBalance):
            raise TypeError("schedule must be a scheduler of torch, got TempBalance")
        self.model = unwrap(model, keep=["FullyShardedDataParallel"])  # it knows which piece is of what
        self.schedule = schedule
        self.schedule_steps = 1  # of a call of `step`; accelerate takes as many as there are processes
        self.last_scores: dict[str, float] = {}
        self.last_scales: dict[str, float] = {}
        self._scales: dict[str, dict[str, float]] = {}  # by target; those of the rate are last_scales
        self._blending = Blending()
        self._rows: list[LayerRow] = []
        self._calls = -1
        self._is_retired = self._has_told = False
        self._pending: Pending | None = None

        def check() -> None:
            check_belonging(optimizer, model, schedule)
            if isinstance(group_by, str):
                self.comparing.check_names([layer.name for layer in find_layers(model)])
            for target in self.comparing.targets:
                check_target(optimizer, target)

        scored = self._score_at(0, check)  # before anything is written
        for pattern in exclude:
            if not any(fnmatchcase(layer.name, pattern) for layer in find_layers(model)):
                warnings.warn(f"TempBalance: exclude pattern {pattern!r} matches no layer", stacklevel=2)
        with scored.cancelling():
            self._is_doubtful = take_over(optimizer, self)
        self._labels = labels_of(optimizer)
        self._rates = read_rates(optimizer)
        self._bases = {target: own_rates(optimizer, target) for target in self.comparing.targets if target != "lr"}
        self._schedule_mark = mark_of(schedule)
        self._commit(scored)
        super().__init__(optimizer)

    @property
    def scale_range(self) -> ScaleRange:
        """The scales of the rate for the smallest and for the largest score."""
        return self.comparing.targets.get("lr", (1.0, 1.0))

    @property
    def assignment(self) -> AssignmentName | AssignmentFunction:
        """From scores to scales."""
        return self.comparing.assignment

    def _initial_step(self) -> None:
        """Write the first rates, where torch's schedulers take their first step."""
        self._calls = 0
        self._step_count = 1
        self._write_rates()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take charge of the optimizer that was copied or unpickled with it."""
        self.__dict__.update(state)
        if not self._is_retired:
            self.optimizer._tempbalance = weakref.ref(self)  # type: ignore[attr-defined]

    @property
    def last_epoch(self) -> int:
        """How often `step` was called."""
        return self._calls

    @last_epoch.setter
    def last_epoch(self, value: int) -> None:
        if value < self._calls:  # SequentialLR winds the schedulers that it is given back
            raise RuntimeError(OUTERMOST)
        self._calls = value

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step the base schedule, score the layers if that is due, and write the rates.

        Args:
            *args: What the base schedule's ``step`` takes, such as ReduceLROnPlateau's metrics.
            **kwargs: The same by name.

        Raises:
            TempBalanceError: If a weight has become NaN or infinite; nothing has moved then.
        """
        check_caller(sys._getframe(1).f_locals.get("self"))
        scored = self._score_at(self._calls + 1, partial(self._check_step, args, kwargs))
        with scored.cancelling():
            self._take_in_bases()
            if self.schedule is not None:
                self._step_schedule(self.schedule, args, kwargs)
        self._commit(scored)
        self._calls += 1
        self._step_count += 1
        self._write_rates()

    def get_lr(self) -> list[Rate]:
        """The schedule's rate times the scale of each group's own layer."""
        self._take_in_new_groups()
        return self._scaled_by(self.last_scales, self._rates)

    def _scaled_by(self, scales: Mapping[str, float], bases: Sequence[Rate]) -> list[Rate]:
        groups = self.optimizer.param_groups
        return [base * scales.get(group.get(LABEL, ""), 1.0) for base, group in zip(bases, groups, strict=True)]

    def rescore(self) -> None:
        """Score the layers now, whatever ``interval`` and ``start`` say, and write the rates.

        Raises:
            TempBalanceError: If a weight has no spectrum; nothing has moved then.
        """
        entry = None if self._ledger is None else Entry(self._ledger, self._calls)
        scored = self._score(f"rescore() after {self._calls} steps", self._check_active, entry)
        self._take_in_bases()
        self._commit(scored, self._calls)
        self._write_rates()

    def wait(self) -> None:
        """Wait for a scoring that is under way in the background; its scales still take effect when they are due.

        Processes that share have to call this together. After it, `state_dict` needs no other process.
        """
        if self._pending is not None:
            self._pending.finish()

    def restore(self) -> None:
        """Put the base rates back and give the optimizer up; to build another schedule on it, call this first."""
        self._check_active()
        self._take_in_bases()
        self._write_rates()
        put_back(self.optimizer)
        self._retire()

    def table(self) -> LayerTable:
        """What the last scoring found for each layer, and why the others were left out."""
        if not self._rows:
            return LayerTable(
                [LayerRow(each.name, each.shape, reason="not scored yet") for each in find_layers(self.model)]
            )
        labels, why = set(labels_of(self.optimizer)), "no param group of this optimizer has its label"
        is_lost = [row.score is not None and row.name not in labels for row in self._rows]
        rows = zip(map(self._in_use, self._rows), is_lost, strict=True)
        return LayerTable([replace(row, scale=1.0, scales={}, reason=why) if lost else row for row, lost in rows])

    def _in_use(self, row: LayerRow) -> LayerRow:
        """A row with the scales of now, which may be on their way to those that it asks for."""
        scales = {target: self._scales[target][row.name] for target in row.scales}
        return replace(row, scale=self.last_scales.get(row.name, 1.0), scales=scales)

    def spending(self) -> Spending | None:
        """What scoring has taken of the training's time, and how old scores are; None without a budget.

        Each process tells of its own time; it is rank 0's that decides.
        """
        return None if self._ledger is None else self._ledger.spending(self._calls)

    def __repr__(self) -> str:
        schedule = type(self.schedule).__name__ if self.schedule is not None else "no schedule"
        return f"<TempBalance of {len(self.last_scores)} scored layers with {schedule}, {self._calls} steps>"

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and tensors, which load with ``weights_only=True``; functions are left out.

        A scoring that is under way in the background is waited for, and for that this process solves the others' share
        too. Nothing is gathered, so that one process alone can be asked.

        Raises:
            RuntimeError: If weights are sharded and one is under way: call `wait` on every process first.
        """
        self._take_in_new_groups()
        self._take_in_bases()
        # what is scored is one text: torch.distributed.checkpoint loads into a state of the same shape only
        scored = {
            "rows": [row.to_dict() for row in self._rows],
            "scores": self.last_scores,
            "blending": asdict(self._blending),
            "pending": None if self._pending is None else self._pending.state(),
            "ledger": None if self._ledger is None else self._ledger.state(),
        }
        state: dict[str, Any] = plain(
            {
                "version": VERSIONS[-1],
                "last_epoch": self.last_epoch,
                "step_count": self._step_count,
                "options": self._options(),
                "groups": labels_of(self.optimizer),
                "rates": self._rates,
                "bases": self._bases,
                "base_lrs": self.base_lrs,
                "driven": driven_by(self.schedule, self.optimizer),
                "scored": json.dumps(plain(scored)),
                "schedule_types": schedule_types(self.schedule),
                "schedule": self.schedule.state_dict() if self.schedule is not None else None,
            }
        )
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where a state was saved, and write its rates.

        Options come from the state, as with torch's schedulers; functions stay those this scheduler was built with.

        Args:
            state_dict: From `state_dict`.

        Raises:
            ValueError: If the state belongs to other groups or another kind of schedule, or was saved with a function
                that this scheduler was not built with; nothing has changed then.
        """
        self._check_in_charge()
        state = copy.deepcopy(state_dict)
        check_state(state, self.optimizer, self.schedule)
        options = state["options"]
        # before version 3 there were no others
        comparing = options.get("comparing") or {key: options[key] for key in ("scale_range", "assignment")}
        scoring, comparing = (
            loaded_options(saved, built, options.get("functions"))
            for saved, built in ((options["scoring"], self.scoring), (comparing, self.comparing))
        )
        scoring = {"reference": None, "windows": None, **scoring}
        self.scoring, self.comparing = replace(self.scoring, **scoring), Comparing(**comparing)
        put_back(self.optimizer)  # what the state may not balance
        self.interval, self.start = options["interval"], options["start"]
        self.background, self.lag = options.get("background", self.background), options.get("lag", self.lag)
        self.budget, self.blend = options.get("budget", self.budget), options.get("blend", 1)
        self._calls, self._step_count = state["last_epoch"], state["step_count"]
        self._rates, self.base_lrs = state["rates"], state["base_lrs"]
        self._bases = state.get("bases", {})
        scored = json.loads(state["scored"]) if "scored" in state else {"pending": None, **state}  # version 1
        self._rows = [LayerRow.from_dict(row) for row in scored["rows"]]
        self.last_scores = scored["scores"]
        ended = {"since": self._calls - self.blend, "start": {}, "aim": {"lr": scored.get("scales", {})}}
        self._blending = Blending(**scored.get("blending", ended))
        self._set_pending(None if scored["pending"] is None else Pending.from_state(scored["pending"]))
        self._ledger = None if self.budget is None else Ledger(self.budget, scored.get("ledger"))
        if self.schedule is not None:
            self.schedule.load_state_dict(state["schedule"])
            self._schedule_mark = mark_of(self.schedule)
        for group, driven in zip(self.optimizer.param_groups, state["driven"], strict=True):
            group.update({key: tuple(value) if key == "betas" else value for key, value in driven.items()})
        self._is_doubtful = False
        self._write_rates()

    def _take_in_new_groups(self) -> None:
        """Groups that were added since bring their own base rate."""
        self._rates += read_rates(self.optimizer)[len(self._rates) :]

    def _take_in_bases(self) -> None:
        """What something else has set since, other targets than the rate have as their new base value."""
        self._bases = {target: read_bases(self.optimizer, known, target) for target, known in self._bases.items()}

    def _options(self) -> dict[str, Any]:
        """Those that make a run what it is; functions are None."""
        options = {
            part: {each.name: getattr(found, each.name) for each in fields(found)}
            for part, found in (("scoring", self.scoring), ("comparing", self.comparing))
        }
        own = [name for each in options.values() for name, value in each.items() if callable(value)]
        return {
            "interval": self.interval,
            "start": self.start,
            "background": self.background,
            "lag": self.lag,
            "budget": self.budget,
            "blend": self.blend,
            "functions": own,
            **{
                part: {name: None if name in own else value for name, value in each.items()}
                for part, each in options.items()
            },
        }

    def _score_at(self, call: int, check: Callable[[], None]) -> _Scored:
        """What takes effect at a call of `step`, and what is started at it; nothing is changed.

        Args:
            call: Which.
            check: Raises what speaks against it; where processes talk to each other, on all of them.
        """
        late = call - self.start
        is_wanted = late >= 0 and late % self.interval == 0
        name = f"step() {call}" if call else "TempBalance()"
        ledger = self._ledger
        if not is_wanted or (ledger is not None and call < ledger.books.ask_at):
            check()
            return _Scored(self._due_rows(call))
        if ledger is not None:
            return self._score_within(ledger, call, name, check)
        if not self.background:
            return self._score(name, check)
        rows = self._due_rows(call)
        return _Scored(rows, Pending(self._plan(name, check), call + self.lag))

    def _score_within(self, ledger: Ledger, call: int, name: str, check: Callable[[], None]) -> _Scored:
        """Refresh the layers for which there is credit, if rank 0 has any."""
        ranks = find_ranks(self.share)
        answer = partial(ledger.answer, call, is_alone=ranks.size == 1)
        has_credit, ask_at = ranks.exchange(f"{name}, budget", answer)[0]
        entry = Entry(ledger, call, ask_at)
        if has_credit:
            return self._score(name, check, entry, entry.choose)
        check()
        return _Scored(entry=entry)

    def _score(
        self, name: str, check: Callable[[], None], entry: Entry | None = None, choose: Choose | None = None
    ) -> _Scored:
        """Score all layers, or those that are chosen, here and now."""
        plan = self._plan(name, check, choose)
        if entry is not None:
            entry.plan(plan.costs)
        if choose is not None and not plan.layers and self._rows:
            return _Scored(entry=entry)
        rows = self._scaled(plan.rows(earlier=self._rows))
        if entry is not None:
            entry.finish(plan.layers, chooses=plan.ranks.rank == 0)
        return _Scored(rows, entry=entry)

    def _due_rows(self, call: int) -> list[LayerRow] | None:
        """The outcome of a scoring that was started earlier; an error in it is told once."""
        if self._pending is None or call < self._pending.due:
            return None
        try:
            return self._scaled(self._pending.rows())
        except Exception:
            self._pending = None
            raise

    def _plan(self, name: str, check: Callable[[], None], choose: Choose | None = None) -> SharedScoring:
        def find() -> list[Layer]:
            check()
            layers = find_layers(self.model)
            if callable(self.comparing.group_by):  # whose text says nothing of what it does
                options["groups"] = [unit_of(layer.name, self.comparing.group_by) for layer in layers]
            return layers

        options = self._options()
        options |= options.pop("scoring") | options.pop("comparing")
        return SharedScoring(find, self.scoring, find_ranks(self.share), call=name, options=options, choose=choose)

    def _scaled(self, rows: list[LayerRow]) -> list[LayerRow]:
        """Rows with their scales."""
        return self.comparing.compared(rows, self._rows)

    def _commit(self, scored: _Scored, call: int | None = None) -> None:
        """Have rows take effect, at the next call of `step` if not told otherwise, and go on with what was started."""
        if scored.rows is not None:
            aim = scales_of(scored.rows, list(self.comparing.targets))
            self._blending = Blending(self._calls + 1 if call is None else call, self._scales, aim)
            self._keep(scored.rows)
        if scored.rows is not None or scored.started is not None:
            self._set_pending(scored.started)
        if scored.entry is not None:
            scored.entry.book()

    def _set_pending(self, pending: Pending | None) -> None:
        if self._pending is not None:
            self._pending.cancel()
        self._pending = pending

    def _retire(self) -> None:
        self._is_retired = True
        self._set_pending(None)

    def _keep(self, rows: list[LayerRow]) -> None:
        self.last_scores = {row.name: row.compared for row in rows if row.compared is not None}
        if not self.last_scores and not self._has_told:
            self._has_told = True
            reasons = "; ".join(sorted({row.reason for row in rows})) or "the model has no layers"
            warnings.warn(f"TempBalance: no layer is scored ({reasons}): all train at the base rate", stacklevel=4)
        self._rows = rows

    def _step_schedule(self, schedule: LRScheduler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Step the schedule on its own rates: many go on from a group's present one, and scales must not compound."""
        write_rates(self.optimizer, self._rates)
        for target, bases in self._bases.items():
            write_rates(self.optimizer, bases, target)
        try:
            for _ in range(self.schedule_steps):
                schedule.step(*args, **kwargs)
        except BaseException:
            self._write_rates()
            raise
        finally:
            self._schedule_mark = mark_of(schedule)
        self._rates = read_rates(self.optimizer)
        self._bases = {target: read_rates(self.optimizer, target) for target in self._bases}

    def _write_rates(self) -> None:
        self._scales = self._blending.at(self._calls, steps=self.blend)
        self.last_scales = self._scales.get("lr", {})
        write_rates(self.optimizer, self.get_lr())
        note_written(self.optimizer, self._rates)
        for target, bases in self._bases.items():
            bases += read_rates(self.optimizer, target)[len(bases) :]  # of groups that were added since
            write_rates(self.optimizer, self._scaled_by(self._scales.get(target, {}), bases), target)
            note_written(self.optimizer, bases, target)
        self._last_lr = read_rates(self.optimizer)

    def _check_active(self) -> None:
        self._check_in_charge()
        if self._is_doubtful:
            raise RuntimeError(
                "the rates were scaled by an earlier TempBalance and then changed, as by a schedule built on them, so "
                "the base rates are not known: load this scheduler's state_dict; or restore() the earlier one first; "
                "or, if you have set the base rates yourself, build TempBalance once more"
            )

    def _check_in_charge(self) -> None:
        if self._is_retired:
            raise RuntimeError("restored, or another TempBalance on this optimizer has taken over: use that one")
        labels = labels_of(self.optimizer)[: len(self._labels)]
        if labels != self._labels:
            raise RuntimeError(
                f"the param groups' labels have changed from {self._labels} to {labels}: the optimizer's state was "
                "loaded from one without them, or its groups were replaced"
            )

    def _check_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._check_active()
        if isinstance(self.schedule, ReduceLROnPlateau) and not args and "metrics" not in kwargs:
            raise TypeError("step() needs the metric that ReduceLROnPlateau watches: scheduler.step(metrics)")
        if self.schedule is None and (args or kwargs):
            raise TypeError(f"step() takes no arguments without a schedule, got {(*args, *kwargs)}")
        if mark_of(self.schedule) != self._schedule_mark:
            raise RuntimeError(
                "something else stepped the schedule: TempBalance steps it, and nothing else may; "
                "to go on all the same, call restore() and build TempBalance again"
            )
        changed = [group.get(LABEL) for group in self.optimizer.param_groups if was_changed(group)]
        if changed:
            warnings.warn(
                f"TempBalance: something else set the rates of groups {changed}, which step() overwrites: "
                "give what sets the base rate to TempBalance as `schedule` (a function of the epoch as LambdaLR)",
                stacklevel=3,
            )
        if self.schedule is None and self._calls == 0 and not getattr(self.optimizer, "_opt_called", False):
            warnings.warn("scheduler.step() was called before optimizer.step(): call it after", stacklevel=3)
