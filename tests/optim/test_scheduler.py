"""TempBalance: rates, when they change, what it refuses."""

import copy
import gc
import math
import os
import traceback
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Muon, lr_scheduler
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.utils._python_dispatch import TorchDispatchMode

import tempbalance
from tempbalance import LayerRow, TailFit, TempBalance, TempBalanceError, param_groups, split_param_groups
from tests.cases import assert_carries, mlp, nested, raises, train_step, warns
from tests.schedules import (
    OPTIMIZERS,
    SCHEDULES,
    advance,
    bare_twin,
    copy_rate,
    rates_of,
    scale_of,
    shake,
    small_mlp,
    two_rates,
)

pytestmark = pytest.mark.filterwarnings(
    "error", "ignore:TempBalance. the shapes of the layers", "ignore:TempBalance. one layer is scored"
)

SCORED = ["3", "6", "9"]
# one of each shape that TempBalance has to look into: plain, driving momentum, watching a metric, nested
SHAPES = ["cosine", "warm_restarts", "one_cycle", "cyclic_triangular", "plateau_per_group", "sequential", "chained"]
SHAPES += ["sequential_in_chained", "chained_in_sequential", "swa"]


def balanced(build=None, *, kind="sgd", seed=0, groups=None, **options):
    """A model, its optimizer, and TempBalance on a schedule."""
    model = small_mlp(seed)
    optimizer = OPTIMIZERS[kind](param_groups(model, groups and groups(model)))
    schedule = build and build(optimizer)
    return model, optimizer, TempBalance(optimizer, model, schedule, **nested({"min_eigenvalues": 8, **options}))


def assert_follows(scheduler, twin, rel):
    """Each group trains at the twin's rate times the scale of its layer."""
    groups = scheduler.optimizer.param_groups
    for group, bare in zip(groups, twin.param_groups, strict=True):
        expected = float(bare["lr"]) * scale_of(scheduler, group)
        assert math.isclose(float(group["lr"]), expected, rel_tol=rel), (group.get("layer"), group["lr"], expected)
        assert group.get("momentum") == bare.get("momentum")
        assert group.get("betas") == bare.get("betas")
    assert [float(rate) for rate in scheduler.get_last_lr()] == rates_of(scheduler.optimizer)


def snapshot(scheduler):
    """All that a failed call must leave as it was."""
    return repr((scheduler.state_dict(), rates_of(scheduler.optimizer), scheduler.get_last_lr()))


# rates


def test_every_scheduler_of_torch_is_in_the_table():
    optimizer = SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
    known = {
        each
        for each in vars(lr_scheduler).values()
        if isinstance(each, type) and issubclass(each, LRScheduler) and each.__module__ == lr_scheduler.__name__
    }
    covered = {type(build(optimizer)) for build in SCHEDULES.values()}
    assert known - covered == {LRScheduler, lr_scheduler._LRScheduler}


def assert_never_compounds(name, kind, *, num_epochs):
    model = small_mlp()
    optimizer = OPTIMIZERS[kind](param_groups(model, two_rates(model)))
    twin = bare_twin(optimizer)
    schedule = SCHEDULES[name](twin)
    scheduler = TempBalance(optimizer, model, SCHEDULES[name](optimizer), min_eigenvalues=8, interval=5)
    scales = {tuple(scheduler.last_scales.values())}
    assert_follows(scheduler, twin, 1e-12)
    for epoch in range(num_epochs):
        shake(model, epoch)
        twin.step()
        optimizer.step()
        advance(schedule, epoch)
        advance(scheduler, epoch)
        assert_follows(scheduler, twin, 1e-12)
        scales.add(tuple(scheduler.last_scales.values()))
    assert len(scales) == num_epochs // 5 + 1
    assert scheduler.last_epoch == num_epochs


@pytest.mark.parametrize("name", SCHEDULES)
def test_scales_never_compound(name):
    assert_never_compounds(name, "sgd", num_epochs=40)


@pytest.mark.parametrize("name", ["exponential", "one_cycle", "cyclic_triangular2"])
def test_scales_never_compound_where_a_schedule_drives_betas(name):
    assert_never_compounds(name, "adamw", num_epochs=40)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [("multistep", "sgd"), ("cosine_floor", "adamw"), ("multiplicative_per_group", "sgd"), ("one_cycle", "adamw"),
     ("linear_decay", "sgd"), ("plateau_per_group", "sgd"), ("sequential_in_chained", "adamw")],
)  # fmt: skip
def test_scales_never_compound_over_200_epochs(name, kind):
    assert_never_compounds(name, kind, num_epochs=200)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in SCHEDULES), *((name, torch.float64) for name in ("cosine", "multiplicative"))],
    ids=str,
)
def test_a_tensor_rate_is_written_in_place_in_each_group_on_its_own(name, dtype):
    model = small_mlp()
    optimizer = SGD(param_groups(model), lr=torch.tensor(0.1, dtype=dtype), momentum=0.9)
    dummies = [{"params": [nn.Parameter(torch.zeros(2))]} for _ in optimizer.param_groups]
    twin = SGD(dummies, lr=torch.tensor(0.1, dtype=dtype), momentum=0.9)
    schedule, own = SCHEDULES[name](twin), SCHEDULES[name](optimizer)
    for group in twin.param_groups:  # torch gives all groups the same Tensor
        group["lr"] = copy_rate(group["lr"])
    default = float(optimizer.defaults["lr"])
    scheduler = TempBalance(optimizer, model, own, min_eigenvalues=8, interval=5)
    tensors = [group["lr"] for group in optimizer.param_groups]
    assert len({id(each) for each in [*tensors, optimizer.defaults["lr"]]}) == len(tensors) + 1
    assert_follows(scheduler, twin, torch.finfo(dtype).eps)
    for epoch in range(20):
        shake(model, epoch)
        twin.step()
        optimizer.step()
        advance(schedule, epoch)
        advance(scheduler, epoch)
        assert_follows(scheduler, twin, torch.finfo(dtype).eps)
    assert all(group["lr"] is each for group, each in zip(optimizer.param_groups, tensors, strict=True))
    assert {each.dtype for each in tensors} == {dtype}
    assert float(optimizer.defaults["lr"]) == default


@pytest.mark.parametrize("number", [float, torch.tensor], ids=["float", "tensor"])
def test_without_a_schedule_the_base_rate_stays(number):
    model = small_mlp()
    optimizer = SGD(param_groups(model), lr=number(0.3))
    scheduler = TempBalance(optimizer, model, min_eigenvalues=8)
    for epoch in range(20):
        shake(model, epoch)
        optimizer.step()
        scheduler.step()
        expected = [0.3 * scale_of(scheduler, group) for group in optimizer.param_groups]
        assert rates_of(optimizer) == pytest.approx(expected, rel=1e-6)
    assert {*scheduler.last_scales} == {*SCORED}


