"""Images of detectors: downloaded, drawn or a user's own, read with strict checks, and written for ultralytics.

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
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from xml.etree import ElementTree

import numpy as np
from PIL import Image, ImageDraw, UnidentifiedImageError

from tempbalance.errors import unknown
from tempbalance.lab.download import LOCK_TIMEOUT, RemoteFile, cache_folder, fetch, remote_data

CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
VOC2007 = remote_data()["voc2007"].files
WEIGHTS = {  # loading them executes their content, so any other file is refused
    "yolov8n": RemoteFile(
        "detection/yolov8n.pt",
        ("https://github.com/ultralytics/assets/releases/download/v8.3.0/yolov8n.pt",),
        sha256="f59b3d833e2ff32e194b5bb8e08d211dc7c5bdf144b90d2c8412c47ccfc83b36",
    )
}
_FOLDERS = ("Annotations", "ImageSets/Main", "JPEGImages")
_SIDES = ("xmin", "ymin", "xmax", "ymax")
_SLACK = 1  # pixels that a box may reach over the edge: some tools count from 0
_ORIENTATION = 0x0112  # EXIF's tag for how an image is to be turned


class Box(NamedTuple):
    """Class of an object, and its edges in pixels from the upper left corner: ``right - left`` is the width."""

    label: int
    left: float
    top: float
    right: float
    bottom: float
    is_difficult: bool  # hard to recognise, and not scored


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


class _Builder(ElementTree.TreeBuilder):
    """Tree builder that refuses a document type, which could define entities."""

    def doctype(self, name: str, *_: str | None) -> NoReturn:
        raise ValueError(f"must have no document type, got {name!r}")


def read_boxes(path: Path, *, classes: Sequence[str], size: tuple[int, int]) -> tuple[Box, ...]:
    """Read the boxes of an annotation of an image of this width and height.

    VOC counts pixels from 1, and the last one belongs to the box: ``xmin`` 1 and ``xmax`` 5 are the edges 0 and 5.
    """
    try:
        root = ElementTree.fromstring(path.read_bytes(), ElementTree.XMLParser(target=_Builder()))
        if root.tag != "annotation":
            raise ValueError(f"must be an <annotation>, got <{root.tag}>")
        if not (objects := root.findall("object")):
            raise ValueError("must have an <object> with a <bndbox>, got none")
        return tuple(_read_object(each, classes, size) for each in objects)
    except (LookupError, ElementTree.ParseError) as err:  # LookupError: an encoding that is not known
        raise ValueError(f"{path}: damaged, not XML: {err}") from err
    except ValueError as err:
        raise ValueError(f"{path}: {err}") from err


def _read_object(element: ElementTree.Element, classes: Sequence[str], size: tuple[int, int]) -> Box:
    name = _text(element, "name")
    if name not in classes:
        raise ValueError(unknown("class", name, classes))
    box = element.find("bndbox")
    if box is None:
        raise ValueError(f"an <object> must have a <bndbox>, the {name} has none")
    edges = {side: _number(box, side) for side in _SIDES}
    difficult = (element.findtext("difficult") or "0").strip()
    if difficult not in ("0", "1"):
        raise ValueError(f"difficult must be 0 or 1, got {difficult!r}")
    spans = [(edges["xmin"], edges["xmax"], size[0]), (edges["ymin"], edges["ymax"], size[1])]
    is_inside = all(1 - _SLACK <= first <= last <= length + _SLACK for first, last, length in spans)
    (left, right), (top, bottom) = [(max(first - 1, 0.0), min(last, float(length))) for first, last, length in spans]
    if not (is_inside and left < right and top < bottom):
        given = ", ".join(f"{side} {value:g}" for side, value in edges.items())
        raise ValueError(
            f"a box must have 1 <= xmin <= xmax <= {size[0]} and 1 <= ymin <= ymax <= {size[1]}, "
            f"the image's size, got {given} of the {name}"
        )
    return Box(classes.index(name), left, top, right, bottom, is_difficult=difficult == "1")


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


def read_voc(
    folder: Path, *, split: str = "trainval", limit: int | None = None, test_limit: int | None = None
) -> VocData:
    """Read a folder in VOC's layout, or one that has it in ``VOCdevkit/VOC2007``.

    Limits are the largest numbers of training images, and of validation and test images each; a fixed random sample is
    chosen. Errors name the file, the rule and the value.
    """
    root = _find_root(folder)
    own_classes = root / "classes.txt"
    classes = tuple(_read_names(own_classes)) if own_classes.exists() else CLASSES
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
    for place in (folder, folder / "VOC2007", folder / "VOCdevkit" / "VOC2007"):
        if all((place / name).is_dir() for name in _FOLDERS):
            return place
    if not folder.is_dir():
        got = "a file" if folder.exists() else "nothing"
        raise ValueError(f"{folder}: must be a folder in VOC's layout, got {got}")
    missing = ", ".join(name for name in _FOLDERS if not (folder / name).is_dir())
    raise ValueError(f"{folder}: must have the folders of VOC, or have them in VOCdevkit/VOC2007, lacks {missing}")


def _read_set(root: Path, split: str) -> list[str]:
    path = root / "ImageSets" / "Main" / f"{split}.txt"
    names = _read_names(path)
    for name in names:
        if Path(name).name != name or "\\" in name:
            raise ValueError(f"{path}: a line must be the name of an image, got {name!r}")
    return names


def _read_names(path: Path) -> list[str]:
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


class ReadyData(NamedTuple):
    """Data as ultralytics reads them: its description in YAML, and a checksum of classes, labels and images."""

    description: Path
    digest: str


def write_yolo(data: VocData, folder: Path) -> ReadyData:
    """Write data for ultralytics into a new folder, which appears only when it is complete.

    Every image is decoded, because ultralytics silently skips damaged ones.
    """
    with _scratch(folder.with_name(f"{folder.name}.part")) as part:
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
        description = {**sets, "names": list(data.classes), "digest": data.digest()}
        (part / "data.yaml").write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")  # JSON is YAML
        os.rename(part, folder)
    return _ready(folder)


def _ready(folder: Path) -> ReadyData:
    description = folder / "data.yaml"
    return ReadyData(description, json.loads(description.read_text(encoding="utf-8"))["digest"])


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Give a folder that is not there, and leave none there."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ready_data(dataset: str, *, cache: Path | None = None, **options: Any) -> ReadyData:
    """Write known data, or a user's own, to the cache folder, if not done yet; options are those of `read_voc`."""
    from filelock import FileLock

    folder = cache_folder(cache) / "detection"
    if is_known := dataset in ("voc2007", "shapes"):
        parts = ["shapes", str(_VERSION)] if dataset == "shapes" else [dataset]
        parts += ["train", "val"] if options.get("split") == "train" else []
        parts += [str(options.get(name) or "all") for name in ("limit", "test_limit")]
        target = folder / "-".join(parts)
    else:
        data = read_voc(Path(dataset).expanduser(), **options)
        target = folder / f"own-{data.digest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock", timeout=LOCK_TIMEOUT):  # other processes wait
        if target.exists():
            return _ready(target)
        if not is_known:
            return write_yolo(data, target)
        with _scratch(target.with_name(f"{target.name}.source")) as source:
            if dataset == "shapes":
                draw_shapes(source)
            else:
                for file in VOC2007:
                    unpack(fetch(file, cache=cache), source)
            return write_yolo(read_voc(source, **options), target)


