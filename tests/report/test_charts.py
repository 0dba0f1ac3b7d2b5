import re
import subprocess
import sys

import pytest

alt = pytest.importorskip("altair", reason="charts need the extra report")

from tempbalance.report import diagnosis_charts, runs_charts  # noqa: E402
from tempbalance.report.diagnosis import depth_points, spectrum_numbers  # noqa: E402
from tempbalance.report.text import VERDICT_LOOKS  # noqa: E402
from tests.report.cases import (  # noqa: E402
    HOSTILE,
    diagnosis_row,
    diagnosis_rows,
    row_with_parts,
    values_of,
    write_run,
)

NAN = float("nan")
ALL_OF_RUNS = [
    "accuracy", "loss", "layer_maps", "alpha_boxes", "alpha_histogram", "two_layers", "spectrum"
]  # fmt: skip


def specs_of(rows):
    return {name: chart.to_dict() for name, chart in diagnosis_charts(rows, model="m", tail="median").items()}


def run_specs(*runs):
    return {name: chart.to_dict() for name, chart in runs_charts(runs).items()}


def param(spec, name):
    return next(each for each in spec["params"] if each["name"] == name)


def axes(node):
    """The title of every axis that a description says, wherever it stands."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("x", "y") and isinstance(value, dict) and "field" in value:
                yield key, value.get("title") or (value.get("axis") or {}).get("title")
            yield from axes(value)
    elif isinstance(node, list):
        for each in node:
            yield from axes(each)


def test_alpha_is_drawn_by_depth_for_the_layers_that_have_one():
    rows = diagnosis_rows()
    numbers = spectrum_numbers(rows)
    points = depth_points(rows, "alpha", numbers)
    assert [(point["depth"], point["value"]) for point in points] == [(1, 3.5), (2, 1.75), (3, 3.0), (4, 2.25)]
    assert (points[0]["low"], points[0]["high"]) == (3.4, 3.6)
    ratio = depth_points(rows, "alpha_over_random", numbers)[0]
    assert (ratio["low"], ratio["value"], ratio["high"]) == (1.7, 1.75, 1.8)  # the same relative error
    assert [point["spectrum"] for point in points] == [0, 1, 2, 5]


def test_each_verdict_has_its_colour_and_shape():
    spec = specs_of([diagnosis_row(verdict, verdict=verdict) for verdict in VERDICT_LOOKS])["alpha"]
    marks = next(layer for layer in spec["layer"] if "shape" in layer["encoding"])["encoding"]
    assert marks["shape"]["scale"]["domain"] == marks["color"]["scale"]["domain"] == list(VERDICT_LOOKS)
    assert len(set(marks["shape"]["scale"]["range"])) == len(set(marks["color"]["scale"]["range"])) == 5


def test_each_part_can_be_chosen():
    spec = specs_of(diagnosis_rows())["spectrum"]
    assert param(spec, "spectrum")["bind"]["labels"] == [
        "conv1", "conv10", "attention, part q", "attention, part k", "attention, part v", "conv2"
    ]  # fmt: skip
    data = {each["spectrum"]: each for each in values_of(spec)}
    assert [data[number]["note"] for number in (2, 3, 4)] == ["alpha 2.000", "alpha 3.000", "alpha 4.000"]


def test_a_random_edge_is_drawn_where_there_is_one():
    spec = specs_of(diagnosis_rows())["spectrum"]
    assert [each["edge"] for each in sorted(values_of(spec), key=lambda each: each["spectrum"])] == [
        3.0, 3.0, None, None, None, 3.0
    ]  # fmt: skip


def test_without_alphas_and_spectra_there_are_no_charts():
    assert specs_of([]) == {}
    by_depth = {"alpha_over_random", "alpha"}
    assert specs_of([diagnosis_row("a", alpha=2.0, spectra={})]).keys() == by_depth
    assert specs_of([diagnosis_row("a", spectra={"": [0.0, NAN]})]).keys() == by_depth


@pytest.mark.parametrize("value", [None, NAN, float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_left_out(value):
    row = diagnosis_row("b", alpha_stderr=value, xmin=value, mp_edge=value)
    lost = diagnosis_row("c", spectra={"": [1.0, 2.0, NAN, float("inf")]})
    object.__setattr__(lost, "alpha", value)
    specs = specs_of([row, lost])
    (point,) = [each for each in values_of(specs["alpha"]) if "depth" in each]
    assert (point["depth"], point["low"], point["high"]) == (1, 2.5, 2.5)
    first, second = values_of(specs["spectrum"])
    assert (first["xmin"], first["edge"], first["tail_x"]) == (None, None, [])
    assert sum(second["counts"]) == 2


def test_runs_have_every_chart_and_without_eigenvalues_all_but_the_spectrum(tmp_path):
    assert list(run_specs(write_run(tmp_path / "a"))) == ALL_OF_RUNS
    assert list(run_specs(write_run(tmp_path / "b", eigenvalues=False))) == ALL_OF_RUNS[:-1]


def test_a_run_that_has_just_begun_has_no_charts(tmp_path):
    run = write_run(tmp_path / "a", layers=())
    for name in ("metrics.jsonl", "result.json"):
        (tmp_path / "a" / name).unlink()
    assert run_specs(run) == {}


def test_methods_differ_in_colour_and_in_dash(tmp_path):
    spec = run_specs(*(write_run(tmp_path / each, method=each) for each in ("cal", "tb", "snr")))["accuracy"]
    line = next(layer for layer in spec["layer"] if "strokeDash" in layer["encoding"])["encoding"]
    for channel in ("color", "strokeDash"):
        looks = line[channel]["scale"]["range"]
        assert len({str(look) for look in looks}) == 3
    assert param(spec, "method_names")["value"] == ["cal", "tb", "snr"]


def test_the_slider_goes_from_the_first_epoch_to_the_last(tmp_path):
    spec = run_specs(write_run(tmp_path / "a", epochs=5))["spectrum"]
    bind = param(spec, "epoch")["bind"]
    assert (bind["min"], bind["max"], bind["step"]) == (0, 5, 1)


def test_charts_begin_with_a_method_that_has_what_they_show(tmp_path):
    runs = [write_run(tmp_path / "a", method="cal", eigenvalues=False), write_run(tmp_path / "b", method="tb")]
    specs = run_specs(*runs)
    assert param(specs["spectrum"], "method")["value"] == 1
    assert param(specs["two_layers"], "second")["bind"]["labels"] == ["a (cal)", "b (cal)", "a (tb)", "b (tb)"]


def test_every_chart_has_a_title_a_description_and_named_axes(tmp_path):
    specs = {**specs_of(diagnosis_rows()), **{f"runs {k}": v for k, v in run_specs(write_run(tmp_path / "a")).items()}}
    for name, spec in specs.items():
        assert spec["title"], name
        assert len(spec["description"]) > 40, name
        titles = dict(each for each in axes(spec) if each[1])
        expected = {"runs layer_maps": {"x"}, "runs alpha_boxes": {"y"}}.get(name, {"x", "y"})
        assert titles.keys() == expected, name  # where layers or methods stand by name, no unit is to be said


def test_names_are_values_and_never_fields_or_expressions(tmp_path):
    """A description with hostile names differs from one with harmless ones in data, labels, title and text only."""

    def skeleton(rows, run):
        charts = {
            **diagnosis_charts(rows, model=rows[0].name, tail="median"),
            **{f"r{k}": v for k, v in runs_charts([run]).items()},
        }
        found = []
        for spec in (chart.to_dict() for chart in charts.values()):
            found += re.findall(
                r"'(?:field|filter|calculate|expr|labelExpr|as|groupby)': [^,}]*", str({**spec, "datasets": 0})
            )
        return found

    def all_of(names, folder):
        rows = [row_with_parts(name, parts=(name, "k")) if name else diagnosis_row(name) for name in names]
        return skeleton(rows, write_run(folder, method=names[0], layers=names, epochs=1))

    harmless = [f"layer{place}" if name else "" for place, name in enumerate(HOSTILE)]
    assert all_of(HOSTILE, tmp_path / "a") == all_of(harmless, tmp_path / "b")


@pytest.mark.parametrize(("tail", "marked"), [("median", []), ("peak", []), ("goodness_of_fit", [2, 6])])
def test_a_random_matrix_and_the_levels_of_the_theory_are_marked(tail, marked):
    charts = diagnosis_charts(diagnosis_rows(), model="m", tail=tail)

    def bounds(name):
        inline = [values for key, values in charts[name].to_dict()["datasets"].items() if key != "main"]
        return [each["bound"] for values in inline for each in values]

    assert bounds("alpha_over_random") == [1]
    assert bounds("alpha") == marked


@pytest.mark.slow
def test_importing_the_package_does_not_load_altair():
    code = (
        "import sys, tempbalance.report; print(sorted({'altair', 'vl_convert', 'numpy', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_row_and_part_have_one_number_in_chart_and_table():
    assert spectrum_numbers(diagnosis_rows()) == {
        (0, ""): 0, (1, ""): 1, (2, "q"): 2, (2, "k"): 3, (2, "v"): 4, (3, ""): 5
    }  # fmt: skip
