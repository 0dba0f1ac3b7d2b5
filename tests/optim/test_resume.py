"""TempBalance saved, loaded, pickled and copied: going on equals never having stopped, to the bit."""

import copy
import io
import itertools
import json
import math
import pickle
import random
import re
import warnings
from collections import Counter
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    SequentialLR,
    StepLR,
)

from tempbalance import TempBalance, param_groups
from tests import cases
from tests.cases import mlp, raises, train_step
from tests.schedules import (
    OPTIMIZERS,
    SCHEDULES,
    advance,
    load_through_files,
    rates_of,
    scale_of,
    shake,
    small_mlp,
    two_rates,
)

# torch's own warns of a sequence on a copied optimizer, whose step is not wrapped any more
pytestmark = pytest.mark.filterwarnings(
    "error",
    "ignore:Seems like `optimizer.step",
    "ignore:TempBalance. the state's options",
    "ignore:TempBalance. one layer is scored",
)

NUM_STEPS = 32
STOPS = sorted(random.Random(7).sample(range(NUM_STEPS), 20))
RESUMED = [
    ("lambda_object", "sgd"),
    ("multiplicative_per_group", "adamw"),
    ("cosine_short", "adamw"),
    ("cyclic_exp_range", "sgd"),
    ("cyclic_triangular2", "adam"),
    ("one_cycle", "sgd"),
    ("one_cycle_three_phase", "adamw"),
    ("plateau", "sgd"),
    ("sequential_of_three", "sgd"),
    ("sequential_in_chained", "adamw"),
]

PARTS = ("model", "optimizer", "scheduler")
ORDERS = [*itertools.permutations(PARTS)]


def build(name, kind="sgd", *, seed=0, saved=None, rate=None, **options):
    """A run; an optimizer's state, if given, is loaded before anything is built on it."""
    model = small_mlp(seed)
    groups = two_rates(model, (0.05, 0.01)) if rate is None else two_rates(model, (rate, rate / 4))
    optimizer = OPTIMIZERS[kind](param_groups(model, groups))
    if saved is not None:
        optimizer.load_state_dict(saved)
    schedule = name and SCHEDULES[name](optimizer)
    options = {"min_eigenvalues": 8, "interval": 4, "start": 2, **options}
    return SimpleNamespace(
        model=model, optimizer=optimizer, scheduler=TempBalance(optimizer, model, schedule, **cases.nested(options))
    )


def go_on(run, start, stop):
    """Train, and give what was written at each step: rates, and the momentum or betas that the schedule drives."""
    written = []
    for step in range(start, stop):
        batch = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
        train_step(run.model, run.optimizer, batch)
        advance(run.scheduler, step)
        driven = [(group.get("momentum"), group.get("betas")) for group in run.optimizer.param_groups]
        written.append((rates_of(run.optimizer), driven))
    return written


def save(run):
    """The three states, through a file that holds nothing but numbers, strings and tensors."""
    file = io.BytesIO()
    torch.save({part: getattr(run, part).state_dict() for part in PARTS}, file)
    return file.getvalue()


def load(saved):
    return torch.load(io.BytesIO(saved), weights_only=True)


def assert_same_weights(run, weights):
    assert all(map(torch.equal, run.model.parameters(), weights))


@cache
def reference(name, kind):
    """What an uninterrupted run wrote, its last weights, and its state before each step."""
    run, written, states = build(name, kind), [], []
    for step in range(NUM_STEPS):
        states.append(save(run))
        written += go_on(run, step, step + 1)
    assert len(set(map(str, written))) > NUM_STEPS / 4
    return written, [each.detach().clone() for each in run.model.parameters()], states


def test_the_stops_lie_all_over_the_run():
    assert len(STOPS) == 20
    assert STOPS[0] < 5
    assert STOPS[-1] > 27


# each stop with two schedules, each schedule with four stops from all over the run
STOPPED = [(*each, stop) for turn, each in enumerate(RESUMED) for stop in STOPS[turn % 5 :: 5]]


