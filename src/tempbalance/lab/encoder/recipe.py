"""Recipes of fine-tuning on few labels."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from tempbalance.lab import options
from tempbalance.lab.options import Count, Size
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
        options.Place, f"Folder with sentences, labels 0 and 1, and a pretrained BERT: {', '.join(FILES)}."
    ] = "few_labels"
    model: Annotated[Literal["bert", "bert_lora"], "Train the weights, or adapters (LoRA)."] = "bert"
    method: Annotated[Literal["adamw", "tb+adamw"], "AdamW, alone or balanced."] = "tb+adamw"
    limit: Annotated[Count, "Sentences for training, half of each label."] = 32
    test_limit: Annotated[Count | None, "Test on at most this many sentences."] = None
    blocks: Annotated[Size | None, "Train the last blocks only, at most this many; null trains all and embeddings."] = (
        None
    )
    rank: Annotated[Size, "Rank of adapters."] = 8
    sequence: Annotated[Size, "Tokens per sentence."] = 64
    weight_decay: options.WeightDecay = 0.01
    iterations: options.Iterations = 100
    batch_size: options.BatchSize = 16
    lr: options.LearningRate = 1e-4
    interval: Annotated[Count, "Iterations between balancings."] = 10

    @property
    def folder(self) -> Path:
        return Path(self.dataset).expanduser()

    @property
    def unused(self) -> set[str]:
        return super().unused | ({"rank"} if self.model == "bert" else set())

    @property
    def pace(self) -> tuple[Any, ...]:
        size = (self.model, self.blocks, self.rank, self.sequence, min(self.batch_size, self.limit), self.test_limit)
        return self.dataset, *size, self.evaluate_every, self.is_balanced and self.interval

    @property
    def data_text(self) -> str:
        return shown(Path(self.dataset).name)

    @property
    def size_text(self) -> str:
        return f"{self.limit} sentences; {self.iterations:,} iterations"

    def check_data(self) -> None:
        for name in FILES:
            if not (self.folder / name).is_file():
                raise ValueError(
                    f"dataset must be a folder with {', '.join(FILES)}, got {self.dataset!r} without {name}"
                )

    def load(self, cache: Path | None = None) -> Any:
        from tempbalance.lab.encoder.training import load_folder

        self.check_data()
        return load_folder(self.folder, self.sequence)

    def own_digest(self) -> str | None:
        return checksum(self.folder) if self.folder.is_dir() else None


@lru_cache(maxsize=2)
def checksum(folder: Path) -> str:
    """Return the checksum of sentences and weights."""
    found = hashlib.sha256()
    for name in FILES:
        found.update(hashlib.sha256((folder / name).read_bytes()).digest())
    return found.hexdigest()
