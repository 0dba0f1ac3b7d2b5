"""Language models: the tensorized transformer as published and in our form, a plain GPT of the same size, and a LLaMA.

All read whole sequences of at most a fixed length and give logits of the next token at every position. All but the
LLaMA add learned positions to embeddings, and use the embedding as the head (tied, as in the published code of the
tensorized transformer). Modules are registered in the order of the data, so that `tempbalance.find_layers` lets each
normalisation follow the linear layer that feeds it; the first of the GPT, which an embedding feeds, trains at the base
rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, relu, scaled_dot_product_attention, silu

from tempbalance.errors import unknown


@dataclass(frozen=True)
class Size:
    """Size of a network; the defaults are the paper's.

    Attributes:
        layers: Number of blocks.
        width: Width between blocks.
        head: Size of the one attention head; the rank of block-term attention.
        inner: Width within a feed-forward part.
        sequence: Largest number of tokens.
        dropout: Dropout probability of embeddings and of the output of each part of a block.
    """

    layers: int = 3
    width: int = 256
    head: int = 40
    inner: int = 2100
    sequence: int = 32
    dropout: float = 0.3


class BlockTermAttention(nn.Module):
    """Attention to all pairs of positions, as one block of a block-term decomposition ("core-1"), without a softmax.

    The output at i is a linear map of the numbers t(i, j, l) = sum_r g_r q_r(i) k_r(j) v_r(l) of all pairs (j, l), one
    weight for each pair and output, so that as published a position sees those after it. The causal form takes t as 0
    where j or l is after i. Instead of a softmax t is multiplied by n / sqrt(R p_i), where R is the rank, n the length
    and p_i the number of pairs that i sees, so that with fresh weights what positions add has the same variance at all
    of them. The published form has no such factor (`PublishedAttention`).

    Args:
        size: Of the network.
        causal: Whether positions see only themselves and earlier ones.
    """

    factors: Tensor

    def __init__(self, size: Size, *, causal: bool = True) -> None:
        super().__init__()
        self.core = nn.Parameter(torch.ones(size.head))
        self.query = nn.Linear(size.width, size.head)
        self.key = nn.Linear(size.width, size.head)
        self.value = nn.Linear(size.width, size.head)
        self.output = nn.Linear(size.sequence**2, size.width)
        visible = visible_pairs(size.sequence, causal=causal)
        scales = size.sequence / (size.head * visible.sum((1, 2), keepdim=True)).sqrt()
        self.register_buffer("factors", visible * scales, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Shape ``(B, n, width)`` to the same, n at most the sequence."""
        length, side = x.shape[1], len(self.factors)
        terms = block_terms(self.core, self.query(x), self.key(x), self.value(x))
        terms = terms * self.factors[:length, :length, :length]
        weight = self.output.weight.view(-1, side, side)[:, :length, :length]
        return linear(terms.flatten(2), weight.flatten(1), self.output.bias)


