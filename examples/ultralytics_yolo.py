"""Temperature balancing of a YOLO from ultralytics, which learns to find squares in images made here."""

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from ultralytics import YOLO

from tempbalance.integrations.ultralytics import balance


def make_data(folder: Path) -> Path:
    generator = np.random.default_rng(0)
    for kind in ("images", "labels"):
        (folder / kind).mkdir()
    for index in range(16):
        image = generator.integers(0, 80, (64, 64, 3), dtype=np.uint8)
        x, y = generator.integers(8, 40, 2)
        image[y : y + 16, x : x + 16] = 255
        Image.fromarray(image).save(folder / "images" / f"{index}.png")
        (folder / "labels" / f"{index}.txt").write_text(f"0 {(x + 8) / 64} {(y + 8) / 64} 0.25 0.25\n")
    (folder / "data.yaml").write_text(f"path: {folder}\ntrain: images\nval: images\nnames: [square]\n")
    return folder / "data.yaml"


with tempfile.TemporaryDirectory() as folder:
    model = YOLO("yolo11n.yaml")
    balanced = balance(model)
    options = {"epochs": 2, "imgsz": 64, "batch": 8, "device": "cpu", "workers": 0, "plots": False}
    model.train(data=str(make_data(Path(folder))), project=folder, **options)
print(balanced.scheduler.table())
