"""Scoring beside the training: what it does to a run is known beforehand, to the bit, however fast the thread is."""

import copy
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR

import tempbalance.execution.background
import tempbalance.execution.distributed
from tempbalance import Execution, TempBalance, assign, find_layers, param_groups
from tempbalance.ranking.scoring import Scoring, score_layers
from tempbalance.spectral.workers import Gathered
from tests.cases import mlp, nested, raises, train_step

SIZES = (64, 96, 80, 72, 60)
NUM_STEPS = 8


def batch(step):
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(step))


def build(**options):
    model = mlp(SIZES)
    optimizer = SGD(param_groups(model), lr=0.1, momentum=0.9)
    options = {"background": True, **options}
    scheduler = TempBalance(optimizer, model, ExponentialLR(optimizer, 0.9), **nested(options))
    return SimpleNamespace(model=model, optimizer=optimizer, scheduler=scheduler)


def rates_of(run):
    return [group["lr"] for group in run.optimizer.param_groups]


def go_on(run, first, last):
    """Train, and give the rates after each call of step."""
    found = []
    for step in range(first, last):
        train_step(run.model, run.optimizer, batch(step))
        run.scheduler.step()
        found.append(rates_of(run))
    return found


def late_rates(*, interval, start, lag):
    """The same training with scores taken in the foreground and scales applied by hand, so many calls late."""
    model = mlp(SIZES)
    groups = param_groups(model)
    optimizer = SGD(groups, lr=0.1, momentum=0.9)
    later, scales, found, base = {}, {}, [], 0.1
    for call in range(NUM_STEPS + 1):
        if call > 0:
            train_step(model, optimizer, batch(call - 1))
            base *= 0.9
        if call >= start and (call - start) % interval == 0:
            rows = score_layers(find_layers(model), Scoring())
            later[call + lag] = assign({row.name: row.score for row in rows if row.score is not None})
        scales = later.get(call, scales)
        for group in optimizer.param_groups:
            group["lr"] = base * scales.get(group["layer"], 1.0)
        found.append([group["lr"] for group in optimizer.param_groups])
    return found


class Held:
    """Holds the thread up before its first solve until it is let go."""

    def __init__(self, monkeypatch):
        self.may_go, self.threads = threading.Event(), []
        solve = tempbalance.execution.distributed.solve

        def held_solve(*args, **kwargs):
            self.threads.append(threading.current_thread())
            if kwargs.get("beside"):
                assert self.may_go.wait(60)
            solve(*args, **kwargs)

        monkeypatch.setattr(tempbalance.execution.distributed, "solve", held_solve)


def test_a_state_has_the_share_of_other_processes_in_float64_too():
    model = mlp((140, 180, 150, 140, 130))
    optimizer = SGD(param_groups(model), lr=0.1)
    scheduler = TempBalance(optimizer, model, execution=Execution(background=True))
    pending = scheduler._source._pending
    whole = pending.outcome().rows
    pending.work.scoring.owner = dict.fromkeys(pending.work.scoring.owner, 1)  # all are those of another process
    alphas = [row.alpha for row in whole if row.alpha is not None]
    assert len(alphas) == 2
    found = [row.alpha for row in pending.outcome().rows if row.alpha is not None]
    assert found == pytest.approx(alphas, rel=1e-12)


def workers():
    return [thread for thread in threading.enumerate() if thread.name == "tempbalance"]


@pytest.fixture
def held(monkeypatch):
    held = Held(monkeypatch)
    yield held
    held.may_go.set()


@pytest.fixture(autouse=True)
def no_thread_works_on_into_the_next_test():
    yield
    for thread in workers():
        thread.join(60)


@contextmanager
def solves():
    """For each solve in the block: whether it was in float64, on how many threads, set to which precision."""
    found, solve = [], Gathered.solve

    def noted_solve(self, slices, double, lapack):
        found.append((double, torch.get_num_threads(), torch.backends.mkldnn.matmul.fp32_precision))
        return solve(self, slices, double, lapack)

    with patch.object(Gathered, "solve", noted_solve):
        yield found