@pytest.mark.parametrize(
    ("name", "number"),
    [*((name, float) for name in ("cosine", "multiplicative", "linear_warmup", "plateau", "chained")),
     ("cosine", torch.tensor)],
)  # fmt: skip
def test_a_rate_of_zero_stays_zero_beside_another(name, number):
    model, optimizer, scheduler = balanced(SCHEDULES[name], groups=lambda model: two_rates(model, (number(0.0), 0.1)))
    for epoch in range(12):
        shake(model, epoch)
        optimizer.step()
        advance(scheduler, epoch)
        for group in optimizer.param_groups:
            assert (float(group["lr"]) == 0) == (group["params"][0].dim() > 1)


def test_layers_at_several_base_rates_keep_their_proportion():
    model = small_mlp()
    groups = [{"params": model[:6].parameters(), "lr": 0.2}, {"params": model[6:].parameters(), "lr": 0.05}]
    optimizer = SGD(param_groups(model, groups), lr=1.0)
    scheduler = TempBalance(optimizer, model, ExponentialLR(optimizer, 0.9), min_eigenvalues=8)
    optimizer.step()
    scheduler.step()
    expected = {"0": 0.2, "3": 0.2, "6": 0.05, "9": 0.05, "12": 0.05}
    assert {group["layer"]: group["lr"] for group in optimizer.param_groups} == pytest.approx(
        {name: 0.9 * rate * scheduler.last_scales.get(name, 1) for name, rate in expected.items()}, rel=1e-12
    )


def test_larger_scores_get_larger_rates():
    _, optimizer, scheduler = balanced()
    rates = {group["layer"]: group["lr"] for group in optimizer.param_groups}
    assert sorted(SCORED, key=rates.get) == sorted(SCORED, key=scheduler.last_scores.get)
    assert min(rates.values()) == pytest.approx(0.05)
    assert max(rates.values()) == pytest.approx(0.15)
    assert rates["0"] == rates["12"] == 0.1


def test_gradient_accumulation_steps_as_often_as_the_optimizer():
    model, optimizer, scheduler = balanced(SCHEDULES["cosine"])
    twin = bare_twin(optimizer)
    for group in twin.param_groups:
        group["lr"] = 0.1
    schedule = SCHEDULES["cosine"](twin)
    for batch in range(24):
        torch.manual_seed(batch)
        (model(torch.randn(8, 16)).square().mean() / 4).backward()
        assert_follows(scheduler, twin, 1e-12)
        if batch % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            twin.step()
            schedule.step()
    assert scheduler.last_epoch == 6
    assert_follows(scheduler, twin, 1e-12)


def test_a_step_that_grad_scaler_skips_moves_no_weight_and_no_scale():
    model, optimizer, scheduler = balanced(SCHEDULES["exponential"])
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    base, skipped = 0.1, 0
    for batch in range(8):
        optimizer.zero_grad()
        torch.manual_seed(batch)
        scaler.scale(model(torch.randn(8, 16)).square().mean()).backward()
        if batch in (2, 3, 6):
            model[3].weight.grad[0, 0] = math.inf
        weights, scales, scale = (
            [each.clone() for each in model.parameters()],
            scheduler.last_scales,
            scaler.get_scale(),
        )
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        base *= 0.96
        if scaler.get_scale() < scale:
            skipped += 1
            assert all(map(torch.equal, weights, model.parameters()))
            assert scheduler.last_scales == scales
        else:
            assert scheduler.last_scales != scales
        expected = [base * scale_of(scheduler, group) for group in optimizer.param_groups]
        assert rates_of(optimizer) == pytest.approx(expected, rel=1e-12)
    assert skipped == 3


def test_muon_beside_adamw_ranks_over_all_layers_of_the_model():
    model = small_mlp()
    matrices = [each for each in model.parameters() if each.dim() == 2]
    held, others = matrices[:3], [each for each in model.parameters() if not any(each is one for one in matrices[:3])]
    muon = Muon(param_groups(model, held), lr=0.02)
    adamw = AdamW(param_groups(model, others), lr=0.001)
    schedulers = [
        TempBalance(each, model, CosineAnnealingLR(each, T_max=10), min_eigenvalues=8) for each in (muon, adamw)
    ]
    _, _, alone = balanced()
    assert [group.get("layer") for group in muon.param_groups] == ["0", "3", "6"]
    assert {group.get("layer") for group in adamw.param_groups} == {"0", "3", "6", "9", "12"}
    for epoch in range(6):
        assert schedulers[0].last_scales == schedulers[1].last_scales
        assert epoch or schedulers[0].last_scales == alone.last_scales
        assert sorted(schedulers[0].last_scales) == SCORED
        for optimizer, rate in ((muon, 0.02), (adamw, 0.001)):
            base = rate * (1 + math.cos(math.pi * epoch / 10)) / 2
            expected = [base * scale_of(schedulers[0], group) for group in optimizer.param_groups]
            assert rates_of(optimizer) == pytest.approx(expected, rel=1e-12)
        torch.manual_seed(epoch)
        model(torch.randn(8, 16)).square().mean().backward()
        for optimizer in (muon, adamw):
            optimizer.step()
            optimizer.zero_grad()
        for scheduler in schedulers:
            scheduler.step()


def test_warm_restarts_step_by_fractions_of_an_epoch():
    model, optimizer, scheduler = balanced(lambda each: CosineAnnealingWarmRestarts(each, T_0=3, T_mult=2))
    twin = SGD([{"params": [nn.Parameter(torch.zeros(2))]} for _ in optimizer.param_groups], lr=0.1, momentum=0.9)
    schedule = CosineAnnealingWarmRestarts(twin, T_0=3, T_mult=2)
    seen = set()
    for batch in range(60):
        shake(model, batch)
        twin.step()
        optimizer.step()
        schedule.step(batch / 7)
        scheduler.step(batch / 7)
        assert_follows(scheduler, twin, 1e-12)
        seen.add(twin.param_groups[0]["lr"])
    assert len(seen) > 40


def test_unlabelled_groups_keep_scale_1():
    model = small_mlp()
    optimizer = SGD(param_groups(model), lr=0.1)
    extra = nn.Parameter(torch.zeros(3))
    optimizer.add_param_group({"params": [extra], "lr": 0.7})
    scheduler = TempBalance(optimizer, model, ExponentialLR(optimizer, 0.5), min_eigenvalues=8)
    assert optimizer.param_groups[-1]["lr"] == 0.7
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[-1]["lr"] == pytest.approx(0.35)


# when it scores


