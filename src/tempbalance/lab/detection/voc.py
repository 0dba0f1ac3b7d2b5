"""Read images in VOC's layout with strict checks, and write them for ultralytics.

    Annotations/<name>.xml
    ImageSets/Main/trainval.txt, test.txt    one name per line; or train.txt, val.txt and test.txt
    JPEGImages/<name>.jpg
    classes.txt                              one name per line, if the classes are not VOC's twenty

Training uses trainval, or train with val for choosing a checkpoint; testing uses test. Difficult objects are skipped
in all: in training as usual, in the test because ultralytics cannot ignore an object when it computes the precision.

An annotation is an XML file with the boxes of an image's objects. Nothing in it is executed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import NoReturn
from xml.etree import ElementTree

from PIL import Image, UnidentifiedImageError

from tempbalance.errors import unknown

SLACK = 1  # pixels that a box may reach over the edge: some tools count from 0


@dataclass(frozen=True)
class Box:
    """Box of an object, in pixels from the upper left corner of the image.

    Attributes:
        label: Index of its class.
        left, top, right, bottom: Its edges; ``right - left`` is the width.
        is_difficult: Whether VOC marks it as hard to recognise and does not score it.
    """

    label: int
    left: float
    top: float
    right: float
    bottom: float
    is_difficult: bool


class _Builder(ElementTree.TreeBuilder):
    """Tree builder that refuses a document type, which could define entities."""

    def doctype(self, name: str, *_: str | None) -> NoReturn:
        raise ValueError(f"must have no document type, got {name!r}")


def read_boxes(path: Path, *, classes: Sequence[str], size: tuple[int, int]) -> tuple[Box, ...]:
    """Read the boxes of an annotation.

    VOC counts pixels from 1, and the last one belongs to the box: ``xmin`` 1 and ``xmax`` 5 are the edges 0 and 5.

    Args:
        path: The XML file.
        classes: Allowed class names.
        size: Width and height of the image.

    Raises:
        ValueError: If the file is not an annotation, has no object, or an object has no box in the image.
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
        reason = f"damaged, not XML: {err}" if isinstance(err, ElementTree.ParseError | LookupError) else str(err)
        raise ValueError(f"{path}: {reason}") from err


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
        given = ", ".join(f"{side} {value:g}" for side, value in edges.items())
        raise ValueError(
            f"a box must have 1 <= xmin <= xmax <= {width} and 1 <= ymin <= ymax <= {height}, "
            f"the image's size, got {given} of the {name}"
        )
    return Box(classes.index(name), left, top, right, bottom, is_difficult=difficult == "1")


def _inside(first: float, last: float, length: int) -> tuple[float, float]:
    """Return the edges of a box along one axis, clipped to the image; (0, 0) if they are invalid."""
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


CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
DESCRIPTION = "data.yaml"
_ORIENTATION = 0x0112  # EXIF's tag for how an image is to be turned
_FOLDERS = ("Annotations", "ImageSets/Main", "JPEGImages")


@dataclass(frozen=True)
class AnnotatedImage:
    """An image file with its size, width x height in pixels, and its boxes, at least one."""

    path: Path
    size: tuple[int, int]
    boxes: tuple[Box, ...]

    @property
    def labels(self) -> str:
        """Lines for objects that are not difficult: class, centre, width and height relative to the image."""
        width, height = self.size
        lines = []
        for box in self.boxes:
            if not box.is_difficult:
                centre = (box.left + box.right) / 2 / width, (box.top + box.bottom) / 2 / height
                sides = (box.right - box.left) / width, (box.bottom - box.top) / height
                lines.append(" ".join([str(box.label), *(f"{value:.8f}" for value in (*centre, *sides))]) + "\n")
        return "".join(lines)


@dataclass(frozen=True)
class VocData:
    """Class names, and the annotated images of ``train``, ``test`` and, if it is separate, ``val``."""

    classes: tuple[str, ...]
    splits: dict[str, tuple[AnnotatedImage, ...]]

    def digest(self) -> str:
        """Return a checksum of classes, file names, labels and images."""
        found = hashlib.sha256("\n".join(self.classes).encode())
        for split, images in self.splits.items():
            for image in images:
                content = image.path.read_bytes()
                found.update(f"\0{split} {image.path.name} {len(content)}\n{image.labels}\0".encode())
                found.update(content)
        return found.hexdigest()


