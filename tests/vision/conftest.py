"""What torchvision needs to be imported beside torch's CPU build, in the environment of `make test-vision`.

Its wheels are built for CUDA, so that its compiled operators are not there, and two of them are asked for on import.
"""

import os
import tempfile
from importlib.util import find_spec

import torch
from torch import Tensor

os.environ["YOLO_OFFLINE"] = "true"
os.environ.setdefault("YOLO_CONFIG_DIR", tempfile.gettempdir())  # where ultralytics keeps its settings


def nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Which boxes (x1, y1, x2, y2) are kept: the best ones, without those that overlap one more than the threshold."""
    kept, left = [], scores.argsort(descending=True)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    while len(left):
        best, left = left[0], left[1:]
        kept.append(best)
        sides = torch.minimum(boxes[best, 2:], boxes[left, 2:]) - torch.maximum(boxes[best, :2], boxes[left, :2])
        overlap = sides.clamp(min=0).prod(1)
        left = left[overlap <= threshold * (areas[best] + areas[left] - overlap)]
    return torch.stack(kept) if kept else scores.new_empty(0, dtype=torch.long)


if find_spec("torchvision") and not hasattr(torch.ops.torchvision, "nms"):
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision

    torchvision.ops.nms = nms  # its own asks for the compiled operators
