"""Fine-tune a pretrained BERT on few sentences; frozen blocks run once."""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tempbalance.lab.balancing import IterationsTraining, seeded
from tempbalance.lab.encoder.recipe import EncoderData, EncoderRecipe, Sentences
from tempbalance.runlog import Line

_AT_ONCE = 50  # sentences of an evaluation


class Classifier(nn.Module):
    """The last blocks of a BERT, or all and the embeddings, and a linear layer on the mean of the states."""

    def __init__(self, bert: Any, blocks: int | None) -> None:
        super().__init__()
        self.embeddings = deepcopy(bert.embeddings) if blocks is None else nn.Identity()
        self.blocks = nn.ModuleList(deepcopy(block) for block in bert.encoder.layer[-(blocks or 0) :])
        self.head = nn.Linear(bert.config.hidden_size, 2)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """States of the frozen part, or tokens where nothing is frozen, to logits of shape ``(B, 2)``."""
        x = self.embeddings(states)
        for block in self.blocks:
            x = block(x, mask[:, None, None])
        weights = mask.unsqueeze(-1).to(x)
        logits: Tensor = self.head((x * weights).sum(1) / weights.sum(1))
        return logits


class EncoderTraining(IterationsTraining[EncoderRecipe]):
    """An encoder in training."""

    def __init__(self, recipe: EncoderRecipe, data: EncoderData, fabric: Fabric) -> None:
        with seeded(recipe.seed, 0, fabric.device):
            network: nn.Module = Classifier(data.bert, recipe.blocks)
            chosen = torch.cat([_drawn(data.train.labels == label, recipe, label) for label in (0, 1)])
            self.order = torch.randperm(recipe.iterations * recipe.batch_size) % len(chosen)
            if recipe.model == "bert_lora":
                network = _adapted(network, recipe)
        self.train_states = _states(data, recipe.blocks, data.train[chosen], fabric.device)
        self.test_states = _test_states(data, recipe.blocks, recipe.test_limit, fabric.device)
        super().__init__(recipe, network, fabric)

    def loss(self, batch: int) -> Tensor:
        size = self.recipe.batch_size
        part = self.train_states[self.order[batch * size : (batch + 1) * size]]
        return cross_entropy(self.model(part.tokens, part.mask), part.labels)

    def evaluate(self) -> Line:
        """Return the accuracy on the test sentences, in percent."""
        number, right = len(self.test_states.labels), 0
        for begin in range(0, number, _AT_ONCE):
            part = self.test_states[begin : begin + _AT_ONCE]
            right += int((self.model(part.tokens, part.mask).argmax(1) == part.labels).sum())
        return {"test_accuracy": 100 * right / number}


def _drawn(is_wanted: Tensor, recipe: EncoderRecipe, label: int) -> Tensor:
    """Return the places of the sentences of a label to train on."""
    places = is_wanted.nonzero().flatten()
    number = (recipe.limit + 1 - label) // 2
    if number > len(places):
        raise ValueError(
            f"limit must be at most twice the {len(places)} sentences of label {label}, got {recipe.limit}"
        )
    return places[torch.randperm(len(places))[:number]]


@torch.no_grad()
def _states(data: EncoderData, blocks: int | None, part: Sentences, device: torch.device) -> Sentences:
    """Return the sentences with the states after the frozen blocks in place of tokens."""
    bert: Any = data.bert
    found = part.tokens
    if blocks is not None:
        states = []
        for tokens, mask in zip(torch.split(part.tokens, _AT_ONCE), torch.split(part.mask, _AT_ONCE), strict=True):
            x = bert.embeddings(tokens)
            for block in bert.encoder.layer[:-blocks]:
                x = block(x, mask[:, None, None])
            states.append(x)
        found = torch.cat(states)
    return Sentences(found.to(device), part.mask.to(device), part.labels.to(device))


@lru_cache(maxsize=1)  # for the next run of the same process
def _test_states(data: EncoderData, blocks: int | None, limit: int | None, device: torch.device) -> Sentences:
    return _states(data, blocks, data.test[:limit], device)


def _adapted(network: nn.Module, recipe: EncoderRecipe) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    options: dict[str, Any] = {"r": recipe.rank, "lora_alpha": 2 * recipe.rank, "target_modules": ["query", "value"]}
    found: nn.Module = get_peft_model(network, LoraConfig(**options, modules_to_save=["head"]))
    return found


def bare_network(recipe: EncoderRecipe) -> nn.Module:
    """Return a recipe's network without pretrained weights, as BERT's defaults have it where there is no folder."""
    from transformers import BertConfig, BertModel

    path = recipe.folder / "config.json"
    config = BertConfig.from_json_file(path) if path.is_file() else BertConfig()
    return Classifier(BertModel(config, add_pooling_layer=False), recipe.blocks)


build = EncoderTraining