@pytest.mark.parametrize(("start", "interval"), [(0, 1), (4, 1), (0, 3), (1, 3), (4, 7)])
def test_layers_are_scored_at_start_and_every_interval_from_there(start, interval):
    model, optimizer, scheduler = balanced(SCHEDULES["cosine"], start=start, interval=interval)
    for call in range(20):
        if call:
            previous = scheduler.last_scores
            shake(model, call)
            optimizer.step()
            scheduler.step()
            is_due = call >= start and (call - start) % interval == 0
            assert (scheduler.last_scores != previous) == is_due
        base = 0.1 * (1 + math.cos(math.pi * call / 200)) / 2
        expected = [base * scale_of(scheduler, group) for group in optimizer.param_groups]
        assert rates_of(optimizer) == pytest.approx(expected, rel=1e-9)
        assert bool(scheduler.last_scales) == bool(scheduler.last_scores) == (call >= start)


@pytest.mark.parametrize("number", [float, torch.tensor], ids=["float", "tensor"])
def test_rescore_writes_the_rates_at_once_and_counts_nothing(number):
    model = small_mlp()
    optimizer = SGD(param_groups(model), lr=number(0.1))
    schedule = StepLR(optimizer, 1, gamma=0.5)
    scheduler = TempBalance(optimizer, model, schedule, min_eigenvalues=8, interval=100, start=50)
    assert scheduler.last_scales == {}
    for epoch in range(5):
        before = scheduler.last_scales
        shake(model, epoch)
        scheduler.rescore()
        assert scheduler.last_scales != before
        expected = [0.1 * scale_of(scheduler, group) for group in optimizer.param_groups]
        assert rates_of(optimizer) == pytest.approx(expected, rel=1e-6)
        assert [float(each) for each in scheduler.get_last_lr()] == rates_of(optimizer)
    assert scheduler.last_epoch == schedule.last_epoch == 0


def test_rescore_reads_the_weights_as_they_are():
    model, _, scheduler = balanced()
    shake(model, 1)
    scheduler.rescore()
    fresh = TempBalance(SGD(param_groups(model), lr=0.1), model, min_eigenvalues=8)
    assert scheduler.last_scores == fresh.last_scores


# what goes wrong while it runs


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, math.nan) for name in ("cosine", "one_cycle", "plateau", "sequential_in_chained", None)),
        (None, math.inf),
    ],
)
def test_a_bad_weight_is_named_and_nothing_moves(name, value):
    model, optimizer, scheduler = balanced(name and SCHEDULES[name])
    for epoch in range(3):
        train_step(model, optimizer, torch.ones(4, 16))
        advance(scheduler, epoch)
    before = snapshot(scheduler)
    kept = model[6].weight.detach().clone()
    with torch.no_grad():
        model[6].weight[2, 3] = value
    with raises(TempBalanceError, "'6'"):
        advance(scheduler, 3)
    assert snapshot(scheduler) == before
    with raises(TempBalanceError, "'6'"):
        scheduler.rescore()
    assert snapshot(scheduler) == before
    with torch.no_grad():
        model[6].weight.copy_(kept)
    advance(scheduler, 3)
    assert scheduler.last_epoch == 4


def test_a_bad_weight_at_the_first_scoring_leaves_the_optimizer_as_it_was():
    model = small_mlp()
    optimizer = SGD(param_groups(model), lr=0.1)
    nn.init.constant_(model[3].weight, math.nan)
    with raises(TempBalanceError, "'3'"):
        TempBalance(optimizer, model, min_eigenvalues=8)
    assert set(rates_of(optimizer)) == {0.1}
    assert "initial_lr" not in optimizer.param_groups[0]


class Failing(ExponentialLR):
    """Fails half way: some rates are written already."""

    fails = False

    def step(self, epoch=None):
        if self.fails:
            self.optimizer.param_groups[0]["lr"] = 123.0
            raise KeyboardInterrupt
        super().step(epoch)


def test_an_exception_in_the_schedule_leaves_the_scaled_rates_in_place():
    model, optimizer, scheduler = balanced(lambda each: Failing(each, 0.9))
    shake(model, 1)
    scheduler.schedule.fails = True
    before = snapshot(scheduler)
    with pytest.raises(KeyboardInterrupt):
        scheduler.step()
    assert snapshot(scheduler) == before
    scheduler.schedule.fails = False
    optimizer.step()
    scheduler.step()
    expected = [0.09 * scale_of(scheduler, group) for group in optimizer.param_groups]
    assert rates_of(optimizer) == pytest.approx(expected, rel=1e-12)


def test_one_cycle_past_its_end_says_so_each_time_and_keeps_the_scaled_rates():
    model, optimizer, scheduler = balanced(lambda each: OneCycleLR(each, 0.1, total_steps=4))
    for _ in range(4):
        optimizer.step()
        scheduler.step()
    before = rates_of(optimizer)
    for _ in range(2):
        shake(model, 1)
        with raises(ValueError, 4):
            scheduler.step()
        assert rates_of(optimizer) == before


# what it refuses


@pytest.mark.parametrize("position", [0, 1, 2])
def test_it_refuses_to_be_inside_sequential(position):
    _, optimizer, scheduler = balanced()
    parts = [ConstantLR(optimizer), ExponentialLR(optimizer, 0.9)]
    parts.insert(position, scheduler)
    with raises(RuntimeError, "`schedule`"):
        SequentialLR(optimizer, parts, milestones=[1, 2])


def test_it_refuses_to_be_inside_sequential_with_a_schedule_of_its_own():
    _, optimizer, scheduler = balanced(SCHEDULES["cosine"])
    with raises(RuntimeError, "`schedule`"):
        SequentialLR(optimizer, [scheduler, ExponentialLR(optimizer, 0.9)], milestones=[3])


def test_inside_a_chain_it_warns_once_that_something_else_sets_the_rates():
    _, optimizer, scheduler = balanced(SCHEDULES["cosine"])
    chain = ChainedScheduler([scheduler, ExponentialLR(optimizer, 0.9)])
    optimizer.step()
    chain.step()
    with warns(UserWarning, "`schedule`", *SCORED):
        chain.step()
    chain.step()


def test_without_a_schedule_it_follows_the_others_of_a_chain():
    model, optimizer, scheduler = balanced()
    chain = ChainedScheduler([ExponentialLR(optimizer, 0.9), scheduler])
    for epoch in range(4):
        shake(model, epoch)
        optimizer.step()
        chain.step()
        expected = [0.1 * 0.9 ** (epoch + 1) * scale_of(scheduler, group) for group in optimizer.param_groups]
        assert rates_of(optimizer) == pytest.approx(expected, rel=1e-12)


def test_it_refuses_to_be_inside_a_chain_that_it_is_given():
    model, optimizer, scheduler = balanced()
    chain = ChainedScheduler([ExponentialLR(optimizer, 0.9), scheduler])
    outer = TempBalance(optimizer, model, chain, min_eigenvalues=8)
    optimizer.step()
    with raises(RuntimeError, "another TempBalance"):
        outer.step()


