import re

import pytest

pytest.importorskip("altair", reason="charts need the extra report")
pytest.importorskip("vl_convert", reason="figures need the extra report")

from tempbalance.report import save_figures
from tempbalance.report.layer_charts import (
    Alphas,
    LayerTrack,
    StepNorm,
    alpha_boxes,
    alpha_histograms,
    gradient_chart,
    gradient_histograms,
    layer_maps,
    two_layers,
)
from tempbalance.report.spectrum import FittedSpectrum, fitted_spectra
from tempbalance.report.study_charts import Bar, Dot, Timing, bar_chart, line_chart, timing_chart
from tests.cases import assert_carries, raises
from tests.report.cases import HOSTILE, values_of
from tests.report.test_figures import texts_of

NAN = float("nan")
TEXTS = {"title": "What is compared", "subtitle": "preset smoke: digits, 2 seeds"}


def every_chart(first, second, **texts):
    """Each kind of chart with these two names wherever a name can stand."""
    texts = {**TEXTS, **texts}
    track = LayerTrack(first, (0, 1), (first, second), alpha=((2.0, 2.5), (3.0, None)), rate=((0.1, 0.2), (0.3, 0.4)))
    bars = [Bar(first, name, 90.0, 1.0, (88.0, 90.0), 92.0, 3.0, 0.5) for name in (first, second)]
    alphas = [Alphas(first, name, (2.0, 2.5, 3.0)) for name in (first, second)]
    norms = [StepNorm(1, step, name, 0.1 * (step + 1)) for step in (0, 30) for name in (first, second)]
    spectra = [FittedSpectrum(name, (0.1, 1.0, 2.0, 50.0), 2.5, 1.0, 2) for name in (first, second)]
    return {
        "bars": bar_chart(bars, y_title="test accuracy, %", seconds_title="seconds of one balancing", **texts),
        "lines": line_chart(
            [Dot(first, name, x, 90.0 + x, 1.0, 91.0, 2.0) for name in (first, second) for x in (1.0, 2.0)],
            x_title="width", y_title="test accuracy, %", **texts,
        ),
        "timing": timing_chart([Timing(first, name, 10.0, 1.0, 0.5, 0.1) for name in (first, second)], **texts),
        "gradients": gradient_chart(norms, **texts),
        "gradient_histograms": gradient_histograms(norms, **texts),
        "spectra": fitted_spectra(spectra, **texts),
        "alpha_boxes": alpha_boxes(alphas, **texts),
        "alpha_histograms": alpha_histograms(alphas, **texts),
        "maps": layer_maps([track], **texts),
        "two_layers": two_layers([track], (first, second), **texts),
    }  # fmt: skip


def drawn_words(path):
    """The picture, and every piece of text in it; a title of several lines is in several pieces."""
    root, texts = texts_of(path)
    return root, {*texts, *(each.text for each in root.iter("{http://www.w3.org/2000/svg}tspan"))}


def bars_spec(*bars, **options):
    return bar_chart(bars, y_title="accuracy, %", **TEXTS, **options).to_dict()


def layers_of(panel):
    """Every single chart of a panel, those in layers too."""
    return [each for layer in panel["layer"] for each in layers_of(layer)] if "layer" in panel else [panel]


def encodings(spec, channel, field):
    found = [each["encoding"] for panel in spec["concat"] for each in layers_of(panel)]
    return [each[channel] for each in found if each.get(channel, {}).get("field") == field]


def test_a_bar_has_its_mean_its_error_its_crosses_and_the_papers_mean():
    spec = bars_spec(Bar("ResNet18", "TB", 90.0, 1.0, (88.0, 90.0), paper=92.0), Bar("ResNet18", "CAL", 89.0, None))
    first, second = values_of(spec)
    assert (first["panel"], first["label"], first["mean"], first["low"], first["high"]) == (0, 0, 90.0, 89.0, 91.0)
    assert (first["crosses"], first["paper"]) == ([88.0, 90.0], 92.0)
    assert (second["label"], second["low"], second["high"], second["crosses"]) == (1, None, None, [])
    assert spec["params"] == [{"name": "label_names", "value": ["TB", "CAL"]}]
    assert {"calculate": "label_names[datum.label]", "as": "name"} in layers_of(spec["concat"][0])[0]["transform"]


