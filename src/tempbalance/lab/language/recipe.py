"""Recipes of language models."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from tempbalance.lab.language.data import DATASETS, TextData, check_text, count_steps, load_text
from tempbalance.lab.options import (
    BALANCING,
    BatchSize,
    Betas,
    Epsilon,
    EvaluateEvery,
    Iterations,
    Number,
    Place,
    Share,
    Size,
    pretty,
)
from tempbalance.lab.recipe import IterationsRecipe, Measure
from tempbalance.report.text import shown


class LanguageRecipe(IterationsRecipe):
    """Training of a language model. Defaults are the paper's."""

    kind = "language"
    measure = Measure("test_perplexity", "perplexity", is_lower_better=True)
    result_names = ("test_perplexity", "valid_perplexity", "num_balancings", "seconds")

    dataset: Annotated[
        Place, Field(description="Text: penn_treebank, pydoc, or the path of a file or of a folder with three.")
    ] = "penn_treebank"
    model: Annotated[
        Literal["published", "tensorized", "gpt", "llama"],
        Field(description="Network; published is the paper's, tensorized the same with split projections."),
    ] = "tensorized"
    method: Annotated[Literal["adam", "tb+adam"], Field(description="Optimizer, alone or balanced.")] = "tb+adam"
    tokens: Annotated[Literal["words", "characters"], Field(description="Unit of the text.")] = "words"
    vocabulary: Annotated[
        Annotated[int, Field(ge=2, le=10**9)] | None,
        Field(description="Keep this many of the most frequent tokens; the others are unknown."),
    ] = None
    causal: Annotated[
        bool, Field(description="Let positions see earlier ones only. The published network looks ahead.")
    ] = True
    layers: Annotated[int, Field(ge=1, le=1000, description="Number of blocks.")] = 3
    width: Annotated[Size, Field(description="Width between blocks.")] = 256
    head: Annotated[Size, Field(description="Size of an attention head.")] = 40
    inner: Annotated[Size, Field(description="Width inside the feed-forward part.")] = 2100
    sequence: Annotated[Size, Field(description="Tokens per sequence.")] = 32
    dropout: Annotated[Share, Field(description="Probability of dropout.")] = 0.3
    clip: Annotated[
        Annotated[Number, Field(gt=0)] | None,
        Field(description="Clip gradients to this norm; the published code does at 0.25."),
    ] = None
    hold_rates: Annotated[
        bool, Field(description="Keep learning rates between balancings, as the published code does."), BALANCING
    ] = False
    betas: Betas = (0.9, 0.999)
    eps: Epsilon = 1e-8
    iterations: Iterations = 40_000
    batch_size: BatchSize = 120
    evaluate_every: EvaluateEvery = 500

    def resolved(self) -> Mapping[str, Any]:
        """Refuse a gpt or llama that looks ahead, the published network if it is not to, and a llama's uneven heads."""
        if self.model == "published" and self.causal:
            raise ValueError("causal must be false for published: its attention has no mask")
        if self.model in ("gpt", "llama") and not self.causal:
            raise ValueError(
                f"causal must be true for {self.model}: only the tensorized transformer was published otherwise"
            )
        if self.model == "llama" and (self.width % self.head or self.head % 2):
            raise ValueError(f"head must be even and divide width, which is {self.width}, for llama, got {self.head}")
        return {}

    @property
    def best_by(self) -> str:
        """The perplexity on the validation text."""
        return "valid_perplexity"

    @property
    def name(self) -> str:
        """Short name for folders and tables; it says so if the network sees the words that it predicts."""
        return super().name if self.causal else f"{super().name}-looks-ahead"

    @property
    def pace(self) -> tuple[Any, ...]:
        """Options that determine the time of an epoch."""
        size = (self.layers, self.width, self.head, self.inner, self.sequence, self.batch_size)
        return (
            self.dataset,
            self.tokens,
            self.vocabulary,
            self.model,
            *size,
            self.evaluate_every,
            self.is_balanced and self.interval,
        )

    @property
    def data_text(self) -> str:
        """The text and its tokens."""
        name = pretty(self.dataset) if self.dataset in DATASETS else shown(Path(self.dataset).name)
        return f"{name}, {self.tokens}"

    @property
    def size_text(self) -> str:
        """Width and iterations."""
        return f"width {self.width}; {self.iterations:,} iterations"

    def check_data(self) -> None:
        """Refuse a text that is missing, unreadable, or too short for a batch.

        Raises:
            ValueError: The message says which and why.
        """
        check_text(self.dataset)
        if self.dataset != "penn_treebank":  # which a run downloads
            data = _load(self.dataset, self.tokens, self.vocabulary)
            count_steps(len(data.train), batch_size=self.batch_size, sequence=self.sequence, name=self.dataset)

    @property
    def has_own_data(self) -> bool:
        """Whether the text exists and can change: a user's own, or the help of this version of Python."""
        is_there = self.dataset == "pydoc" or Path(self.dataset).expanduser().exists()
        return is_there and self.dataset != "penn_treebank"

    def own_digest(self) -> str | None:
        """Return the checksum of a text that can change."""
        return _load(self.dataset, self.tokens, self.vocabulary).digest() if self.has_own_data else None


@lru_cache(maxsize=4)
def _load(dataset: str, tokens: str, vocabulary: int | None) -> TextData:
    return load_text(dataset, tokens=tokens, vocabulary=vocabulary)