def test_it_refuses_itself_as_schedule():
    model, optimizer, scheduler = balanced()
    with raises(TypeError, "schedule", "TempBalance"):
        TempBalance(optimizer, model, scheduler)


def test_plateau_needs_its_metric():
    _, optimizer, scheduler = balanced(SCHEDULES["plateau"])
    before = snapshot(scheduler)
    with raises(TypeError, "ReduceLROnPlateau"):
        scheduler.step()
    assert snapshot(scheduler) == before
    optimizer.step()
    scheduler.step(metrics=0.5)
    assert scheduler.schedule.best == 0.5
    scheduler.step(torch.tensor(0.25))
    assert scheduler.schedule.best == 0.25


def test_arguments_for_no_schedule_are_refused():
    _, _, scheduler = balanced()
    with raises(TypeError, 0.5):
        scheduler.step(0.5)
    assert scheduler.last_epoch == 0


@pytest.mark.parametrize(
    ("name", "told"),
    [("cosine", "CosineAnnealingLR"), ("plateau", "ReduceLROnPlateau"), ("sequential", "SequentialLR"),
     ("chained", "ChainedScheduler"), ("sequential_in_chained", "ChainedScheduler")],
)  # fmt: skip
def test_a_schedule_of_another_optimizer_is_refused(name, told):
    model, optimizer, _ = balanced()
    schedule = SCHEDULES[name](bare_twin(optimizer))
    with raises(ValueError, told):
        TempBalance(optimizer, model, schedule)


@pytest.mark.parametrize("name", [*SHAPES, "lambda_per_group", "multiplicative_per_group", "cyclic_per_group"])
def test_a_schedule_built_before_the_split_is_refused(name):
    model = small_mlp()
    optimizer = SGD(two_rates(model), lr=0.1, momentum=0.9)
    schedule = SCHEDULES[name](optimizer)
    split_param_groups(optimizer, model)
    before = rates_of(optimizer)
    with raises(ValueError, 2, len(optimizer.param_groups)):
        TempBalance(optimizer, model, schedule, min_eigenvalues=8)
    assert rates_of(optimizer) == before


def test_plateau_built_before_the_split_works():
    model = small_mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    split_param_groups(optimizer, model)
    scheduler = TempBalance(optimizer, model, schedule, min_eigenvalues=8)
    for _ in range(3):
        optimizer.step()
        scheduler.step(1.0)
    expected = [0.025 * scale_of(scheduler, group) for group in optimizer.param_groups]
    assert rates_of(optimizer) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("label", [param_groups, lambda model: model.parameters()], ids=["labelled", "unlabelled"])
def test_an_optimizer_of_another_model_is_refused(label):
    optimizer = SGD(label(small_mlp(seed=1)), lr=0.1)
    with raises(ValueError, "optimizer", "model"):
        TempBalance(optimizer, small_mlp(), min_eigenvalues=8)
    assert set(rates_of(optimizer)) == {0.1}


def test_an_unlabelled_optimizer_is_refused():
    model = small_mlp()
    with raises(ValueError, "split_param_groups"):
        TempBalance(SGD(model.parameters(), lr=0.1), model)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("optimizer", "sgd"), ("model", "mlp"), ("schedule", "cosine"), ("schedule", CosineAnnealingLR)],
)
def test_arguments_of_the_wrong_type_are_refused(name, wrong):
    model, optimizer, _ = balanced()
    given = {"optimizer": optimizer, "model": model, "schedule": None, name: wrong}
    with raises(TypeError, name, type(wrong).__name__):
        TempBalance(**given)


BAD_OPTIONS = [
    {"scale_range": (0.0, 1.0)},
    {"scale_range": (-0.5, 1.0)},
    {"scale_range": (1.5, 0.5)},
    {"scale_range": (0.5,)},
    {"scale_range": (0.5, 1.0, 1.5)},
    {"scale_range": (0.5, math.inf)},
    {"scale_range": (math.nan, 1.0)},
    {"tail": "mode"},
    {"tail": None},
    {"tail_fraction": 0.0},
    {"tail_fraction": 1.0},
    {"tail_fraction": math.nan},
    {"score": "beta"},
    {"score": None},
    {"assignment": "cubic"},
    {"assignment": None},
    {"interval": 0},
    {"interval": -1},
    {"interval": 2.0},
    {"interval": True},
    {"start": -1},
    {"start": 0.5},
    {"min_eigenvalues": 2},
    {"min_eigenvalues": 8.0},
    {"exclude": "3"},
    {"fused": {"nowhere": 3}},
    {"fused": ["3"]},
]


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=lambda each: "-".join(f"{k}={v}" for k, v in each.items()))
def test_a_bad_option_is_refused_by_name_and_nothing_is_written(options):
    model = small_mlp()
    optimizer = SGD(param_groups(model), lr=0.1)
    with pytest.raises((ValueError, TypeError)) as caught:
        TempBalance(optimizer, model, **nested({"min_eigenvalues": 8, **options}))
    ((name, value),) = options.items()
    assert_carries(str(caught.value), name, *(value if isinstance(value, dict) else [repr(value)]))
    assert set(rates_of(optimizer)) == {0.1}
    assert "initial_lr" not in optimizer.param_groups[0]


def test_options_are_keyword_only():
    model, optimizer, _ = balanced()
    with raises(TypeError, "positional"):
        TempBalance(optimizer, model, None, (0.5, 1.5))


@pytest.mark.parametrize("name", [*SHAPES, "plateau", "linear_decay", "multiplicative"])
def test_a_schedule_that_somebody_else_steps_is_noticed(name):
    _, optimizer, scheduler = balanced(SCHEDULES[name])
    optimizer.step()
    advance(scheduler, 0)
    advance(scheduler.schedule, 1)
    with raises(RuntimeError, "schedule", "restore()"):
        advance(scheduler, 2)
    assert scheduler.last_epoch == 1


# one TempBalance after another


@pytest.mark.parametrize("number", [float, torch.tensor], ids=["float", "tensor"])
def test_a_second_one_takes_over_without_compounding(number):
    model = small_mlp()
    optimizer = SGD(param_groups(model), lr=number(0.1))
    schedule = ExponentialLR(optimizer, 0.9)
    first = TempBalance(optimizer, model, schedule, min_eigenvalues=8)
    base = 0.1
    for _ in range(3):
        optimizer.step()
        first.step()
        base *= 0.9
    second = TempBalance(optimizer, model, schedule, min_eigenvalues=8, scale_range=(0.2, 3.0))
    third = TempBalance(optimizer, model, schedule, min_eigenvalues=8, assignment="step")
    for earlier in (first, second):
        for refused in (earlier.step, earlier.rescore, lambda earlier=earlier: earlier.load_state_dict({})):
            with raises(RuntimeError, "TempBalance"):
                refused()
    for epoch in range(4):
        expected = [base * scale_of(third, group) for group in optimizer.param_groups]
        assert rates_of(optimizer) == pytest.approx(expected, rel=1e-6)
        shake(model, epoch)
        third.step()
        base *= 0.9