def test_an_axis_is_zoomed_to_the_data_of_its_panel():
    spec = bars_spec(Bar("a", "x", 90.0, 1.0, (88.0,), paper=92.0), Bar("b", "x", 50.0, 5.0))
    domains = [each["scale"]["domain"] for each in encodings(spec, "y", "mean")]
    assert domains == [pytest.approx([87.52, 92.48]), pytest.approx([43.8, 56.2])]  # 12 % of the range beyond its ends


@pytest.mark.parametrize(("panels", "columns"), [(1, 1), (4, 4), (5, 3), pytest.param(12, 4, marks=pytest.mark.slow)])
def test_at_most_four_panels_stand_side_by_side_and_the_first_of_each_row_says_what_is_measured(panels, columns):
    spec = bars_spec(*(Bar(f"panel {number}", "x", 1.0 + number, 0.1) for number in range(panels)))
    assert (len(spec["concat"]), spec["columns"]) == (panels, columns)
    titles = [each.get("title") for each in encodings(spec, "y", "mean")]
    assert titles == ["accuracy, %" if number % columns == 0 else None for number in range(panels)]
    assert [panel["title"]["text"] for panel in spec["concat"]] == [f"panel {number}" for number in range(panels)]


@pytest.mark.parametrize("mean", [None, NAN, float("inf")])
def test_what_has_not_run_keeps_its_place_and_its_label(mean):
    spec = bars_spec(Bar("a", "CAL", 90.0, 1.0), Bar("a", "TB", mean, None, paper=91.0))
    assert {tuple(each["scale"]["domain"]) for each in encodings(spec, "x", "label")} == {(0, 1)}
    assert values_of(spec)[1]["mean"] is None
    assert_carries(spec["description"], "1 without")


def test_a_panel_without_any_number_has_a_bare_axis():
    spec = bars_spec(Bar("a", "CAL", None, None))
    (y,) = encodings(spec, "y", "mean")
    assert (y["axis"]["labels"], y["scale"]["domain"]) == (False, [0, 1])


@pytest.mark.parametrize(
    ("bar", "signs"),
    [
        (Bar("a", "x", 90.0, 1.0), []),
        (Bar("a", "x", 90.0, 1.0, (89.0,)), ["each setting tried"]),
        (Bar("a", "x", 90.0, 1.0, (89.0,), paper=91.0), ["each setting tried", "paper"]),
    ],
)
def test_the_legend_has_the_signs_that_are_there(bar, signs):
    spec = bars_spec(bar)
    domains = [each["scale"]["domain"] for each in encodings(spec, "shape", "sign")]
    assert domains == [signs] * len(signs)


def test_seconds_have_an_axis_from_0_on_the_right():
    spec = bars_spec(Bar("a", "x", 90.0, 1.0, seconds=8.0, seconds_std=2.0), seconds_title="seconds")
    y = encodings(spec, "y", "seconds")[0]
    assert (y["axis"]["orient"], y["title"], y["scale"]["domain"]) == ("right", "seconds", pytest.approx([0, 11.5]))
    assert spec["concat"][0]["resolve"] == {"scale": {"y": "independent"}}
    assert (values_of(spec)[0]["seconds_low"], values_of(spec)[0]["seconds_high"]) == (6.0, 10.0)


def test_two_bars_in_one_place_are_refused():
    with raises(ValueError, "bar", 2, ("a", "x")):
        bars_spec(Bar("a", "x", 1.0, 0.1), Bar("a", "x", 2.0, 0.1))


def lines_spec(*dots, **options):
    return line_chart(dots, x_title="channels", y_title="accuracy, %", **TEXTS, **options).to_dict()


def test_a_line_has_a_tick_at_each_value_that_was_tried():
    spec = lines_spec(*(Dot("a", "TB", x, 90.0, 1.0) for x in (256, 512, 768)), log_x=True)
    x = encodings(spec, "x", "x")[0]
    assert (x["axis"]["values"], x["scale"]["type"], x["scale"]["domain"]) == ([256, 512, 768], "log", [256, 768])
    assert x["title"] == "channels"


