"""Recipes of fine-tuning on few labels."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from tempbalance.lab.options import BatchSize, Count, Iterations, LearningRate, Place, Size, WeightDecay
from tempbalance.lab.recipe import ACCURACY, IterationsRecipe
from tempbalance.report.text import shown

FILES = ("train.tsv", "dev.tsv", "config.json", "model.safetensors", "tokenizer.json")


class EncoderRecipe(IterationsRecipe):
    """Fine-tuning of a pretrained BERT and a new head on few sentences, which the seed draws."""

    kind = "encoder"
    measure = ACCURACY
    is_float32 = True
    result_names = ("test_accuracy", "train_loss", "num_balancings", "seconds")

    dataset: Annotated[
        Place,
        Field(description=f"Folder with sentences, labels 0 and 1, and a pretrained BERT: {', '.join(FILES)}."),
    ] = "few_labels"
    model: Annotated[Literal["bert", "bert_lora"], Field(description="Train the weights, or adapters (LoRA).")] = "bert"
    method: Annotated[Literal["adamw", "tb+adamw"], Field(description="AdamW, alone or balanced.")] = "tb+adamw"
    limit: Annotated[Count, Field(description="Sentences for training, half of each label.")] = 32
    test_limit: Annotated[Count | None, Field(description="Test on at most this many sentences.")] = None
    blocks: Annotated[
        Size | None, Field(description="Train the last blocks only, at most this many; null trains all and embeddings.")
    ] = None
    rank: Annotated[Size, Field(description="Rank of adapters.")] = 8
    sequence: Annotated[Size, Field(description="Tokens per sentence.")] = 64
    weight_decay: WeightDecay = 0.01
    iterations: Iterations = 100
    batch_size: BatchSize = 16
    lr: LearningRate = 1e-4
    interval: Annotated[Count, Field(description="Iterations between balancings.")] = 10

    @property
    def unused(self) -> set[str]:
        """The rank of adapters where there are none."""
        return super().unused | ({"rank"} if self.model == "bert" else set())

    @property
    def pace(self) -> tuple[Any, ...]:
        """Options that determine the time of an epoch."""
        size = (self.model, self.blocks, self.rank, self.sequence, min(self.batch_size, self.limit), self.test_limit)
        return self.dataset, *size, self.evaluate_every, self.is_balanced and self.interval

    @property
    def data_text(self) -> str:
        """The folder."""
        return shown(Path(self.dataset).name)

    @property
    def size_text(self) -> str:
        """Sentences to train on and iterations."""
        return f"{self.limit} sentences; {self.iterations:,} iterations"

    def check_data(self) -> None:
        """Refuse a folder that lacks a file.

        Raises:
            ValueError: It names the file.
        """
        for name in FILES:
            if not (Path(self.dataset).expanduser() / name).is_file():
                raise ValueError(
                    f"dataset must be a folder with {', '.join(FILES)}, got {self.dataset!r} without {name}"
                )

    @property
    def has_own_data(self) -> bool:
        """Whether the folder exists, which can change."""
        return Path(self.dataset).expanduser().is_dir()

    def own_digest(self) -> str | None:
        """Return the checksum of sentences and weights."""
        return checksum(Path(self.dataset).expanduser()) if self.has_own_data else None


@lru_cache(maxsize=2)
def checksum(folder: Path) -> str:
    """Return the checksum of a folder's files."""
    found = hashlib.sha256()
    for name in FILES:
        found.update(hashlib.sha256((folder / name).read_bytes()).digest())
    return found.hexdigest()
