"""Models as people have them, small and with random weights: fused projections, tied weights, adapters, experts."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    TrainingArguments,
)

import tempbalance
from tempbalance.integrations.transformers import TempBalanceTrainer
from tests.cases import assert_carries

VOCABULARY, LENGTH, WIDTH = 96, 16, 64
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
}


def gpt2():
    sizes = {"n_positions": LENGTH, "n_embd": WIDTH, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **sizes))


def llama(**options):
    return LlamaForCausalLM(LlamaConfig(**SIZES, **options))


def lora():
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    return get_peft_model(llama(), config)


def mixtral():
    return MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=3, num_experts_per_tok=2))


class Attention(nn.Module):
    """torch's own encoder, with its fused input projections."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, dim_feedforward=96, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids, labels):
        logits = self.head(self.encoder(self.embed(input_ids)))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def blocks(pattern, *names):
    return {pattern.format(index, name) for index in range(2) for name in names}


ATTENTION = tuple(f"self_attn.{name}_proj" for name in "qkvo")
OF_LLAMA = (*ATTENTION, *(f"mlp.{name}_proj" for name in ("gate", "up", "down")))
# each model with its options and the layers that are scored
MODELS = {
    "fused qkv": (
        gpt2,
        {"fused": {"*.c_attn": 3}},
        blocks("transformer.h.{}.{}", "attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
    ),
    "attention of torch": (
        Attention,
        {},
        blocks("encoder.layers.{}.{}", "self_attn.in_proj_weight", "self_attn.out_proj", "linear1", "linear2"),
    ),
    "tied embeddings": (lambda: llama(tie_word_embeddings=True), {}, blocks("model.layers.{}.{}", *OF_LLAMA)),
    "adapters": (
        lora,
        {},
        blocks("base_model.model.model.layers.{}.{}", "self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"),
    ),
    "experts": (
        mixtral,
        {},
        blocks("model.layers.{}.{}", *ATTENTION, "mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
    ),
}


def train(folder, name):
    """Four steps of the Trainer, with two scorings."""
    torch.manual_seed(0)
    make, options, _ = MODELS[name]
    tokens = torch.randint(VOCABULARY, (16, LENGTH), generator=torch.Generator().manual_seed(2))
    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=4,
        per_device_train_batch_size=4,
        learning_rate=0.01,
        lr_scheduler_type="constant",
        weight_decay=0.1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    data = [{"input_ids": each, "labels": each} for each in tokens]
    trainer = TempBalanceTrainer(
        model=make(), args=args, train_dataset=data, balance={"interval": 2, "start": 1, **options}
    )
    trainer.train()
    return trainer


@pytest.fixture(scope="module", params=MODELS)
def trained(request, tmp_path_factory):
    return request.param, train(tmp_path_factory.mktemp("model"), request.param)


def test_every_trainable_parameter_is_in_exactly_one_group_and_keeps_its_decay(trained):
    _, trainer = trained
    groups = trainer.optimizer.param_groups
    held = [parameter for group in groups for parameter in group["params"]]
    trainable = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
    assert len(held) == len(set(held)) == len(trainable)
    assert set(held) == set(trainable)
    assert {group["weight_decay"] for group in groups if any(each.dim() < 2 for each in group["params"])} <= {0.0}
    assert {group["weight_decay"] for group in groups if any(each.dim() > 1 for each in group["params"])} == {0.1}


def test_the_layers_that_are_scored_are_the_sensible_ones_and_others_have_a_reason(trained):
    name, trainer = trained
    table = trainer.lr_scheduler.table()
    assert {row.name for row in table if row.score is not None} == MODELS[name][2]
    assert all(row.reason for row in table if row.score is None)


def test_rates_are_within_range_and_span_it(trained):
    _, trainer = trained
    rates = {group.get("layer"): group["lr"] for group in trainer.optimizer.param_groups}
    scored = [rates[layer] for layer in trainer.lr_scheduler.last_scales]
    assert min(scored) == pytest.approx(0.005)
    assert max(scored) == pytest.approx(0.015)
    others = [rate for layer, rate in rates.items() if layer not in trainer.lr_scheduler.last_scales]
    assert set(others) <= {0.01}


def test_fused_projections_and_experts_are_scored_one_by_one():
    fused = tempbalance.TempBalance(
        torch.optim.SGD(tempbalance.param_groups(model := gpt2()), lr=0.1), model, fused={"*.c_attn": 3}
    )
    assert [part.num_eigenvalues for part in fused.table()["transformer.h.0.attn.c_attn"].parts] == [64, 64, 64]
    experts = tempbalance.TempBalance(torch.optim.SGD(tempbalance.param_groups(model := mixtral()), lr=0.1), model)
    assert len(experts.table()["model.layers.0.mlp.experts.down_proj"].parts) == 3
    attention = tempbalance.TempBalance(torch.optim.SGD(tempbalance.param_groups(model := Attention()), lr=0.1), model)
    parts = attention.table()["encoder.layers.0.self_attn.in_proj_weight"].parts
    assert [part.name for part in parts] == ["q", "k", "v"]


def test_a_tied_embedding_trains_at_the_base_rate_with_its_head():
    model = llama(tie_word_embeddings=True)
    scheduler = tempbalance.TempBalance(torch.optim.SGD(tempbalance.param_groups(model), lr=0.1), model)
    table = scheduler.table()
    assert_carries(table["model.embed_tokens"].reason, "embedding", "'lm_head'")
    assert_carries(table["lm_head"].reason, "last")
    (group,) = [group for group in scheduler.optimizer.param_groups if group.get("layer") == "lm_head"]
    assert group["lr"] == 0.1
