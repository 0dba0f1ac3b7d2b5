"""A folder in VOC's layout, made by hand."""

from pathlib import Path

import numpy as np
from PIL import Image

SETS = {"trainval": ("a", "b"), "train": ("a",), "val": ("b",), "test": ("c",)}


def object_xml(name="dog", box=(11, 21, 30, 60), difficult="0"):
    sides = "".join(
        f"<{side}>{edge}</{side}>" for side, edge in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    )
    return f"<object><name>{name}</name><difficult>{difficult}</difficult><bndbox>{sides}</bndbox></object>"


def annotation_xml(*objects):
    return f"<annotation>{''.join(objects or (object_xml(),))}</annotation>"


def make_voc(folder: Path, sets=None, *, size=(100, 80)):
    """Gray images, each with a dog."""
    for name in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (folder / name).mkdir(parents=True)
    for split, names in (sets or SETS).items():
        (folder / "ImageSets" / "Main" / f"{split}.txt").write_text("".join(f"{name}\n" for name in names))
        for name in names:
            pixels = np.full((size[1], size[0], 3), 128, np.uint8)
            Image.fromarray(pixels).save(folder / "JPEGImages" / f"{name}.jpg")
            (folder / "Annotations" / f"{name}.xml").write_text(annotation_xml())
    return folder
