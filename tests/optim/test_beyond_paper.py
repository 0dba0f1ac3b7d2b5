"""TempBalance beyond the paper: each option alone and all together keep its promises."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from tempbalance import Comparison, TempBalance, param_groups
from tempbalance.errors import ScoreError
from tempbalance.ranking.assign import assign
from tempbalance.spectral import eigenvalues
from tempbalance.spectral.random_matrix import random_alpha
from tempbalance.spectral.tail import TailFit, fit_tail
from tests.cases import mlp, nested, raises, train_step
from tests.optim.test_resume import ORDERS, PARTS, assert_same_weights, build, go_on, load, save

SIZES = (64, 96, 80, 320, 72, 60)  # "3", "6" and "9" are scored


def by_pairs(name):
    return "front" if int(name) < 6 else None


ALL = {
    "reference": "random",
    "windows": "square",
    "keep_mean": "parameters",
    "shrink": True,
    "smooth": 0.7,
    "blend": 3,
    "group_by": by_pairs,
    "balance": {"lr": (0.4, 1.6), "weight_decay": (2.0, 0.5)},
    "assignment": "sigmoid",
}
ALONE = [{name: value} for name, value in ALL.items()] + [
    {"assignment": "power"},
    {"windows": 6, "min_eigenvalues": 6},
    {"keep_mean": True},
    {"balance": {"weight_decay": (0.5, 2.0)}, "blend": 5},
    {"reference": "random", "tail": "goodness_of_fit"},
    {"reference": "random", "tail": "peak"},
]


def names_of(options):
    return "+".join(f"{name}={value}" for name, value in options.items() if not callable(value))[:60] or "function"


def scheduled(options, *, sizes=SIZES, seed=0, decay=0.1, **more):
    model = mlp(sizes, seed)
    optimizer = SGD(param_groups(model), lr=0.1, weight_decay=decay)
    return model, optimizer, TempBalance(optimizer, model, **nested({**options, **more}))


# options that keep something from one call to the next: stopped before and between scorings, with other schedules
KEEPING = [ALL, {"smooth": 0.7}, {"blend": 3}, {"balance": {"weight_decay": (0.5, 2.0)}, "blend": 5}]


@pytest.mark.parametrize(
    ("options", "name", "stop"),
    [*((options, "cosine", 7) for options in [*ALONE, ALL]),
     *((options, name, stop) for options in KEEPING for name, stop in [("one_cycle", 1), (None, 14)])],
    ids=lambda each: names_of(each) if isinstance(each, dict) else None,
)  # fmt: skip
def test_resuming_equals_never_having_stopped(options, name, stop):
    run, other = build(name, **options), build(name, seed=99, **options)
    go_on(run, 0, stop)
    saved = load(save(run))
    for part in ORDERS[stop % 6]:
        getattr(other, part).load_state_dict(saved[part])
    assert go_on(other, stop, 20) == go_on(run, stop, 20)
    assert_same_weights(other, run.model.parameters())
    assert str(other.scheduler.table()) == str(run.scheduler.table())
    for group, twin in zip(run.optimizer.param_groups, other.optimizer.param_groups, strict=True):
        assert group["weight_decay"] == twin["weight_decay"]


@pytest.mark.parametrize("options", [*ALONE, ALL], ids=names_of)
def test_options_come_from_the_state_and_functions_from_the_scheduler(options):
    run = build("cosine", **options)
    go_on(run, 0, 6)
    plain = build("cosine", seed=99, group_by=options.get("group_by"))
    for part in PARTS:
        getattr(plain, part).load_state_dict(load(save(run))[part])
    assert go_on(plain, 6, 16) == go_on(run, 6, 16)


@pytest.mark.parametrize("options", [*ALONE, ALL], ids=names_of)
def test_copies_and_pickles_go_on_alike(options):
    options = {**options, **({"group_by": None} if "group_by" in options else {})}
    run = build("cosine", **options)
    go_on(run, 0, 6)
    for other in (copy.deepcopy(run), pickle.loads(pickle.dumps(run))):
        assert go_on(other, 6, 12) == go_on(copy.deepcopy(run), 6, 12)


@pytest.mark.parametrize("options", [*ALONE, ALL], ids=names_of)
def test_every_rate_is_finite_for_weights_of_any_size(options):
    for factor in (1e-30, 1.0, 1e30):
        model = mlp(SIZES)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(factor)
        optimizer = SGD(param_groups(model), lr=0.1, weight_decay=0.1)
        scheduler = TempBalance(optimizer, model, **nested(options))
        for _ in range(4):
            optimizer.step()
            scheduler.step()
            values = [group[key] for group in optimizer.param_groups for key in ("lr", "weight_decay")]
            assert all(math.isfinite(value) and value >= 0 for value in values)


# reference and windows


def test_a_reference_divides_alpha_by_that_of_a_random_matrix_of_the_same_shape():
    _, _, plain = scheduled({})
    _, _, fair = scheduled({"reference": "random"})
    shapes = {"3": (96, 80), "6": (80, 320), "9": (320, 72)}
    expected = {
        name: plain.last_scores[name] / random_alpha(rows=rows, columns=columns)
        for name, (rows, columns) in shapes.items()
    }
    assert fair.last_scores == pytest.approx(expected, rel=1e-12)
    assert fair.table()["6"].alpha == plain.table()["6"].alpha
    # untrained layers are alike but for their shapes
    assert max(fair.last_scores.values()) < 1.1 * min(fair.last_scores.values())
    assert max(plain.last_scores.values()) > 1.4 * min(plain.last_scores.values())


def test_windows_make_layers_of_different_shapes_alike():
    _, _, scheduler = scheduled({"windows": "square"})
    scores = scheduler.last_scores
    assert max(scores.values()) < 1.1 * min(scores.values())
    assert scheduler.table()["6"].num_eigenvalues == 4 * 80


@pytest.mark.parametrize(
    ("options", "carried"),
    [
        ({"reference": "zero"}, ["reference", "'zero'"]),
        ({"reference": "random", "score": "entropy"}, ["reference", "'entropy'"]),
        ({"shrink": True, "score": "entropy"}, ["shrink", "'entropy'"]),
        ({"windows": 1}, ["windows", 1]),
        ({"blend": 0}, ["blend", 0]),
        ({"group_by": "blocks.*"}, ["group_by", "'blocks.*'"]),
        ({"balance": {"momentun": (0.5, 1.0)}}, ["balance", "'momentun'", "weight_decay"]),
        ({"balance": {"nesterov": (0.5, 1.0)}}, ["balance", "'nesterov'", False]),
    ],
)
def test_options_that_do_not_go_are_refused_and_nothing_is_written(options, carried):
    model = mlp(SIZES)
    optimizer = SGD(param_groups(model), lr=0.1)
    before = [dict(group) for group in optimizer.param_groups]
    with raises(ValueError, *carried):
        TempBalance(optimizer, model, **nested(options))
    assert [dict(group) for group in optimizer.param_groups] == before


# blend


def test_new_scales_are_reached_in_equal_parts():
    _model, optimizer, scheduler = scheduled({"blend": 4, "interval": 10})
    aim = assign(scheduler.last_scores)
    for call in range(1, 7):
        share = min(1.0, call / 4)
        expected = {name: 1 + share * (scale - 1) for name, scale in aim.items()}
        assert scheduler.last_scales == pytest.approx(expected, rel=1e-12)
        assert scheduler.table()["6"].scale == scheduler.last_scales["6"]
        optimizer.step()
        scheduler.step()
    assert scheduler.last_scales == aim


def test_a_scoring_on_the_way_turns_to_new_scales_from_where_they_are():
    model, optimizer, scheduler = scheduled({"blend": 4, "interval": 2})
    optimizer.step()
    scheduler.step()
    before = dict(scheduler.last_scales)
    with torch.no_grad():
        model[3].weight[:, :40] *= 5
    optimizer.step()
    scheduler.step()
    aim = assign(scheduler.last_scores)
    expected = {name: 0.75 * before[name] + 0.25 * aim[name] for name in aim}
    assert scheduler.last_scales == pytest.approx(expected, rel=1e-12)


def test_rescoring_takes_the_first_part_at_once():
    _, _optimizer, scheduler = scheduled({"blend": 2, "start": 1, "interval": 100})
    assert scheduler.last_scales == {}
    scheduler.rescore()
    aim = assign(scheduler.last_scores)
    assert scheduler.last_scales == pytest.approx({name: (1 + scale) / 2 for name, scale in aim.items()})


# other targets


def decays(optimizer):
    return [group["weight_decay"] for group in optimizer.param_groups]


def of_layers(optimizer, scales):
    return [scales.get(group.get("layer"), 1.0) for group in optimizer.param_groups]


def test_weight_decay_is_scaled_as_its_range_says_and_put_back():
    _model, optimizer, scheduler = scheduled({"balance": {"lr": (0.5, 1.5), "weight_decay": (2.0, 0.5)}})
    lr, decay = (
        of_layers(optimizer, assign(scheduler.last_scores, scale_range=ends, turned=True))
        for ends in ((0.5, 1.5), (2.0, 0.5))
    )
    assert decays(optimizer) == pytest.approx([0.1 * scale for scale in decay])
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1 * scale for scale in lr])
    assert scheduler.table()["6"].scales == {
        "weight_decay": assign(scheduler.last_scores, scale_range=(2.0, 0.5), turned=True)["6"]
    }
    assert "weight_decay" in str(scheduler.table())
    scheduler.restore()
    assert decays(optimizer) == [0.1] * len(decays(optimizer))
    assert not any(key.startswith("balanced_") for group in optimizer.param_groups for key in group)


def test_scales_of_a_target_never_compound():
    _, optimizer, scheduler = scheduled({"balance": {"weight_decay": (2.0, 4.0)}})
    for _ in range(5):
        optimizer.step()
        scheduler.step()
    assert max(decays(optimizer)) <= 0.1 * 4.0


def test_another_tempbalance_on_the_same_optimizer_starts_from_the_base_values():
    model, optimizer, _ = scheduled({"balance": {"weight_decay": (2.0, 4.0)}})
    TempBalance(optimizer, model)
    assert decays(optimizer) == [0.1] * len(decays(optimizer))


class DecaySchedule(LRScheduler):
    """Lowers the weight decay as it goes, from the group's present one."""

    def get_lr(self):
        for group in self.optimizer.param_groups:
            group["weight_decay"] *= 0.5
        return [group["lr"] for group in self.optimizer.param_groups]


