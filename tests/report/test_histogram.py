import math

import numpy as np
import pytest

from tempbalance.report.spectrum import MOST_BINS, bin_counts, log_edges, spectrum_datum
from tests.cases import assert_carries


def test_values_that_are_even_on_a_log_axis_fill_all_bins_alike():
    datum = spectrum_datum(np.logspace(-2, 4, 6000).tolist())
    assert (datum["start"], datum["step"] * len(datum["counts"])) == (pytest.approx(-2), pytest.approx(6, rel=1e-6))
    assert datum["counts"] == [100] * MOST_BINS


@pytest.mark.parametrize("seed", range(20))
def test_values_are_counted_as_numpy_counts_them(seed):
    random = np.random.default_rng(seed)
    logs = np.sort(random.normal(size=random.integers(1, 300)).round(1))
    edges = log_edges(logs)
    expected, _ = np.histogram(logs, bins=len(edges) - 1, range=(edges[0], edges[-1]))
    assert bin_counts(logs, edges).tolist() == expected.tolist()


def test_the_floor_is_below_the_lowest_density_of_all_values():
    datum = spectrum_datum([1.0, 2.0, 4.0, 8.0, 16.0, 0.0, 0.0, 0.0])
    right = 10 ** (datum["start"] + datum["step"] * len(datum["counts"]))
    width = right * (1 - 10 ** -datum["step"])
    assert datum["floor"] == pytest.approx(1 / 8 / width / 1.5, rel=1e-3)  # of the last bin, which is the widest
    assert_carries(datum["note"], "3 of 8")


@pytest.mark.parametrize("values", [[], [0.0, 0.0], [float("nan")], [-1.0], [float("inf")]])
def test_where_nothing_can_be_drawn_there_is_no_datum(values):
    assert spectrum_datum(values) is None


def test_equal_values_are_one_bar():
    datum = spectrum_datum([3.0] * 50)
    assert sorted(datum["counts"])[-2:] == [0, 50]


def test_rounding_noise_does_not_stretch_the_axis():
    datum = spectrum_datum([1e-17, 1.0, 10.0], alpha=2.5)
    assert datum["start"] == 0
    assert_carries(datum["note"], "alpha 2.500", "1 of 3")


@pytest.mark.parametrize("alpha", [1.5, 2.0, 4.0])
def test_the_fitted_line_falls_with_alpha_and_holds_the_share_of_the_tail(alpha):
    datum = spectrum_datum(np.linspace(1, 100, 200).tolist(), alpha=alpha, xmin=50.0, num_tail=100)
    (x0, x1), (y0, y1) = datum["tail_x"], datum["tail_y"]
    assert (x0, x1) == (50.0, pytest.approx(100.0))
    assert math.log(y1 / y0) / math.log(x1 / x0) == pytest.approx(-alpha, rel=1e-3)
    assert y0 * x0 / (alpha - 1) == pytest.approx(100 / 200, rel=1e-3)  # its integral from xmin on
    assert datum["floor"] < min(y1, 1 / 200)


@pytest.mark.parametrize("alpha", [None, float("nan"), float("inf"), -1e308, 1e308])
def test_a_fit_that_cannot_be_drawn_is_no_line(alpha):
    datum = spectrum_datum([1.0, 2.0, 3.0], alpha=alpha, xmin=1.5, num_tail=2)
    assert datum["tail_x"] == datum["tail_y"] == []


@pytest.mark.parametrize("scale", [1e-299, 1e-30, 1e30, 1e290])
def test_any_scale_can_be_drawn(scale):
    datum = spectrum_datum([scale, 2 * scale, 4 * scale])
    assert sum(datum["counts"]) == 3
    assert math.isfinite(datum["floor"])
