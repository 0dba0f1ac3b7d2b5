import pytest

pytest.importorskip("altair", reason="charts need the extra report")
pytest.importorskip("vl_convert", reason="figures need the extra report")

from tempbalance.bench.chart import Speed, draw_speed, speed_chart, speeds
from tempbalance.report import save_figures
from tests.bench.cases import known_results
from tests.cases import raises
from tests.report.cases import HOSTILE, values_of
from tests.report.test_figures import texts_of

TEXTS = {"title": "One balancing", "subtitle": "a machine"}


def test_speeds_are_the_ratios_of_rounds_against_both_others():
    found = {(each.panel, each.tail): (each.ratio, each.low, each.high) for each in speeds(known_results())}
    assert found["the published procedure", "median"] == (3.0, 2.5, 3.5)
    assert found["WeightWatcher", "peak"] == (10.0, 10.0, 10.0)
    assert len(found) == 6


def test_a_chart_has_a_panel_for_each_other_and_a_point_for_each_network_and_tail():
    given = [Speed("reference", name, tail, 3.0, 2.0, 4.0) for name in "ab" for tail in ("median", "peak")]
    spec = speed_chart([*given, Speed("WeightWatcher", "a", "peak", 20.0, 10.0, 30.0)], **TEXTS).to_dict()
    assert len(spec["concat"]) == 2
    first = values_of(spec)[0]
    assert first == {"panel": 0, "label": 0, "sign": "median", "ratio": 3.0, "low": 2.0, "high": 4.0}
    points = [layer for layer in spec["concat"][0]["layer"] if layer["mark"]["type"] == "point"]
    low, high = points[0]["encoding"]["y"]["scale"]["domain"]
    assert low < 1
    assert high > 30


def test_no_speeds_and_doubled_ones_are_refused():
    with raises(ValueError, "speed"):
        speed_chart([], **TEXTS)
    twice = [Speed("a", "b", "median", 1.0, 1.0, 1.0)] * 2
    with raises(ValueError, "speed", 2, "'a'", "'b'", "'median'"):
        speed_chart(twice, **TEXTS)


def test_the_picture_has_the_names_as_text(tmp_path):
    path = draw_speed(known_results(), tmp_path / "a.svg")
    _, texts = texts_of(path)
    assert {"VGG16", "against WeightWatcher", "against the published procedure", "median", "peak"} <= set(texts)


@pytest.mark.parametrize("name", HOSTILE[:2])
def test_names_stay_text(name, tmp_path):
    chart = speed_chart([Speed(name, name, "median", 2.0, 1.0, 3.0)], title=name, subtitle=name)
    (path,) = save_figures({"a": chart}, tmp_path, ["svg"])
    root, texts = texts_of(path)
    assert not [each for each in root.iter() if each.tag.endswith("script") or each.tag.endswith("img")]
    assert f"against {name}" in texts