def test_the_base_value_may_be_scheduled_by_the_schedule_even_from_its_present_value():
    model = mlp(SIZES)
    optimizer = SGD(param_groups(model), lr=0.1, weight_decay=0.8)
    scheduler = TempBalance(optimizer, model, DecaySchedule(optimizer), balance={"weight_decay": (0.5, 2.0)})
    for call in range(5):
        scales = of_layers(optimizer, assign(scheduler.last_scores, scale_range=(0.5, 2.0)))
        assert decays(optimizer) == pytest.approx([0.8 * 0.5 ** (call + 1) * scale for scale in scales])
        optimizer.step()
        scheduler.step()


def test_the_base_value_may_be_set_by_anybody_between_steps():
    _model, optimizer, scheduler = scheduled({"balance": {"weight_decay": (0.5, 2.0)}, "interval": 100})
    scales = of_layers(optimizer, assign(scheduler.last_scores, scale_range=(0.5, 2.0)))
    for call in range(1, 5):
        base = 0.1 / (call + 0.3)
        for group in optimizer.param_groups:
            group["weight_decay"] = base
        optimizer.step()
        scheduler.step()
        assert decays(optimizer) == pytest.approx([base * scale for scale in scales])
        scheduler.rescore()
        scheduler.step()
    scheduler.restore()
    assert decays(optimizer) == pytest.approx([base] * len(scales))


