import pytest

pytest.importorskip("altair", reason="charts need the extra report")

from tempbalance.report.layer_charts import (
    StepNorm,
    StepSpectrum,
    gradient_chart,
    gradient_histograms,
    spectra_chart,
)
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


def spectrum(epoch, step, values=(0.5, 1.0, 1.5, 2.0), layer="layer4"):
    return StepSpectrum(epoch, step, layer, values)


def test_spectra_are_of_the_first_epoch_and_the_last_one_of_a_later_one():
    found = [spectrum(2, step) for step in (400, 430)] + [spectrum(1, step) for step in range(0, 390, 30)]
    spec = spectra_chart(found, **TEXTS).to_dict()
    assert headings(spec) == [*(f"epoch 1, step {step}" for step in (0, 90, 180, 270, 360)), "epoch 2, step 430"]
    assert spec["columns"] == 3
    early = spectra_chart([spectrum(1, step) for step in range(0, 390, 30)], **TEXTS).to_dict()
    assert len(early["concat"]) == 6


def test_a_spike_far_from_the_bulk_is_a_bin_of_its_own_and_marked():
    bulk = tuple(0.5 + place / 100 for place in range(100))
    spec = spectra_chart([spectrum(1, 0, bulk), spectrum(1, 30, (*bulk, 80.0))], **TEXTS).to_dict()
    data = values_of(spec)
    last = [each for each in data if each["panel"] == 1][-1]
    assert (last["count"], last["left"] < 80 <= last["right"]) == (1, True)
    assert last["left"] < last["largest"] < last["right"]
    assert [each["largest"] is not None for each in data].count(True) == 2
    (count,) = {tuple(each["scale"]["domain"]) for each in encodings(spec, "y", "count")}
    assert 0 < count[0] < 1  # one value has a height on the log axis
    (x,) = {tuple(each["scale"]["domain"]) for each in encodings(spec, "x", "left")}
    assert x == (0.5, last["right"])


def test_zeros_in_a_spectrum_are_left_out_and_counted():
    spec = spectra_chart([spectrum(1, 0, (0.0, NAN, 1.0, 2.0))], **TEXTS).to_dict()
    assert sum(each["count"] for each in values_of(spec)) == 2
    assert_carries(" ".join(spec["title"]["subtitle"]), "2 values")
    with raises(ValueError, "1 steps"):
        spectra_chart([spectrum(1, 0, (0.0,))], **TEXTS)


def test_spectra_of_several_layers_are_refused():
    with raises(ValueError, "got 2", "layer4, b"):
        spectra_chart([spectrum(1, 0), spectrum(1, 0, layer="b")], **TEXTS)
