"""A share of the time for scoring: it holds, none starves, and without it nothing reads the clock."""

import copy
import io
import math
import pickle
from dataclasses import asdict

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR

import tempbalance.execution.budget
import tempbalance.execution.distributed
from tempbalance import Execution, Layer, TempBalance, TempBalanceError, param_groups
from tempbalance.execution.budget import Books, Budgeted, change, sample
from tempbalance.integrations.logs import LayerLog, layer_scalars
from tempbalance.spectral.matrices import cut_matrix
from tests.cases import assert_carries, mlp, nested, raises
from tests.schedules import load_through_files, rates_of, shake

pytestmark = pytest.mark.filterwarnings(
    "error",
    "ignore:TempBalance. scheduler.step",
    "ignore:TempBalance. the state's options",
    "ignore:TempBalance. the shapes of the layers",
)

SIZES = (16, 24, 20, 18, 64, 60, 14, 12)  # one layer in the middle, 60 x 64, costs far more than the others
SCORED = ["3", "6", "9", "12", "15"]
PACE, OVERHEAD, STEP = 1e-6, 0.01, 1.0  # seconds for a unit of cost, for a plan, for a step of training


class Clock:
    """Time that passes when layers are looked for and solved, and when somebody says so."""

    def __init__(self, monkeypatch):
        self.now, self.solved = 100.0, []
        find, solve = tempbalance.optim.scheduler.find_layers, tempbalance.execution.distributed.solve

        def slow_find(model):
            self.now += OVERHEAD
            return find(model)

        def slow_solve(jobs, *args, **kwargs):
            self.now += PACE * sum(job.cost for job in jobs)
            self.solved.append(sorted({job.layer.name for job in jobs}, key=int))
            solve(jobs, *args, **kwargs)

        monkeypatch.setattr(tempbalance.execution.budget, "clock", lambda: self.now)
        monkeypatch.setattr(tempbalance.optim.scheduler, "find_layers", slow_find)
        monkeypatch.setattr(tempbalance.execution.distributed, "solve", slow_solve)
        monkeypatch.setattr(TempBalance, "_warn_of_hints", lambda _: None)  # which looks for layers too


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def build(model=None, *, seed=0, **options):
    model = model or mlp(SIZES, seed)
    optimizer = SGD(param_groups(model), lr=0.1)
    schedule = ExponentialLR(optimizer, 0.99)
    return model, TempBalance(optimizer, model, schedule, **nested({"min_eigenvalues": 8, "budget": 0.1, **options}))


def go_on(clock, model, scheduler, calls):
    """Train for some calls; gives the layers that each has refreshed."""
    refreshed = []
    for call in calls:
        shake(model, call, 0.02)
        clock.now += STEP
        clock.solved.clear()
        scheduler.optimizer.step()
        scheduler.step()
        assert len(clock.solved) <= 1
        refreshed.append(clock.solved[0] if clock.solved else [])
    return refreshed


# the bound


@pytest.mark.parametrize("budget", [0.02, 0.3])
def test_the_share_stays_within_the_budget_once_the_first_scoring_is_paid_for_and_is_made_use_of(clock, budget):
    begin = clock.now
    model, scheduler = build(budget=budget)
    inside = first = clock.now - begin
    for call in range(200):
        shake(model, call, 0.02)
        clock.now += STEP
        start = clock.now
        scheduler.optimizer.step()
        scheduler.step()
        inside += clock.now - start
        if budget * (clock.now - begin) >= first:
            assert inside <= budget * (clock.now - begin) * (1 + 1e-9)
    spending = scheduler.spending()
    assert spending.seconds == pytest.approx(inside)
    assert spending.elapsed == pytest.approx(clock.now - begin)
    assert spending.share == pytest.approx(inside / (clock.now - begin))
    largest = PACE * 60 * 60 * (64 + 4 * 60)  # what may be waited for
    assert budget * spending.elapsed - inside < largest + OVERHEAD + budget * STEP