def block_terms(core: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """t(i, j, l) = sum_r g_r q_r(i) k_r(j) v_r(l).

    Args:
        core: g, shape ``(R,)``.
        query: q, shape ``(B, n, R)``.
        key: k, shape ``(B, n, R)``.
        value: v, shape ``(B, n, R)``.

    Returns:
        Shape ``(B, n, n, n)``.
    """
    batch, length, rank = query.shape
    products = (key[:, :, None] * value[:, None]).view(batch, length * length, rank)
    return ((query * core) @ products.transpose(1, 2)).view(batch, length, length, length)


def visible_pairs(length: int, *, causal: bool) -> Tensor:
    """1 where position i sees the pair (j, l), 0 elsewhere; shape ``(n, n, n)``."""
    seen = torch.ones(length, length)
    if causal:
        seen = seen.tril()
    return seen[:, :, None] * seen[:, None]


class SoftmaxAttention(nn.Module):
    """Softmax attention with one head.

    Args:
        size: Of the network.
        causal: Whether positions see only themselves and earlier ones.
    """

    def __init__(self, size: Size, *, causal: bool = True) -> None:
        super().__init__()
        self.causal = causal
        self.query = nn.Linear(size.width, size.head)
        self.key = nn.Linear(size.width, size.head)
        self.value = nn.Linear(size.width, size.head)
        self.output = nn.Linear(size.head, size.width)

    def forward(self, x: Tensor) -> Tensor:
        """Shape ``(B, n, width)`` to the same."""
        query, key, value = self.query(x), self.key(x), self.value(x)
        seen: Tensor = self.output(scaled_dot_product_attention(query, key, value, is_causal=self.causal))
        return seen


class FeedForward(nn.Module):
    """Two linear layers.

    Args:
        size: Of the network.
        activation: Between them.
    """

    def __init__(self, size: Size, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.activation = activation
        self.inner = nn.Linear(size.width, size.inner)
        self.dropout = nn.Dropout(size.dropout)
        self.outer = nn.Linear(size.inner, size.width)

    def forward(self, x: Tensor) -> Tensor:
        """Apply both layers to each position."""
        out: Tensor = self.outer(self.dropout(self.activation(self.inner(x))))
        return out


class TensorizedBlock(nn.Module):
    """Block-term attention and a feed-forward part, each added and then normalised, as published."""

    def __init__(self, size: Size, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.attention_norm = nn.LayerNorm(size.width)
        self.feed_forward = FeedForward(size, relu)
        self.feed_forward_norm = nn.LayerNorm(size.width)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, x: Tensor, *context: Tensor) -> Tensor:
        """Shape ``(B, n, width)`` to the same; the attention gets the context too."""
        x = self.attention_norm(x + self.dropout(self.attention(x, *context)))
        x = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
        return x


class GPTBlock(nn.Module):
    """Attention and a feed-forward part, each of what was normalised before."""

    def __init__(self, size: Size, *, causal: bool) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(size.width)
        self.attention = SoftmaxAttention(size, causal=causal)
        self.feed_forward_norm = nn.LayerNorm(size.width)
        self.feed_forward = FeedForward(size, gelu)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Shape ``(B, n, width)`` to the same."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        x = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return x


class PublishedAttention(nn.Module):
    """Block-term attention with relative positions, as published: fused projections, no bias, no mask, no scaling.

    The output at i is a linear map of t(i, j, l) = sum_r g_r [(q_r(i) + a_r) k_r(j) + (q_r(i) + b_r) p_r(j)] v_r(l)
    over all pairs (j, l), where p projects the encoding of j counted from the end, and all blocks share a and b.

    Args:
        size: Of the network.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.core = nn.Parameter(torch.randn(size.head).softmax(0))
        self.position = nn.Linear(size.width, size.head, bias=False)
        self.qkv = nn.Linear(size.width, 3 * size.head, bias=False)
        self.output = nn.Linear(size.sequence**2, size.width, bias=False)
        self.side = size.sequence

    def forward(self, x: Tensor, positions: Tensor, biases: Tensor) -> Tensor:
        """Shape ``(B, n, width)`` to the same, n at most the sequence; positions have shape ``(n, width)``."""
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        position = self.position(positions).expand_as(key)
        terms = block_terms(self.core, query + biases[0], key, value)
        terms = terms + block_terms(self.core, query + biases[1], position, value)
        length = x.shape[1]
        weight = self.output.weight.view(-1, self.side, self.side)[:, :length, :length]
        return linear(terms.flatten(2), weight.flatten(1))


class PublishedTransformer(nn.Module):
    """The tensorized transformer of the paper's published code; a position sees those after it.

    Args:
        num_tokens: Of the vocabulary.
        size: Of the network.
    """

    def __init__(self, num_tokens: int, size: Size) -> None:
        super().__init__()
        self.size = size
        self.tokens = nn.Embedding(num_tokens, size.width)
        self.relative_bias = nn.Parameter(torch.empty(2, size.head))
        self.dropout = nn.Dropout(size.dropout)
        self.blocks = nn.ModuleList(TensorizedBlock(size, PublishedAttention(size)) for _ in range(size.layers))
        self.head = nn.Linear(size.width, num_tokens)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if "norm.weight" in name:
                nn.init.normal_(parameter, 1.0, 0.02)
            elif name.endswith(".bias"):
                nn.init.zeros_(parameter)
            elif not name.endswith("core"):
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Shape ``(B, n)``, n at most the sequence, to ``(B, n, num_tokens)``.

        Raises:
            ValueError: If the sequences are longer.
        """
        length = _checked_length(tokens, self.size)
        x = self.dropout(self.tokens(tokens) * math.sqrt(self.size.width))
        positions = self.dropout(_sinusoids(length, self.size.width).to(x))
        for block in self.blocks:
            x = block(x, positions, self.relative_bias)
        logits: Tensor = self.head(self.dropout(x))
        return logits


def _sinusoids(length: int, width: int) -> Tensor:
    """Return the encoding of positions counted from the end: sines, then cosines; shape ``(length, width)``."""
    angles = torch.outer(torch.arange(length - 1, -1, -1.0), 10_000 ** -(torch.arange(0, width, 2.0) / width))
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :width]


def _checked_length(tokens: Tensor, size: Size) -> int:
    length = tokens.shape[1]
    if length > size.sequence:
        raise ValueError(f"sequences must have at most {size.sequence} tokens, got {length}")
    return length


class LanguageModel(nn.Module):
    """Transformer that maps tokens to the logits of the next tokens.

    Args:
        num_tokens: Of the vocabulary.
        size: Of the network.
        block: Builds each of the ``size.layers`` blocks.
        norm: Builds the norm before the head.
    """

    def __init__(self, num_tokens: int, size: Size, block: Callable[[], nn.Module], norm: nn.Module) -> None:
        super().__init__()
        self.size = size
        self.tokens = nn.Embedding(num_tokens, size.width)
        self.positions = nn.Embedding(size.sequence, size.width)
        self.dropout = nn.Dropout(size.dropout)
        self.blocks = nn.Sequential(*(block() for _ in range(size.layers)))
        self.norm = norm
        self.head = nn.Linear(size.width, num_tokens)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=size.width**-0.5)
        nn.init.normal_(self.positions.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Shape ``(B, n)``, n at most the sequence, to ``(B, n, num_tokens)``.

        Raises:
            ValueError: If the sequences are longer.
        """
        length = _checked_length(tokens, self.size)
        # the head's rows have length 1; as inputs they are scaled to the size of positions
        found = self.tokens(tokens) * math.sqrt(self.size.width) + self.positions.weight[:length]
        logits: Tensor = self.head(self.norm(self.blocks(self.dropout(found))))
        return logits


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
        """Shape ``(B, n, width)`` to the same."""
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


class Llama(nn.Module):
    """A LLaMA: no biases, no dropout, and a head apart from the embedding.

    Args:
        num_tokens: Of the vocabulary.
        size: Of the network; ``head`` divides ``width``.
    """

    def __init__(self, num_tokens: int, size: Size) -> None:
        super().__init__()
        self.size = size
        self.tokens = nn.Embedding(num_tokens, size.width)
        self.blocks = nn.Sequential(*(LlamaBlock(size) for _ in range(size.layers)))
        self.norm = nn.RMSNorm(size.width, eps=1e-6)
        self.head = nn.Linear(size.width, num_tokens, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Shape ``(B, n)``, n at most the sequence, to ``(B, n, num_tokens)``.

        Raises:
            ValueError: If the sequences are longer.
        """
        _checked_length(tokens, self.size)
        logits: Tensor = self.head(self.norm(self.blocks(self.tokens(tokens))))
        return logits


def build_language_model(name: str, *, num_tokens: int, size: Size, causal: bool = True) -> nn.Module:
    """Build a network with fresh weights.

    Args:
        name: ``published``, ``tensorized``, ``gpt`` or ``llama``.
        num_tokens: Of the vocabulary.
        size: Of the network.
        causal: Whether positions see only themselves and earlier ones; without it a language model sees the answer. The
            published one always does.

    Raises:
        ValueError: If the name is not known.
    """
    if name == "published":
        return PublishedTransformer(num_tokens, size)
    if name == "tensorized":
        block = lambda: TensorizedBlock(size, BlockTermAttention(size, causal=causal))  # noqa: E731
        return LanguageModel(num_tokens, size, block, nn.Identity())
    if name == "gpt":
        return LanguageModel(num_tokens, size, lambda: GPTBlock(size, causal=causal), nn.LayerNorm(size.width))
    if name == "llama":
        return Llama(num_tokens, size)
    raise ValueError(unknown("model", name, ("published", "tensorized", "gpt", "llama")))