def test_momentum_that_a_cycle_drives_can_be_balanced():
    model = mlp(SIZES)
    optimizer = SGD(param_groups(model), lr=0.1, momentum=0.9)
    twin = SGD(mlp(SIZES).parameters(), lr=0.1, momentum=0.9)
    cycles = [OneCycleLR(each, max_lr=0.1, total_steps=10) for each in (optimizer, twin)]
    scheduler = TempBalance(optimizer, model, cycles[0], balance={"momentum": (0.9, 1.0)}, interval=3)
    for _ in range(8):
        scales = of_layers(optimizer, assign(scheduler.last_scores, scale_range=(0.9, 1.0)))
        base = twin.param_groups[0]["momentum"]
        assert [group["momentum"] for group in optimizer.param_groups] == pytest.approx(
            [base * each for each in scales]
        )
        for each in (optimizer, twin):
            each.step()
        scheduler.step()
        cycles[1].step()


def test_a_group_that_is_added_later_brings_its_own_decay():
    _model, optimizer, scheduler = scheduled({"balance": {"weight_decay": (0.5, 2.0)}})
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))], "weight_decay": 0.7})
    optimizer.step()
    scheduler.step()
    assert decays(optimizer)[-1] == 0.7


def test_a_state_with_another_target_is_refused_where_a_group_has_no_such_number():
    _, _, scheduler = scheduled({"balance": {"momentum": (0.5, 2.0)}})
    model = mlp(SIZES)
    optimizer = AdamW(param_groups(model), lr=0.1)
    other = TempBalance(optimizer, model)
    with raises(ValueError, "balance", "'momentum'"):
        other.load_state_dict(scheduler.state_dict())


