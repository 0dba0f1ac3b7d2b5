"""Networks of the benchmark with random weights: the paper's, a GPT-2 and a block of a Llama.

Only shapes and time count, so the transformers have no dropout and no rotary positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

from tempbalance.lab.images.network import build_network

Batch = tuple[Tensor, Tensor]


class GPTBlock(nn.Module):
    """Attention with one fused projection, then two linear layers around a GELU."""

    def __init__(self, width: int, inner: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        x = x + self.out(_attend(query, key, value, self.num_heads))
        return torch.add(x, self.down(gelu(self.up(self.norm2(x)))))


class LlamaBlock(nn.Module):
    """Attention with four projections, then a gated pair of linear layers and a third; no biases."""

    def __init__(self, width: int, inner: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1 = nn.RMSNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.norm2 = nn.RMSNorm(width)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        each = self.norm1(x)
        x = x + self.out(_attend(self.query(each), self.key(each), self.value(each), self.num_heads))
        each = self.norm2(x)
        return torch.add(x, self.down(silu(self.gate(each)) * self.up(each)))


def _attend(query: Tensor, key: Tensor, value: Tensor, num_heads: int) -> Tensor:
    query, key, value = (each.reshape(*each.shape[:2], num_heads, -1).transpose(1, 2) for each in (query, key, value))
    return scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)


@dataclass(frozen=True)
class Shape:
    """Shape of a transformer: blocks between an embedding and a head tied to it."""

    block: type[GPTBlock] | type[LlamaBlock]
    num_blocks: int
    num_heads: int
    head: int
    inner: float  # times the width
    vocabulary: int


class Decoder(nn.Module):
    """Transformer that maps tokens to the logits of the next tokens."""

    def __init__(self, shape: Shape, width: float = 1.0) -> None:
        super().__init__()
        size = shape.num_heads * max(1, round(shape.head * width))
        inner = round(shape.inner * size)
        self.tokens = nn.Embedding(shape.vocabulary, size)
        self.blocks = nn.Sequential(*(shape.block(size, inner, shape.num_heads) for _ in range(shape.num_blocks)))
        self.norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, shape.vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.blocks(self.tokens(tokens))))
        return logits


@dataclass(frozen=True)
class Network:
    """A network to measure."""

    title: str
    build: Callable[[float], nn.Module]  # given a factor on its width
    batch: Callable[[bool], Batch]  # inputs and labels, given whether the network has its small form
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]


def build_model(name: str, *, width: float = 1.0, quick: bool = False) -> nn.Module:
    """Build a network with random weights from a fixed seed; the quick form is an eighth as wide."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return NETWORKS[name].build(width / (8 if quick else 1))


# learning rate 0: a step takes its usual time and every round has the same weights


def _of_images(title: str, name: str) -> Network:
    def build(width: float) -> nn.Module:
        return build_network(name, num_classes=100, width=width)

    def batch(quick: bool) -> Batch:
        generator = torch.Generator().manual_seed(0)
        num_images = 8 if quick else 128
        labels = torch.randint(100, (num_images,), generator=generator)
        return torch.randn(num_images, 3, 32, 32, generator=generator), labels

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9, weight_decay=5e-4)

    return Network(title, build, batch, optimizer)


def _of_tokens(title: str, shape: Shape) -> Network:
    def batch(quick: bool) -> Batch:
        size = (2, 16) if quick else (8, 256)
        tokens = torch.randint(shape.vocabulary, (2, *size), generator=torch.Generator().manual_seed(0))
        return tokens[0], tokens[1]

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.0)

    return Network(title, partial(Decoder, shape), batch, optimizer)


NETWORKS: dict[str, Network] = {
    "resnet18": _of_images("ResNet18", "resnet18"),
    "resnet34": _of_images("ResNet34", "resnet34"),
    "resnet101": _of_images("ResNet101", "resnet101"),
    "vgg16": _of_images("VGG16", "vgg16"),
    "wrn28_6": _of_images("WRN28-6", "wrn28_6"),
    "gpt2": _of_tokens("GPT-2 small", Shape(GPTBlock, 12, 12, 64, 4.0, 50257)),
    # half as wide as a block of the model with 7 billion parameters, whose solves take eight times as long
    "llama_block": _of_tokens("Llama-like block", Shape(LlamaBlock, 1, 32, 64, 2.75, 4096)),
}