@pytest.mark.parametrize(
    ("interval", "start", "lag"), [(1, 0, 1), (2, 0, 1), (2, 0, 2), (3, 1, 2), (3, 0, 3), (4, 2, 1)]
)
def test_a_run_is_that_of_the_foreground_with_scales_so_many_calls_late(interval, start, lag):
    run = build(interval=interval, start=start, lag=lag)
    found = [rates_of(run), *go_on(run, 0, NUM_STEPS)]
    expected = late_rates(interval=interval, start=start, lag=lag)
    assert found == expected
    assert len({tuple(rates) for rates in expected}) == NUM_STEPS + 1


def test_step_does_not_wait_until_the_scales_are_due(held):
    run = build(interval=4, lag=3)
    assert go_on(run, 0, 2) == [[0.1 * 0.9] * 4, [0.1 * 0.9 * 0.9] * 4]
    assert run.scheduler.last_scales == {}
    assert all(row.reason and row.score is None for row in run.scheduler.table())
    threading.Timer(0.3, held.may_go.set).start()
    started = time.monotonic()
    go_on(run, 2, 3)  # waits
    assert time.monotonic() - started > 0.2
    assert set(run.scheduler.last_scales.values()) == {0.5, 1.5}
    assert threading.main_thread() not in held.threads


def test_the_weights_are_those_of_the_moment_of_scoring(held):
    run = build()
    expected = score_layers(find_layers(run.model), Scoring())
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.normal_()
    held.may_go.set()
    run.optimizer.step()  # without gradients, so that nothing moves
    run.scheduler.step()
    assert run.scheduler.last_scores == {row.name: row.score for row in expected if row.score is not None}