@pytest.mark.parametrize(("name", "kind", "stop"), STOPPED)
def test_resuming_equals_never_having_stopped(name, kind, stop):
    written, weights, states = reference(name, kind)
    saved, run = load(states[stop]), build(name, kind, seed=99)
    for part in ORDERS[stop % 6]:
        getattr(run, part).load_state_dict(saved[part])
    assert go_on(run, stop, NUM_STEPS) == written[stop:]
    assert_same_weights(run, weights)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@pytest.mark.parametrize(("name", "kind"), [("one_cycle", "sgd"), ("sequential_in_chained", "adamw")])
def test_the_order_of_loading_does_not_matter(name, kind, order):
    written, weights, states = reference(name, kind)
    saved, run = load(states[17]), build(name, kind, seed=99)
    for part in order:
        getattr(run, part).load_state_dict(saved[part])
    assert go_on(run, 17, NUM_STEPS) == written[17:]
    assert_same_weights(run, weights)


@pytest.mark.parametrize(
    ("name", "kind", "stop"), [*((*each, 17) for each in RESUMED), ("one_cycle", "sgd", 1), ("plateau", "sgd", 1)]
)
def test_the_optimizer_can_be_loaded_before_the_rest_is_built(name, kind, stop):
    written, weights, states = reference(name, kind)
    saved = load(states[stop])
    run = build(name, kind, seed=99, saved=saved["optimizer"])
    run.scheduler.load_state_dict(saved["scheduler"])
    run.model.load_state_dict(saved["model"])
    assert go_on(run, stop, NUM_STEPS) == written[stop:]
    assert_same_weights(run, weights)


# all schedules at a float rate; at a Tensor one, those that multiply it, drive momentum, watch a metric or nest others
NUMBERS = [
    *((name, float) for name in SCHEDULES),
    *((name, torch.tensor) for name in ("multiplicative", "one_cycle", "plateau_per_group", "sequential_in_chained")),
]


@pytest.mark.parametrize(("name", "number"), NUMBERS)
def test_every_schedule_resumes(name, number):
    run = build(name, rate=number(0.05), interval=2, start=0)
    go_on(run, 0, 9)
    saved = load(save(run))
    other = build(name, rate=number(0.05), seed=99)
    for part in PARTS:
        getattr(other, part).load_state_dict(saved[part])
    assert rates_of(other.optimizer) == rates_of(run.optimizer)
    assert go_on(other, 9, 15) == go_on(run, 9, 15)
    assert_same_weights(other, run.model.parameters())
    assert str(other.scheduler.table()) == str(run.scheduler.table())


def test_it_resumes_without_a_schedule():
    run = build(None)
    go_on(run, 0, 9)
    saved, other = load(save(run)), build(None, seed=99, rate=0.7)
    for part in PARTS:
        getattr(other, part).load_state_dict(saved[part])
    assert go_on(other, 9, 20) == go_on(run, 9, 20)
    assert_same_weights(other, run.model.parameters())


@pytest.mark.parametrize("name", ["cosine", "sequential", "one_cycle", "plateau"])
def test_load_state_dict_alone_writes_the_rates_in_place_of_others(name):
    run = build(name)
    go_on(run, 0, 10)
    other = build(name, seed=99)
    before = rates_of(other.optimizer)
    other.scheduler.load_state_dict(run.scheduler.state_dict())
    assert rates_of(other.optimizer) == rates_of(run.optimizer) == other.scheduler.get_last_lr()
    assert rates_of(other.optimizer) != before
    assert other.scheduler.last_scores == run.scheduler.last_scores
    assert other.scheduler.last_epoch == 10
    assert other.scheduler.schedule.last_epoch == 10