def test_a_state_without_targets_puts_back_what_was_balanced():
    _, _, plain = scheduled({})
    _, optimizer, scheduler = scheduled({"balance": {"weight_decay": (2.0, 4.0)}}, seed=1)
    scheduler.load_state_dict(plain.state_dict())
    assert decays(optimizer) == [0.1] * len(decays(optimizer))


def test_with_a_budget_or_in_the_background_all_options_go_too():
    for more in ({"budget": 0.5, "interval": 1}, {"background": True, "interval": 2, "lag": 2}):
        model, optimizer, scheduler = scheduled({**ALL, **more})
        for step in range(8):
            train_step(model, optimizer, torch.randn(8, 64, generator=torch.Generator().manual_seed(step)))
            scheduler.step()
        assert len(scheduler.last_scores) == 3
        assert all(map(math.isfinite, decays(optimizer)))


def test_a_lambda_schedule_and_every_option_keep_the_mean_rate_of_the_scored_layers():
    model = mlp(SIZES)
    optimizer = SGD(param_groups(model), lr=0.1)
    schedule = LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch))
    scheduler = TempBalance(
        optimizer, model, schedule, comparison=Comparison(keep_mean=True, reference="random", blend=3, smooth=0.5)
    )
    for epoch in range(6):
        rates = [group["lr"] for group in optimizer.param_groups if group.get("layer") in scheduler.last_scores]
        names = {
            group["layer"]: group["lr"]
            for group in optimizer.param_groups
            if group.get("layer") in scheduler.last_scores
        }
        assert sum(names.values()) / len(names) == pytest.approx(0.1 / (1 + epoch)), rates
        optimizer.step()
        scheduler.step()


# what went wrong once


def test_a_state_with_an_option_out_of_range_is_refused_and_nothing_changes():
    _, optimizer, scheduler = scheduled({"balance": {"lr": (0.5, 1.5), "weight_decay": (2.0, 0.5)}})
    state, before = scheduler.state_dict(), [dict(group) for group in optimizer.param_groups]
    state["options"]["comparison.smooth"] = 5.0
    with raises(ValueError, "smooth", 5.0):
        scheduler.load_state_dict(state)
    assert [dict(group) for group in optimizer.param_groups] == before


def test_optimizers_that_share_a_tensor_do_not_scale_each_others_values():
    shared, runs = torch.tensor(0.1), []
    for seed in range(2):
        model = mlp(SIZES, seed)
        optimizer = SGD(param_groups(model), lr=0.1)
        for group in optimizer.param_groups:
            group["weight_decay"] = shared
        runs.append((optimizer, TempBalance(optimizer, model, balance={"weight_decay": (0.5, 2.0)})))
    for _ in range(3):
        for optimizer, scheduler in runs:
            optimizer.step()
            scheduler.step()
    for optimizer, scheduler in runs:
        scales = of_layers(optimizer, assign(scheduler.last_scores, scale_range=(0.5, 2.0)))
        assert [float(each) for each in decays(optimizer)] == pytest.approx([0.1 * scale for scale in scales])
    assert float(shared) == pytest.approx(0.1)


def test_a_base_value_that_was_set_just_before_saving_is_saved():
    runs = [scheduled({"balance": {"weight_decay": (0.5, 2.0)}}, seed=seed) for seed in (0, 0)]
    for group in runs[0][1].param_groups:
        group["weight_decay"] = 0.7
    for place in (1, 2):
        runs[1][place].load_state_dict(copy.deepcopy(runs[0][place].state_dict()))
    for _, optimizer, scheduler in runs:
        optimizer.step()
        scheduler.step()
    assert decays(runs[0][1]) == decays(runs[1][1])


