"""Object detection with a pretrained YOLOv8n: Adam and AdamW with a cosine alone, and balanced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tempbalance.lab.findings import Findings
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.points import table_points
from tempbalance.lab.present import accuracies_with, bars
from tempbalance.lab.study import Presentation, Study

# From random weights on drawn shapes, in minutes on one core; the rate is ultralytics' usual one for Adam.
_SMALL = {"dataset": "shapes", "model": "yolov8n.yaml", "lr": 1e-3, "batch_size": 16, "image_size": 96}
_LAPTOP = {**_SMALL, "limit": 400, "test_limit": 150, "epochs": 12}
_SMOKE = {**_SMALL, "limit": 8, "test_limit": 4, "epochs": 2, "batch_size": 4, "image_size": 64}


def points(preset: Preset) -> list[Point]:
    """The grids of the paper's table; small, one point of each on drawn shapes."""
    found = [_point(point) for point in table_points("detection")]
    if preset.is_paper:
        return found
    first = {repr(sorted(point.cell.items())): point for point in reversed(found)}
    small = _SMOKE if preset.name == "smoke" else _LAPTOP
    dataset = preset.dataset or small["dataset"]
    return [_small(point, {**small, "dataset": dataset}) for point in reversed(first.values())]


def _point(point: Point) -> Point:
    """A point of the table, with the method and its optimizer as labels of their own."""
    method = point.options["method"]
    labels = {"method": "tb" if method.startswith("tb+") else "cal", "optimizer": method.removeprefix("tb+")}
    return replace(
        point,
        cell={**point.cell, **labels},
        options={**point.options, "kind": "detection"},
        is_best=False,  # which rate was, the paper does not say
    )


def _small(point: Point, options: Mapping[str, Any]) -> Point:
    named = {name: options[name] for name in ("dataset", "model")}
    return replace(
        point,
        cell={**point.cell, **named},
        options={**point.options, **options},
        stands_for=point.cell["dataset"],
    )


def present(findings: Findings) -> Presentation:
    """Bars of the two methods for each optimizer."""
    chart = bars(findings, "method", "optimizer", title="Temperature balancing of object detection")
    caption = "Mean average precision on the test set after the last epoch, over ten overlaps from 0.5 to 0.95."
    return accuracies_with(findings, chart, caption)


STUDY = Study(
    name="detection",
    title="Does balancing help object detection?",
    figures=(),
    varies="CAL and TB with Adam and AdamW; their rates",
    points=points,
    present=present,
)
