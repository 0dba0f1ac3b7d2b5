import pytest

pytest.importorskip("altair", reason="charts need the extra report")

from tempbalance.report.chart import ends, evenly, log_axis, measure_axis, zoomed
from tempbalance.report.layer_charts import (
    MOST_EPOCHS,
    Alphas,
    LayerTrack,
    alpha_boxes,
    alpha_histograms,
    layer_maps,
    two_layers,
)
from tests.cases import raises
from tests.report.cases import values_of
from tests.report.test_study_charts import TEXTS, encodings, layers_of

NAN = float("nan")


def track(panel, layers=("conv1", "conv2"), epochs=(0, 1)):
    rows = tuple(tuple(place + epoch / 1000 for epoch in epochs) for place, _ in enumerate(layers, start=2))
    return LayerTrack(panel, epochs, layers, alpha=rows, rate=rows)


def test_a_box_has_the_finite_alphas_of_its_label_in_its_panel():
    sets = [Alphas("a", "CAL", (3.0, NAN, 4.0)), Alphas("a", "TB", (2.5,)), Alphas("b", "CAL", ())]
    spec = alpha_boxes(sets, **TEXTS).to_dict()
    assert [(each["panel"], each["label"], each["values"]) for each in values_of(spec)] == [
        (0, 0, [3.0, 4.0]), (0, 1, [2.5]), (1, 0, [])
    ]  # fmt: skip
    assert [each["scale"]["domain"] for each in encodings(spec, "x", "label")[::2]] == [[0, 1], [0]]


def test_boxes_mark_the_mean_with_a_red_star_and_2_with_dashes():
    spec = alpha_boxes([Alphas("a", "CAL", (3.0, 4.0))], **TEXTS).to_dict()
    two, _, mean = layers_of(spec["concat"][0])
    assert two["mark"]["strokeDash"]
    assert [values for name, values in spec["datasets"].items() if name != "main"] == [[{"two": 2}]]
    assert (mean["encoding"]["y"]["aggregate"], mean["mark"]["color"]) == ("mean", "#d0505a")
    low, high = encodings(spec, "y", "values")[0]["scale"]["domain"]
    assert low < 2 < 4 < high


def test_histograms_of_a_panel_have_common_bins_that_hold_every_alpha():
    sets = [Alphas("a", "CAL", (2.0, 3.0, 4.0)), Alphas("a", "TB", (2.0, 2.1)), Alphas("b", "TB", (9.0,))]
    data = values_of(alpha_histograms(sets, **TEXTS).to_dict())
    of = {(panel, method): [each for each in data if (each["panel"], each["method"]) == (panel, method)]
          for panel, method in ((0, 0), (0, 1), (1, 1))}  # fmt: skip
    assert [sum(each["count"] for each in bins) for bins in of.values()] == [3, 2, 1]
    assert [each["left"] for each in of[0, 0]] == [each["left"] for each in of[0, 1]]
    assert all(bins[-1]["count"] == 0 and bins[-1]["left"] == bins[-1]["right"] for bins in of.values())


def test_alphas_without_a_finite_one_are_refused():
    for draw in (alpha_boxes, alpha_histograms):
        with raises(ValueError, "alpha", "1 sets"):
            draw([Alphas("a", "CAL", (NAN,))], **TEXTS)


def test_a_track_has_a_map_of_the_rate_and_one_of_alpha_with_its_layers_in_its_own_order():
    spec = layer_maps([track("a", ("x", "z")), track("b", ("x", "y", "z"))], **TEXTS).to_dict()
    titles = [panel["title"]["text"] for panel in spec["concat"]]
    assert titles == ["a: learning rate", "a: alpha", "b: learning rate", "b: alpha"]
    assert spec["params"] == [{"name": "layer_names", "value": ["x", "z", "x", "y", "z"]}]
    assert [each["layer"] for each in values_of(spec) if each["epoch"] == 0] == [0, 1, 2, 3, 4]
    assert spec["resolve"] == {"scale": {"color": "independent"}}