def unpack(path: Path, folder: Path) -> None:
    """Unpack a tar archive into a folder, and nothing outside of it."""
    try:
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
    except (tarfile.TarError, EOFError) as err:
        raise ValueError(f"{path}: not a complete tar archive, or not a safe one: {err}") from err


SHAPES = ("rectangle", "disc", "triangle")
NUM_SHAPES = (1000, 300)  # images for training and for the test
SIDE = 96  # pixels
_VERSION = 1  # counted up when the images change
_VAL = 5  # one in five of the images for training is in val
_SMALLEST, _LARGEST, _MOST = 16, 44, 3  # pixels of a shape; shapes in an image


def draw_shapes(folder: Path, *, num_images: tuple[int, int] = NUM_SHAPES, seed: int = 0) -> None:
    """Draw coloured shapes on noise from a seed, in VOC's layout."""
    for name in _FOLDERS:
        (folder / name).mkdir(parents=True)
    names = [f"{number:06}" for number in range(sum(num_images))]
    for number, name in enumerate(names):
        image, annotation = _draw_image(name, np.random.default_rng((seed, number)))
        image.save(folder / "JPEGImages" / f"{name}.jpg", quality=90)
        (folder / "Annotations" / f"{name}.xml").write_text(annotation)
    trainval, test = names[: num_images[0]], names[num_images[0] :]
    num_train = len(trainval) - len(trainval) // _VAL
    sets = {"trainval": trainval, "train": trainval[:num_train], "val": trainval[num_train:], "test": test}
    lists = {f"ImageSets/Main/{split}.txt": part for split, part in sets.items()}
    for path, part in {"classes.txt": [*SHAPES], **lists}.items():
        (folder / path).write_text("".join(f"{name}\n" for name in part))


def _draw_image(name: str, generator: np.random.Generator) -> tuple[Image.Image, str]:
    """Draw shapes that do not overlap, and annotate them."""
    image = Image.fromarray(generator.integers(0, 110, (SIDE, SIDE, 3), dtype=np.uint8))
    draw = ImageDraw.Draw(image)
    objects = ""
    drawn: list[tuple[int, ...]] = []
    for _ in range(int(generator.integers(1, _MOST + 1))):
        width, height = (int(side) for side in generator.integers(_SMALLEST, _LARGEST, 2))
        left, top = int(generator.integers(0, SIDE - width)), int(generator.integers(0, SIDE - height))
        right, bottom = left + width - 1, top + height - 1
        shape = SHAPES[int(generator.integers(len(SHAPES)))]
        colour = tuple(int(value) for value in generator.integers(90, 256, 3))
        if any(left <= each[2] and each[0] <= right and top <= each[3] and each[1] <= bottom for each in drawn):
            continue
        edges = (left, top, right, bottom)
        drawn.append(edges)
        if shape == "triangle":
            draw.polygon([(left, bottom), (right, bottom), ((left + right) // 2, top)], fill=colour)
        else:
            (draw.rectangle if shape == "rectangle" else draw.ellipse)(edges, fill=colour)
        box = "".join(f"<{side}>{edge + 1}</{side}>" for side, edge in zip(_SIDES, edges, strict=True))
        objects += f"<object><name>{shape}</name><difficult>0</difficult><bndbox>{box}</bndbox></object>"
    return image, f"<annotation><filename>{name}.jpg</filename>{objects}</annotation>"