def seen_in_a_new_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("num_threads", [1, 3])
def test_thread_counts_are_as_before_while_it_works_and_after(held, num_threads):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(num_threads)
        run = build()
        assert len(workers()) == 1
        assert (torch.get_num_threads(), seen_in_a_new_thread()) == (num_threads, num_threads)
        with solves() as found:
            held.may_go.set()
            run.scheduler.wait()
        assert found == [(True, 1, torch.backends.mkldnn.matmul.fp32_precision)] * 2
        assert (torch.get_num_threads(), seen_in_a_new_thread()) == (num_threads, num_threads)
        assert not workers()
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_a_process_that_never_asked_for_its_number_of_threads_keeps_it():
    code = (
        "import torch, tempbalance; from tests.cases import mlp; torch.set_num_threads(2); model = mlp();"
        "optimizer = torch.optim.SGD(tempbalance.param_groups(model), lr=1.0);"
        "s = tempbalance.TempBalance(optimizer, model, execution=tempbalance.Execution(background=True));"
        "print(torch.get_num_threads()); s.wait(); print(torch.get_num_threads())"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["2", "2"]


def test_the_precision_that_the_training_multiplies_in_is_not_touched(held):
    expected = build(background=False).scheduler.last_scores
    backend = torch.backends.mkldnn.matmul
    before = backend.fp32_precision
    try:
        backend.fp32_precision = "bf16"
        with solves() as found:
            run = build()
            held.may_go.set()
            run.scheduler.wait()
    finally:
        backend.fp32_precision = before
    assert found == [(True, 1, "bf16")] * 2
    run.optimizer.step()
    run.scheduler.step()
    assert run.scheduler.last_scores == pytest.approx(expected, rel=1e-6)


def saved(run):
    file = io.BytesIO()
    parts = {"model": run.model, "optimizer": run.optimizer, "scheduler": run.scheduler}
    torch.save({key: part.state_dict() for key, part in parts.items()}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


LAST, FIRST = ["model", "optimizer", "scheduler"], ["scheduler", "model", "optimizer"]


@pytest.mark.parametrize(("interval", "lag", "order"), [(1, 1, LAST), (3, 2, LAST), (3, 3, LAST), (3, 2, FIRST)])
def test_a_run_that_is_resumed_at_any_step_is_that_which_never_stopped(interval, lag, order):
    options = {"interval": interval, "lag": lag}
    run = build(**options)
    states, expected = [saved(run)], []
    for step in range(NUM_STEPS):
        expected += go_on(run, step, step + 1)
        states.append(saved(run))
    assert sum(json.loads(state["scheduler"]["scored"])["source"] is not None for state in states) >= NUM_STEPS // 2
    for stop, state in enumerate(states):
        resumed = build(background=False)  # options come from the state
        for key in order:
            getattr(resumed, key).load_state_dict(state[key])
        assert go_on(resumed, stop, NUM_STEPS) == expected[stop:]
        assert resumed.scheduler.last_scores == run.scheduler.last_scores
        for one, other in zip(resumed.model.parameters(), run.model.parameters(), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda run: pickle.loads(pickle.dumps(run))])
def test_a_copy_that_is_made_meanwhile_goes_on_as_the_first(duplicate):
    run = build(interval=3, lag=2)
    go_on(run, 0, 1)
    twin = duplicate(run)
    assert twin.scheduler._source._pending is not None
    assert go_on(twin, 1, NUM_STEPS) == go_on(run, 1, NUM_STEPS)


def spoil(model):
    with torch.no_grad():
        model[3].weight[0, 0] = torch.nan


def test_a_bad_weight_is_told_when_its_scales_are_due_and_nothing_moves():
    run = build(interval=3, lag=2)
    go_on(run, 0, 2)
    good = run.model[3].weight.detach().clone()
    spoil(run.model)
    run.scheduler.step()  # the third, which scores
    with torch.no_grad():
        run.model[3].weight.copy_(good)
    rates = go_on(run, 3, 4)[0]
    scores = run.scheduler.last_scores
    with raises(tempbalance.WeightError, "'3'", (80, 96), "NaN"):
        run.scheduler.step()
    assert rates_of(run) == rates
    assert run.scheduler.last_scores == scores
    assert run.scheduler.last_epoch == 4
    go_on(run, 4, 9)  # told once
    assert run.scheduler.last_scores != scores


def test_an_error_is_saved_with_the_state_and_told_when_it_is_due():
    run = build(interval=3, lag=2)
    go_on(run, 0, 2)
    spoil(run.model)
    run.scheduler.step()
    run.scheduler.wait()
    state = saved(run)
    resumed = build()
    resumed.scheduler.load_state_dict(state["scheduler"])
    for each in (run, resumed, copy.deepcopy(run)):
        each.scheduler.step()
        with raises(tempbalance.WeightError, "'3'"):
            each.scheduler.step()


def test_a_weight_without_values_is_told_at_once():
    with torch.device("meta"):
        model = mlp(SIZES)
    with raises(tempbalance.WeightError, "'3'", (80, 96), "meta"):
        TempBalance(SGD(param_groups(model), lr=0.1), model, execution=Execution(background=True))
    assert not workers()


def test_an_error_in_a_function_is_told_when_it_is_due():
    def score(eigenvalues, fit):
        raise ArithmeticError("no idea")

    run = build(score=score)
    with raises(ArithmeticError, "no idea"):
        run.scheduler.step()


def gone(thread):
    thread.join(60)
    return not thread.is_alive()


@pytest.mark.parametrize("how", ["rescore", "restore", "load", "second"])
def test_what_is_under_way_is_given_up_for_what_is_newer(held, how):
    run = build(interval=2, lag=2)
    (thread,) = workers()
    state = build(background=False, interval=3).scheduler.state_dict()
    if how == "rescore":
        run.scheduler.rescore()
        assert set(run.scheduler.last_scales.values()) == {0.5, 1.5}
    elif how == "restore":
        run.scheduler.restore()
        assert rates_of(run) == [0.1] * 4
    elif how == "load":
        run.scheduler.load_state_dict(state)
    else:
        run.scheduler = TempBalance(run.optimizer, run.model, run.scheduler.schedule)
    assert getattr(run.scheduler._source, "_pending", None) is None
    with solves() as found:
        held.may_go.set()
        assert gone(thread)
    assert found == []
    if how in ("rescore", "second"):
        scales = run.scheduler.last_scales
        go_on(run, 0, 1)
        assert how == "second" or run.scheduler.last_scales == scales


def test_a_schedule_that_fails_leaves_nothing_under_way(held):
    model = mlp(SIZES)
    optimizer = SGD(param_groups(model), lr=0.1)
    schedule = OneCycleLR(optimizer, max_lr=0.1, total_steps=2)
    scheduler = TempBalance(optimizer, model, schedule, interval=3, execution=Execution(background=True))
    held.may_go.set()
    optimizer.step()
    scheduler.step()
    scheduler.step()
    before = scheduler._source._pending
    for _ in range(3):
        with raises(ValueError, 2):
            scheduler.step()
        assert scheduler._source._pending is before
    for thread in workers():
        assert gone(thread)


def test_a_second_one_that_is_refused_leaves_nothing_under_way():
    run = build()
    run.scheduler.wait()
    for group in run.optimizer.param_groups:
        group["lr"] = 1.0
    with raises(ValueError, "restore()"):
        TempBalance(run.optimizer, run.model, execution=Execution(background=True))
    for thread in workers():
        assert gone(thread)


@pytest.mark.parametrize(
    ("options", "carried"),
    [({"lag": 0}, ["lag", 0]), ({"lag": 1.0}, ["lag", 1.0]), ({"lag": 3, "interval": 2}, ["lag", 3, "interval", 2])],
)
def test_a_bad_lag_is_refused(options, carried):
    with raises(ValueError, *carried):
        build(**options)


def test_without_a_background_lag_is_refused_and_no_thread_is_started():
    with raises(ValueError, "lag=3", "background"):
        build(background=False, lag=3)
    run = build(background=False, lag=1)
    assert set(run.scheduler.last_scales.values()) == {0.5, 1.5}
    assert not workers()
    run.scheduler.wait()


@pytest.mark.slow
def test_a_process_ends_soon_and_without_a_word_while_it_works():
    code = """if True:
        import atexit, torch, tempbalance
        from tempbalance.spectral.workers import Gathered
        from tests.cases import mlp
        solved, solve = [], Gathered.solve
        Gathered.solve = lambda *given: solved.append(given) or solve(*given)
        atexit.register(lambda: print(len(solved)))  # after the interpreter has joined all threads
        model = mlp((512,) * 80)
        scheduler = tempbalance.TempBalance(
            torch.optim.SGD(tempbalance.param_groups(model), lr=1.0),
            model,
            execution=tempbalance.Execution(background=True),
        )
        assert scheduler._source._pending.work.is_alive()
    """
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")
    assert int(result.stdout) < 40  # of 77 layers


def test_the_thread_stops_before_its_next_layer_once_the_main_thread_has_ended(held, monkeypatch):
    build()
    (thread,) = workers()
    monkeypatch.setattr(tempbalance.execution.background, "main_thread", threading.Thread)  # one that is not alive
    with solves() as found:
        held.may_go.set()
        assert gone(thread)
    assert found == []


def test_a_fork_says_that_its_thread_is_gone(held):
    run = build()
    work = run.scheduler._source._pending.work
    with patch.object(work, "join"), patch.object(work, "process", -1):
        with raises(RuntimeError, "fork"):
            run.scheduler.state_dict()
        with raises(RuntimeError, "fork"):
            run.scheduler.step()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of threads, where a child is forked
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_forked_while_it_works_does_not_wait_for_ever(held):
    run = build()
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends a child that waits for ever
        code = 1
        try:
            run.scheduler.step()
        except RuntimeError as err:
            score_layers(find_layers(run.model), Scoring())
            code = 0 if "fork" in str(err) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    held.may_go.set()
    go_on(run, 0, 1)
