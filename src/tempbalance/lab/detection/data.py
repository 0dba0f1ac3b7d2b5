"""Data and pretrained weights of detectors: cached, downloaded or drawn, and prepared once."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from PIL import Image, ImageDraw

from tempbalance.lab.detection.voc import DESCRIPTION, read_voc, write_yolo
from tempbalance.lab.download import LOCK_TIMEOUT, DownloadError, cache_folder, check_regular, fetch, remote_data

CLASSES = ("rectangle", "disc", "triangle")
NUM_IMAGES = (1000, 300)  # for training and for the test
_VAL = 5  # one in five of the images for training is in val
VERSION = 1  # counted up when the images change
SIDE = 96  # pixels
_SMALLEST, _LARGEST, _MOST = 16, 44, 3  # pixels of a shape; shapes in an image

Edges = tuple[int, int, int, int]

_DRAW: dict[str, Callable[[ImageDraw.ImageDraw, Edges, tuple[int, ...]], None]] = {
    "rectangle": lambda draw, edges, colour: draw.rectangle(edges, fill=colour),
    "disc": lambda draw, edges, colour: draw.ellipse(edges, fill=colour),
    "triangle": lambda draw, edges, colour: draw.polygon(
        [(edges[0], edges[3]), (edges[2], edges[3]), ((edges[0] + edges[2]) // 2, edges[1])], fill=colour
    ),
}


def draw_shapes(folder: Path, *, num_images: tuple[int, int] = NUM_IMAGES, seed: int = 0) -> None:
    """Draw coloured shapes on noise from a seed.

    Args:
        folder: Folder for ``Annotations``, ``ImageSets/Main``, ``JPEGImages`` and ``classes.txt``.
        num_images: Number of training and of test images.
        seed: Seed of the shapes.
    """
    for name in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (folder / name).mkdir(parents=True)
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in CLASSES))
    names = [f"{number:06}" for number in range(sum(num_images))]
    for number, name in enumerate(names):
        image, shapes = _draw_image(np.random.default_rng((seed, number)))
        image.save(folder / "JPEGImages" / f"{name}.jpg", quality=90)
        (folder / "Annotations" / f"{name}.xml").write_bytes(_annotation(name, shapes))
    trainval, test = names[: num_images[0]], names[num_images[0] :]
    num_train = len(trainval) - len(trainval) // _VAL
    sets = {"trainval": trainval, "train": trainval[:num_train], "val": trainval[num_train:], "test": test}
    for split, part in sets.items():
        (folder / "ImageSets" / "Main" / f"{split}.txt").write_text("".join(f"{name}\n" for name in part))


def _draw_image(generator: np.random.Generator) -> tuple[Image.Image, list[tuple[str, Edges]]]:
    """Draw shapes that do not overlap; return them with their first and last pixels, counted from 0."""
    image = Image.fromarray(generator.integers(0, 110, (SIDE, SIDE, 3), dtype=np.uint8))
    draw = ImageDraw.Draw(image)
    shapes: list[tuple[str, Edges]] = []
    for _ in range(int(generator.integers(1, _MOST + 1))):
        width, height = (int(side) for side in generator.integers(_SMALLEST, _LARGEST, 2))
        left, top = int(generator.integers(0, SIDE - width)), int(generator.integers(0, SIDE - height))
        edges = (left, top, left + width - 1, top + height - 1)
        name = CLASSES[int(generator.integers(len(CLASSES)))]
        colour = tuple(int(value) for value in generator.integers(90, 256, 3))
        if not any(_overlap(edges, other) for _, other in shapes):
            _DRAW[name](draw, edges, colour)
            shapes.append((name, edges))
    return image, shapes


def _overlap(one: Edges, other: Edges) -> bool:
    return one[0] <= other[2] and other[0] <= one[2] and one[1] <= other[3] and other[1] <= one[3]


def _annotation(name: str, shapes: list[tuple[str, Edges]]) -> bytes:
    root = ElementTree.Element("annotation")
    ElementTree.SubElement(root, "filename").text = f"{name}.jpg"
    for kind, edges in shapes:
        element = ElementTree.SubElement(root, "object")
        ElementTree.SubElement(element, "name").text = kind
        ElementTree.SubElement(element, "difficult").text = "0"
        box = ElementTree.SubElement(element, "bndbox")
        for side, edge in zip(("xmin", "ymin", "xmax", "ymax"), edges, strict=True):
            ElementTree.SubElement(box, side).text = str(edge + 1)
    return ElementTree.tostring(root)


VOC2007 = remote_data()["voc2007"].files
_KNOWN = {"voc2007": "voc2007", "shapes": f"shapes-{VERSION}"}  # with the folder in the cache


@dataclass(frozen=True)
class Weights:
    """A file of pretrained weights.

    Attributes:
        url: Its address.
        sha256: Checksum of the file. Loading the file executes its content, so any other file is refused.
    """

    url: str
    sha256: str


WEIGHTS = {
    "yolov8n": Weights(
        "https://github.com/ultralytics/assets/releases/download/v8.3.0/yolov8n.pt",
        "f59b3d833e2ff32e194b5bb8e08d211dc7c5bdf144b90d2c8412c47ccfc83b36",
    )
}


@dataclass(frozen=True)
class ReadyData:
    """Data in the format of ultralytics.

    Attributes:
        description: The YAML file for ultralytics.
        digest: Checksum of classes, labels and images.
    """

    description: Path
    digest: str


def ready_data(
    dataset: str,
    *,
    cache: Path | None = None,
    split: str = "trainval",
    limit: int | None = None,
    test_limit: int | None = None,
) -> ReadyData:
    """Prepare data for ultralytics in the cache folder, if not done yet.

    Args:
        dataset: ``voc2007``, ``shapes``, or the path of a folder in VOC's layout.
        cache: The cache folder.
        split: Training set, ``trainval`` or ``train``.
        limit: Largest number of training images.
        test_limit: Largest number of validation images, and of test images.

    Raises:
        ValueError: If a file is invalid; the message has the file, the rule and the value.
        DownloadError: If VOC is not in the cache and cannot be downloaded.
    """
    folder = cache_folder(cache) / "detection"
    if dataset not in _KNOWN:
        data = read_voc(Path(dataset).expanduser(), split=split, limit=limit, test_limit=test_limit)
        digest = data.digest()
        target = folder / f"own-{digest[:16]}"
        with _alone(target):
            if not target.exists():
                write_yolo(data, target, digest=digest)
        return ReadyData(target / DESCRIPTION, digest)
    name = _KNOWN[dataset] if split == "trainval" else f"{_KNOWN[dataset]}-{split}-val"
    target = folder / "-".join([name, *(str(each or "all") for each in (limit, test_limit))])
    with _alone(target):
        if not target.exists():
            with _source(dataset, target, cache) as source:
                data = read_voc(source, split=split, limit=limit, test_limit=test_limit)
                write_yolo(data, target, digest=data.digest())
    description = target / DESCRIPTION
    return ReadyData(description, json.loads(description.read_text(encoding="utf-8"))["digest"])


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Lock a folder; other processes that need it wait."""
    from filelock import FileLock

    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f"{target.name}.lock"), timeout=LOCK_TIMEOUT):
        yield