@pytest.mark.parametrize("number", [float, torch.tensor], ids=["float", "tensor"])
def test_a_tensor_rate_keeps_its_place_when_a_state_is_loaded(number):
    run = build("exponential", rate=number(0.05))
    go_on(run, 0, 7)
    other = build("exponential", rate=torch.tensor(0.05), seed=99)
    tensors = [group["lr"] for group in other.optimizer.param_groups]
    other.scheduler.load_state_dict(load(save(run))["scheduler"])
    assert all(group["lr"] is each for group, each in zip(other.optimizer.param_groups, tensors, strict=True))
    assert [float(each) for each in tensors] == pytest.approx(rates_of(run.optimizer), rel=1e-6)


def test_an_optimizer_state_whose_groups_share_a_tensor_rate_can_be_loaded():
    model = small_mlp()
    plain = SGD(param_groups(model), lr=torch.tensor(0.1))  # never saw a TempBalance: torch shares the Tensor
    optimizer = SGD(param_groups(model), lr=torch.tensor(0.1))
    scheduler = TempBalance(optimizer, model, ExponentialLR(optimizer, 0.5), min_eigenvalues=8)
    optimizer.load_state_dict(plain.state_dict())
    optimizer.step()
    scheduler.step()
    expected = [0.05 * scheduler.last_scales.get(group["layer"], 1) for group in optimizer.param_groups]
    assert rates_of(optimizer) == pytest.approx(expected, rel=1e-6)


# copies


def pickled(run):
    return pickle.loads(pickle.dumps(run))


@pytest.mark.parametrize(
    ("name", "way"),
    [*((name, pickled) for name in SCHEDULES),
     *((name, copy.deepcopy) for name in ("lambda_object", "one_cycle", "plateau", "sequential_in_chained"))],
)  # fmt: skip
def test_a_copy_goes_on_like_the_original_and_apart_from_it(name, way):
    run = build(name, interval=2, start=0)
    go_on(run, 0, 6)
    other = way(run)
    assert other.scheduler.optimizer is other.optimizer
    assert other.scheduler.schedule.optimizer is other.optimizer
    expected = go_on(run, 6, 12)
    assert other.scheduler.last_epoch == 6
    assert go_on(other, 6, 12) == expected
    assert_same_weights(other, run.model.parameters())


@pytest.mark.parametrize("way", [copy.deepcopy, pickled])
def test_a_second_one_on_a_copied_optimizer_does_not_compound(way):
    run = build("exponential", start=0)
    other = way(run)
    second = TempBalance(other.optimizer, other.model, other.scheduler.schedule, min_eigenvalues=8)
    assert second.last_scales == run.scheduler.last_scales
    assert rates_of(other.optimizer) == pytest.approx(rates_of(run.optimizer), rel=1e-12)
    with raises(RuntimeError, "TempBalance"):
        other.scheduler.step()


# the state


def assert_plain(value):
    """Nothing but what ``weights_only=True`` loads."""
    if isinstance(value, dict):
        assert type(value) in (dict, Counter)
        for key, each in value.items():
            assert type(key) in (str, int)
            assert_plain(each)
    elif isinstance(value, list | tuple):
        assert type(value) in (list, tuple)
        for each in value:
            assert_plain(each)
    else:
        assert type(value) in (int, float, bool, str, type(None), torch.Tensor)


@pytest.mark.parametrize(("name", "number"), NUMBERS)
def test_a_state_holds_only_plain_types_and_is_a_snapshot(name, number):
    run = build(name, rate=number(0.05), start=0, interval=1)
    go_on(run, 0, 3)
    state = run.scheduler.state_dict()
    assert_plain(state)
    before = repr(state)
    shake(run.model, 0)
    go_on(run, 3, 6)
    assert repr(state) == before
    assert repr(run.scheduler.state_dict()) != before


def test_callables_are_left_out_of_the_state_and_stay_those_of_the_scheduler():
    def score(spectrum, fit):
        return fit.alpha**2

    def assignment(scores, scale_range):
        return {name: 1 + value / 100 for name, value in scores.items()}

    options = {"score": score, "assignment": assignment, "start": 0}
    run = build("cosine", **options)
    go_on(run, 0, 5)
    assert_plain(run.scheduler.state_dict())
    saved, other = load(save(run)), build("cosine", seed=99, **options)
    for part in PARTS:
        getattr(other, part).load_state_dict(saved[part])
    assert go_on(other, 5, 12) == go_on(run, 5, 12)


