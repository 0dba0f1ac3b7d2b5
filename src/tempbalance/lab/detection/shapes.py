"""Drawn shapes in VOC's layout: a small set for detection that needs no download."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from PIL import Image, ImageDraw

CLASSES = ("rectangle", "disc", "triangle")
NUM_IMAGES = (1000, 300)  # for training and for the test
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
    """Draw coloured shapes on noise, the same ones for the same seed.

    Args:
        folder: Where; gets ``Annotations``, ``ImageSets/Main``, ``JPEGImages`` and ``classes.txt``.
        num_images: How many for training and for the test.
        seed: What they follow from.
    """
    for name in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (folder / name).mkdir(parents=True)
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in CLASSES))
    names = [f"{number:06}" for number in range(sum(num_images))]
    for number, name in enumerate(names):
        image, shapes = _draw_image(np.random.default_rng((seed, number)))
        image.save(folder / "JPEGImages" / f"{name}.jpg", quality=90)
        (folder / "Annotations" / f"{name}.xml").write_bytes(_annotation(name, shapes))
    for split, part in (("trainval", names[: num_images[0]]), ("test", names[num_images[0] :])):
        (folder / "ImageSets" / "Main" / f"{split}.txt").write_text("".join(f"{name}\n" for name in part))


def _draw_image(generator: np.random.Generator) -> tuple[Image.Image, list[tuple[str, Edges]]]:
    """Shapes that do not overlap, with their first and last pixels, counted from 0."""
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
