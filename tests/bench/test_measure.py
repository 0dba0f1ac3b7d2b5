import subprocess
import sys

import pytest
import torch

from tempbalance.bench import measure as measuring
from tempbalance.bench.contestants import (
    Turn,
    has_weightwatcher,
    make_subject,
    reference_turn,
    threads,
    weightwatcher_turn,
)
from tempbalance.bench.measure import (
    Options,
    busy_core,
    can_measure_memory,
    measure,
    measure_memory,
    new_results,
)
from tempbalance.bench.results import Times
from tests.cases import assert_carries, raises

QUICK = Options(networks=("llama_block",), parts=("speed",), num_rounds=2, num_threads=1, quick=True)


def nothing(*_):
    pass


def stand_in(name, log, seconds):
    """A turn that tells the given seconds, one after the other."""
    left = iter(seconds)

    def run():
        log.append(name)
        each = next(left)
        if isinstance(each, BaseException):
            raise each
        return {name: each}

    return Turn(name, run)


def test_each_round_has_every_turn_once_and_the_first_round_is_not_kept():
    log, first, second = [], Times("speed", "a"), Times("speed", "b")
    entries = [(first, stand_in("x", log, [9.0, 1.0, 2.0])), (second, stand_in("y", log, [9.0, 3.0, 4.0]))]
    results, told = new_results(QUICK), []
    measuring._rounds("what", entries, results, lambda *state: told.append(state))
    assert log == ["x", "y"] * 3
    assert results.times == [first, second]
    assert (first.seconds, second.seconds) == ({"x": [1.0, 2.0]}, {"y": [3.0, 4.0]})
    assert told == [*((f"what: {log[i]}", i, 6) for i in range(6)), ("what", 6, 6)]


def test_a_round_that_is_interrupted_is_not_kept():
    log, times = [], Times("speed", "a")
    turns = [stand_in("x", log, [9.0, 1.0, 2.0]), stand_in("y", log, [9.0, 3.0, KeyboardInterrupt()])]
    results = new_results(QUICK)
    with pytest.raises(KeyboardInterrupt):
        measuring._rounds("what", [(times, turn) for turn in turns], results, nothing)
    assert times.seconds == {"x": [1.0], "y": [3.0]}
    assert not results.complete


@pytest.mark.slow
def test_speed_is_measured_for_every_tail_the_reference_weightwatcher_and_a_step():
    results = new_results(QUICK)
    measure(QUICK, results, nothing)
    (times,) = results.of_part("speed")
    others = ["WeightWatcher"] if has_weightwatcher() else []
    tails = ["median", "goodness_of_fit", "peak"]
    assert list(times.seconds) == [*tails, *(f"reference {tail}" for tail in tails), *others, "training step"]
    assert all(len(taken) == 2 and min(taken) > 0 for taken in times.seconds.values())
    assert results.complete


def test_growth_is_measured_over_widths_depths_and_threads(monkeypatch):
    monkeypatch.setattr(measuring, "_DEPTHS", ("resnet18", "vgg16"))
    monkeypatch.setattr(measuring, "_WIDTHS", (0.25, 0.5))
    options = Options(parts=("growth",), num_rounds=1, num_threads=2, quick=True)
    before, results = torch.get_num_threads(), new_results(options)
    measure(options, results, nothing)
    found = {part: [(each.network, each.setting) for each in results.of_part(part)] for part in ("width", "depth")}
    assert found["width"] == [("ResNet18", f"width {each}") for each in ("0.25", "0.5")]
    assert found["depth"] == [("ResNet18", ""), ("VGG16", "")]
    assert [each.setting for each in results.of_part("cores")] == ["1 thread", "2 threads"]
    assert torch.get_num_threads() == before


