import pytest

from tempbalance.lab.detection.data import Box, read_boxes
from tests.cases import raises
from tests.lab.detection.layout import annotation_xml, object_xml

SIZE = (100, 80)


@pytest.fixture
def read(tmp_path):
    path = tmp_path / "one.xml"

    def read_text(text, classes=("cat", "dog")):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_boxes(path, classes=classes, size=SIZE)

    return read_text


def test_pixels_are_counted_from_one_and_the_last_belongs_to_the_box(read):
    whole, one_pixel = read(annotation_xml(object_xml(box=(1, 1, 100, 80)), object_xml("cat", (7, 9, 7, 9), "1")))
    assert whole == Box(1, 0, 0, 100, 80, is_difficult=False)
    assert one_pixel == Box(0, 6, 8, 7, 9, is_difficult=True)


def test_a_part_of_an_object_is_no_object_and_what_is_not_said_is_not_difficult(read):
    part = "<part><name>head</name><bndbox><xmin>0</xmin></bndbox></part>"
    box = "<bndbox><xmin>1.5</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox>"
    assert read(f"<annotation><object><name> dog </name>{part}{box}</object></annotation>") == (
        Box(1, 0.5, 0, 2, 2, is_difficult=False),
    )


def test_a_box_that_is_counted_from_zero_or_reaches_a_pixel_too_far_is_cut_to_the_image(read):
    assert read(annotation_xml(object_xml(box=(0, 0, 101, 81)))) == (Box(1, 0, 0, 100, 80, is_difficult=False),)


@pytest.mark.parametrize(
    ("text", "carried"),
    [
        ("", ["XML"]),
        ("<annotation><object>", ["XML"]),
        (b"\xff\xfe\x00binary", ["XML"]),
        ('<?xml version="1.0" encoding="nonsense"?><annotation/>', ["XML"]),
        ("<html/>", ["<annotation>", "<html>"]),
        ("<annotation><size/></annotation>", ["<object>", "<bndbox>"]),
        (annotation_xml("<object><name>dog</name></object>"), ["<bndbox>", "dog"]),
        (annotation_xml("<object><bndbox/></object>"), ["<object>", "<name>"]),
        (annotation_xml("<object><name>dog</name><bndbox/></object>"), ["<bndbox>", "<xmin>"]),
        (annotation_xml(object_xml("dogg")), ["'dogg'", "'dog'"]),
        (annotation_xml(object_xml(box=("x", 1, 2, 3))), ["xmin", "'x'"]),
        (annotation_xml(object_xml(box=(1, 1, "nan", 3))), ["xmax", "'nan'"]),
        (annotation_xml(object_xml(difficult="maybe")), ["difficult", "'maybe'"]),
        (annotation_xml(object_xml(box=(9, 1, 8, 3))), ["xmin <= xmax <= 100", "xmin 9", "xmax 8"]),
        (annotation_xml(object_xml(box=(1, 1, 102, 3))), ["xmax <= 100", "xmax 102"]),
        (annotation_xml(object_xml(box=(-1, 1, 5, 3))), ["1 <= xmin", "xmin -1"]),
        (annotation_xml(object_xml(box=(101, 1, 101, 3))), ["xmax <= 100", "xmin 101"]),
        (annotation_xml(object_xml(box=(1, 0, 5, 0))), ["1 <= ymin", "ymax 0"]),
    ],
)
def test_what_is_wrong_is_said_with_the_file_the_rule_and_the_value(read, text, carried):
    with raises(ValueError, "one.xml", *carried):
        read(text)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_entities_are_not_expanded_because_a_document_type_is_refused(read, encoding):
    declared = "".join(f'<!ENTITY a{i + 1} "{f"&a{i};" * 10}">' for i in range(9))
    text = f'<!DOCTYPE lol [<!ENTITY a0 "lol">{declared}]><annotation>&a9;</annotation>'
    with raises(ValueError, "one.xml", "'lol'"):
        read(text.encode(encoding))


def test_a_file_outside_is_not_read(read, tmp_path):
    (tmp_path / "secret").write_text("dog")
    text = f'<!DOCTYPE x [<!ENTITY s SYSTEM "file://{tmp_path}/secret">]>' + annotation_xml(object_xml("&s;"))
    with raises(ValueError, "one.xml", "'x'"):
        read(text)
