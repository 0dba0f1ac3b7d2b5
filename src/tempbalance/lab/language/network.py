"""Language models: the tensorized transformer as published and in our form, a plain GPT of the same size, and a LLaMA.

All read whole sequences, shape ``(B, n)``, of at most a fixed length and give logits of the next token at every
position. All but the LLaMA use the embedding as the head (tied, as in the published code of the tensorized
transformer). Modules are registered in the order of the data, so that `tempbalance.find_layers` lets each normalisation
follow the linear layer that feeds it; the first of the GPT, which an embedding feeds, trains at the base rate.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from tempbalance.errors import unknown


@dataclass(frozen=True)
class Size:
    """Size of a network; the defaults are the paper's."""

    layers: int = 3
    width: int = 256  # between blocks
    head: int = 40  # of attention; the rank of block-term attention
    inner: int = 2100  # width within a feed-forward part
    sequence: int = 32  # largest number of tokens
    dropout: float = 0.3  # of embeddings and of the output of each part of a block


def block_terms(core: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """t(i, j, l) = sum_r g_r q_r(i) k_r(j) v_r(l), from g of shape ``(R,)`` and others of ``(B, n, R)``."""
    batch, length, rank = query.shape
    products = (key[:, :, None] * value[:, None]).view(batch, length * length, rank)
    return ((query * core) @ products.transpose(1, 2)).view(batch, length, length, length)


def visible_pairs(length: int, *, causal: bool) -> Tensor:
    """1 where position i sees the pair (j, l), 0 elsewhere; shape ``(n, n, n)``."""
    seen = torch.ones(length, length)
    if causal:
        seen = seen.tril()
    return seen[:, :, None] * seen[:, None]


def _mapped(terms: Tensor, output: nn.Linear) -> Tensor:
    """Apply a linear map over all pairs of a whole sequence to the pairs of one that may be shorter."""
    length, side = terms.shape[1], math.isqrt(output.in_features)
    weight = output.weight.view(-1, side, side)[:, :length, :length]
    return linear(terms.flatten(2), weight.flatten(1), output.bias)


class BlockTermAttention(nn.Module):
    """Attention to all pairs of positions, as one block of a block-term decomposition ("core-1"), without a softmax.

    The output at i is a linear map of the numbers t(i, j, l) = sum_r g_r q_r(i) k_r(j) v_r(l) of all pairs (j, l), one
    weight for each pair and output, so that as published a position sees those after it. The causal form takes t as 0
    where j or l is after i. Instead of a softmax t is multiplied by n / sqrt(R p_i), where R is the rank, n the length
    and p_i the number of pairs that i sees, so that with fresh weights what positions add has the same variance at all
    of them. The published form has no such factor (`PublishedAttention`).
    """

    factors: Tensor

    def __init__(self, size: Size, *, causal: bool = True) -> None:
        super().__init__()
        self.core = nn.Parameter(torch.ones(size.head))
        self.query, self.key, self.value = (nn.Linear(size.width, size.head) for _ in range(3))
        self.output = nn.Linear(size.sequence**2, size.width)
        visible = visible_pairs(size.sequence, causal=causal)
        scales = size.sequence / (size.head * visible.sum((1, 2), keepdim=True)).sqrt()
        self.register_buffer("factors", visible * scales, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        terms = block_terms(self.core, self.query(x), self.key(x), self.value(x))
        return _mapped(terms * self.factors[:length, :length, :length], self.output)


class PublishedAttention(nn.Module):
    """Block-term attention with relative positions, as published: fused projections, no bias, no mask, no scaling.

    The output at i is a linear map of t(i, j, l) = sum_r g_r [(q_r(i) + a_r) k_r(j) + (q_r(i) + b_r) p_r(j)] v_r(l)
    over all pairs (j, l), where p projects the encoding of j counted from the end, and all blocks share a and b.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.core = nn.Parameter(torch.randn(size.head).softmax(0))
        self.position = nn.Linear(size.width, size.head, bias=False)
        self.qkv = nn.Linear(size.width, 3 * size.head, bias=False)
        self.output = nn.Linear(size.sequence**2, size.width, bias=False)

    def forward(self, x: Tensor, positions: Tensor, biases: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        position = self.position(positions).expand_as(key)
        terms = block_terms(self.core, query + biases[0], key, value)
        return _mapped(terms + block_terms(self.core, query + biases[1], position, value), self.output)


class SoftmaxAttention(nn.Module):
    """Softmax attention with one head."""

    def __init__(self, size: Size, *, causal: bool = True) -> None:
        super().__init__()
        self.causal = causal
        self.query, self.key, self.value = (nn.Linear(size.width, size.head) for _ in range(3))
        self.output = nn.Linear(size.head, size.width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.query(x), self.key(x), self.value(x)
        seen: Tensor = self.output(scaled_dot_product_attention(query, key, value, is_causal=self.causal))
        return seen


def _feed_forward(size: Size, activation: nn.Module) -> nn.Sequential:
    inner, outer = nn.Linear(size.width, size.inner), nn.Linear(size.inner, size.width)
    parts = {"inner": inner, "activation": activation, "dropout": nn.Dropout(size.dropout), "outer": outer}
    return nn.Sequential(OrderedDict(parts))


class Block(nn.Module):
    """Attention and a feed-forward part, each added to what it reads.

    As published the sum is normalised; a GPT normalises what a part reads. Modules are registered in that order.
    """

    def __init__(self, size: Size, attention: nn.Module, activation: nn.Module, *, norms_first: bool) -> None:
        super().__init__()
        self.norms_first = norms_first
        parts = {"attention": attention, "feed_forward": _feed_forward(size, activation)}
        for name, part in parts.items():
            named = [(name, part), (f"{name}_norm", nn.LayerNorm(size.width))]
            for key, module in reversed(named) if norms_first else named:
                self.add_module(key, module)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, x: Tensor, *context: Tensor) -> Tensor:
        """Map states to states; the attention gets the context too."""
        for name, more in (("attention", context), ("feed_forward", ())):
            part, norm = getattr(self, name), getattr(self, f"{name}_norm")
            x = x + self.dropout(part(norm(x), *more)) if self.norms_first else norm(x + self.dropout(part(x, *more)))
        return x


class LlamaBlock(nn.Module):
    """Attention of several heads with rotary positions and a gated feed-forward part, each of what was normalised."""

    cos: Tensor
    sin: Tensor

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head, width = size.head, size.width
        self.attention_norm = nn.RMSNorm(width, eps=1e-6)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.attention_output = nn.Linear(width, width, bias=False)
        self.feed_forward_norm = nn.RMSNorm(width, eps=1e-6)
        self.gate, self.up = (nn.Linear(width, size.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(size.inner, width, bias=False)
        angles = torch.outer(torch.arange(size.sequence), 10_000 ** -(torch.arange(0, size.head, 2) / size.head))
        self.register_buffer("cos", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angles.sin().repeat(1, 2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.attention_norm(x)
        query, key, value = (
            each(normed).unflatten(-1, (-1, self.head)).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        seen = scaled_dot_product_attention(self._rotated(query), self._rotated(key), value, is_causal=True)
        x = x + self.attention_output(seen.transpose(1, 2).flatten(2))
        normed = self.feed_forward_norm(x)
        fed: Tensor = x + self.down(silu(self.gate(normed)) * self.up(normed))
        return fed

    def _rotated(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        length = x.shape[-2]
        return x * self.cos[:length] + torch.cat([-second, first], dim=-1) * self.sin[:length]


class LanguageModel(nn.Module):
    """Blocks between an embedding, to which learned positions may be added, and a head, which may be the embedding."""

    def __init__(
        self,
        num_tokens: int,
        size: Size,
        block: Callable[[], nn.Module],
        norm: nn.Module | None = None,
        *,
        has_positions: bool = True,
        is_tied: bool = True,
    ) -> None:
        super().__init__()
        self.size = size
        self.tokens = nn.Embedding(num_tokens, size.width)
        self.positions = nn.Embedding(size.sequence, size.width) if has_positions else None
        self.dropout = nn.Dropout(size.dropout)
        self.blocks = nn.Sequential(*(block() for _ in range(size.layers)))
        self.norm = norm or nn.Identity()
        self.head = nn.Linear(size.width, num_tokens, bias=is_tied)
        if is_tied:
            self.head.weight = self.tokens.weight
        if self.positions is not None:
            nn.init.normal_(self.tokens.weight, std=size.width**-0.5)
            nn.init.normal_(self.positions.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.shape[1] > self.size.sequence:
            raise ValueError(f"sequences must have at most {self.size.sequence} tokens, got {tokens.shape[1]}")
        logits: Tensor = self.head(self.norm(self.states(tokens)))
        return logits

    def states(self, tokens: Tensor) -> Tensor:
        """Return the states after the last block, shape ``(B, n, width)``."""
        x = self.tokens(tokens)
        if self.positions is not None:
            # the head's rows have length 1; as inputs they are scaled to the size of positions
            x = x * math.sqrt(self.size.width) + self.positions.weight[: tokens.shape[1]]
            x = self.dropout(x)
        states: Tensor = self.blocks(x)
        return states


class PublishedTransformer(LanguageModel):
    """The tensorized transformer of the paper's published code; a position sees those after it."""

    def __init__(self, num_tokens: int, size: Size) -> None:
        block = lambda: Block(size, PublishedAttention(size), nn.ReLU(), norms_first=False)  # noqa: E731
        super().__init__(num_tokens, size, block, has_positions=False)
        self.relative_bias = nn.Parameter(torch.empty(2, size.head))
        for name, parameter in self.named_parameters():
            if "norm.weight" in name:
                nn.init.normal_(parameter, 1.0, 0.02)
            elif name.endswith(".bias"):
                nn.init.zeros_(parameter)
            elif not name.endswith("core"):
                nn.init.normal_(parameter, std=0.02)

    def states(self, tokens: Tensor) -> Tensor:
        x = self.dropout(self.tokens(tokens) * math.sqrt(self.size.width))
        positions = self.dropout(_sinusoids(tokens.shape[1], self.size.width).to(x))
        for block in self.blocks:
            x = block(x, positions, self.relative_bias)
        states: Tensor = self.dropout(x)
        return states


def _sinusoids(length: int, width: int) -> Tensor:
    """Return the encoding of positions counted from the end: sines, then cosines; shape ``(length, width)``."""
    angles = torch.outer(torch.arange(length - 1, -1, -1.0), 10_000 ** -(torch.arange(0, width, 2.0) / width))
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :width]


class Llama(LanguageModel):
    """A LLaMA: no biases, no dropout, and a head apart from the embedding; ``size.head`` divides ``size.width``."""

    def __init__(self, num_tokens: int, size: Size) -> None:
        norm = nn.RMSNorm(size.width, eps=1e-6)
        super().__init__(num_tokens, size, lambda: LlamaBlock(size), norm, has_positions=False, is_tied=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)


def build_language_model(name: str, *, num_tokens: int, size: Size, causal: bool = True) -> nn.Module:
    """Build a network with fresh weights; without ``causal``, as published, a language model sees the answer."""
    if name == "published":
        return PublishedTransformer(num_tokens, size)
    if name == "tensorized":
        block = lambda: Block(size, BlockTermAttention(size, causal=causal), nn.ReLU(), norms_first=False)  # noqa: E731
        return LanguageModel(num_tokens, size, block)
    if name == "gpt":
        block = lambda: Block(size, SoftmaxAttention(size, causal=causal), nn.GELU(), norms_first=True)  # noqa: E731
        return LanguageModel(num_tokens, size, block, nn.LayerNorm(size.width))
    if name == "llama":
        return Llama(num_tokens, size)
    raise ValueError(unknown("model", name, ("published", "tensorized", "gpt", "llama")))