def test_series_differ_in_colour_and_in_dash_and_are_named_once():
    spec = lines_spec(*(Dot(panel, name, 1.0, 90.0, 1.0) for panel in "ab" for name in ("CAL", "TB")))
    assert spec["params"] == [{"name": "method_names", "value": ["CAL", "TB"]}]
    for channel in ("color", "strokeDash"):
        looks = encodings(spec, channel, "method")[0]["scale"]["range"]
        assert len({str(look) for look in looks}) == 2


def test_the_papers_line_is_there_where_the_paper_has_one():
    without, with_it = (lines_spec(Dot("a", "TB", 1.0, 90.0, 1.0, paper)) for paper in (None, 93.0))
    assert (len(encodings(without, "y", "paper")), len(encodings(with_it, "y", "paper"))) == (0, 2)
    assert_carries(with_it["title"]["subtitle"][1], "paper")
    assert "paper" not in " ".join(without["title"]["subtitle"])
    assert encodings(with_it, "y", "mean")[0]["scale"]["domain"][1] > 93


@pytest.mark.parametrize("x", [0.0, -1.0, NAN])
def test_a_log_axis_has_no_place_for_what_is_not_above_0(x):
    with raises(ValueError, "dot", x):
        lines_spec(Dot("a", "TB", x, 90.0, 1.0), log_x=True)


def test_the_increment_is_one_balancing_in_percent_of_one_epoch():
    spec = timing_chart(
        [Timing("depth", "18", 20.0, 1.0, 0.5, 1.0), Timing("width", "512", 10.0, None, NAN, None)], **TEXTS
    ).to_dict()
    first, second = values_of(spec)
    assert (first["increment"], second["increment"]) == (2.5, None)
    assert (first["epoch_low"], first["epoch_high"]) == (19.0, 21.0)
    assert (first["balancing_low"], first["balancing_high"]) == (0.05, 1.5)  # 0.5 - 1 has no place on a log axis
    assert [panel["title"]["text"] for panel in spec["concat"]] == ["depth", "depth", "width", "width"]
    assert {each["scale"]["type"] for each in encodings(spec, "y", "epoch")} == {"log"}
    assert len(encodings(spec, "text", "increment")) == 2
    assert encodings(spec, "shape", "sign")[0]["scale"]["domain"] == ["one epoch", "one balancing"]


@pytest.mark.parametrize(
    ("draw", "what"),
    [
        (lambda: bar_chart([], y_title="y", **TEXTS), "bar"),
        (lambda: line_chart([], x_title="x", y_title="y", **TEXTS), "dot"),
        (lambda: timing_chart([], **TEXTS), "timing"),
        (lambda: gradient_chart([], **TEXTS), "gradient norm"),
        (lambda: gradient_histograms([], **TEXTS), "gradient norm"),
        (lambda: fitted_spectra([], **TEXTS), "spectrum"),
        (lambda: alpha_boxes([], **TEXTS), "set of alphas"),
        (lambda: alpha_histograms([], **TEXTS), "set of alphas"),
        (lambda: layer_maps([], **TEXTS), "track"),
        (lambda: two_layers([], ("a", "b"), **TEXTS), "track"),
    ],
)
def test_a_chart_of_nothing_says_what_is_missing(draw, what):
    with raises(ValueError, what):
        draw()


NAMELESS = ("gradients", "gradient_histograms", "spectra", "maps")  # charts of one run, which they do not name
HOSTILE_SUBTITLE = "data /tmp/'+alert(1)+'\u202e.npz"


def fields(charts):
    """All fields and expressions of every chart, without its data."""
    keys = r"'(?:field|filter|calculate|expr|labelExpr|as|groupby)': [^,}]*"
    texts = [str({**chart.to_dict(), "datasets": 0}) for chart in charts.values()]
    wrapped = """"split(label_names[datum.value], ' ')\""""  # of long labels
    return [re.findall(keys, text.replace(wrapped, "'label_names[datum.value]'")) for text in texts]


@pytest.fixture(scope="module")
def harmless_fields():
    return fields(every_chart("a", "b", title="a", subtitle="c"))