@contextmanager
def _source(dataset: str, target: Path, cache: Path | None) -> Iterator[Path]:
    """Provide a known dataset in VOC's layout within the context."""
    folder = target.with_name(f"{target.name}.source")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        if dataset == "shapes":
            draw_shapes(folder)
        else:
            for file in VOC2007:
                unpack(fetch(file, cache=cache), folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unpack(path: Path, folder: Path) -> None:
    """Unpack a tar archive into a folder.

    Raises:
        ValueError: If the archive is damaged, or a member lies outside the folder.
    """
    try:
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
    except (tarfile.TarError, EOFError) as err:
        raise ValueError(f"{path}: not a complete tar archive, or not a safe one: {err}") from err


def find_weights(model: str, *, cache: Path | None = None) -> Path:
    """Return the path of pretrained weights, ``detection/<model>.pt`` in the cache; download them if missing.

    Raises:
        DownloadError: If they are not in the cache and cannot be downloaded.
    """
    import pooch  # type: ignore[import-untyped]
    from requests import RequestException

    wanted, folder = WEIGHTS[model], cache_folder(cache) / "detection"
    path = folder / f"{model}.pt"
    check_regular(path)
    with _alone(path):
        pooch.get_logger().setLevel("WARNING")
        try:
            return Path(pooch.retrieve(wanted.url, f"sha256:{wanted.sha256}", fname=path.name, path=folder))
        except (RequestException, ValueError) as err:  # ValueError: the checksum is wrong
            raise DownloadError(f"{path} could not be downloaded from {wanted.url}: {err}") from err