@pytest.mark.parametrize("name", ["lambda_object", "cyclic_own", "one_cycle", "sequential_in_chained", "multistep"])
def test_loading_changes_nothing_in_the_state_and_can_be_done_twice(name):
    run = build(name)
    go_on(run, 0, 9)
    state = run.scheduler.state_dict()
    before = repr(state)
    first, second = build(name, seed=1), build(name, seed=2)
    for other in (first, second):
        other.model.load_state_dict(run.model.state_dict())
        other.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
        other.scheduler.load_state_dict(state)
    go_on(first, 9, 12)
    first.model.load_state_dict(run.model.state_dict())
    first.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
    first.scheduler.load_state_dict(state)
    assert repr(state) == before
    expected = go_on(run, 9, 15)
    assert go_on(first, 9, 15) == expected
    assert go_on(second, 9, 15) == expected
    assert repr(state) == before


OTHER_OPTIONS = {
    "scale_range": (0.8, 1.1),
    "tail": "peak",
    "tail_fraction": 0.3,
    "score": "stable_rank",
    "assignment": "step",
    "interval": 7,
    "start": 0,
    "score_first": True,
    "score_last": True,
    "min_eigenvalues": 4,
    "exclude": ["3"],
    "fused": {"6": 2},
}


@pytest.mark.parametrize("option", OTHER_OPTIONS)
def test_a_state_brings_its_options_along(option):
    run = build("cosine")
    go_on(run, 0, 7)
    other = build("cosine", seed=99, **{option: OTHER_OPTIONS[option]})
    for part in PARTS:
        getattr(other, part).load_state_dict(load(save(run))[part])
    assert repr(other.scheduler.state_dict()) == repr(run.scheduler.state_dict())
    assert go_on(other, 7, 20) == go_on(run, 7, 20)


@pytest.mark.parametrize("option", OTHER_OPTIONS)
def test_a_state_with_other_options_than_the_defaults_is_loaded(option):
    run = build("cosine", **{option: OTHER_OPTIONS[option]})
    go_on(run, 0, 7)
    other = build("cosine", seed=99)
    for part in PARTS:
        getattr(other, part).load_state_dict(load(save(run))[part])
    assert go_on(other, 7, 20) == go_on(run, 7, 20)


def snapshot(run):
    schedule = run.scheduler.schedule
    return repr((run.scheduler.state_dict(), run.optimizer.param_groups, schedule and schedule.state_dict()))


def assert_refused(run, state, *carried):
    before = snapshot(run)
    with raises(ValueError, *carried):
        run.scheduler.load_state_dict(state)
    assert snapshot(run) == before
    go_on(run, 0, 1)


@pytest.mark.parametrize(
    ("saved", "built", "told"),
    [("cosine", "step", ["CosineAnnealingLR", "StepLR"]), ("cosine", None, ["CosineAnnealingLR"]),
     (None, "cosine", ["CosineAnnealingLR"])],
)  # fmt: skip
def test_a_state_of_another_schedule_is_refused_and_nothing_changes(saved, built, told):
    run = build(saved)
    go_on(run, 0, 4)
    assert_refused(build(built, seed=99), run.scheduler.state_dict(), *told)


def nested(kind, *parts):
    """A chain or a sequence of the parts."""

    def make(optimizer):
        inner = [part(optimizer) for part in parts]
        return (
            ChainedScheduler(inner) if kind == "chained" else SequentialLR(optimizer, inner, [3, 6][: len(inner) - 1])
        )

    return make