def test_until_the_first_scoring_is_paid_for_nothing_is_planned(clock):
    model, scheduler = build(budget=0.01)
    begin = scheduler.spending()
    scores = scheduler.last_scores
    num_free = int((begin.seconds / 0.01 - begin.elapsed) / STEP)
    assert go_on(clock, model, scheduler, range(num_free)) == [[]] * num_free
    assert scheduler.spending().seconds == begin.seconds
    assert scheduler.last_scores is scores


def test_an_unforeseen_cost_is_paid_back_before_anything_else_is_refreshed(clock, monkeypatch):
    model, scheduler = build(budget=0.1)
    go_on(clock, model, scheduler, range(40))
    monkeypatch.setitem(globals(), "PACE", 20 * PACE)
    at = next(index for index, names in enumerate(go_on(clock, model, scheduler, range(40, 80))) if names)
    assert at < 40
    monkeypatch.setitem(globals(), "PACE", PACE / 20)
    go_on(clock, model, scheduler, range(80, 900))
    assert 0.09 < scheduler.spending().share <= 0.1 * (1 + 1e-9)


# which layers


def test_none_waits_for_more_than_twice_as_many_refreshes_as_there_are_layers(clock):
    """Though one costs far more than the others, and another one never changes."""
    model, scheduler = build(budget=0.05)
    still = model[3].weight.detach().clone()
    refreshed, waited, seen = [], dict.fromkeys(SCORED, 0), dict.fromkeys(SCORED, 0)
    for call in range(800):
        shake(model, call, 0.02)
        with torch.no_grad():
            model[3].weight.copy_(still)
            model[15].weight.mul_(1.1 if call % 2 else 1 / 1.1)  # always the most changed
        clock.now += STEP
        clock.solved.clear()
        scheduler.optimizer.step()
        scheduler.step()
        for name in clock.solved[0] if clock.solved else []:
            refreshed.append(name)
            seen[name] = max(seen[name], waited[name])
            waited = {each: waited[each] + 1 for each in SCORED} | {name: 0}
    assert len(refreshed) > 50
    assert max(seen.values()) <= 2 * len(SCORED)
    assert refreshed.count("15") > 1.5 * refreshed.count("3")
    assert scheduler.spending().oldest < 200


def test_the_most_changed_goes_first(clock):
    for name in SCORED:
        model, scheduler = build(budget=0.5)
        scheduler._source._books.num_refreshed = 0  # its turn to be the most changed
        with torch.no_grad():
            model[int(name)].weight.mul_(1.5)
        while len(clock.solved) < 2:
            clock.now += 0.005
            scheduler.optimizer.step()
            scheduler.step()
        assert clock.solved.pop() == [name]
        clock.solved.clear()


def test_layers_that_are_refreshed_have_the_scores_of_now_and_others_keep_theirs(clock):
    model, scheduler = build(budget=0.1)
    num_partial = 0
    for call in range(60):
        before = {row.name: row for row in scheduler.table()}
        (names,) = go_on(clock, model, scheduler, [call])
        now = {row.name: row for row in scheduler.table()}
        _, fresh = build(model, budget=None)
        assert {name: now[name].score for name in names} == {name: fresh.last_scores[name] for name in names}
        for name in set(SCORED) - set(names):
            assert now[name].alpha == before[name].alpha
        assert min(scheduler.last_scales.values()) == 0.5
        assert max(scheduler.last_scales.values()) == pytest.approx(1.5)
        scheduler.optimizer.step()
        scheduler._check_active = lambda: None  # another one has taken the optimizer over
        num_partial += 0 < len(names) < len(SCORED)
    assert num_partial > 10


def test_with_time_enough_all_are_refreshed_at_every_call_and_rates_are_those_without_a_budget(clock):
    model, scheduler = build(budget=0.9)
    clock.now += 1000 * STEP
    twin, free = build(budget=None)
    for call in range(12):
        assert go_on(clock, model, scheduler, [call]) == [SCORED]
        go_on(clock, twin, free, [call])
        assert rates_of(scheduler.optimizer) == rates_of(free.optimizer)
        assert str(scheduler.table()) == str(free.table())
    assert scheduler.spending().ages == dict.fromkeys(SCORED, 0)


