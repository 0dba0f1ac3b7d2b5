import pytest

pytest.importorskip("altair", reason="charts need the extra report")

from tempbalance.report.layer_charts import (
    StepNorm,
    gradient_chart,
    gradient_histograms,
)
from tempbalance.report.spectrum import FittedSpectrum, fitted_spectra
from tests.cases import assert_carries, raises
from tests.report.cases import values_of
from tests.report.test_study_charts import TEXTS, encodings

NAN = float("nan")


def headings(spec):
    return [panel["title"]["text"] for panel in spec["concat"]]


def norms(num_epochs=2, steps=10, values=(0.1, 0.4)):
    return [
        StepNorm(epoch + 1, epoch * 300 + 30 * step, f"layer{place}", value * (step + 1))
        for epoch in range(num_epochs)
        for step in range(steps)
        for place, value in enumerate(values)
    ]


def test_gradients_are_the_maximum_the_minimum_and_the_mean_over_the_layers():
    spec = gradient_chart(norms(), **TEXTS).to_dict()
    assert headings(spec) == ["maximum", "minimum", "mean"]
    data = values_of(spec)
    assert [each["norm"] for each in data if each["step"] == 30] == [0.8, 0.2, 0.5]
    assert [each["step"] for each in data if each["panel"] == 0] == [*range(0, 300, 30), *range(300, 600, 30)]
    assert {each["scale"]["type"] for each in encodings(spec, "y", "norm")} == {"log"}


@pytest.mark.parametrize("norm", [None, NAN, 0.0, float("inf")])
def test_a_norm_that_a_log_axis_has_no_place_for_is_left_out_and_counted(norm):
    spec = gradient_chart([*norms(), StepNorm(1, 0, "dead", norm)], **TEXTS).to_dict()
    assert len(values_of(spec)) == 3 * 20
    assert_carries(spec["title"]["subtitle"][1], "1 norms")


def test_without_a_norm_above_0_there_is_nothing_to_draw():
    with raises(ValueError, "gradient norm", "got 1"):
        gradient_histograms([StepNorm(1, 0, "a", 0.0)], **TEXTS)


def test_histograms_of_gradients_are_of_six_even_steps_of_the_first_epoch():
    spec = gradient_histograms(norms(steps=11), **TEXTS).to_dict()
    assert headings(spec) == [f"epoch 1, step {step}" for step in range(0, 301, 60)]
    counts = [sum(each["count"] for each in values_of(spec) if each["panel"] == panel) for panel in range(6)]
    assert counts == [2] * 6
    lefts = {each["left"] for each in values_of(spec)}
    assert len(lefts) < len(values_of(spec))  # bins are common


def test_each_spectrum_has_a_panel_with_its_threshold_and_its_fitted_line():
    bulk = tuple(0.5 + place / 100 for place in range(100))
    fits = [FittedSpectrum("step 0", bulk, 3.0, 1.0, 50), FittedSpectrum("step 30", (*bulk, 80.0), 2.0, 1.0, 51)]
    spec = fitted_spectra(fits, **TEXTS).to_dict()
    assert headings(spec) == ["step 0, alpha 3.00", "step 30, alpha 2.00"]
    first, second = values_of(spec)
    assert (first["xmin"], sum(first["counts"]), sum(second["counts"])) == (1.0, 100, 101)
    start, end = second["tail_y"]
    assert start == pytest.approx(51 / 101 * (2.0 - 1) / 1.0, rel=1e-3)  # (k / n) (alpha - 1) / xmin
    assert end / start == pytest.approx((second["tail_x"][1] / second["tail_x"][0]) ** -2.0, rel=1e-2)


def test_a_spectrum_without_a_value_above_0_is_refused():
    with raises(ValueError, "step 0"):
        fitted_spectra([FittedSpectrum("step 0", (0.0,), 2.0, 1.0, 1)], **TEXTS)
