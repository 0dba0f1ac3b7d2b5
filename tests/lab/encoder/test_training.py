"""Fine-tuning on few labels: a tiny encoder in a folder, the sentences that a seed draws, and bad folders."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="the encoder is read by transformers")

import tokenizers
import transformers

from tempbalance.lab.encoder.recipe import FILES, EncoderRecipe
from tempbalance.lab.encoder.training import Classifier
from tempbalance.lab.train import train
from tempbalance.runlog import RunFolder
from tests.cases import raises

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "a"]
SIZE = {"iterations": 2, "batch_size": 2, "sequence": 6, "limit": 4, "evaluate_every": 2, "interval": 1}


def write_folder(folder: Path) -> Path:
    """Write sentences that their second word decides, and a BERT of two blocks with fresh weights."""
    folder.mkdir(parents=True)
    for name, number in (("train.tsv", 20), ("dev.tsv", 6)):
        lines = [f"{i % 2}\ta {'good' if i % 2 else 'bad'} film" for i in range(number)]
        (folder / name).write_text("\n".join(["label\tsentence", *lines]) + "\n")
    sizes = {"vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 16}
    torch.manual_seed(0)
    config = transformers.BertConfig(**sizes, num_hidden_layers=2, num_attention_heads=2)
    transformers.BertModel(config).save_pretrained(folder)
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return write_folder(tmp_path_factory.mktemp("encoder") / "tiny")


def test_the_encoder_without_frozen_blocks_gives_the_states_of_transformers(folder):
    data = EncoderRecipe(dataset=str(folder), sequence=6).load()
    part, network = data.test[:3], Classifier(data.bert, None).eval()
    with torch.no_grad():
        states = data.bert(part.tokens, attention_mask=part.mask).last_hidden_state
        mean = (states * part.mask[..., None]).sum(1) / part.mask.sum(1, keepdim=True)
        assert torch.allclose(network(part.tokens, part.mask), network.head(mean), atol=1e-6)


@pytest.mark.parametrize("model", ["bert", "bert_lora"])
def test_frozen_blocks_change_no_result_and_a_run_ends_with_its_accuracy(folder, tmp_path, model):
    options = {"dataset": str(folder), "model": model, "min_eigenvalues": 8, "score_first": True, **SIZE}
    recipe = EncoderRecipe(**options, blocks=1)
    result = train(recipe, tmp_path / "run", threads=1)
    assert 0 <= result["test_accuracy"] <= 100
    assert result["num_balancings"] == 2
    layers = {line["layer"] for line in RunFolder(tmp_path / "run").layers}
    assert layers
    assert all("blocks.0" in name or name == "head" for name in layers)  # the first block is frozen


def test_the_seed_draws_as_many_sentences_of_each_label(folder):
    from lightning.fabric import Fabric

    from tempbalance.lab.encoder.training import EncoderTraining

    fabric = Fabric(accelerator="cpu", devices=1)
    drawn = []
    for seed in (43, 43, 37):
        recipe = EncoderRecipe(dataset=str(folder), method="adamw", seed=seed, score_baseline=False, **SIZE)
        training = EncoderTraining(recipe, recipe.load(), fabric)
        assert training.train_states.labels.tolist() == [0, 0, 1, 1]
        drawn.append(training.network.head.weight)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_bad_folders_are_refused_in_a_line(folder, tmp_path):
    with raises(ValueError, "dataset", "'nowhere'", FILES[0]):
        EncoderRecipe(dataset="nowhere").check_data()
    other = tmp_path / "other"
    other.mkdir()
    for name in FILES:
        (other / name).write_bytes((folder / name).read_bytes())
    (other / "dev.tsv").write_text("label\tsentence\n2\tgood\n")
    with raises(ValueError, "dev.tsv", "label 0 or 1"):
        EncoderRecipe(dataset=str(other)).load()
    with raises(ValueError, "limit", "label 0", "400"):
        from lightning.fabric import Fabric

        from tempbalance.lab.encoder.training import EncoderTraining

        recipe = EncoderRecipe(dataset=str(folder), limit=400)
        EncoderTraining(recipe, recipe.load(), Fabric(accelerator="cpu", devices=1))