@pytest.mark.parametrize("name", [None, "exponential"])
def test_a_second_one_does_not_compound_when_the_first_is_gone(name):
    model, optimizer, scheduler = balanced(name and SCHEDULES[name])
    schedule = scheduler.schedule
    del scheduler
    second = TempBalance(optimizer, model, schedule, min_eigenvalues=8)
    expected = [0.1 * scale_of(second, group) for group in optimizer.param_groups]
    assert rates_of(optimizer) == pytest.approx(expected, rel=1e-12)


def test_a_second_one_follows_a_schedule_of_its_own_that_leaves_the_first_rate_as_it_is():
    model, optimizer, first = balanced(SCHEDULES["step"])
    twin = SGD([{"params": [nn.Parameter(torch.zeros(2))]} for _ in optimizer.param_groups], lr=0.1, momentum=0.9)
    bare = SCHEDULES["step"](twin)
    for _ in range(15):
        for each in (optimizer, first, twin, bare):
            each.step()
    second = TempBalance(optimizer, model, SCHEDULES["exponential"](optimizer), min_eigenvalues=8)
    bare = SCHEDULES["exponential"](twin)
    for epoch in range(25):
        assert_follows(second, twin, 1e-12)
        shake(model, epoch)
        second.step()
        bare.step()


@pytest.mark.parametrize("name", ["constant", "linear_warmup", "one_cycle", "cyclic_triangular", "chained"])
def test_a_second_one_with_a_schedule_that_was_built_on_scaled_rates_is_refused(name):
    model, optimizer, first = balanced(SCHEDULES["step"])
    schedule = SCHEDULES[name](optimizer)
    before = rates_of(optimizer)
    with raises(ValueError, "restore()"):
        TempBalance(optimizer, model, schedule, min_eigenvalues=8)
    assert rates_of(optimizer) == before
    with warns(UserWarning, "`schedule`"):
        first.rescore()  # still in charge


def test_a_refused_second_one_leaves_the_first_in_charge():
    model, optimizer, first = balanced(SCHEDULES["cosine"])
    before = snapshot(first)
    with raises(ValueError, "interval", 0):
        TempBalance(optimizer, model, first.schedule, interval=0)
    assert snapshot(first) == before
    optimizer.step()
    first.step()
    assert first.last_epoch == 1


# what it tells