def test_a_layer_that_is_left_out_goes_to_1_step_by_step():
    model, optimizer, scheduler = scheduled({"blend": 4, "interval": 4})
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    scale = scheduler.last_scales["6"]
    with torch.no_grad():
        model[6].weight.zero_()
    optimizer.step()
    scheduler.step()
    assert "6" not in scheduler.last_scores
    assert scheduler.last_scales["6"] == pytest.approx(0.75 * scale + 0.25)
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    assert scheduler.last_scales.get("6", 1.0) == 1.0


def test_a_whole_number_is_no_target():
    model = mlp(SIZES)
    optimizer = SGD(param_groups(model), lr=0.1)
    for group in optimizer.param_groups:
        group["ns_steps"] = 5
    with raises(ValueError, "balance", "'ns_steps'", 5):
        TempBalance(optimizer, model, balance={"ns_steps": (1.0, 2.0)})


class Tail:
    """Equal to every other, but no other fits the same."""

    def __init__(self, alpha):
        self.alpha = alpha

    def __call__(self, values):
        return TailFit(self.alpha * fit_tail(values).alpha, float(values[0]), 0.1, 8)

    def __eq__(self, other):
        return isinstance(other, Tail)

    __hash__ = None


def test_a_reference_is_that_of_the_very_function_hashable_or_not():
    for factor in (1.0, 3.0):
        _, _, scheduler = scheduled({"reference": "random", "tail": Tail(factor)})
        assert max(scheduler.last_scores.values()) < 1.2


def test_a_tail_function_that_gives_nothing_for_random_values_is_refused_with_the_layer():
    def tail(values):
        return fit_tail(values) if float(values[-1]) < 100 else None

    with raises(ScoreError, "layer", "TailFit", None):
        scheduled({"reference": "random", "tail": tail})


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(80, 64)
        self.conv = nn.Conv2d(64, 64, 3)
        self.attn = nn.MultiheadAttention(64, 4)
        self.fc = nn.Linear(64, 64)
        self.head = nn.Linear(64, 80)


def test_scales_by_kind_of_layer_need_no_spectra(monkeypatch):
    monkeypatch.setattr(eigenvalues, "gram_matrices", None)  # a solve would fail
    model = Block()
    optimizer = SGD(param_groups(model), lr=1.0)
    kinds = {"embedding": 5.0, "attention": 2.0, "feed-forward": 3.0, "head": 4.0, "convolution": 0.5}
    scheduler = TempBalance(optimizer, model, assignment=kinds)
    expected = {"embed": 5.0, "conv": 0.5, "attn.in_proj_weight": 2.0, "attn.out_proj": 2.0, "fc": 3.0, "head": 4.0}
    assert scheduler.last_scales == expected
    assert {group["layer"]: group["lr"] for group in optimizer.param_groups} == expected
    optimizer.step()
    scheduler.step()
    assert scheduler.last_scales == expected
    other = TempBalance(SGD(param_groups(model), lr=1.0), model, assignment={"head": 2.0})
    assert other.last_scales == {**dict.fromkeys(expected, 1.0), "head": 2.0}


def test_scales_by_kind_and_options_of_scores_are_refused_together():
    model = Block()
    with raises(ValueError, "reference"):
        TempBalance(
            SGD(param_groups(model), lr=1.0), model, assignment={"head": 2.0}, comparison=Comparison(reference="random")
        )


@pytest.mark.parametrize("assignment", ["shuffled", "shuffled:sqrt:3", "mean", {"head": 2.0}])
def test_a_control_resumes_as_if_it_had_never_stopped(assignment):
    def start(saved=None):
        torch.manual_seed(0)
        model = Block()
        optimizer = SGD(param_groups(model), lr=1.0)
        scheduler = TempBalance(optimizer, model, assignment=assignment)
        if saved is not None:
            scheduler.load_state_dict(saved)
        optimizer.step()
        return scheduler

    first = start()
    saved = first.state_dict()
    first.step()
    second = start(saved)
    second.step()
    assert first.last_scales == second.last_scales
    assert first.options.assignment == assignment