@pytest.mark.parametrize("kind", ["chained", "sequential"])
@pytest.mark.parametrize(
    "parts",
    [
        [ConstantLR, lambda each: StepLR(each, 2)],
        [lambda each: StepLR(each, 2), ConstantLR, LinearLR],
        [ConstantLR],
    ],
    ids=["other", "more", "fewer"],
)
def test_a_state_of_another_chain_or_sequence_is_refused_and_nothing_changes(kind, parts, monkeypatch):
    monkeypatch.setitem(SCHEDULES, "saved", nested(kind, lambda each: StepLR(each, 2), ConstantLR))
    monkeypatch.setitem(SCHEDULES, "built", nested(kind, *parts))
    run = build("saved")
    go_on(run, 0, 2)
    assert_refused(build("built", seed=99), run.scheduler.state_dict(), "StepLR", "ConstantLR")


def test_a_state_of_other_groups_is_refused_and_nothing_changes():
    run = build("cosine")
    go_on(run, 0, 4)
    model = nn.Sequential(nn.Linear(16, 20), nn.Linear(20, 20), nn.Linear(20, 16))
    optimizer = SGD(param_groups(model), lr=0.1)
    scheduler = TempBalance(optimizer, model, SCHEDULES["cosine"](optimizer), min_eigenvalues=8)
    other = SimpleNamespace(model=model, optimizer=optimizer, scheduler=scheduler)
    assert_refused(other, run.scheduler.state_dict(), "'12'", ["0", "1", "2"])


@pytest.mark.parametrize("state", [{}, {"version": 99}, {"last_epoch": 3, "base_lrs": [0.1]}])
def test_what_is_no_state_is_refused_and_nothing_changes(state):
    assert_refused(build("cosine"), state, "version", state.get("version"))


@pytest.mark.parametrize("key", ["bases", "base_lrs", "schedule"])
@pytest.mark.parametrize("value", [torch.ones(2), 10**400], ids=["tensor", "huge"])
def test_a_number_that_no_rate_can_be_is_refused_and_nothing_changes(key, value):
    run = build("cosine")
    state = run.scheduler.state_dict()
    values = {"bases": state["bases"]["lr"], "base_lrs": state["base_lrs"], "schedule": state["schedule"]["base_lrs"]}
    values[key][0] = value
    assert_refused(run, state, key)


def test_a_scale_that_no_float_can_be_is_refused_and_nothing_changes():
    run = build("cosine", start=0)
    state = run.scheduler.state_dict()
    scored = json.loads(state["scored"])
    aim = scored["blending"]["aim"]["lr"]
    aim[next(iter(aim))] = 10**400
    state["scored"] = json.dumps(scored)
    assert_refused(run, state, "blending")


def test_a_whole_number_in_place_of_a_scale_is_loaded_into_rates_that_are_tensors():
    model = small_mlp()
    optimizer = SGD(param_groups(model), lr=torch.tensor(0.1))
    scheduler = TempBalance(optimizer, model, min_eigenvalues=8)
    state = scheduler.state_dict()
    scored = json.loads(state["scored"])
    aim = scored["blending"]["aim"]["lr"]
    layer = next(iter(aim))
    aim[layer] = 2**80
    scheduler.load_state_dict({**state, "scored": json.dumps(scored)})
    (group,) = (each for each in optimizer.param_groups if each.get("layer") == layer)
    assert float(group["lr"]) == pytest.approx(0.1 * 2**80)


def test_the_state_of_a_torch_scheduler_is_refused():
    run = build("cosine")
    assert_refused(run, run.scheduler.schedule.state_dict(), "version", None)


def test_a_state_from_before_the_first_scoring_is_loaded_into_one_that_has_scored():
    run = build("cosine", start=6)
    go_on(run, 0, 2)
    other = build("cosine", seed=99, start=0)
    assert other.scheduler.last_scales
    for part in PARTS:
        getattr(other, part).load_state_dict(load(save(run))[part])
    assert other.scheduler.last_scales == {}
    assert all(row.reason and row.score is None for row in other.scheduler.table())
    assert go_on(other, 2, 10) == go_on(run, 2, 10)


def test_the_table_survives_the_file():
    run = build("cosine", start=0, exclude=["9"], fused={"6": 2})
    saved = load(save(run))
    other = build("cosine", seed=99, start=0)
    assert str(other.scheduler.table()) != str(run.scheduler.table())
    other.scheduler.load_state_dict(saved["scheduler"])
    assert [*other.scheduler.table()] == [*run.scheduler.table()]
    assert all(math.isfinite(row.score) for row in other.scheduler.table() if not row.reason)