@pytest.fixture(scope="module")
def hostile_charts():
    return every_chart(HOSTILE[0], "__proto__", title=HOSTILE[0], subtitle=HOSTILE_SUBTITLE)


def test_every_chart_is_drawn_with_its_names_as_text_and_words_for_screen_readers(hostile_charts, tmp_path):
    for path in save_figures(hostile_charts, tmp_path, formats=["svg"]):
        root, texts = drawn_words(path)
        assert {HOSTILE[0], HOSTILE_SUBTITLE.replace("\u202e", "\\u202e")} <= texts, path.stem
        assert "alert(1)" in root.get("aria-label"), path.stem
        assert not {"null", "NaN", "undefined", "(no name)"} & texts, path.stem
        assert "script" not in {element.tag.rpartition("}")[2] for element in root.iter()}
        assert "__proto__" in texts or path.stem in NAMELESS, path.stem


def test_names_are_values_and_never_fields_or_expressions(hostile_charts, harmless_fields):
    """A description with hostile names differs from one with harmless ones in data, labels, title and text only."""
    assert fields(hostile_charts) == harmless_fields


@pytest.mark.slow
@pytest.mark.parametrize("place", [1, 22, 30, 50])
def test_other_hostile_names_are_no_fields_either(place, harmless_fields):
    first, second = HOSTILE[place : place + 2]
    assert fields(every_chart(first, second, title=first, subtitle=first + second)) == harmless_fields


def test_a_long_subtitle_takes_several_lines():
    words = " ".join(f"word{place}" for place in range(30))
    lines = timing_chart([Timing("a", "b", 1.0, 0.1, 0.1, 0.1)], title="t", subtitle=words).to_dict()["title"][
        "subtitle"
    ]
    assert " ".join(lines[:2]) == words


def test_one_diverged_setting_does_not_flatten_the_bars_and_is_marked_at_the_end_of_the_axis():
    means = {"a": 84.0, "b": 85.0, "c": 86.0, "d": 10.0}
    spec = bar_chart([Bar("p", label, mean, 0.5) for label, mean in means.items()], y_title="accuracy, %", **TEXTS)
    low, high = encodings(spec.to_dict(), "y", "mean")[0]["scale"]["domain"]
    assert 80 < low < 84
    assert 86 < high < 90
    triangles = [
        layer for layer in layers_of(spec.to_dict()["concat"][0]) if layer["mark"].get("shape") == "triangle-down"
    ]
    assert [f"datum.mean < {low}" in str(layer["transform"]) for layer in triangles] == [True]


def test_accuracies_are_never_negative_nor_above_a_hundred():
    spec = bar_chart([Bar("p", "a", 3.0, 5.0), Bar("p", "b", 99.0, 2.0)], y_title="accuracy, %", **TEXTS).to_dict()
    low, high = encodings(spec, "y", "mean")[0]["scale"]["domain"]
    assert (low, high) == (0.0, 100.0)
    assert [datum["low"] for datum in values_of(spec)] == [0.0, 97.0]


def test_tb_has_one_colour_in_bars_and_lines():
    bars = bar_chart([Bar("p", name, 1.0, None, method=name) for name in ("CAL", "TB")], y_title="y", **TEXTS).to_dict()
    colours = {("CAL", "TB")[datum["label"]]: datum["colour"] for datum in values_of(bars)}
    dots = [Dot("p", name, x, 1.0, None) for name in ("SGDR", "TB", "CAL") for x in (1, 2)]
    lines = line_chart(dots, x_title="x", y_title="y", **TEXTS).to_dict()
    scale = encodings(lines, "color", "method")[0]["scale"]
    assert scale["range"][1:] == [colours["TB"], colours["CAL"]]


def test_long_labels_are_wrapped_at_their_spaces():
    labels = ["TB+Adam, keep mean of all", "TB+Adam, fair and shrunk", "Adam", "SGD"]
    spec = bar_chart([Bar("p", label, 1.0, None) for label in labels], y_title="y", **TEXTS).to_dict()
    axis = encodings(spec, "x", "label")[0]["axis"]
    assert (axis["labelAngle"], axis["labelExpr"]) == (0, "split(label_names[datum.value], ' ')")
