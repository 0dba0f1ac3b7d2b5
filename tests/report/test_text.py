import json

import pytest

from tempbalance.report.text import finite, json_block, number, short, shown
from tests.cases import raises
from tests.report.cases import HOSTILE


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("layers.0.weight", "layers.0.weight"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\nb", "a\\x0ab"),
        ("\u202egnp", "\\u202egnp"),
        ("\u2028", "\\u2028"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("größe", "größe"),
        ("\uffff", "\\uffff"),
    ],
)
def test_what_is_not_seen_is_shown_as_its_escape(raw, expected):
    assert shown(raw) == expected


def test_a_long_name_is_cut_in_its_middle():
    text = short("a" * 100 + "z" * 100, most=20)
    assert len(text) == 20
    assert text.startswith("aaaaaa…")
    assert text.endswith("zzz")
    assert short("b" * 20, most=20) == "b" * 20


def test_a_name_that_is_empty_can_be_seen():
    assert short("") == "(no name)"


def test_a_json_block_holds_no_markup_and_gives_the_name_back():
    for name in HOSTILE:
        block = json_block({"name": name})
        assert not set("<>&\u2028\u2029") & set(block), name
        assert block.isascii(), name
        assert json.loads(block) == {"name": name}


def test_a_json_block_refuses_what_is_not_finite():
    with raises(ValueError, "JSON"):
        json_block([float("nan")])


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), True, "2", [1.0]])
def test_what_is_not_a_finite_number_is_no_number(value):
    assert finite(value) is None
    assert number(value) == ""


def test_numbers_keep_their_significant_digits():
    assert finite(1.23456789) == 1.2346
    assert [number(each) for each in (2.5, 1.0e-7, 6145.2, 3)] == ["2.500", "1.000e-07", "6145", "3"]