def test_resuming_by_last_epoch_alone_is_refused_instead_of_compounding():
    model = small_mlp()
    optimizer = SGD(param_groups(model), lr=0.1)
    scheduler = TempBalance(optimizer, model, StepLR(optimizer, 2), min_eigenvalues=8)
    optimizer.step()
    scheduler.step()
    saved, state = copy.deepcopy(optimizer.state_dict()), scheduler.state_dict()
    optimizer = SGD(param_groups(model), lr=0.1)
    optimizer.load_state_dict(saved)
    resumed = TempBalance(optimizer, model, StepLR(optimizer, 2, last_epoch=1), min_eigenvalues=8)
    optimizer.step()
    for refused in (resumed.step, resumed.rescore):
        with raises(RuntimeError, "state_dict"):
            refused()
    resumed.load_state_dict(state)
    assert rates_of(optimizer) == scheduler.get_last_lr()


def test_a_group_that_was_added_right_before_saving_is_in_the_state():
    model = small_mlp()
    groups = param_groups(model)
    optimizer = SGD(groups[:-2], lr=0.1)
    scheduler = TempBalance(optimizer, model, min_eigenvalues=8)
    optimizer.add_param_group({**groups[-2], "lr": 0.2})
    state, saved = scheduler.state_dict(), copy.deepcopy(optimizer.state_dict())
    assert len(state["bases"]["lr"]) == len(state["groups"]) == len(optimizer.param_groups)
    bases = zip(state["bases"]["lr"], optimizer.param_groups, strict=True)
    expected = [base * scale_of(scheduler, group) for base, group in bases]
    other = SGD([dict(group) for group in param_groups(model)[:-1]], lr=0.1)
    resumed = TempBalance(other, model, min_eigenvalues=8)
    resumed.load_state_dict(state)
    other.load_state_dict(saved)
    other.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the rate of the new group was never written before saving
        resumed.step()
    assert rates_of(other) == pytest.approx(expected, rel=1e-12)


class _Wave:
    """A callable object whose state holds a function, which torch saves by its ``__dict__``."""

    def __init__(self, function):
        self.function = function

    def __call__(self, epoch):
        return self.function(epoch)


def test_a_state_leaves_the_functions_of_a_schedule_alone():
    model = small_mlp()
    optimizer = SGD(param_groups(model), lr=0.1)
    scheduler = TempBalance(optimizer, model, LambdaLR(optimizer, _Wave(lambda epoch: 0.9**epoch)), min_eigenvalues=8)
    scheduler.load_state_dict(scheduler.state_dict())
    optimizer.step()
    scheduler.step()
    expected = [0.09 * scale_of(scheduler, group) for group in optimizer.param_groups]
    assert rates_of(optimizer) == pytest.approx(expected, rel=1e-12)


def test_rates_set_by_hand_after_an_earlier_one_is_gone_count_when_it_is_built_once_more():
    model = small_mlp()
    optimizer = SGD(param_groups(model), lr=0.1)
    TempBalance(optimizer, model, min_eigenvalues=8)  # not kept
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    second = TempBalance(optimizer, model, min_eigenvalues=8)
    optimizer.step()
    with raises(RuntimeError, "restore()"):
        second.step()
    third = TempBalance(optimizer, model, min_eigenvalues=8)
    third.step()
    expected = [0.01 * scale_of(third, group) for group in optimizer.param_groups]
    assert rates_of(optimizer) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("options", [{}, {"background": True}, {"start": 2}])
