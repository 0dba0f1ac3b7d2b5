"""VOC's annotations: an XML file for each image, with the boxes of its objects. Nothing in one is carried out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from xml.etree import ElementTree

from tempbalance.lab.methods import unknown

SLACK = 1  # pixels that a box may reach over the edge: some tools count from 0


@dataclass(frozen=True)
class Box:
    """Where an object is, in pixels from the upper left corner of the image.

    Attributes:
        label: Its class, as the place in the list of classes.
        left, top, right, bottom: Its edges; ``right - left`` is the width.
        is_difficult: Whether it is hard to recognise, so that VOC leaves it out of the score.
    """

    label: int
    left: float
    top: float
    right: float
    bottom: float
    is_difficult: bool


class _Builder(ElementTree.TreeBuilder):
    """Refuses a document type, with which entities come."""

    def doctype(self, name: str, *_: str | None) -> NoReturn:
        raise ValueError(f"must have no document type, got {name!r}")


def read_boxes(path: Path, *, classes: Sequence[str], size: tuple[int, int]) -> tuple[Box, ...]:
    """The boxes in an annotation.

    VOC counts pixels from 1, and the last one belongs to the box: ``xmin`` 1 and ``xmax`` 5 are the edges 0 and 5.

    Args:
        path: The XML file.
        classes: The names that objects may have.
        size: Width and height of the image.

    Raises:
        ValueError: If the file is no annotation, has no object, or an object has no box in the image; it names the
            file, the rule and the value.
        OSError: If the file cannot be read.
    """
    try:
        root = ElementTree.fromstring(path.read_bytes(), ElementTree.XMLParser(target=_Builder()))
        if root.tag != "annotation":
            raise ValueError(f"must be an <annotation>, got <{root.tag}>")
        if not (objects := root.findall("object")):
            raise ValueError("must have an <object> with a <bndbox>, got none")
        return tuple(_read_object(each, classes, size) for each in objects)
    except (ValueError, LookupError, ElementTree.ParseError) as err:  # LookupError: an encoding that is not known
        told = f"damaged, not XML: {err}" if isinstance(err, ElementTree.ParseError | LookupError) else str(err)
        raise ValueError(f"{path}: {told}") from err


def _read_object(element: ElementTree.Element, classes: Sequence[str], size: tuple[int, int]) -> Box:
    name = _text(element, "name")
    if name not in classes:
        raise ValueError(unknown("class", name, classes))
    box = element.find("bndbox")
    if box is None:
        raise ValueError(f"an <object> must have a <bndbox>, the {name} has none")
    edges = {side: _number(box, side) for side in ("xmin", "ymin", "xmax", "ymax")}
    difficult = (element.findtext("difficult") or "0").strip()
    if difficult not in ("0", "1"):
        raise ValueError(f"difficult must be 0 or 1, got {difficult!r}")
    width, height = size
    left, right = _inside(edges["xmin"], edges["xmax"], width)
    top, bottom = _inside(edges["ymin"], edges["ymax"], height)
    if not (left < right and top < bottom):
        told = ", ".join(f"{side} {value:g}" for side, value in edges.items())
        raise ValueError(
            f"a box must have 1 <= xmin <= xmax <= {width} and 1 <= ymin <= ymax <= {height}, "
            f"the image's size, got {told} of the {name}"
        )
    return Box(classes.index(name), left, top, right, bottom, is_difficult=difficult == "1")


def _inside(first: float, last: float, length: int) -> tuple[float, float]:
    """The edges of a box along one axis, cut to the image; (0, 0) if they are not in it or not in order."""
    if not 1 - SLACK <= first <= last <= length + SLACK:
        return 0.0, 0.0
    return max(first - 1, 0.0), min(last, float(length))


def _text(element: ElementTree.Element, name: str) -> str:
    text = (element.findtext(name) or "").strip()
    if not text:
        raise ValueError(f"every <{element.tag}> must have a <{name}>, got none")
    return text


def _number(element: ElementTree.Element, name: str) -> float:
    text = _text(element, name)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {text!r}")
    return value
