import pytest

pytest.importorskip("altair", reason="pages need the extra report")
pytest.importorskip("vl_convert", reason="pages need the extra report")

from tempbalance.report.page import study_page
from tempbalance.report.study_charts import Bar, bar_chart
from tempbalance.report.tables import Number, Report, ResultTable
from tests.cases import raises
from tests.report.cases import HOSTILE
from tests.report.test_page import Page

SUBTITLE = "preset laptop: digits, 1,438 + 359 images"
COLUMNS = ("method", "mean, %")


def chart_of(label):
    return bar_chart([Bar(label, label, 90.0, 1.0)], title=label, subtitle=label, y_title="accuracy, %")


def page_of(name="TB", **changes):
    table = ResultTable("Accuracy", COLUMNS, (("CAL", Number(90.1, 0.2)), (name, None)))
    values = {
        "title": "main",
        "subtitle": SUBTITLE,
        "about": "Is TB better?",
        "tables": [table],
        "notes": ["One note."],
    }
    charts = {"charts": {"main": chart_of("TB")}, "captions": {"main": "Bars.", "other": "Not drawn."}}
    return study_page(Report(**{**values, **charts, **changes}))


def test_a_study_has_its_words_its_tables_its_charts_and_its_notes():
    page = Page(page_of())
    assert page.specs.keys() == {"main"}
    assert page.cells == ["method", "mean, %", "CAL", "90.10 ± 0.20", "TB", ""]
    for words in ("main", "Is TB better?", "Accuracy", "Bars.", "One note."):
        assert words in page.words, words
    assert "Not drawn." not in page.words


def test_preset_and_data_stand_under_the_title_and_in_the_caption_of_each_table():
    table = ResultTable("More", COLUMNS, ())
    words = Page(page_of(tables=[table, table])).words
    assert words.count(SUBTITLE) == 1
    assert words.count(f"More ({SUBTITLE})") == 2


def test_what_there_is_not_is_left_out():
    words = Page(page_of(charts={}, notes=[], about="")).words
    assert not {"Figures", "In short"} & set(words)
    with raises(ValueError, "table", "chart"):
        page_of(charts={}, tables=[])


def test_a_chart_needs_a_plain_name_and_a_caption():
    with raises(ValueError, "'a b'"):
        page_of(charts={"a b": chart_of("TB")}, captions={"a b": ""})
    with raises(ValueError, "captions", "'main'"):
        page_of(captions={})


def test_sentences_are_whole_and_wrap():
    sentence = "TB is better than CAL on every dataset and network, whatever the initial rate and the width. " * 2
    table = ResultTable("Claims", ("method", "claim"), (("CAL", sentence),), prose=("claim",), heading="Claims")
    page = page_of(tables=[table])
    assert sentence.strip() in page
    assert "Claims" in Page(page).words
    assert sentence.strip() not in Page(page_of(sentence)).words  # a name is cut


def test_a_row_of_another_length_is_refused():
    with raises(ValueError, "'Accuracy'", 2, 1):
        ResultTable("Accuracy", COLUMNS, (("CAL",),))


def test_names_add_neither_elements_nor_attributes():
    def tags(names):
        noted = [Number(1.0, note=name) if place % 2 == 0 else name for place, name in enumerate(names)]
        table = ResultTable(names[0], names, (noted, noted))
        charts = {"main": chart_of(names[1])}
        text = page_of(
            title=names[2], subtitle=names[3], about=names[4], tables=[table], charts=charts,
            captions={"main": names[5]}, notes=names,
        )  # fmt: skip
        return Page(text).tags

    names = [name for name in HOSTILE if name]
    assert tags(names) == tags([f"name{place}" for place in range(len(names))])
