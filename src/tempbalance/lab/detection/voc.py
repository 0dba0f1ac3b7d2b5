"""Images in VOC's layout, read strictly and written as ultralytics reads them.

    Annotations/<name>.xml
    ImageSets/Main/trainval.txt, test.txt    a name a line; or train.txt, val.txt, test.txt
    JPEGImages/<name>.jpg
    classes.txt                              a name a line, where the classes are not VOC's twenty

Training takes trainval, or train with val for choosing a checkpoint; the test takes test. Difficult objects are
skipped everywhere: in training as is usual, in the test because ultralytics' precision cannot ignore an object.

An annotation is an XML file with the boxes of an image's objects. Nothing in one is carried out.
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


CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
DESCRIPTION = "data.yaml"
_ORIENTATION = 0x0112  # EXIF's tag for how an image is to be turned
_FOLDERS = ("Annotations", "ImageSets/Main", "JPEGImages")


@dataclass(frozen=True)
class AnnotatedImage:
    """An image and what is in it.

    Attributes:
        path: The file.
        size: Width and height in pixels.
        boxes: At least one.
    """

    path: Path
    size: tuple[int, int]
    boxes: tuple[Box, ...]

    @property
    def labels(self) -> str:
        """A line for each object that is not difficult: class, centre, width and height as shares of the image."""
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
    """Annotated images.

    Attributes:
        classes: Their names.
        splits: The images of ``train``, of ``val`` if the training set is ``train``, and of ``test``.
    """

    classes: tuple[str, ...]
    splits: dict[str, tuple[AnnotatedImage, ...]]

    def digest(self) -> str:
        """A checksum of all that is learnt from: classes, names, labels and images."""
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
    """Read what a folder in VOC's layout says.

    Args:
        folder: With ``Annotations``, ``ImageSets/Main`` and ``JPEGImages``, or with these in ``VOCdevkit/VOC2007``.
        split: The set that is trained on, ``trainval`` or ``train``.
        limit: Train on at most this many images, always the same, chosen from all over the set.
        test_limit: The same for the images of ``val`` and for those of ``test``.

    Raises:
        ValueError: If anything is missing or not as it should be; it names the file, the rule and the value.
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
    """The lines of a file, each once."""
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
    """The size of an image.

    Raises:
        ValueError: If it is none, is to be turned, or, where all of it is read, damaged.
    """
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
    """Write images and labels as ultralytics reads them, with a description; the folder appears only when it is whole.

    Args:
        data: What to write; every image is decoded, because ultralytics leaves out damaged ones.
        folder: Where; must not be there yet.
        digest: Of the data, kept in the description.

    Returns:
        The description.

    Raises:
        ValueError: If an image is damaged; it names the file.
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