@pytest.mark.parametrize(("interval", "start"), [(1, 0), (4, 0), (3, 5)])
def test_layers_are_refreshed_only_where_a_scoring_is_due(clock, interval, start):
    model, scheduler = build(budget=0.2, interval=interval, start=start)
    for call in range(1, 80):
        (names,) = go_on(clock, model, scheduler, [call])
        assert not names or (call >= start and (call - start) % interval == 0)
        assert call != start or names == SCORED
    assert scheduler.spending().num_refreshed > 2 * len(SCORED)


def test_a_layer_that_is_thawed_is_scored_and_one_that_is_frozen_is_left_out(clock):
    model = mlp(SIZES)
    model[6].weight.requires_grad_(False)
    model, scheduler = build(model, budget=0.3)
    assert sorted(scheduler.spending().ages, key=int) == ["3", "9", "12", "15"]
    model[6].weight.requires_grad_(True)
    model[9].weight.requires_grad_(False)
    go_on(clock, model, scheduler, range(60))
    assert sorted(scheduler.spending().ages, key=int) == ["3", "6", "12", "15"]
    assert sorted(scheduler.last_scores, key=int) == ["3", "6", "12", "15"]
    assert "frozen" in scheduler.table()["9"].reason


def test_rescoring_refreshes_everything_and_counts(clock):
    model, scheduler = build(budget=0.05)
    go_on(clock, model, scheduler, range(10))
    before = scheduler.spending()
    start = clock.now
    scheduler.rescore()
    after = scheduler.spending()
    assert clock.solved[-1] == SCORED
    assert after.seconds - before.seconds == pytest.approx(clock.now - start)
    assert after.num_refreshed == before.num_refreshed + len(SCORED)
    assert after.ages == dict.fromkeys(SCORED, 0)
    assert go_on(clock, model, scheduler, range(5)) == [[]] * 5


def test_ages_count_calls_since_a_layer_was_refreshed(clock):
    model, scheduler = build(budget=0.1)
    last = dict.fromkeys(SCORED, 0)
    for call in range(1, 60):
        (names,) = go_on(clock, model, scheduler, [call])
        last |= dict.fromkeys(names, call)
        assert scheduler.spending().ages == {name: call - at for name, at in last.items()}
        assert scheduler.spending().oldest == call - min(last.values())


def test_the_spending_can_be_read_after_restore(clock):
    model, scheduler = build(budget=0.1)
    go_on(clock, model, scheduler, range(5))
    before = scheduler.spending()
    scheduler.restore()
    assert scheduler.spending() == before


# without a budget


def test_without_a_budget_nothing_reads_the_clock(monkeypatch):
    def read():
        raise AssertionError("the clock was read")

    monkeypatch.setattr(tempbalance.execution.budget, "clock", read)
    model, scheduler = build(budget=None)
    for call in range(3):
        shake(model, call)
        scheduler.optimizer.step()
        scheduler.step()
    scheduler.rescore()
    scheduler.load_state_dict(copy.deepcopy(scheduler).state_dict())
    assert scheduler.spending() is None
    assert LayerLog().news(scheduler) == layer_scalars(scheduler)


@pytest.mark.parametrize("budget", [0, 0.0, 1, 1.0, -0.1, 2.0, math.nan, math.inf, True, "0.1", (0.1,)])
def test_what_is_no_share_is_refused_and_nothing_is_written(budget):
    model = mlp(SIZES)
    optimizer = SGD(param_groups(model), lr=0.1)
    with raises(ValueError, "budget", repr(budget)):
        TempBalance(optimizer, model, execution=Execution(budget=budget))
    assert set(rates_of(optimizer)) == {0.1}


def test_a_budget_in_the_background_is_refused():
    with raises(ValueError, "budget=0.1", "background=True"):
        build(background=True)


