"""Names and units of data, networks, methods and measures, as tables and figures print them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tempbalance.report.text import shown

_NAMES = {
    "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN", "tiny_imagenet": "Tiny ImageNet",
    "digits": "digits", "fashion_mnist": "Fashion-MNIST", "mnist": "MNIST",
    "resnet18": "ResNet18", "resnet34": "ResNet34", "resnet50": "ResNet50", "resnet101": "ResNet101",
    "vgg16": "VGG16", "vgg19": "VGG19", "wrn16_8": "WRN16-8", "wrn28_6": "WRN28-6", "mlp": "MLP",
    "penn_treebank": "Penn Treebank", "pydoc": "Python's help", "voc2007": "PASCAL VOC 2007", "shapes": "drawn shapes",
    "burgers": "Burgers", "fno": "FNO",
    "gpt": "GPT", "yolov8n": "YOLOv8n", "yolov8n.yaml": "YOLOv8n, random weights",
    "lookahead": "Lookahead", "adam": "Adam", "adamw": "AdamW", "adamp": "AdamP",
}  # fmt: skip
_METHODS = ("cal", "snr", "tb", "sgdr", "lars", "sgdp", "lamb")


def pretty(value: Any) -> str:
    """Return a value of an option, or the name of data, a network or a method, as the paper writes it.

    Example:
        >>> pretty("tb+snr"), pretty("wrn16_8"), pretty((0.5, 1.5)), pretty(0.1), pretty("data/own.npz")
        ('TB+SNR', 'WRN16-8', '(0.5, 1.5)', '0.1', 'own')
    """
    if isinstance(value, tuple | list):
        return f"({', '.join(map(pretty, value))})"
    if isinstance(value, float):
        return f"{value:g}"
    if not isinstance(value, str):
        return str(value)
    if ", " in value:
        first, _, others = value.partition(", ")
        return f"{pretty(first)}, {others}"
    if value in _METHODS:
        return value.upper()
    if value.startswith("tb+"):
        return f"TB+{pretty(value.removeprefix('tb+'))}"
    name = Path(value).stem if value.endswith((".npz", "/")) or "/" in value else value
    return _NAMES.get(value, shown(name))


@dataclass(frozen=True)
class Measure:
    """Number by which a complete run is judged.

    Attributes:
        name: Its key in ``result.json`` and in a line of ``metrics.jsonl``.
        word: The name in a sentence.
        unit: Printed after a value; empty for none.
        points: Unit of a difference between two values.
        is_lower_better: Whether small values are good.
    """

    name: str
    word: str
    unit: str = ""
    points: str = ""
    is_lower_better: bool = False

    @property
    def title(self) -> str:
        """Heading of a column: the word and the unit."""
        return self.with_unit(self.word)

    def with_unit(self, word: str) -> str:
        """Return a heading with the unit of its numbers."""
        return f"{word}, {self.unit}" if self.unit else word

    def text(self, value: float) -> str:
        """Return a value on a test set as part of a sentence."""
        return f"test {self.word} {value:.2f}{f' {self.unit}' if self.unit else ''}"

    def sign(self, value: float) -> float:
        """Return a value, or a difference, with the sign for which more is better."""
        return -value if self.is_lower_better else value


ACCURACY = Measure("test_accuracy", "accuracy", "%", "points")