def test_of_many_epochs_an_even_choice_is_drawn():
    data = values_of(layer_maps([track("a", epochs=tuple(range(1000)))], **TEXTS).to_dict())
    epochs = [each["epoch"] for each in data if each["layer"] == 0]
    assert (len(epochs), epochs[0], epochs[-1]) == (MOST_EPOCHS, 0, 999)


def test_two_layers_have_rate_and_alpha_and_a_line_for_each_track():
    spec = two_layers([track("CAL"), track("TB", ("conv2",))], ("conv2", "conv1"), **TEXTS).to_dict()
    assert [panel["title"]["text"] for panel in spec["concat"]] == ["conv2", "conv2", "conv1", "conv1"]
    assert spec["params"] == [{"name": "method_names", "value": ["CAL", "TB"]}]
    rows = {(each["panel"], each["method"], each["alpha"]) for each in values_of(spec) if each["epoch"] == 0}
    assert rows == {(0, 0, 3.0), (0, 1, 2.0), (1, 0, 2.0)}


def test_a_layer_that_no_track_has_is_refused_by_name():
    with raises(ValueError, "layers", "'fc'"):
        two_layers([track("CAL")], ("conv1", "fc"), **TEXTS)


def test_a_track_without_values_or_of_another_shape_is_refused():
    with raises(ValueError, "alpha", "rate", "1 tracks"):
        layer_maps([LayerTrack("a", (0,), ("x",), alpha=((None,),), rate=((NAN,),))], **TEXTS)
    with raises(ValueError, "rate", "'a'", "1 rows", "2 values", [1]):
        LayerTrack("a", (0, 1), ("x",), alpha=((1.0, 2.0),), rate=((1.0,),))


def test_an_even_choice_has_the_first_and_the_last():
    assert evenly(range(11), 6) == [0, 2, 4, 6, 8, 10]
    assert evenly([1, 2], 6) == [1, 2]


def test_a_range_has_room_around_its_values():
    assert zoomed([1.0, None, 3.0]) == pytest.approx((0.76, 3.24))
    assert zoomed([50.0]) == pytest.approx((49.0, 51.0))
    assert zoomed([0.0]) == (0.0, 1.0)
    assert zoomed([-2.0, 2.0]) == pytest.approx((-2.48, 2.48))
    assert zoomed([90.0, 99.0], most=100.0) == pytest.approx((88.92, 100.0))
    assert zoomed([None]) is None


def test_an_error_bar_needs_mean_and_deviation():
    assert ends(90.0, 0.5) == {"low": 89.5, "high": 90.5}
    assert ends(None, 0.5) == ends(90.0, None) == ends(NAN, 1.0) == {"low": None, "high": None}


@pytest.mark.parametrize(
    ("domain", "ticks"),
    [
        ((76.7, 79.3), [77.0, 77.5, 78.0, 78.5, 79.0]),
        ((0.0, 8.5), [0.0, 2.0, 4.0, 6.0, 8.0]),
        ((-3e-9, 1e-9), [-3e-9, -2e-9, -1e-9, 0.0]),
    ],
)
def test_ticks_are_round_numbers_that_leave_the_top_free(domain, ticks):
    assert measure_axis("x:Q", None, domain).to_dict()["axis"]["values"] == ticks


def test_ticks_of_counts_are_whole():
    assert measure_axis("x:Q", None, (0.0, 2.2), min_step=1).to_dict()["axis"]["values"] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("domain", "ticks"),
    [
        ((0.27, 1012.0), [1, 10, 100]),
        ((0.6, 34.0), [1, 2, 5, 10, 20]),
        ((1e-9, 1e3), [1e-9, 1e-7, 1e-5, 1e-3, 0.1, 10]),
        ((0.05, 0.09), [0.05, 0.06, 0.07, 0.08]),
    ],
)
def test_ticks_of_a_log_axis_are_powers_of_ten_or_finer(domain, ticks):
    assert log_axis(*domain)["axis"].to_dict()["values"] == pytest.approx(ticks)