def read_voc(
    folder: Path, *, split: str = "trainval", limit: int | None = None, test_limit: int | None = None
) -> VocData:
    """Read a folder in VOC's layout.

    Args:
        folder: Folder with ``Annotations``, ``ImageSets/Main`` and ``JPEGImages``, or with these in
            ``VOCdevkit/VOC2007``.
        split: Training set, ``trainval`` or ``train``.
        limit: Largest number of training images; a fixed random sample is chosen.
        test_limit: Largest number of validation images, and of test images.

    Raises:
        ValueError: If anything is missing or invalid; the message has the file, the rule and the value.
    """
    root = _find_root(folder)
    classes = _read_classes(root)
    sets = (split, "val", "test") if split == "train" else (split, "test")
    names = {each: _read_set(root, each) for each in sets}
    for one, other in combinations(sets, 2):
        if both := sorted({*names[one]} & {*names[other]}):
            raise ValueError(f"{root}: an image must be in {one}.txt or in {other}.txt, {both[0]!r} is in both")
    chosen = {"train": _choose(names.pop(split), limit)}
    chosen |= {part: _choose(each, test_limit) for part, each in names.items()}
    splits = {part: tuple(_read_image(root, name, classes) for name in each) for part, each in chosen.items()}
    for part, images in splits.items():
        if not any(image.labels for image in images):
            raise ValueError(f"{root}: the {part} images must have an object that is not difficult, got none")
    return VocData(classes, splits)


def _find_root(folder: Path) -> Path:
    places = [folder, folder / "VOC2007", folder / "VOCdevkit" / "VOC2007"]
    for place in places:
        if all((place / name).is_dir() for name in _FOLDERS):
            return place
    if not folder.is_dir():
        raise ValueError(
            f"{folder}: must be a folder in VOC's layout, got {'a file' if folder.exists() else 'nothing'}"
        )
    missing = ", ".join(name for name in _FOLDERS if not (folder / name).is_dir())
    raise ValueError(f"{folder}: must have the folders of VOC, or have them in VOCdevkit/VOC2007, lacks {missing}")


def _read_classes(root: Path) -> tuple[str, ...]:
    path = root / "classes.txt"
    return tuple(_read_names(path)) if path.exists() else CLASSES


def _read_set(root: Path, split: str) -> list[str]:
    path = root / "ImageSets" / "Main" / f"{split}.txt"
    names = _read_names(path)
    for name in names:
        if Path(name).name != name or "\\" in name:
            raise ValueError(f"{path}: a line must be the name of an image, got {name!r}")
    return names


def _read_names(path: Path) -> list[str]:
    """Return the names in a file; refuse duplicates."""
    if not path.is_file():
        raise ValueError(f"{path}: must be a file with a name in each line, is not there")
    try:
        names = [name for line in path.read_text(encoding="utf-8").splitlines() if (name := line.strip())]
    except UnicodeDecodeError as err:
        raise ValueError(f"{path}: must be text: {err}") from err
    if not names:
        raise ValueError(f"{path}: must have a name in each line, is empty")
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{path}: a name must come once, got {twice!r} {names.count(twice)} times")
    return names


def _choose(names: list[str], limit: int | None) -> list[str]:
    if limit is None or limit >= len(names):
        return names
    return sorted(random.Random(0).sample(names, limit))


def _read_image(root: Path, name: str, classes: Sequence[str]) -> AnnotatedImage:
    path, annotation = root / "JPEGImages" / f"{name}.jpg", root / "Annotations" / f"{name}.xml"
    for each, what in ((annotation, "annotation"), (path, "image")):
        if not each.is_file():
            raise ValueError(f"{each}: must be the {what} of {name!r}, which an image set names, is not there")
    size = _open(path)
    return AnnotatedImage(path, size, read_boxes(annotation, classes=classes, size=size))


def _open(path: Path, *, whole: bool = False) -> tuple[int, int]:
    """Return the size of an image; refuse a rotated one, and with ``whole`` decode it to refuse a damaged one."""
    try:
        with Image.open(path, formats=["JPEG"]) as image:
            if (turn := image.getexif().get(_ORIENTATION, 1)) != 1:
                raise ValueError(
                    f"{path}: must be upright, has EXIF orientation {turn}, which its boxes do not know of"
                )
            if whole:
                image.load()
            return image.size
    except (OSError, UnidentifiedImageError, SyntaxError) as err:  # SyntaxError: PIL's for broken parts
        raise ValueError(f"{path}: not a whole JPEG image: {err}") from err


def write_yolo(data: VocData, folder: Path, *, digest: str) -> Path:
    """Write images, labels and a description for ultralytics; the folder appears only when it is complete.

    Args:
        data: Data to write. Every image is decoded, because ultralytics silently skips damaged ones.
        folder: New folder; must not exist yet.
        digest: Checksum of the data for the description.

    Returns:
        The path of the description.

    Raises:
        ValueError: If an image is damaged.
    """
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        for split, images in data.splits.items():
            for kind in ("images", "labels"):
                (part / kind / split).mkdir(parents=True)
            for image in images:
                _open(image.path, whole=True)
                shutil.copyfile(image.path, part / "images" / split / image.path.name)
                label = part / "labels" / split / f"{image.path.stem}.txt"
                label.write_text(image.labels, encoding="utf-8")
        val = "val" if "val" in data.splits else "test"
        sets = {"train": "images/train", "val": f"images/{val}", "test": "images/test"}
        description = {**sets, "names": list(data.classes), "digest": digest}
        (part / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")  # JSON is YAML
        os.rename(part, folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return folder / DESCRIPTION