@pytest.mark.parametrize("start", [0, 3])
def test_a_model_whose_layers_are_all_left_out_trains_at_the_base_rate_and_says_so_once(start):
    model = small_mlp()
    optimizer = SGD(param_groups(model), lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scheduler = TempBalance(optimizer, model, ExponentialLR(optimizer, 0.9), start=start)
        for epoch in range(6):
            assert rates_of(optimizer) == pytest.approx([0.1 * 0.9**epoch] * 5, rel=1e-12)
            shake(model, epoch)
            optimizer.step()
            scheduler.step()
        scheduler.rescore()
    assert len(caught) == 1
    assert_carries(str(caught[0].message), "min_eigenvalues", 50)
    assert scheduler.last_scores == scheduler.last_scales == {}


def test_a_model_without_layers_says_so_once():
    model = nn.Sequential(nn.LayerNorm(8))
    optimizer = SGD(param_groups(model), lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scheduler = TempBalance(optimizer, model)
        for _ in range(3):
            optimizer.step()
            scheduler.step()
        scheduler.rescore()
    assert [each.category for each in caught] == [UserWarning]
    assert rates_of(optimizer) == [0.1]


def test_the_warning_points_at_the_line_that_builds_it():
    model = small_mlp()
    optimizer = SGD(param_groups(model), lr=0.1)
    with pytest.warns(UserWarning, match="min_eigenvalues") as caught:
        TempBalance(optimizer, model)
    assert caught[0].filename == __file__


def test_stepping_before_the_optimizer_warns_as_torch_does():
    _, _, scheduler = balanced()
    with warns(UserWarning, "optimizer.step()"):
        scheduler.step()


def test_the_table_has_each_layer_with_its_numbers_or_the_reason():
    model = small_mlp()
    model[9].weight.requires_grad_(False)
    optimizer = SGD(param_groups(model), lr=0.1)
    scheduler = TempBalance(optimizer, model, min_eigenvalues=19, score_last=True, exclude=["12"])
    table = scheduler.table()
    assert [row.name for row in table] == ["0", "3", "6", "9", "12"]
    for row, carried in zip(
        table, [["first"], [], [18, "min_eigenvalues", 19], ["frozen"], ["exclude", "'12'"]], strict=True
    ):
        assert_carries(row.reason, *carried)
        assert bool(row.reason) == bool(carried)
    assert scheduler.last_scores == {"3": table["3"].score}
    assert table["3"].score == table["3"].alpha
    lines = str(table).splitlines()[1:]
    for line, row in zip(lines, table, strict=True):
        assert line.startswith(row.name + " ")
        assert row.reason in line
    assert f"{table['3'].alpha:.3f}" in lines[1]


def test_the_table_agrees_with_last_scores_and_last_scales():
    model, optimizer, scheduler = balanced()
    shake(model, 1)
    optimizer.step()
    scheduler.step()
    rows = {row.name: row for row in scheduler.table()}
    assert {name: row.score for name, row in rows.items() if row.score is not None} == scheduler.last_scores
    assert {name: rows[name].scale for name in SCORED} == scheduler.last_scales
    assert rows["0"].scale == rows["12"].scale == 1.0


def test_before_start_the_table_says_that_nothing_is_scored_yet():
    _, _, scheduler = balanced(start=2)
    table = scheduler.table()
    assert all(isinstance(row, LayerRow) for row in table)
    assert all(row.reason and row.score is None for row in table)
    assert [row.name for row in table] == ["0", "3", "6", "9", "12"]


# options


SCORES = ["alpha", "alpha_weighted", "log_alpha_norm", "spectral_norm", "stable_rank", "frobenius_norm", "entropy"]


@pytest.mark.parametrize(
    ("score", "tail", "assignment"),
    [*((score, "median", "linear") for score in SCORES), ("alpha", "goodness_of_fit", "linear"),
     ("alpha", "median_published", "linear"),
     ("alpha", "peak", "linear"), ("alpha_weighted", "peak", "step"), ("entropy", "median", "step")],
)  # fmt: skip
def test_each_score_and_tail_gives_rates_within_range(score, tail, assignment):
    options = {"score": score, "tail": tail, "assignment": assignment, "scale_range": (0.4, 1.7)}
    model, optimizer, scheduler = balanced(SCHEDULES["exponential"], **options, score_first=True, score_last=True)
    for epoch in range(4):
        scales = scheduler.last_scales
        assert [*scales] == ["0", "3", "6", "9", "12"]
        assert min(scales.values()) == 0.4
        assert max(scales.values()) == pytest.approx(1.7)
        assert max(scales.values()) <= 1.7
        ranked = sorted(scales, key=scheduler.last_scores.get)
        assert ranked == sorted(scales, key=scales.get)
        expected = [0.1 * 0.96**epoch * scales[group["layer"]] for group in optimizer.param_groups]
        assert rates_of(optimizer) == pytest.approx(expected, rel=1e-12)
        shake(model, epoch)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("assignment", ["sqrt", "log2"])
def test_sqrt_and_log2_keep_the_mean_rate(assignment):
    model, optimizer, scheduler = balanced(assignment=assignment)
    for epoch in range(4):
        scales = scheduler.last_scales
        assert sum(scales.values()) / len(scales) == pytest.approx(1.0, rel=1e-12)
        assert len(set(scales.values())) == 3
        shake(model, epoch)
        optimizer.step()
        scheduler.step()


def test_step_shares_the_range_out_by_rank():
    _, _, scheduler = balanced(assignment="step", score_first=True, score_last=True)
    assert sorted(scheduler.last_scales.values()) == pytest.approx([0.5, 0.75, 1.0, 1.25, 1.5])


def test_score_first_and_last_add_the_ends():
    assert [*balanced(score_first=True)[2].last_scores] == ["0", "3", "6", "9"]
    assert [*balanced(score_last=True)[2].last_scores] == ["3", "6", "9", "12"]
    assert [*balanced(exclude=["[36]"])[2].last_scores] == ["9"]


def test_tail_fraction_moves_the_scores():
    assert balanced(tail_fraction=0.25)[2].last_scores != balanced()[2].last_scores


def test_a_fused_weight_is_scored_by_its_parts():
    _, _, scheduler = balanced(fused={"6": 2}, min_eigenvalues=8)
    parts = scheduler.table()["6"].parts
    assert [part.num_eigenvalues for part in parts] == [9, 9]
    assert scheduler.last_scores["6"] == pytest.approx(sum(part.score for part in parts) / 2, rel=1e-12)


def test_score_tail_and_assignment_take_callables():
    seen = []

    def tail(spectrum):
        assert (spectrum.diff() >= 0).all()
        return TailFit(alpha=2.0 + len(spectrum), xmin=float(spectrum[len(spectrum) // 2]), ks=0.1, num_tail=4)

    def score(spectrum, fit):
        seen.append(len(spectrum))
        return fit.alpha * 10

    def assignment(scores, scale_range):
        assert scale_range == (0.5, 2.5)
        return {name: value / 200 for name, value in scores.items()}

    _, optimizer, scheduler = balanced(tail=tail, score=score, assignment=assignment, scale_range=(0.5, 2.5))
    assert sorted(seen) == [14, 18, 20]
    assert scheduler.last_scores == {"3": 220.0, "6": 200.0, "9": 160.0}
    assert scheduler.last_scales == {"3": 1.1, "6": 1.0, "9": 0.8}
    assert rates_of(optimizer) == pytest.approx([0.1, 0.11, 0.1, 0.08, 0.1])


def test_a_callable_that_gives_no_number_is_an_error_that_names_the_layer():
    _, _, scheduler = balanced(score=lambda spectrum, fit: math.nan, start=1)
    before = snapshot(scheduler)
    with raises(TempBalanceError, "'3'"):
        scheduler.rescore()
    assert snapshot(scheduler) == before


def test_an_assignment_that_forgets_a_layer_is_an_error_that_names_it():
    with raises(TempBalanceError, "'6'"):
        balanced(assignment=lambda scores, scale_range: {"3": 1.0, "9": 1.0})


def test_it_is_a_scheduler_of_torch():
    _, optimizer, scheduler = balanced(lambda each: LinearLR(each, 0.5, total_iters=2))
    assert isinstance(scheduler, LRScheduler)
    assert scheduler.base_lrs == [0.1] * 5
    assert scheduler.get_last_lr() == rates_of(optimizer)
    assert scheduler.last_epoch == 0


# rates that somebody else sets, and giving up


def test_a_rate_that_somebody_else_sets_is_overwritten_with_a_warning():
    _, optimizer, scheduler = balanced(SCHEDULES["exponential"])
    optimizer.step()
    before = rates_of(optimizer)
    for group in optimizer.param_groups:
        group["lr"] *= 0.1
    with warns(UserWarning, ["0", *SCORED, "12"]):
        scheduler.step()
    assert rates_of(optimizer) != before
    assert rates_of(optimizer) == scheduler.get_last_lr()


def test_restoring_puts_the_base_rates_back_and_a_new_schedule_can_be_built():
    model, optimizer, first = balanced(SCHEDULES["exponential"])
    optimizer.step()
    first.step()
    base = 0.1 * SCHEDULES["exponential"](SGD([nn.Parameter(torch.zeros(1))], lr=1.0)).gamma
    first.restore()
    assert rates_of(optimizer) == pytest.approx([base] * len(optimizer.param_groups), rel=1e-12)
    assert not any("balanced_lr" in group for group in optimizer.param_groups)
    with raises(RuntimeError, "TempBalance"):
        first.step()
    second = TempBalance(optimizer, model, ConstantLR(optimizer, 0.5), min_eigenvalues=8)
    expected = [base * 0.5 * scale_of(second, group) for group in optimizer.param_groups]
    assert rates_of(optimizer) == pytest.approx(expected, rel=1e-12)


def test_a_layer_without_a_labelled_group_says_so_in_the_table():
    model = small_mlp()
    optimizer = SGD([group for group in param_groups(model) if group.get("layer") != "6"], lr=0.1)
    scheduler = TempBalance(optimizer, model, min_eigenvalues=8)
    row = scheduler.table()["6"]
    assert row.score is not None
    assert row.scale == 1.0
    assert row.reason == "trained by another optimizer"


def test_a_function_stays_the_one_the_scheduler_was_built_with():
    def half(scores, scale_range):
        return dict.fromkeys(scores, 0.5)

    model, optimizer, named = balanced()
    state = named.state_dict()
    other = TempBalance(optimizer, model, min_eigenvalues=8, assignment=half)
    other.load_state_dict(state)
    assert other.options.assignment is half
    saved = other.state_dict()
    third = TempBalance(optimizer, model, min_eigenvalues=8)
    with raises(ValueError, "assignment", "linear"):
        third.load_state_dict(saved)


@pytest.mark.parametrize("wrong", [None, "high"])
def test_a_score_function_that_gives_no_number_is_named(wrong):
    model = small_mlp()
    with raises(tempbalance.ScoreError, "'3'", "score", repr(wrong)):
        TempBalance(SGD(param_groups(model), lr=0.1), model, min_eigenvalues=8, score=lambda spectrum, fit: wrong)


def test_an_assignment_function_that_gives_no_mapping_is_named():
    model = small_mlp()
    with raises(tempbalance.ScoreError, [1.0]):
        TempBalance(SGD(param_groups(model), lr=0.1), model, min_eigenvalues=8, assignment=lambda scores, _: [1.0])


def test_groups_of_a_part_of_the_model_are_refused_with_the_names_they_have_in_it():
    model = nn.ModuleDict({"body": small_mlp()})
    optimizer = SGD(param_groups(model["body"]), lr=0.1)
    with raises(ValueError, "'0'", "body.0"):
        TempBalance(optimizer, model, min_eigenvalues=8)


def test_an_exclude_pattern_that_matches_no_layer_is_told():
    model = small_mlp()
    with warns(UserWarning, "exclude", "'*.head'"):
        TempBalance(SGD(param_groups(model), lr=0.1), model, min_eigenvalues=8, exclude=["*.head", "3"])


# values that something else sets


def set_values(optimizer, name, change):
    for group in optimizer.param_groups:
        value = change(group[name])
        if isinstance(group[name], torch.Tensor):
            group[name].fill_(value)
        else:
            group[name] = value


@pytest.mark.parametrize("number", [float, torch.tensor], ids=["float", "tensor"])
@pytest.mark.parametrize("name", ["lr", "weight_decay"])
@pytest.mark.parametrize(
    ("change", "base"), [(lambda value: value * 0.1, 0.01), (lambda value: 0.03, 0.03)], ids=["decay", "set"]
)
def test_a_value_set_by_hand_is_a_new_base_value_and_a_decay_by_hand_a_decay_of_it(number, name, change, base):
    model = small_mlp()
    optimizer = SGD(param_groups(model), lr=number(0.1), weight_decay=0.1)
    targets = {"lr": (0.5, 1.5), "weight_decay": (0.5, 1.5)}
    scheduler = TempBalance(optimizer, model, min_eigenvalues=8, balance=targets)
    for epoch in range(3):
        optimizer.step()
        scheduler.step()
        if epoch == 1:
            set_values(optimizer, name, change)
    for group in optimizer.param_groups:
        assert float(group[name]) == pytest.approx(base * scale_of(scheduler, group), rel=1e-6)


def test_a_schedule_continues_from_a_rate_that_was_set_by_hand_and_says_so_once():
    _, optimizer, scheduler = balanced(SCHEDULES["exponential"])
    optimizer.step()
    scheduler.step()
    for _ in range(2):
        set_values(optimizer, "lr", lambda _: 0.5)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            scheduler.step()
        expected = [0.5 * 0.96 * scale_of(scheduler, group) for group in optimizer.param_groups]
        assert rates_of(optimizer) == pytest.approx(expected)
        assert len(caught) == (_ == 0)


# when layers are scored


def test_scales_stay_as_they_are_from_stop_on():
    model, optimizer, scheduler = balanced(SCHEDULES["exponential"], interval=2, stop=4)
    seen = []
    for epoch in range(8):
        shake(model, epoch)
        optimizer.step()
        scheduler.step()
        seen.append(scheduler.last_scales)
    assert seen[0] != seen[1] == seen[2] == seen[3] == seen[7]


@pytest.mark.parametrize(("options", "carried"), [({"stop": 0}, [0]), ({"start": 3, "stop": 3}, ["start", 3])])
def test_a_stop_before_the_start_is_refused(options, carried):
    with raises(ValueError, "stop", *carried):
        balanced(**options)


# what a step costs


class Synchronisations(TorchDispatchMode):
    """Counts the operations that make the host wait for a device."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default):
            self.found.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("number", [float, torch.tensor], ids=["float", "tensor"])
def test_a_step_with_nothing_due_reads_no_tensor(number):
    model = small_mlp()
    optimizer = SGD(param_groups(model), lr=number(0.1))
    scheduler = TempBalance(optimizer, model, ExponentialLR(optimizer, 0.9), min_eigenvalues=8, interval=100)
    optimizer.step()
    with Synchronisations() as mode:
        for _ in range(3):
            scheduler.step()
    assert mode.found == []
    with Synchronisations() as mode:
        float(torch.ones(()))
    assert len(mode.found) == 1  # the count sees what it should


def test_from_step_to_the_solve_there_are_at_most_eight_calls(monkeypatch):
    """Frames of our own in the thread that trains, up to where work is handed out, and in the thread that solves."""
    depths = {"submit": 0, "solve": 0}

    def noting(name, function):
        def noted(*args, **kwargs):
            ours = [each for each in traceback.extract_stack() if f"{os.sep}tempbalance{os.sep}" in each.filename]
            depths[name] = max(depths[name], len(ours))
            return function(*args, **kwargs)

        return noted

    _, optimizer, scheduler = balanced()
    optimizer.step()
    monkeypatch.setattr(torch.linalg, "eigvalsh", noting("solve", torch.linalg.eigvalsh))
    monkeypatch.setattr(ThreadPoolExecutor, "submit", noting("submit", ThreadPoolExecutor.submit))
    scheduler.step()
    assert min(depths.values()) > 0
    assert sum(depths.values()) <= 8, depths


# what a user meets


def test_several_networks_in_one_module_are_ranked_each_on_its_own():
    model = nn.ModuleDict({"generator": small_mlp(0), "discriminator": small_mlp(1)})
    shake(model["discriminator"], 0, size=2.0)  # its scores are far from the generator's
    options = {"min_eigenvalues": 8, "roots": ["generator", "discriminator"]}
    scheduler = TempBalance(SGD(param_groups(model), lr=0.1), model, **options)
    for root in options["roots"]:
        alone = TempBalance(SGD(param_groups(model[root]), lr=0.1), model[root], min_eigenvalues=8)
        expected = {f"{root}.{name}": scale for name, scale in alone.last_scales.items()}
        found = {name: scale for name, scale in scheduler.last_scales.items() if name.startswith(root)}
        assert found == expected
        assert {*map(len, (found, expected))} == {3}


def test_an_embedding_is_ranked_like_a_layer_on_request():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(40, 16), *small_mlp())
    optimizer = SGD(param_groups(model), lr=0.1)
    assert "0" not in TempBalance(optimizer, model, min_eigenvalues=8).last_scales
    scheduler = TempBalance(optimizer, model, min_eigenvalues=8, score_embeddings=True)
    group = next(group for group in optimizer.param_groups if group["layer"] == "0")
    assert group["lr"] == pytest.approx(0.1 * scheduler.last_scales["0"])


def test_a_module_that_was_replaced_is_named_at_the_next_scoring():
    model, optimizer, scheduler = balanced(interval=2)
    model[6] = nn.Linear(20, 18)
    optimizer.step()
    scheduler.step()
    before = snapshot(scheduler)
    with raises(RuntimeError, "'6'", "replaced"):
        scheduler.step()
    assert snapshot(scheduler) == before


def test_a_state_with_other_options_is_loaded_with_a_warning_that_lists_them():
    _, _, scheduler = balanced(interval=3, smooth=0.5)
    _, _, other = balanced(score_first=True)
    with warns(
        UserWarning, "interval=3 (given 1)", "comparison.smooth=0.5 (given 0.0)", "score_first=False (given True)"
    ):
        other.load_state_dict(scheduler.state_dict())
    assert other.options == scheduler.options


def test_a_hint_names_the_option_and_points_at_the_line_that_builds_it():
    model = mlp((64, 64, 64, 256, 64, 64, 256, 64, 64))
    with pytest.warns(UserWarning, match="Comparison") as caught:
        TempBalance(SGD(param_groups(model), lr=0.1), model)
    assert_carries(str(caught[0].message), "reference='random'", "%")
    assert (len(caught), caught[0].filename) == (1, __file__)


def test_scoring_that_takes_much_of_the_time_is_told_once(monkeypatch):
    now = iter(range(0, 10**6, 8))  # each look at the clock takes 8 seconds, so that scoring takes most of the time
    monkeypatch.setattr("tempbalance.execution.inline.time.perf_counter", lambda: next(now))
    _, optimizer, scheduler = balanced()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(6):
            optimizer.step()
            scheduler.step()
    assert len(caught) == 1
    assert_carries(str(caught[0].message), "`interval`", "budget")
    assert caught[0].filename == __file__


def test_the_locals_of_the_training_function_are_not_kept_alive():
    class Logits:
        pass

    def train(scheduler, optimizer):
        logits = Logits()
        optimizer.step()
        scheduler.step()
        return weakref.ref(logits)

    _, optimizer, scheduler = balanced()
    gc.disable()
    try:
        assert train(scheduler, optimizer)() is None
    finally:
        gc.enable()


# base values and odd numbers


@pytest.mark.parametrize(
    "build",
    [
        lambda each: ExponentialLR(each, np.exp(-0.01)),
        lambda each: CosineAnnealingLR(each, 50, eta_min=np.float64(1e-3)),
        lambda each: lr_scheduler.MultiplicativeLR(each, lambda _: np.float64(0.9)),
        lambda each: lr_scheduler.LambdaLR(each, lambda _: 1),
    ],
)
@pytest.mark.parametrize("rate", [0.1, 1])
def test_scales_never_compound_where_a_schedule_writes_numbers_of_numpy_or_whole_ones(build, rate):
    model = small_mlp()
    optimizer = SGD(param_groups(model), lr=rate)
    twin = bare_twin(optimizer)
    for group in twin.param_groups:
        group["lr"] = rate
    scheduler, bare = TempBalance(optimizer, model, build(optimizer), min_eigenvalues=8), build(twin)
    for _ in range(5):
        for each in (optimizer, twin, scheduler, bare):
            each.step()
        assert_follows(scheduler, twin, 1e-12)
        assert {type(group["lr"]) for group in optimizer.param_groups} == {float}


def test_a_rate_that_becomes_a_tensor_does_not_compound():
    _, optimizer, scheduler = balanced(SCHEDULES["exponential"])
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(0.05)
    with warns(UserWarning, "`schedule`"):
        scheduler.step()
    for epoch in range(1, 4):
        expected = [0.05 * 0.96**epoch * scale_of(scheduler, group) for group in optimizer.param_groups]
        assert rates_of(optimizer) == pytest.approx(expected, rel=1e-5)
        scheduler.step()


def test_values_that_were_made_of_scaled_ones_are_refused_and_nothing_changes():
    _, optimizer, scheduler = balanced()
    beside = CosineAnnealingLR(optimizer, 10, eta_min=1e-3)
    optimizer.step()
    for _ in range(3):
        beside.step()
    before = rates_of(optimizer)
    for act in (scheduler.step, scheduler.rescore):
        with raises(RuntimeError, "'lr'", "`schedule`"):
            act()
    assert rates_of(optimizer) == before
    assert scheduler.last_epoch == 0


def test_a_rate_set_to_what_was_written_is_a_new_base_rate_all_the_same():
    _, optimizer, scheduler = balanced()
    lowest = min(rates_of(optimizer))
    set_values(optimizer, "lr", lambda _: lowest + 0.0)
    optimizer.step()
    scheduler.step()
    expected = [lowest * scale_of(scheduler, group) for group in optimizer.param_groups]
    assert rates_of(optimizer) == pytest.approx(expected, rel=1e-12)


def test_the_state_of_an_optimizer_brings_its_base_rates_along():
    _, optimizer, scheduler = balanced()
    optimizer.step()
    set_values(optimizer, "lr", lambda rate: rate / 10)
    scheduler.step()
    _, other, later = balanced()
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    other.step()
    later.step()
    expected = [0.01 * scale_of(later, group) for group in other.param_groups]
    assert rates_of(other) == pytest.approx(expected, rel=1e-12)


def test_rates_that_are_set_before_every_step_are_told_once():
    _, optimizer, scheduler = balanced()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(4):
            set_values(optimizer, "lr", lambda _, step=step: 0.1 / (step + 2))
            optimizer.step()
            scheduler.step()
    assert len(caught) == 1
    assert_carries(str(caught[0].message), "`schedule`", "LambdaLR", *SCORED)


def test_an_error_of_the_assignment_leaves_everything_as_it_was():
    model, optimizer, scheduler = balanced(
        SCHEDULES["exponential"], assignment="log2", score="stable_rank", score_first=True
    )
    before = snapshot(scheduler)
    with torch.no_grad():
        model[6].weight.zero_()
        model[6].weight[0, 0] = 1.0  # a stable rank of 1, which has no logarithm above 0
    optimizer.step()
    with raises(TempBalanceError, "'6'", "log2"):
        scheduler.step()
    assert snapshot(scheduler) == before


def test_no_scales_change_from_stop_on_in_the_background_either():
    model, optimizer, scheduler = balanced(interval=2, stop=3, background=True, lag=2)
    seen = []
    for epoch in range(6):
        shake(model, epoch)
        optimizer.step()
        scheduler.step()
        seen.append(scheduler.last_scales)
    assert seen[2] == seen[3] == seen[5]