def test_a_state_goes_through_torchs_distributed_checkpoints_before_and_after_a_scoring(tmp_path, options):
    def build():
        model = mlp((64, 96, 80, 72, 60))
        optimizer = SGD(param_groups(model), lr=0.1)
        return TempBalance(optimizer, model, ExponentialLR(optimizer, 0.9), **cases.nested(options))

    scheduler = build()
    for _ in range(3):
        scheduler.optimizer.step()
        scheduler.step()
    fresh = build()
    load_through_files(fresh, scheduler, tmp_path)
    assert fresh.last_scales == scheduler.last_scales
    assert fresh.get_last_lr() == scheduler.get_last_lr()
    assert fresh.last_epoch == 3


def leaves(value, *path):
    """The paths to the numbers and strings of a state, of a text in JSON too; of a list the path to its last."""
    if path and path[-1] == "scored" and isinstance(value, str):
        yield from leaves(json.loads(value), *path)
    elif isinstance(value, dict | list | tuple) and value:
        for key, each in value.items() if isinstance(value, dict) else [(len(value) - 1, value[-1])]:
            yield from leaves(each, *path, key)
    else:
        yield path


def tampered(value, path, other):
    """A copy of a state with another value at a path."""
    if not path:
        return other
    if isinstance(value, str):
        return json.dumps(tampered(json.loads(value), path, other))
    if isinstance(value, dict):
        return {**value, path[0]: tampered(value[path[0]], path[1:], other)}
    return [*value[: path[0]], tampered(value[path[0]], path[1:], other), *value[path[0] + 1 :]]


def without_clock(text):
    return re.sub(r'"elapsed": [^,}]+', "", text)


TAMPERED = {"nan": math.nan, "text": "x", "list": []}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("other", TAMPERED.values(), ids=TAMPERED)
@pytest.mark.parametrize(
    ("name", "options"),
    [("one_cycle", {}), ("sequential_of_three", {"budget": 0.5, "balance": {"weight_decay": (1.0, 2.0)}}),
     ("plateau", {"background": True, "lag": 2, "blend": 3})],
    ids=["plain", "budget", "background"],
)  # fmt: skip
def test_a_tampered_state_is_loaded_whole_or_not_at_all(name, options, other):
    run = build(name, **options)
    go_on(run, 0, 7)
    state = run.scheduler.state_dict()
    fresh = build(name, seed=99, **options)
    before, untouched = snapshot(fresh), load(save(fresh))
    num_refused = 0
    for path in leaves(state):
        bad = tampered(state, path, other)
        try:
            fresh.scheduler.load_state_dict(bad)
        except ValueError:
            assert without_clock(snapshot(fresh)) == without_clock(before), path
            num_refused += 1
        else:
            assert all(math.isfinite(rate) for rate in rates_of(fresh.optimizer)), path
            for part in PARTS:
                getattr(fresh, part).load_state_dict(untouched[part])
            before = snapshot(fresh)
    assert num_refused > 15


@pytest.mark.parametrize(
    ("path", "other"),
    [(("last_epoch",), math.nan), (("step_count",), 2.5), (("bases", "lr", 0), math.nan), (("bases", "lr"), "x"),
     (("base_lrs",), 0.1), (("base_lrs", 0), "x"), (("driven", 0), {"lr": 3.0}),
     (("driven", 0, "momentum"), math.nan),
     (("scored",), "{"), (("scored", "scores", "3"), math.nan), (("scored", "rows", 1, "score"), "x"),
     (("scored", "rows", 1, "parts"), [{"nothing": 1}]), (("scored", "blending", "aim", "lr", "3"), math.inf),
     (("scored", "blending", "since"), "x"), (("schedule", "last_epoch"), math.nan), (("schedule", "_last_lr"), 3),
     (("schedule",), None), (("options", "interval"), 0), (("options", "unheard"), 1),
     (("options", "score"), None)],
    ids=str,
)  # fmt: skip
def test_a_bad_value_in_a_state_is_refused_and_nothing_changes(path, other):
    run = build("one_cycle")
    go_on(run, 0, 7)
    state = run.scheduler.state_dict()
    bad = (
        state | {"options": {**state["options"], "unheard": 1}}
        if path[-1] == "unheard"
        else tampered(state, path, other)
    )
    assert_refused(build("one_cycle", seed=99), bad)