# errors


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_bad_weight_is_named_when_it_is_refreshed_and_nothing_moves(clock, value):
    model, scheduler = build(budget=0.2)
    go_on(clock, model, scheduler, range(20))
    kept = model[9].weight.detach().clone()
    with torch.no_grad():
        model[9].weight[2, 3] = value
    for _ in range(200):
        clock.now += STEP
        now, before = clock.now, pickle.dumps((scheduler.state_dict(), rates_of(scheduler.optimizer)))
        try:
            scheduler.step()
        except TempBalanceError as err:
            assert_carries(str(err), "'9'")
            break
    else:
        pytest.fail("the weight was never refreshed")
    clock.now = now
    assert pickle.dumps((scheduler.state_dict(), rates_of(scheduler.optimizer))) == before
    with torch.no_grad():
        model[9].weight.copy_(kept)
    scheduler.step()


# going on


@pytest.mark.parametrize("way", ["copy", "pickle"])
def test_a_copy_goes_on_like_the_original(clock, way):
    model, scheduler = build()
    go_on(clock, model, scheduler, range(30))
    now, saved = clock.now, pickle.dumps((model, scheduler))
    clock.now = -5000.0  # the clock of another process has another beginning
    twin, other = pickle.loads(saved)
    if way == "copy":
        clock.now = now
        twin, other = copy.deepcopy((model, scheduler))
    found, spending = go_on(clock, twin, other, range(30, 60)), other.spending()
    clock.now = now
    assert go_on(clock, model, scheduler, range(30, 60)) == found
    assert_same(scheduler.spending(), spending)
    assert rates_of(other.optimizer) == rates_of(scheduler.optimizer)


def assert_same(one, other):
    assert (one.num_refreshed, one.ages) == (other.num_refreshed, other.ages)
    assert (one.seconds, one.elapsed) == pytest.approx((other.seconds, other.elapsed))


def test_a_resumed_run_keeps_its_accounts_and_its_ages(clock):
    model, scheduler = build(budget=0.05)
    go_on(clock, model, scheduler, range(50))
    file = io.BytesIO()
    torch.save(scheduler.state_dict(), file)
    before = scheduler.spending()
    clock.now += 1e5  # nothing runs meanwhile
    other = build(seed=9, budget=0.5)[1]
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert other.options.execution.budget == 0.05
    assert_same(other.spending(), before)
    assert other._source.credit() == pytest.approx(0.05 * before.elapsed - before.seconds)
    found = go_on(clock, other.model, other, range(50, 400))
    assert {name for names in found for name in names} == {*SCORED}
    assert 0.04 < other.spending().share <= 0.05 * (1 + 1e-9)


def test_a_state_brings_its_budget_or_that_there_is_none(clock):
    _, without = build(budget=None)
    _, within = build(budget=0.1)
    states = without.state_dict(), within.state_dict()
    within.load_state_dict(states[0])
    without.load_state_dict(states[1])
    assert (within.options.execution.budget, within.spending()) == (None, None)
    assert without.options.execution.budget == 0.1
    assert without.spending().ages == dict.fromkeys(SCORED, 0)


@pytest.mark.parametrize("start", [0, 2])
def test_a_state_goes_through_torchs_distributed_checkpoints(clock, tmp_path, start):
    model, scheduler = build(start=start)
    go_on(clock, model, scheduler, range(40))
    _, fresh = build(start=start)
    load_through_files(fresh, scheduler, tmp_path)
    assert_same(fresh.spending(), scheduler.spending())
    assert fresh.get_last_lr() == scheduler.get_last_lr()


# several processes: when rank 0 is asked again


def budgeted_at(monkeypatch, *, now, last_call, last_elapsed, missing, budget=0.1):
    monkeypatch.setattr(tempbalance.execution.budget, "clock", lambda: 0.0)
    spent = budget * now + missing
    books = Books(elapsed=now, spent=spent, awaited="3", last_call=last_call, last_elapsed=last_elapsed)
    source = Budgeted(budget)
    source.load(asdict(books))
    return source


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        (-0.5, (True, 21)),
        (0.01, (False, 21)),  # calls of 2 s bring 0.2 s of credit each
        (0.5, (False, 23)),
        (1.99, (False, 30)),
        (5.0, (False, 40)),  # no later than after twice the 10 calls since the last answer
    ],
)
def test_several_processes_ask_again_when_there_should_be_enough(monkeypatch, missing, expected):
    source = budgeted_at(monkeypatch, now=100.0, last_call=10, last_elapsed=80.0, missing=missing)
    assert source.answer(20, is_alone=False) == expected
    assert source.answer(20, is_alone=True) == (expected[0], 21)


