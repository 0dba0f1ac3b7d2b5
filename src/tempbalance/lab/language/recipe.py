"""What a language model is trained on, and how."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from tempbalance.lab.language.data import DATASETS, TOKENS, TextData, check_text, count_steps, load_text
from tempbalance.lab.names import Measure, pretty
from tempbalance.lab.options import RULES
from tempbalance.lab.recipe import COUNT, IterationsRecipe
from tempbalance.report.text import shown

_SHARE = ("at least 0 and below 1", lambda value: 0 <= value < 1)


@dataclass(frozen=True)
class LanguageRecipe(IterationsRecipe):
    """What language model to train on which text, how, and from which seed. Defaults are the paper's.

    Attributes:
        dataset: ``penn_treebank``, ``pydoc``, or the path of a text or of a folder with three.
        tokens: ``words`` or ``characters``.
        model: ``tensorized``, the paper's, or ``gpt``.
        causal: Whether positions see only earlier ones; without it the network is as published, and looks ahead.
        method: ``adam`` or ``tb+adam``, both with a cosine.
        seed: All randomness follows from it, the epoch and the iteration.
        batch_size: Sequences an iteration.
        layers: How many blocks.
        width: Of what goes from block to block.
        head: Size of the attention head.
        inner: Width within a feed-forward part.
        sequence: Tokens a sequence.
        dropout: Its probability.
        betas: Of Adam.
        eps: Of Adam.
        interval, evaluate_every: In iterations; these and all others are as of `IterationsRecipe`.
    """

    kind: ClassVar[str] = "language"
    measure: ClassVar[Measure] = Measure("test_perplexity", "perplexity", is_lower_better=True)
    best_by: ClassVar[str] = "valid_perplexity"
    rules: ClassVar = {
        **IterationsRecipe.rules,
        **dict.fromkeys(("layers", "width", "head", "inner", "sequence"), COUNT),
        "dataset": RULES["dataset"],
        "dropout": _SHARE,
        "betas": ("two numbers of at least 0 and below 1", lambda value: all(0 <= each < 1 for each in value)),
        "eps": ("> 0", lambda value: value > 0),
    }
    choices: ClassVar = {
        **IterationsRecipe.choices,
        "tokens": TOKENS,
        "model": ("tensorized", "gpt"),
        "method": ("adam", "tb+adam"),
    }
    result_names: ClassVar[tuple[str, ...]] = ("test_perplexity", "valid_perplexity", "num_balancings", "seconds")

    dataset: str = "penn_treebank"
    tokens: str = "words"
    model: str = "tensorized"
    causal: bool = True
    method: str = "tb+adam"
    seed: int = 43
    iterations: int = 40_000
    batch_size: int = 120
    layers: int = 3
    width: int = 256
    head: int = 40
    inner: int = 2100
    sequence: int = 32
    dropout: float = 0.3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    evaluate_every: int = 500

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model == "gpt" and not self.causal:
            raise ValueError("causal must be true for gpt: only the tensorized transformer was published otherwise")

    @property
    def name(self) -> str:
        """Short; with a word where it sees the words that it is to tell."""
        return super().name if self.causal else f"{super().name}-looks-ahead"

    @property
    def pace(self) -> tuple[Any, ...]:
        """What an epoch's time depends on."""
        size = (self.layers, self.width, self.head, self.inner, self.sequence, self.batch_size)
        return self.dataset, self.tokens, self.model, *size, self.evaluate_every, self.is_balanced and self.interval

    @property
    def data_text(self) -> str:
        """The text, and what its tokens are."""
        name = pretty(self.dataset) if self.dataset in DATASETS else shown(Path(self.dataset).name)
        return f"{name}, {self.tokens}"

    @property
    def size_text(self) -> str:
        """Width and iterations."""
        return f"width {self.width}; {self.iterations:,} iterations"

    def check_data(self) -> None:
        """Refuse a text that is neither known nor there, is none, or is too short for a batch.

        Raises:
            ValueError: It says which and why.
        """
        check_text(self.dataset)
        if self.dataset != "penn_treebank":  # which a run downloads
            data = _load(self.dataset, self.tokens)
            count_steps(len(data.train), batch_size=self.batch_size, sequence=self.sequence, name=self.dataset)

    @property
    def has_own_data(self) -> bool:
        """Whether the text can change, being somebody's own or that of this version of Python, and is there."""
        is_there = self.dataset == "pydoc" or Path(self.dataset).expanduser().exists()
        return is_there and self.dataset != "penn_treebank"

    def own_digest(self) -> str | None:
        """The checksum of a text that can change."""
        return _load(self.dataset, self.tokens).digest() if self.has_own_data else None


@lru_cache(maxsize=4)
def _load(dataset: str, tokens: str) -> TextData:
    return load_text(dataset, tokens=tokens)
