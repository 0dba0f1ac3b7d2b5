import pytest

from tempbalance.lab.detection.annotations import Box, read_boxes
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
    ("text", "said"),
    [
        ("", "damaged, not XML: no element found"),
        ("<annotation><object>", "damaged, not XML"),
        (b"\xff\xfe\x00binary", "damaged, not XML"),
        ('<?xml version="1.0" encoding="nonsense"?><annotation/>', "damaged, not XML"),
        ("<html/>", "must be an <annotation>, got <html>"),
        ("<annotation><size/></annotation>", "must have an <object> with a <bndbox>, got none"),
        (annotation_xml("<object><name>dog</name></object>"), "must have a <bndbox>, the dog has none"),
        (annotation_xml("<object><bndbox/></object>"), "every <object> must have a <name>, got none"),
        (annotation_xml("<object><name>dog</name><bndbox/></object>"), "every <bndbox> must have a <xmin>"),
        (annotation_xml(object_xml("dogg")), "unknown class 'dogg': did you mean 'dog'"),
        (annotation_xml(object_xml(box=("x", 1, 2, 3))), "xmin must be a finite number, got 'x'"),
        (annotation_xml(object_xml(box=(1, 1, "nan", 3))), "xmax must be a finite number, got 'nan'"),
        (annotation_xml(object_xml(difficult="maybe")), "difficult must be 0 or 1, got 'maybe'"),
        (annotation_xml(object_xml(box=(9, 1, 8, 3))), "xmin <= xmax <= 100 .* got xmin 9, ymin 1, xmax 8"),
        (annotation_xml(object_xml(box=(1, 1, 102, 3))), "xmax <= 100 .* got xmin 1, ymin 1, xmax 102"),
        (annotation_xml(object_xml(box=(-1, 1, 5, 3))), "1 <= xmin .* got xmin -1"),
        (annotation_xml(object_xml(box=(101, 1, 101, 3))), "xmax <= 100 .* got xmin 101"),
        (annotation_xml(object_xml(box=(1, 0, 5, 0))), "1 <= ymin .* ymax 0"),
    ],
)
def test_what_is_wrong_is_said_with_the_file_the_rule_and_the_value(read, text, said):
    with pytest.raises(ValueError, match=rf"one\.xml: .*{said}"):
        read(text)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_entities_are_not_expanded_because_a_document_type_is_refused(read, encoding):
    declared = "".join(f'<!ENTITY a{i + 1} "{f"&a{i};" * 10}">' for i in range(9))
    text = f'<!DOCTYPE lol [<!ENTITY a0 "lol">{declared}]><annotation>&a9;</annotation>'
    with pytest.raises(ValueError, match=r"one\.xml: must have no document type, got 'lol'"):
        read(text.encode(encoding))


def test_a_file_outside_is_not_read(read, tmp_path):
    (tmp_path / "secret").write_text("dog")
    text = f'<!DOCTYPE x [<!ENTITY s SYSTEM "file://{tmp_path}/secret">]>' + annotation_xml(object_xml("&s;"))
    with pytest.raises(ValueError, match="must have no document type"):
        read(text)
