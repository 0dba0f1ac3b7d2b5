import xml.etree.ElementTree as ElementTree

import pytest

pytest.importorskip("altair", reason="charts need the extra report")
pytest.importorskip("vl_convert", reason="figures need the extra report")

import altair
from altair.utils import schemapi

from tempbalance.report import diagnosis_charts, diagnosis_page, runs_charts, save_figures
from tests.cases import raises
from tests.report.cases import HOSTILE, diagnosis_row, diagnosis_rows, write_run

todict = schemapi._todict
BEGINS = {"svg": b"<svg ", "pdf": b"%PDF-", "png": b"\x89PNG\r\n\x1a\n"}


TITLES = {
    "alpha_over_random": "Alpha over that of a random matrix by depth, net.pt",
    "alpha": "Alpha by depth, net.pt",
    "spectrum": "Spectrum of conv1",
}


def texts_of(path):
    root = ElementTree.parse(path).getroot()
    return root, [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]


def test_each_chart_is_written_in_each_format(tmp_path):
    charts = diagnosis_charts(diagnosis_rows()[:1], model="net.pt", tail="median")
    files = save_figures(charts, tmp_path / "new" / "figures")
    assert [path.name for path in files] == [f"{name}.{form}" for name in charts for form in BEGINS]
    for path in files:
        assert path.read_bytes().startswith(BEGINS[path.suffix[1:]]), path.name


def test_charts_are_valid_and_are_shown_and_saved_as_altairs_are(tmp_path):
    charts = {
        **diagnosis_charts(diagnosis_rows(), model="m", tail="median"),
        **runs_charts([write_run(tmp_path / "r")]),
    }
    for name, chart in charts.items():
        altair.Chart.from_dict(chart.to_dict(), validate=True)
        assert chart._repr_mimebundle_()["text/html"]
        chart.save(tmp_path / f"{name}.svg")
        assert (tmp_path / f"{name}.svg").read_bytes().startswith(BEGINS["svg"]), name


def test_altair_does_not_copy_or_check_data_and_names(monkeypatch):
    """It took most of the time of a page with thousands of layers."""
    checked = []

    def counted(obj, *more, **options):
        checked.append(obj)
        return todict(obj, *more, **options)

    monkeypatch.setattr(schemapi, "_todict", counted)
    counts = []
    for size in (5, 50):
        checked.clear()
        diagnosis_page([diagnosis_row(f"l{i}") for i in range(size)], model="m", tail="median", summary={})
        counts.append(len(checked))
    assert counts[0] == counts[1] > 0


def test_an_svg_has_its_title_and_its_text_for_screen_readers(tmp_path):
    charts = diagnosis_charts(diagnosis_rows(), model="net.pt", tail="median")
    for path in save_figures(charts, tmp_path, formats=["svg"]):
        root, texts = texts_of(path)
        assert root.get("aria-label") == charts[path.stem].to_dict()["description"]
        assert root.get("role") == "img"
        assert TITLES[path.stem] in texts


def test_every_chart_of_runs_can_be_drawn(tmp_path):
    runs = [write_run(tmp_path / each, method=each) for each in ("cal", "tb")]
    charts = runs_charts(runs)
    for path in save_figures(charts, tmp_path / "figures", formats=["svg"]):
        _, texts = texts_of(path)
        title = charts[path.stem].to_dict()["title"]
        title = title if isinstance(title, str) else title["text"]
        assert (
            title if isinstance(title, str) else title[0] if isinstance(title, list) else "a, cal, epoch 3"
        ) in texts
        assert "null" not in texts
        assert "NaN" not in texts


def test_hostile_names_are_text_in_an_svg(tmp_path):
    rows = [diagnosis_row(name) for name in HOSTILE]
    for path in save_figures(diagnosis_charts(rows, model=HOSTILE[0], tail="median"), tmp_path, formats=["svg"]):
        root, texts = texts_of(path)
        assert not {"script", "img", "b"} & {element.tag.rpartition("}")[2] for element in root.iter()}
        assert any(HOSTILE[0] in (text or "") for text in texts)


def test_an_unknown_format_is_refused_before_anything_is_written(tmp_path):
    with raises(ValueError, "formats", "svg, pdf, png", "'gif'"):
        save_figures({}, tmp_path / "figures", formats=["svg", "gif"])
    assert not (tmp_path / "figures").exists()
