"""Recipes of language models."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from tempbalance.lab import options
from tempbalance.lab.language.data import DATASETS, TextData, check_text, count_steps, load_text
from tempbalance.lab.options import BALANCING, Number, Size
from tempbalance.lab.recipe import IterationsRecipe, Measure
from tempbalance.report.text import shown


class LanguageRecipe(IterationsRecipe):
    """Training of a language model. Defaults are the paper's."""

    kind = "language"
    known_data = ("penn_treebank",)  # pydoc changes with Python
    data_options = ("dataset", "tokens", "vocabulary")
    measure = Measure("test_perplexity", "perplexity", is_lower_better=True)
    result_names = ("test_perplexity", "valid_perplexity", "num_balancings", "seconds")

    dataset: Annotated[
        options.Place, "Text: penn_treebank, pydoc, or the path of a file or of a folder with three."
    ] = "penn_treebank"
    model: Annotated[
        Literal["published", "tensorized", "gpt", "llama"],
        "Network; published is the paper's, tensorized the same with split projections.",
    ] = "tensorized"
    method: Annotated[Literal["adam", "tb+adam"], "Optimizer, alone or balanced."] = "tb+adam"
    tokens: Annotated[Literal["words", "characters"], "Unit of the text."] = "words"
    vocabulary: Annotated[
        Annotated[int, Field(ge=2, le=10**9)] | None,
        "Keep this many of the most frequent tokens; the others are unknown.",
    ] = None
    causal: Annotated[bool, "Let positions see earlier ones only. The published network looks ahead."] = True
    layers: Annotated[int, Field(ge=1, le=1000), "Number of blocks."] = 3
    width: Annotated[Size, "Width between blocks."] = 256
    head: Annotated[Size, "Size of an attention head."] = 40
    inner: Annotated[Size, "Width inside the feed-forward part."] = 2100
    sequence: Annotated[Size, "Tokens per sequence."] = 32
    dropout: Annotated[options.Share, "Probability of dropout."] = 0.3
    clip: Annotated[
        Annotated[Number, Field(gt=0)] | None, "Clip gradients to this norm; the published code does at 0.25."
    ] = None
    hold_rates: Annotated[bool, "Keep learning rates between balancings, as the published code does.", BALANCING] = (
        False
    )
    betas: options.Betas = (0.9, 0.999)
    eps: options.Epsilon = 1e-8
    iterations: options.Iterations = 40_000
    batch_size: options.BatchSize = 120
    evaluate_every: options.EvaluateEvery = 500

    def resolved(self) -> Mapping[str, Any]:
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
        return "valid_perplexity"

    @property
    def name(self) -> str:
        """Short name for folders and tables; it says so if the network sees the words that it predicts."""
        return super().name if self.causal else f"{super().name}-looks-ahead"

    @property
    def pace(self) -> tuple[Any, ...]:
        size = (self.model, self.layers, self.width, self.head, self.inner, self.sequence, self.batch_size)
        data = (self.dataset, self.tokens, self.vocabulary)
        return *data, *size, self.evaluate_every, self.is_balanced and self.interval

    @property
    def data_text(self) -> str:
        name = options.pretty(self.dataset) if self.dataset in DATASETS else shown(Path(self.dataset).name)
        return f"{name}, {self.tokens}"

    @property
    def size_text(self) -> str:
        return f"width {self.width}; {self.iterations:,} iterations"

    def check_data(self) -> None:
        check_text(self.dataset)
        if self.dataset != "penn_treebank":  # which a run downloads
            num_tokens = _num_tokens(self.dataset, self.tokens)
            count_steps(num_tokens, batch_size=self.batch_size, sequence=self.sequence, name=self.dataset)

    @property
    def has_own_data(self) -> bool:
        return self.dataset == "pydoc" or super().has_own_data

    def load(self, cache: Path | None = None) -> TextData:
        return load_text(self.dataset, tokens=self.tokens, vocabulary=self.vocabulary, cache=cache)


@lru_cache(maxsize=4)
def _num_tokens(dataset: str, tokens: str) -> int:
    return len(load_text(dataset, tokens=tokens).train)
