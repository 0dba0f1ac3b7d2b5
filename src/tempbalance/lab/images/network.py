"""The paper's networks, for images of any size.

ResNets and VGGs in their forms for small images, pre-activation WideResNets, and an MLP. All have torch's default
initialisation, and but for the MLP average over all positions at the end. In ResNets and VGGs convolutions have no
bias, since a normalisation follows them. Modules are registered in the order of the data, so that
`tempbalance.find_layers` lets each normalisation follow the convolution that feeds it; `follow_by_name` does it as the
published code does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from tempbalance.errors import unknown

Size = tuple[int, int]  # height and width of an image in pixels


def build_network(
    name: str, *, num_classes: int, channels: int = 3, side: int | Size = 32, width: float = 1.0
) -> nn.Module:
    """Build a network with fresh weights for images of a side, or of height and width in pixels.

    ``width`` is a factor on the number of channels of every layer; the paper's 256, 512 and 768 are 0.5, 1 and 1.5.

    Example:
        >>> build_network("mlp", num_classes=10, channels=1, side=8, width=0.5).linear
        Linear(in_features=256, out_features=10, bias=True)
    """
    if name not in NETWORKS:
        raise ValueError(unknown("model", name, NETWORKS))
    size = (side, side) if isinstance(side, int) else side
    return NETWORKS[name](num_classes=num_classes, channels=channels, size=size, width=width)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, num_inputs: int, num_channels: int, *, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _normed(num_inputs, num_channels, stride=stride)
        self.conv2, self.bn2 = _normed(num_channels, num_channels)
        self.shortcut = _shortcut(num_inputs, num_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return relu(out + self.shortcut(x))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 ones, the last four times as wide, beside a shortcut."""

    expansion = 4

    def __init__(self, num_inputs: int, num_channels: int, *, stride: int) -> None:
        super().__init__()
        num_outputs = self.expansion * num_channels
        self.conv1, self.bn1 = _normed(num_inputs, num_channels, size=1)
        self.conv2, self.bn2 = _normed(num_channels, num_channels, stride=stride)
        self.conv3, self.bn3 = _normed(num_channels, num_outputs, size=1)
        self.shortcut = _shortcut(num_inputs, num_outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = relu(self.bn1(self.conv1(x)))
        out = relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return relu(out + self.shortcut(x))


Block = type[BasicBlock] | type[Bottleneck]


class ResNet(nn.Sequential):
    """The residual network of He et al. (2016) with a 3x3 stem and no pool before its four stages."""

    def __init__(
        self, block: Block, depths: Sequence[int], *, num_classes: int, channels: int, size: Size, width: float
    ) -> None:
        super().__init__()
        widths = [_scaled(each, width) for each in (64, 128, 256, 512)]
        inputs = [widths[0], *(block.expansion * each for each in widths)]
        self.conv1, self.bn1 = _normed(channels, widths[0])
        self.relu = nn.ReLU()
        for i, (stride, depth) in enumerate(zip((1, 2, 2, 2), depths, strict=True)):
            first = block(inputs[i], widths[i], stride=stride)
            others = (block(inputs[i + 1], widths[i], stride=1) for _ in range(depth - 1))
            self.add_module(f"layer{i + 1}", nn.Sequential(first, *others))
        self.pool = _average()
        self.linear = nn.Linear(inputs[-1], num_classes)


class VGG(nn.Sequential):
    """The network of Simonyan and Zisserman (2014) with BatchNorm and one linear layer.

    A pool is skipped if the side is already 1; an Identity in its place keeps the layers' names.
    """

    def __init__(self, depths: Sequence[int], *, num_classes: int, channels: int, size: Size, width: float) -> None:
        super().__init__()
        modules: list[nn.Module] = []
        num_inputs, side = channels, min(size)
        for num_channels, depth in zip((64, 128, 256, 512, 512), depths, strict=True):
            num_outputs = _scaled(num_channels, width)
            for _ in range(depth):
                modules += [*_normed(num_inputs, num_outputs), nn.ReLU()]
                num_inputs = num_outputs
            modules.append(nn.MaxPool2d(2) if side > 1 else nn.Identity())
            side = max(1, side // 2)
        self.features = nn.Sequential(*modules)
        self.pool = _average()
        self.linear = nn.Linear(num_inputs, num_classes)


class PreActivationBlock(nn.Module):
    """Two 3x3 convolutions with biases, each behind its normalisation, beside a shortcut on the raw input.

    As published: the second convolution has the stride. Zagoruyko and Komodakis have it in the first, no biases, and
    the shortcut behind the first normalisation.
    """

    def __init__(self, num_inputs: int, num_outputs: int, *, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(num_inputs)
        # before conv1 and conv2, so that by order the norm behind this block follows conv2
        self.shortcut = nn.Sequential()
        if stride != 1 or num_inputs != num_outputs:
            self.shortcut.append(_conv(num_inputs, num_outputs, size=1, stride=stride, bias=True))
        self.conv1 = _conv(num_inputs, num_outputs, bias=True)
        self.bn2 = nn.BatchNorm2d(num_outputs)
        self.conv2 = _conv(num_outputs, num_outputs, stride=stride, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(relu(self.bn1(x)))
        out = self.conv2(relu(self.bn2(out)))
        return torch.add(out, self.shortcut(x))


class WideResNet(nn.Sequential):
    """The network of Zagoruyko and Komodakis (2016) without dropout, as the paper's published code has it."""

    def __init__(self, depth: int, factor: int, *, num_classes: int, channels: int, size: Size, width: float) -> None:
        super().__init__()
        widths = [_scaled(each, width) for each in (16, 16 * factor, 32 * factor, 64 * factor)]
        num_blocks = (depth - 4) // 6  # of two convolutions each, in three stages
        self.conv1 = _conv(channels, widths[0], bias=True)
        for i, stride in enumerate((1, 2, 2)):
            first = PreActivationBlock(widths[i], widths[i + 1], stride=stride)
            others = (PreActivationBlock(widths[i + 1], widths[i + 1], stride=1) for _ in range(num_blocks - 1))
            self.add_module(f"layer{i + 1}", nn.Sequential(first, *others))
        self.bn1 = nn.BatchNorm2d(widths[-1], momentum=0.9)
        self.relu = nn.ReLU()
        self.pool = _average()
        self.linear = nn.Linear(widths[-1], num_classes)


def follow_by_name(network: nn.Module) -> None:
    """Let each BatchNorm follow the convolution of its name (bn2: conv2), as in the published code.

    In a ResNet that is the convolution that feeds it, in a WideResNet the one that comes after it, and for its last
    norm the first convolution. Norms of shortcuts train at the base rate. VGGs have no such names and stay as they are.
    """
    names = {name for name, module in network.named_modules() if isinstance(module, nn.Conv2d)}
    for name, module in network.named_modules():
        if isinstance(module, nn.BatchNorm2d) and ("bn" in name or "shortcut" in name):
            namesake = name.replace("bn", "conv")
            module.follows = namesake if namesake in names else None  # type: ignore[assignment]


class MLP(nn.Sequential):
    """Three hidden layers of 512 x width."""

    def __init__(self, *, num_classes: int, channels: int, size: Size, width: float) -> None:
        super().__init__()
        hidden = _scaled(512, width)
        self.flatten = nn.Flatten()
        for i, num_inputs in enumerate((channels * math.prod(size), hidden, hidden)):
            self.add_module(f"linear{i + 1}", nn.Linear(num_inputs, hidden))
            self.add_module(f"relu{i + 1}", nn.ReLU())
        self.linear = nn.Linear(hidden, num_classes)


def _scaled(num_channels: int, width: float) -> int:
    return max(1, round(num_channels * width))


def _conv(num_inputs: int, num_outputs: int, *, size: int = 3, stride: int = 1, bias: bool = False) -> nn.Conv2d:
    return nn.Conv2d(num_inputs, num_outputs, size, stride=stride, padding=size // 2, bias=bias)


def _average() -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _shortcut(num_inputs: int, num_outputs: int, stride: int) -> nn.Sequential:
    """Return an empty shortcut if the shape stays, else a 1x1 convolution with its norm."""
    is_empty = stride == 1 and num_inputs == num_outputs
    return nn.Sequential(*(() if is_empty else _normed(num_inputs, num_outputs, size=1, stride=stride)))


def _normed(num_inputs: int, num_outputs: int, *, size: int = 3, stride: int = 1) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    return _conv(num_inputs, num_outputs, size=size, stride=stride), nn.BatchNorm2d(num_outputs)


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "resnet18": partial(ResNet, BasicBlock, (2, 2, 2, 2)),
    "resnet34": partial(ResNet, BasicBlock, (3, 4, 6, 3)),
    "resnet50": partial(ResNet, Bottleneck, (3, 4, 6, 3)),
    "resnet101": partial(ResNet, Bottleneck, (3, 4, 23, 3)),
    "vgg16": partial(VGG, (2, 2, 3, 3, 3)),
    "vgg19": partial(VGG, (2, 2, 4, 4, 4)),
    "wrn16_8": partial(WideResNet, 16, 8),
    "wrn28_6": partial(WideResNet, 28, 6),
    "mlp": MLP,
}