def test_calls_that_take_no_time_are_asked_again_less_and_less_often(monkeypatch):
    source = budgeted_at(monkeypatch, now=100.0, last_call=4, last_elapsed=100.0, missing=1.0)
    assert source.answer(5, is_alone=False) == (False, 7)
    assert source.answer(4, is_alone=False) == (False, 6)


# by how much a layer has changed


def layer_of(*parameters):
    return Layer("fc", tuple(parameters[0].shape), lambda: parameters[0], list(parameters), cut_matrix)


@pytest.mark.parametrize("shape", [(7, 9), (64, 64), (512, 512), (128, 64, 3, 3), (0, 5), (0,), (1, 4097)])
def test_a_sample_is_made_of_different_entries_of_at_most_4096(shape):
    weight = nn.Parameter(torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape))
    (entries,) = sample(layer_of(weight))
    assert len(entries) == len(entries.unique()) == min(weight.numel(), 4096)
    assert entries.dtype == torch.float32
    if weight.numel() > 10_000:  # from every row, and from every column or kernel position
        last = weight[0].numel() if weight.dim() == 2 else 9
        assert len({int(each) // weight[0].numel() for each in entries}) == shape[0]
        assert len({int(each) % last for each in entries}) == last


def test_a_sample_does_not_depend_on_how_a_weight_lies_in_memory():
    weight = torch.randn(64, 32, 3, 3)
    turned = nn.Parameter(weight.contiguous(memory_format=torch.channels_last))
    assert torch.equal(*(sample(layer_of(each))[0] for each in (nn.Parameter(weight), turned)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn], ids=str)
def test_weights_of_few_bits_are_sampled(dtype):
    weight = nn.Parameter(torch.randn(100, 100).to(dtype))
    assert change(sample(layer_of(weight)), sample(layer_of(weight))) == 0


def test_what_is_not_trained_is_not_sampled():
    frozen, trained = nn.Parameter(torch.ones(4, 4), requires_grad=False), nn.Parameter(torch.ones(3))
    assert [len(each) for each in sample(layer_of(frozen, trained))] == [3]


def test_a_change_is_relative_and_what_is_not_known_is_the_largest():
    ones = [torch.ones(100), torch.ones(44)]
    assert change([2 * each for each in ones], ones) == pytest.approx(1)
    assert change([torch.ones(100), 1.5 * torch.ones(44)], ones) == pytest.approx(math.sqrt(44 / 4 / 144))
    assert change(ones, ones) == change([], []) == 0
    for unknown in (None, [], ones[:1], [torch.zeros(100), torch.zeros(44)]):
        assert change(ones, unknown) == math.inf
    for bad in (math.nan, math.inf):
        assert change([torch.full((100,), bad), torch.ones(44)], ones) == math.inf


# what loggers are told


def test_loggers_are_told_the_share_and_the_largest_age(clock):
    model, scheduler = build(budget=0.1)
    log = LayerLog(max_layers=0)
    told = [log.news(scheduler)]
    for call in range(1, 40):
        (names,) = go_on(clock, model, scheduler, [call])
        values = log.news(scheduler)
        assert bool(values) == bool(names)
        told += [values] if values else []
    assert all({"tempbalance/share", "tempbalance/oldest"} < set(values) for values in told)
    assert told[0]["tempbalance/oldest"] == 0
    assert told[-1]["tempbalance/oldest"] > 0
    assert 0 < told[-1]["tempbalance/share"] <= 0.1


def test_on_a_device_the_clock_of_a_scoring_starts_after_what_is_queued_there(clock, monkeypatch):
    def wait():
        clock.now += 1000.0  # of training that the device has still to do

    monkeypatch.setattr("torch.accelerator.synchronize", wait)
    monkeypatch.setattr("tempbalance.optim.scheduler._device", lambda _: "cuda")
    _, scheduler = build(budget=0.5)
    spending = scheduler.spending()
    assert spending.elapsed > 1000
    assert spending.seconds < 10
