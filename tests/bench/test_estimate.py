"""Costs predicted from shapes: what they add up to, and where shapes come from."""

import json

import pytest
import torch
from torch import nn

from tempbalance import Comparison
from tempbalance.bench.estimate import Calibration, calibrate, estimate, estimate_text, read_layers, sides_of
from tempbalance.model.layers import find_layers
from tempbalance.ranking.scoring import Scoring
from tempbalance.spectral.workers import split_jobs
from tests.cases import raises

# a matrix takes n^3 nanoseconds in float32, whatever its length; nothing else takes time
KNOWN = Calibration({(128, False): (1e-9, 1e-30), (128, True): (1e-30, 1e-30)}, pass_seconds=0.0, fixed=0.0)


def linear(*sides: int) -> nn.Module:
    """Layers between a first and a last one, which are not scored."""
    return nn.Sequential(nn.Linear(3, 3), *(nn.Linear(each, each) for each in sides), nn.Linear(3, 3))


def seconds(model: nn.Module, scoring: Scoring | None = None, **options) -> float:
    return estimate(find_layers(model), scoring, calibration=KNOWN, **options).seconds


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"num_threads": 1}, 2.0),
        ({"num_threads": 2}, 1.0),
        ({"num_threads": 1, "num_ranks": 2}, 1.0),
        ({"num_threads": 1, "num_ranks": 64}, 1.0),  # the largest layer is not divided
    ],
)
def test_solves_are_shared_out_and_the_longest_share_counts(options, expected):
    with torch.device("meta"):
        model = linear(1000, 1000)
    assert seconds(model, **options) == pytest.approx(expected, rel=1e-6)


def test_windows_of_one_side_grow_as_the_square_of_the_width():
    scoring = Scoring(comparison=Comparison(windows=128))
    with torch.device("meta"):
        small, large = linear(1024), linear(2048)
    assert seconds(large, scoring, num_threads=1) == pytest.approx(4 * seconds(small, scoring, num_threads=1))
    assert seconds(large, num_threads=1) == pytest.approx(8 * seconds(small, num_threads=1))


def test_memory_and_traffic_are_those_of_the_weights():
    layers = find_layers(linear(256, 256))
    one = estimate(layers, num_threads=1, calibration=KNOWN)
    assert (one.traffic, one.sharded_traffic) == (0, 0)
    assert one.memory == 2 * 256**2 * 4  # a Gram matrix and a copy of it
    both = estimate(layers, num_threads=1, num_ranks=2, calibration=KNOWN)
    assert both.sharded_traffic - both.traffic == 256**2 * 4  # half of two weights
    assert 0 < both.traffic < 1000
    text = "\n".join(estimate_text(both, num_ranks=2, num_threads=1))
    assert "2 of 4 layers" in text
    assert "measured up to 128" in text


def test_a_model_without_scored_layers_is_refused():
    with raises(ValueError, "no layer is scored"):
        estimate(find_layers(linear()), calibration=KNOWN)
    with raises(ValueError, "median", "peak"):
        estimate(find_layers(linear(64)), Scoring(tail="peak"), calibration=KNOWN)


def test_calibration_measures_sides_up_to_a_bound():
    found = calibrate([64, 4096], most_side=96, rounds=1)
    assert {side for side, _ in found.costs} == {64, 96}
    assert min(found.seconds((1, side, 128), double=True) for side in (64, 80, 96, 4096)) > 0


def test_costs_are_interpolated_between_sides_and_constant_beyond():
    known = Calibration({(64, False): (4e-9, 1e-30), (256, False): (1e-9, 1e-30)}, pass_seconds=0.0, fixed=0.0)
    for side, cost in ((32, 4e-9), (64, 4e-9), (128, 2e-9), (256, 1e-9), (512, 1e-9)):
        assert known.seconds((3, 1000, side), double=False) == pytest.approx(3 * cost * side**3, rel=1e-9)


def test_the_time_to_start_a_solve_is_not_counted_for_each_matrix(monkeypatch):
    now = 0.0

    def solve_for_a_millisecond_each(parts, **_):
        nonlocal now
        now += 0.002 + 0.001 * len(parts)

    monkeypatch.setattr("tempbalance.bench.estimate.spectra", solve_for_a_millisecond_each)
    found = calibrate([64], num_at_a_time=2, clock=lambda: now)
    num_slices = len(split_jobs(torch.empty(2**14, 64, 64, device="meta"))[0])
    assert found.seconds((1, 64, 64), double=False) == pytest.approx(0.002 / num_slices, rel=0.1)


def test_a_configuration_of_transformers_and_a_checkpoint_give_the_same_layers(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_embd=64, n_head=2, vocab_size=100, architectures=["GPT2LMHeadModel"])
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    expected = sides_of(find_layers(transformers.GPT2LMHeadModel(config)), Scoring())
    assert expected == [64]
    for path in (tmp_path, tmp_path / "config.json"):
        assert sides_of(read_layers(path), Scoring()) == expected
    torch.save(linear(64, 80).state_dict(), tmp_path / "model.pt")
    assert sides_of(read_layers(tmp_path / "model.pt"), Scoring()) == [64, 80]
    (tmp_path / "other.json").write_text("{}")
    with raises(ValueError, "other.json", "configuration"):
        read_layers(tmp_path / "other.json")