@pytest.mark.slow
def test_the_busy_part_measures_each_turn_alone_and_beside_the_busy_process():
    options = Options(networks=("llama_block",), parts=("busy",), num_rounds=1, num_threads=1, quick=True)
    results = new_results(options)
    measure(options, results, nothing)
    quiet, busy = results.of_part("busy")
    assert (quiet.setting, busy.setting) == ("nothing else runs", "another process keeps a core busy")
    assert quiet.seconds.keys() == busy.seconds.keys()


def test_the_busy_process_works_meanwhile_and_ends_with_the_turn():
    with busy_core() as process:
        assert process.poll() is None
    assert process.poll() is not None


def test_the_busy_process_ends_when_the_turn_is_interrupted(monkeypatch):
    started = []
    start = subprocess.Popen
    monkeypatch.setattr(
        "subprocess.Popen", lambda *args, **options: started.append(start(*args, **options)) or started[0]
    )
    turn = stand_in("x", [], [KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        turn.within(busy_core).run()
    assert started[0].poll() is not None


@pytest.mark.slow
def test_the_busy_process_ends_when_ours_is_killed():
    code = "from tempbalance.bench.measure import busy_core\nwith busy_core(): print('started', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as ours:
        assert ours.stdout.readline() == b"started\n"
        ours.kill()
        ours.communicate(timeout=60)  # its standard error is at an end once nobody has it any more


def test_the_reference_counts_its_spectra_with_every_tail():
    found = reference_turn(make_subject("llama_block", quick=True)).run()
    assert list(found) == ["reference median", "reference goodness_of_fit", "reference peak"]
    assert found["reference goodness_of_fit"] > found["reference median"]  # a loop beside one sum


def test_a_turn_has_its_threads_and_torch_gets_its_own_back():
    before = torch.get_num_threads()
    assert Turn("x", lambda: {"x": float(torch.get_num_threads())}).within(lambda: threads(3)).run() == {"x": 3.0}
    assert torch.get_num_threads() == before


@pytest.mark.slow
def test_weightwatcher_analyses_the_layers_that_are_scored(monkeypatch):
    weightwatcher = pytest.importorskip("weightwatcher", reason="weightwatcher is in the dev extra")
    seen = []
    analyze = weightwatcher.WeightWatcher.analyze
    monkeypatch.setattr(
        weightwatcher.WeightWatcher, "analyze", lambda self, **options: seen.append(analyze(self, **options))
    )
    subject = make_subject("llama_block", quick=True)
    assert list(weightwatcher_turn(subject).run()) == ["WeightWatcher"]
    assert len(seen[0]) == len(subject.scored) == 7


def test_without_weightwatcher_the_rest_is_measured_and_a_note_says_so(monkeypatch):
    for module in ("measure", "contestants"):
        monkeypatch.setattr(f"tempbalance.bench.{module}.has_weightwatcher", lambda: False)
    options = Options(networks=("llama_block",), parts=("speed",), num_rounds=1, num_threads=1, quick=True)
    results = new_results(options)
    measure(options, results, nothing)
    tails = ["median", "goodness_of_fit", "peak"]
    expected = [*tails, *(f"reference {tail}" for tail in tails), "training step"]
    assert list(results.times[0].seconds) == expected
    assert results.complete
    (note,) = results.notes
    assert_carries(note, "WeightWatcher")


@pytest.mark.slow
@pytest.mark.skipif(not can_measure_memory(), reason="the system does not report the peak of a process")
def test_a_training_step_takes_at_least_its_gradients_and_moments():
    num_bytes = measure_memory("llama_block", "training step", num_threads=1, quick=True)
    model = make_subject("llama_block", quick=True).model
    assert num_bytes >= 0.9 * 3 * 4 * sum(each.numel() for each in model.parameters())


@pytest.mark.slow
@pytest.mark.skipif(not can_measure_memory(), reason="the system does not report the peak of a process")
def test_a_process_that_fails_says_which_and_why():
    with raises(ChildProcessError, "nobody", "llama_block", "exit code 1", "ValueError"):
        measure_memory("llama_block", "nobody", num_threads=1, quick=True)
