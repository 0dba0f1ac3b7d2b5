"""Recipes of fine-tuning on few labels, and the sentences and the encoder in a folder."""

from __future__ import annotations

import csv
import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tempbalance.lab import options
from tempbalance.lab.options import Count, Size
from tempbalance.lab.recipe import ACCURACY, IterationsRecipe
from tempbalance.report.text import shown

if TYPE_CHECKING:
    from torch import Tensor, nn

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

    def load(self, cache: Path | None = None) -> EncoderData:
        self.check_data()
        return load_folder(self.folder, self.sequence)

    def own_digest(self) -> str | None:
        return checksum(self.folder) if self.folder.is_dir() else None


@dataclass(frozen=True, eq=False)
class Sentences:
    """Sentences as tokens, or as their states: ``mask`` says which are no padding."""

    tokens: Tensor
    mask: Tensor
    labels: Tensor

    def __getitem__(self, places: Any) -> Sentences:
        return Sentences(self.tokens[places], self.mask[places], self.labels[places])


@dataclass(frozen=True, eq=False)
class EncoderData:
    """A pretrained encoder of `transformers`, the sentences of a folder, and the checksum of its files."""

    bert: nn.Module
    train: Sentences
    test: Sentences
    checksum: str

    def digest(self) -> str:
        return self.checksum


@lru_cache(maxsize=2)
def load_folder(folder: Path, sequence: int) -> EncoderData:
    """Return the encoder and the sentences in a folder."""
    import torch
    import transformers

    api: Any = transformers
    api.utils.logging.disable_progress_bar()
    api.utils.logging.set_verbosity_error()
    bert = api.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    tokenizer = api.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), pad_token="[PAD]")
    parts = []
    for name in FILES[:2]:
        with (folder / name).open(encoding="utf-8", newline="") as file:
            lines = [row for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)][1:]
        try:
            labels, texts = torch.tensor([("0", "1").index(row[0]) for row in lines]), [row[1] for row in lines]
        except (ValueError, IndexError) as err:
            raise ValueError(f"{folder / name}: each line must be a label 0 or 1, a tab and a sentence") from err
        read = tokenizer(texts, padding="max_length", truncation=True, max_length=sequence, return_tensors="pt")
        parts.append(Sentences(read["input_ids"], read["attention_mask"].bool(), labels))
    return EncoderData(bert, parts[0], parts[1], checksum(folder))


@lru_cache(maxsize=2)
def checksum(folder: Path) -> str:
    """Return the checksum of sentences and weights."""
    found = hashlib.sha256()
    for name in FILES:
        found.update(hashlib.sha256((folder / name).read_bytes()).digest())
    return found.hexdigest()
