"""Allocations: exact sums, bounds, the maps of the papers, and tools that take the JSON as it is."""

import json
import math
import operator
import os
import re
import warnings
from fractions import Fraction
from statistics import fmean

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import prune
from typer.testing import CliRunner

import tempbalance
from tempbalance import allocate
from tempbalance.cli import app
from tempbalance.diagnosis import diagnose
from tempbalance.ranking.table import LayerRow, LayerTable, PartRow
from tests.cases import assert_bad_usage, assert_carries, mlp, raises
from tests.checkpoint.hostile import build_case


def table(alphas, shapes=None):
    shapes = shapes or [(40, 50)] * len(alphas)
    pairs = enumerate(zip(alphas, shapes, strict=True))
    return LayerTable([LayerRow(f"l{index}", shape, alpha=alpha) for index, (alpha, shape) in pairs])


BY_ALPHA = {"by": "alpha", "more_where": "larger"}


def pruned(alphas, shapes=None, *, value=0.5, **options):
    options = {**BY_ALPHA, "target": "sparsity", "value": value, **options}
    return [each.num_pruned for each in allocate(table(alphas, shapes), **options).layers]


def ranks(alphas, shapes=None, *, value=4, **options):
    options = {**BY_ALPHA, "target": "lora-rank", "value": value, **options}
    return [each.rank for each in allocate(table(alphas, shapes), **options).layers]


def bits(alphas, shapes=None, *, value=4, **options):
    options = {**BY_ALPHA, "target": "bits", "value": value, **options}
    return [each.bits for each in allocate(table(alphas, shapes), **options).layers]


ALPHAS = st.floats(1.0001, 1e4)
SHAPES = st.tuples(st.integers(2, 60), st.integers(2, 60))
LAYERS = st.lists(st.tuples(ALPHAS, SHAPES), min_size=1, max_size=12)


def test_sparsity_is_a_line_from_the_smallest_alpha_to_the_largest():
    found = allocate(table([2.0, 4.0, 3.0]), target="sparsity", value=0.5, **BY_ALPHA)
    assert [each.sparsity for each in found.layers] == [0.35, 0.65, 0.5]
    assert pruned([2.0, 4.0, 3.0], spread=0.1) == [900, 1100, 1000]
    assert pruned([2.0, 4.0, 3.0], spread=0) == [1000, 1000, 1000]


def test_the_line_can_run_the_other_way():
    assert pruned([2.0, 4.0, 3.0], more_where="smaller") == [1300, 700, 1000]
    assert ranks([2.0, 4.0, 6.0], more_where="smaller", spread=0.5) == [6, 4, 2]
    assert bits([2.0, 4.0, 6.0], more_where="smaller", spread=0.5) == [6, 4, 2]


def test_the_mean_weighs_layers_by_their_parameters_and_the_largest_remainder_gets_the_last_weight():
    # 0.7 x 100 + 1.3 x 300 = 460 at a level of 1, so 200 / 460: 30.43 of 100 and 169.57 of 300
    assert pruned([2.0, 4.0], [(10, 10), (10, 30)]) == [30, 170]


def test_equal_alphas_give_each_layer_the_sparsity_itself():
    assert pruned([3.0, 3.0, 3.0], [(10, 10), (10, 30), (20, 20)], value=0.3) == [30, 90, 120]
    assert pruned([3.0], [(7, 7)], value=0.4) == [20]


def test_what_a_full_layer_cannot_take_goes_to_the_others():
    # the line asks for 0.63 and 1.17 of 2000 each
    assert pruned([2.0, 4.0], value=0.9) == [1601, 1999]
    # 0.57, 0.95 and 1.33 of 2000 each; without the third the second would have 3701 x 1 / (0.6 + 1), which is full too
    assert pruned([2.0, 3.0, 4.0], value=0.95, spread=0.4) == [1702, 1999, 1999]


@settings(deadline=None)
@given(LAYERS, st.floats(0.01, 0.99), st.floats(0, 0.95))
def test_the_weights_to_prune_are_exactly_those_asked_for_and_each_layer_keeps_some(layers, value, spread):
    alphas, shapes = zip(*layers, strict=True)
    sizes = [math.prod(shape) for shape in shapes]
    if round(value * sum(sizes)) > sum(sizes) - len(sizes):
        with raises(ValueError, "sparsity", sum(sizes) - len(sizes), value):
            pruned(alphas, shapes, value=value, spread=spread)
        return
    found = pruned(alphas, shapes, value=value, spread=spread)
    assert sum(found) == round(value * sum(sizes))
    assert all(0 <= count < size for count, size in zip(found, sizes, strict=True))


@settings(deadline=None)
@given(LAYERS, st.floats(0.01, 0.97), st.floats(0, 0.95))
def test_sparsities_are_those_of_a_level_found_by_halving(layers, value, spread):
    alphas, shapes = zip(*layers, strict=True)
    sizes = [math.prod(shape) for shape in shapes]
    wanted = round(value * sum(sizes))
    if wanted > sum(sizes) - len(sizes):
        return
    width = max(alphas) - min(alphas)
    line = [1 + spread * (2 * (alpha - min(alphas)) / width - 1) if width else 1.0 for alpha in alphas]

    def counts(level):
        return [min(level * each * size, size - 1) for each, size in zip(line, sizes, strict=True)]

    low, high = 0.0, 1e3
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if sum(counts(middle)) >= wanted else (middle, high)
    found = pruned(alphas, shapes, value=value, spread=spread)
    assert all(abs(count - exact) < 1 + 1e-6 for count, exact in zip(found, counts(high), strict=True))


@settings(deadline=None)
@given(st.lists(ALPHAS, min_size=2, max_size=12), st.floats(0.01, 0.97), st.integers(1, 30))
def test_of_two_layers_of_one_size_the_one_with_the_larger_alpha_has_no_less(alphas, value, rank):
    order = sorted(range(len(alphas)), key=alphas.__getitem__)
    for found in (pruned(alphas, value=value), ranks(alphas, value=rank), ranks(alphas, value=rank, spread=0.5)):
        distinct = [
            index for place, index in enumerate(order) if place == 0 or alphas[index] > alphas[order[place - 1]]
        ]
        counts = [found[index] for index in distinct]
        assert counts == sorted(counts)


def test_ranks_are_on_the_same_line():
    assert ranks([2.0, 4.0, 6.0], value=10) == [7, 10, 13]
    assert ranks([2.0, 4.0, 6.0], spread=0.5) == [2, 4, 6]
    assert ranks([2.0, 4.0, 6.0], spread=0.25) == [3, 4, 5]


def test_among_equal_remainders_the_first_layer_gets_the_rank_that_is_left():
    # 9 as 1.3 : 1.3 : 0.7, which is 3.55, 3.55 and 1.91
    assert ranks([3.0, 3.0, 2.0], value=3) == [4, 3, 2]


def test_no_rank_is_below_one_or_above_the_smaller_side():
    assert ranks([1.01, 500.0], value=2, spread=0.9) == [1, 3]
    assert ranks([2.0, 9.0], [(64, 64), (64, 3)], value=8) == [13, 3]


def test_the_smaller_side_is_that_of_the_matrix_an_adapter_multiplies_to():
    assert ranks([2.0], [(64, 3, 3, 3)], value=27) == [27]
    with raises(ValueError, "lora-rank", 27, 28):
        ranks([2.0], [(64, 3, 3, 3)], value=28)
    experts = LayerRow("experts", (4, 64, 32), alpha=2.0, parts=(PartRow("0", 32), PartRow("1", 32)))
    assert allocate(LayerTable([experts]), target="lora-rank", value=32, **BY_ALPHA).layers[0].rank == 32


@settings(deadline=None)
@given(LAYERS, st.integers(1, 40), st.floats(0, 0.95))
def test_ranks_sum_to_the_mean_times_the_layers_within_their_bounds(layers, value, spread):
    alphas, shapes = zip(*layers, strict=True)
    if value * len(shapes) > sum(map(min, shapes)):
        with raises(ValueError, "lora-rank", sum(map(min, shapes)) // len(shapes), value):
            ranks(alphas, shapes, value=value, spread=spread)
        return
    found = ranks(alphas, shapes, value=value, spread=spread)
    assert sum(found) == value * len(shapes)
    assert all(1 <= rank <= min(shape) for rank, shape in zip(found, shapes, strict=True))


def test_bits_are_whole_and_their_mean_over_weights_is_the_target():
    assert bits([2.0, 4.0, 6.0], spread=0.5) == [2, 4, 6]
    assert bits([2.0, 4.0, 6.0], spread=0) == [4, 4, 4]
    # 3.5 bits of three equal layers are 10.5: 2.45, 3.5 and 4.55, of which ten whole bits are in the budget
    assert bits([2.0, 4.0, 6.0], value=3.5) == [2, 3, 5]
    # 2.8 and 5.2 times 4 / 4.6 bits, as the larger layer has three quarters of the weights; a bit more costs 300
    assert bits([2.0, 4.0], [(10, 10), (10, 30)]) == [3, 4]


def test_no_layer_has_fewer_than_two_bits_or_more_than_eight():
    assert bits([2.0, 4.0], value=2.5, spread=0.9) == [2, 3]
    assert bits([2.0, 4.0], value=7, spread=0.9) == [6, 8]
    assert bits([2.0, 4.0], value=8) == [8, 8]
    assert bits([2.0, 4.0], value=2) == [2, 2]


@settings(deadline=None)
@given(LAYERS, st.floats(2, 8), st.floats(0, 0.95))
def test_bits_stay_within_the_budget_and_no_layer_below_the_line_fits_into_the_rest(layers, value, spread):
    alphas, shapes = zip(*layers, strict=True)
    sizes = [math.prod(shape) for shape in shapes]
    found = bits(alphas, shapes, value=value, spread=spread)
    used, budget = sum(map(operator.mul, found, sizes)), math.floor(Fraction(value) * sum(sizes))
    assert used <= budget
    assert all(2 <= each <= 8 for each in found)
    width = max(alphas) - min(alphas)
    line = [1 + spread * (2 * (alpha - min(alphas)) / width - 1) if width else 1.0 for alpha in alphas]
    low, high = 0.0, 1e3
    for _ in range(200):
        level = (low + high) / 2
        exact = [min(max(level * each, 2), 8) for each in line]
        is_above = sum(map(operator.mul, exact, sizes)) > budget
        low, high = (low, level) if is_above else (level, high)
    assert all(abs(each - wanted) < 1 + 1e-6 for each, wanted in zip(found, exact, strict=True))
    below = [size for each, wanted, size in zip(found, exact, sizes, strict=True) if each < wanted - 1e-6]
    assert all(size > budget - used for size in below)


@settings(deadline=None)
@given(st.lists(ALPHAS, min_size=2, max_size=12, unique=True), st.integers(2, 8))
def test_equal_layers_have_a_mean_of_exactly_the_whole_bits_asked_for(alphas, value):
    found = bits(alphas, value=value, spread=0.6)
    assert sum(found) == value * len(alphas)
    by_alpha = [each for _, each in sorted(zip(alphas, found, strict=True))]
    assert by_alpha == sorted(by_alpha)


def grouped(alphas, group_by, **options):
    rows = [LayerRow(name, (40, 50), alpha=alpha) for name, alpha in alphas.items()]
    options = {**BY_ALPHA, "target": "sparsity", "value": 0.5, "group_by": group_by, **options}
    return {each.name: each for each in allocate(LayerTable(rows), **options).layers}


BLOCKS = {"h.0.q": 2.0, "h.0.up": 4.0, "h.1.q": 5.0, "h.1.up": 7.0, "head": 4.5}


@pytest.mark.parametrize("group_by", ["h.*", lambda name: name[:3] if name != "head" else None], ids=["*", "function"])
def test_layers_of_a_group_share_the_mean_of_their_alphas(group_by):
    found = grouped(BLOCKS, group_by)
    assert {name: each.alpha for name, each in found.items()} == BLOCKS
    assert [each.compared for each in found.values()] == [3.0, 3.0, 6.0, 6.0, 4.5]
    assert [each.sparsity for each in found.values()] == [0.35, 0.35, 0.65, 0.65, 0.5]


def test_the_sum_is_exact_with_groups_and_a_group_of_ranks_may_differ_by_the_one_that_is_left():
    # 15 as 0.5 : 0.5 : 1.5 : 1.5 : 1, which is 1.5, 1.5, 4.5, 4.5 and 3
    options = {"target": "lora-rank", "value": 3, "spread": 0.5}
    assert [each.rank for each in grouped(BLOCKS, "h.*", **options).values()] == [2, 2, 4, 4, 3]
    # 10 as the same, 1, 1, 3, 3 and 2
    assert [each.rank for each in grouped(BLOCKS, "h.*", **{**options, "value": 2}).values()] == [1, 1, 3, 3, 2]


def test_a_group_pattern_that_puts_no_allocated_layers_together_is_refused():
    with raises(ValueError, "group_by", "'blocks.*'"):
        grouped(BLOCKS, "blocks.*")
    with raises(TypeError, "group_by", 3):
        grouped(BLOCKS, 3)


def test_a_layer_without_an_alpha_over_random_is_skipped_and_a_table_without_any_refused():
    found = allocate(
        diagnose({"a.weight": torch.randn(60, 60), "b.weight": torch.zeros(60, 60)}),
        **{**BY_ALPHA, "by": "alpha_over_random", "target": "bits", "value": 4},
    )
    assert [layer.name for layer in found.layers] == ["a"]
    assert set(found.skipped) == {"b"}
    with raises(ValueError, "alpha_over_random", "diagnose"):
        ranks([2.0, 3.0], by="alpha_over_random")


def random_llama(num_blocks=12):
    """Matrices as a small Llama has them before training."""
    generator = torch.Generator().manual_seed(0)
    shapes = {f"self_attn.{name}_proj": (64, 64) for name in "qkvo"}
    shapes |= {"mlp.gate_proj": (176, 64), "mlp.up_proj": (176, 64), "mlp.down_proj": (64, 176)}
    return {
        f"model.layers.{block}.{name}.weight": 0.02 * torch.randn(shape, generator=generator)
        for block in range(num_blocks)
        for name, shape in shapes.items()
    }


def by_kind(found, name):
    """The values of square matrices, and of long ones."""
    kinds = (
        [getattr(each, name) for each in found.layers if (each.shape == (64, 64)) is kind] for kind in (True, False)
    )
    return [*kinds]


def test_shape_alone_sets_the_sparsity_of_random_matrices_unless_they_are_compared_with_random_ones():
    options = {"target": "sparsity", "value": 0.7, "more_where": "larger"}
    plain = allocate(diagnose(random_llama(), shuffle=False), by="alpha", **options)
    square, long = by_kind(plain, "sparsity")
    assert max(square) < min(long)
    assert fmean(long) - fmean(square) > 0.25
    compared = allocate(diagnose(random_llama(), shuffle=False), by="alpha_over_random", **options)
    square, long = by_kind(compared, "sparsity")
    # one matrix scatters over the whole line, the means of 48 and 36 by 0.03
    assert fmean(square) == pytest.approx(fmean(long), abs=0.1)
    assert sum(each.num_pruned for each in compared.layers) == sum(each.num_pruned for each in plain.layers)


def test_random_matrices_are_all_alike_over_random_ones_whatever_their_shape():
    options = {"target": "lora-rank", "value": 16, "by": "alpha_over_random", "more_where": "larger"}
    compared = allocate(diagnose(random_llama(), shuffle=False), **options)
    assert all(each.compared == pytest.approx(1, abs=0.15) for each in compared.layers)


def test_layers_without_an_alpha_are_skipped_with_their_reason():
    rows = LayerTable([LayerRow("emb", (9, 9), reason="embedding"), LayerRow("fc", (9, 9), alpha=2.0)])
    found = allocate(rows, target="lora-rank", value=2, **BY_ALPHA)
    assert [each.name for each in found.layers] == ["fc"]
    assert found.skipped == {"emb": "embedding"}
    with raises(ValueError, "alpha"):
        allocate(LayerTable(rows[:1]), target="lora-rank", value=2, **BY_ALPHA)


def test_the_table_of_a_scheduler_will_do():
    model = mlp()
    scheduler = tempbalance.TempBalance(torch.optim.SGD(tempbalance.param_groups(model), lr=0.1), model)
    found = allocate(scheduler.table(), target="sparsity", value=0.5, **BY_ALPHA)
    assert [each.name for each in found.layers] == list(scheduler.last_scores)
    assert_carries(found.skipped["0"], "first")


@pytest.mark.parametrize(
    ("options", "carried"),
    [
        ({"target": "rank", "value": 2}, ["target", "sparsity, bits, lora-rank", "'rank'"]),
        ({"target": "sparsity", "value": 1.0}, ["sparsity", "got 1.0"]),
        ({"target": "sparsity", "value": 0.0}, ["sparsity", "got 0.0"]),
        ({"target": "sparsity", "value": math.nan}, ["sparsity", "got nan"]),
        ({"target": "sparsity", "value": 0.9999}, ["sparsity", 3998, 4000, 0.9999]),
        ({"target": "sparsity", "value": 0.5, "lora_alpha": 8}, ["lora_alpha", "lora-rank"]),
        ({"target": "sparsity", "value": 0.5, "by": "ks"}, ["by", "alpha, alpha_over_random", "'ks'"]),
        ({"target": "sparsity", "value": 0.5, "more_where": "more"}, ["more_where", "larger, smaller", "'more'"]),
        ({"target": "bits", "value": 1.9}, ["bits", "2 <= bits <= 8", "got 1.9"]),
        ({"target": "bits", "value": math.nan}, ["bits", "got nan"]),
        ({"target": "sparsity", "value": 0.5, "spread": 1}, ["spread", "got 1"]),
        ({"target": "lora-rank", "value": 0}, ["lora-rank", "got 0"]),
        ({"target": "lora-rank", "value": 2.5}, ["lora-rank", "got 2.5"]),
        ({"target": "lora-rank", "value": math.inf}, ["lora-rank", "got inf"]),
        ({"target": "lora-rank", "value": 41}, ["lora-rank", 40, 2, 41]),
        ({"target": "lora-rank", "value": 4, "lora_alpha": 0}, ["lora_alpha", "got 0"]),
    ],
)
def test_what_cannot_be_allocated_is_refused_with_the_rule_and_the_value(options, carried):
    with raises(ValueError, *carried):
        allocate(table([2.0, 3.0]), **{**BY_ALPHA, **options})


class Nested(nn.Module):
    """Layers whose names end alike, one of which is too small to be scored."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(64, 80)
        self.deep = nn.ModuleDict({"fc": nn.Linear(80, 128), "afc": nn.Linear(128, 96), "a_fc": nn.Linear(96, 90)})
        self.last = nn.ModuleDict({"fc": nn.Linear(90, 10)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.fc, *self.deep.values(), self.last["fc"]):
            x = layer(x)
        return x


CHOICES = ("--by", "alpha", "--more-where", "larger")


def run(checkpoint, *arguments):
    given = arguments if "--by" in arguments else (*CHOICES, *arguments)
    return CliRunner().invoke(app, ["allocate", str(checkpoint), *map(str, given)], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "model.safetensors"
    save_file(Nested().state_dict(), path)
    return path


def test_torch_prunes_exactly_what_was_allocated(checkpoint):
    found = json.loads(run(checkpoint, "--target", "sparsity=0.37", "--format", "json").stdout)
    model = Nested()
    for name, amount in found["sparsity"].items():
        prune.l1_unstructured(model.get_submodule(name), "weight", amount=amount)
    zeros = {name: int((model.get_submodule(name).weight == 0).sum()) for name in found["sparsity"]}
    assert zeros == {layer["name"]: layer["num_pruned"] for layer in found["layers"]}
    assert sum(zeros.values()) == round(0.37 * sum(layer["num_parameters"] for layer in found["layers"]))
    assert len(set(found["sparsity"].values())) == 4
    assert int((model.last["fc"].weight == 0).sum()) == 0


@pytest.mark.slow
def test_peft_gives_each_layer_its_rank_and_no_other_layer_an_adapter(checkpoint):
    peft, scaling = pytest.importorskip("peft"), 2.0
    result = run(checkpoint, "--target", "lora-rank=16", "--lora-alpha", 16 * scaling, "--format", "json")
    found = json.loads(result.stdout)
    config = peft.LoraConfig(r=3, **{key: found[key] for key in ("target_modules", "rank_pattern", "alpha_pattern")})
    model = peft.get_peft_model(Nested(), config).base_model.model
    adapted = {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}
    assert {name: module.r["default"] for name, module in adapted.items()} == {
        layer["name"]: layer["rank"] for layer in found["layers"]
    }
    assert sum(layer["rank"] for layer in found["layers"]) == 16 * 4
    assert len({layer["rank"] for layer in found["layers"]}) > 1
    assert all(module.scaling["default"] == pytest.approx(scaling) for module in adapted.values())


def small_bert(kind, **options):
    """A BERT with matrices of 64 x 64 and 64 x 128, of one class of transformers."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    return getattr(transformers, kind)(transformers.BertConfig(vocab_size=80, **sizes, **options))


@pytest.mark.slow
def test_peft_takes_ranks_of_a_bare_bert_for_one_with_a_head_in_front(tmp_path):
    peft = pytest.importorskip("peft")
    bare = {name: each.contiguous() for name, each in small_bert("BertModel").state_dict().items()}
    assert not any(name.startswith("bert.") for name in bare)
    save_file(bare, tmp_path / "base.safetensors")
    found = json.loads(run(tmp_path / "base.safetensors", "--target", "lora-rank=8", "--format", "json").stdout)
    ranks = {layer["name"]: layer["rank"] for layer in found["layers"]}
    assert len(ranks) == 13
    assert len(set(ranks.values())) > 1
    options = {key: found[key] for key in ("target_modules", "rank_pattern", "alpha_pattern")}
    for kind, prefix in (("BertModel", ""), ("BertForSequenceClassification", "bert.")):
        model = peft.get_peft_model(small_bert(kind), peft.LoraConfig(r=3, **options)).base_model.model
        adapted = {name: module.r["default"] for name, module in model.named_modules() if hasattr(module, "lora_A")}
        assert adapted == {prefix + name: rank for name, rank in ranks.items()}


def test_shares_are_found_in_a_model_that_has_them_under_one_prefix_or_lacks_it():
    found = allocate(diagnose(Nested(), shuffle=False), target="sparsity", value=0.5, **BY_ALPHA)
    inside = nn.ModuleDict({"base": Nested(), "head": nn.Linear(10, 60)})
    assert list(found.on(inside)) == [f"base.{layer.name}" for layer in found.layers]
    assert list(found.on(Nested())) == [layer.name for layer in found.layers]
    inner = allocate(diagnose(inside["base"].deep, shuffle=False), target="sparsity", value=0.5, **BY_ALPHA)
    outer = allocate(diagnose(inside, include=["base.deep.*"], shuffle=False), target="sparsity", value=0.5, **BY_ALPHA)
    assert [each.num_pruned for each in inner.layers] == [each.num_pruned for each in outer.layers]
    assert list(inner.on(inside)) == [layer.name for layer in outer.layers]
    assert list(outer.on(inside["base"].deep)) == [layer.name for layer in inner.layers]


def test_a_share_without_a_layer_with_several_or_with_one_of_another_shape_is_an_error():
    found = allocate(diagnose(Nested(), shuffle=False), target="sparsity", value=0.5, **BY_ALPHA)
    lacking = Nested()
    del lacking.deep["afc"]
    with raises(ValueError, "deep.afc"):
        found.on(lacking)
    with raises(ValueError, "fc", "deep.afc"):
        found.on(nn.ModuleDict({"other": nn.Linear(64, 80)}))
    with raises(ValueError, "fc", "a.fc", "b.fc"):
        found.on(nn.ModuleDict({"a": Nested(), "b": Nested()}))
    changed = Nested()
    changed.deep["afc"] = nn.Linear(128, 97)
    with raises(ValueError, "'deep.afc'", (96, 128), (97, 128)):
        found.on(changed)


def test_patterns_match_their_layer_with_any_prefix_and_no_other(checkpoint):
    found = json.loads(run(checkpoint, "--target", "bits=4", "--format", "json").stdout)
    names = [*found["bits"], "last.fc"]
    for prefix in ("", "model.", "a.b."):
        for (pattern, override), name in zip(found["dynamic"].items(), found["bits"], strict=True):
            assert [each for each in names if re.match(pattern, prefix + each)] == [name]  # as GPTQModel matches
            assert override == {"bits": found["bits"][name]}


def test_json_has_what_it_promises(checkpoint):
    shared = {"model", "tempbalance", "tail", "group_by", "by", "more_where", "target", "layers", "skipped"}
    found = json.loads(run(checkpoint, "--target", "sparsity=0.5", "--format", "json", "--tail", "peak").stdout)
    assert set(found) == shared | {"sparsity"}
    assert (found["model"], found["tempbalance"], found["tail"]) == (
        "model.safetensors",
        tempbalance.__version__,
        "peak",
    )
    assert (found["by"], found["more_where"]) == ("alpha", "larger")
    assert found["target"] == {"name": "sparsity", "value": 0.5, "spread": 0.3}
    each = {"name", "shape", "num_parameters", "alpha", "compared"}
    assert set(found["layers"][0]) == each | {"num_pruned", "sparsity"}
    (skipped,) = found["skipped"]
    assert skipped["name"] == "last.fc"
    assert_carries(skipped["reason"], 10, "min_eigenvalues", 50)
    alphas = {row.name: row.alpha for row in diagnose(checkpoint, tail="peak").scored}
    assert {layer["name"]: layer["alpha"] for layer in found["layers"]} == alphas
    ranked = json.loads(run(checkpoint, "--target", "lora-rank=4", "--format", "json").stdout)
    assert set(ranked) == shared | {"rank_pattern", "alpha_pattern", "target_modules"}
    assert ranked["target"] == {"name": "lora-rank", "value": 4, "spread": 0.3, "lora_alpha": 4}
    assert set(ranked["layers"][0]) == each | {"rank"}
    quantized = json.loads(run(checkpoint, "--target", "bits=3.5", "--format", "json").stdout)
    assert set(quantized) == shared | {"bits", "dynamic"}
    assert quantized["target"] == {"name": "bits", "value": 3.5, "spread": 0.3}
    assert quantized["bits"] == {layer["name"]: layer["bits"] for layer in quantized["layers"]}


def test_the_table_shows_the_layers_the_sum_and_the_skipped_layers(checkpoint):
    result = run(checkpoint, "--target", "sparsity=0.5", "--exclude", "deep.a*")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["layer", "shape", "alpha", "sparsity", "pruned"]
    assert [line.split()[0] for line in lines[1:3]] == ["deep.fc", "fc"]
    told = {line.partition(":")[0]: line for line in lines[3:] if line}
    assert_carries(told["model.safetensors"], "7,680", "15,360", "2 layers", 0.5)
    excluded, small = lines[-2:]
    assert_carries(excluded, "2 layers")
    assert_carries(small, "last.fc", 10, "min_eigenvalues", 50)
    blocks = run(checkpoint, "--target", "sparsity=0.5", "--group-by", "deep").stdout.splitlines()
    assert blocks[0].split() == ["layer", "shape", "alpha", "compared", "sparsity", "pruned"]
    ranked = run(checkpoint, "--target", "lora-rank=8").stdout.splitlines()
    assert ranked[0].split() == ["layer", "shape", "alpha", "rank"]
    (told,) = [line for line in ranked if line.startswith("model.safetensors")]
    assert_carries(told, "4 layers", 32, 8)
    quantized = run(checkpoint, "--target", "bits=4").stdout.splitlines()
    assert quantized[0].split() == ["layer", "shape", "alpha", "bits"]
    (told,) = [line for line in quantized if line.startswith("model.safetensors")]
    assert_carries(told, "bits on average", "4 layers")


def test_the_command_compares_with_random_matrices_and_by_groups(checkpoint):
    choices = ("--by", "alpha_over_random", "--more-where", "smaller", "--group-by", "deep")
    found = json.loads(run(checkpoint, "--target", "sparsity=0.5", "--format", "json", *choices).stdout)
    assert (found["by"], found["more_where"], found["group_by"]) == ("alpha_over_random", "smaller", "deep")
    scores = {row.name: row.alpha_over_random for row in diagnose(checkpoint, shuffle=False).scored}
    deep = fmean(score for name, score in scores.items() if name.startswith("deep."))
    wanted = {name: deep if name.startswith("deep.") else score for name, score in scores.items()}
    assert {layer["name"]: layer["compared"] for layer in found["layers"]} == pytest.approx(wanted, rel=1e-12)
    assert {layer["name"]: layer["alpha"] for layer in found["layers"]} == {
        row.name: row.alpha for row in diagnose(checkpoint, shuffle=False).scored
    }


def test_a_file_is_written_whole_beside_the_table(checkpoint, tmp_path):
    out = tmp_path / "new" / "allocation.json"
    result = run(checkpoint, "--target", "lora-rank=8", "--out", out)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("layer")
    assert str(out) in result.stderr
    as_text = run(checkpoint, "--target", "lora-rank=8", "--format", "json").stdout
    assert json.loads(out.read_text()) == json.loads(as_text)
    assert [path.name for path in out.parent.iterdir()] == ["allocation.json"]


def test_an_allocation_replaces_neither_the_checkpoint_nor_what_is_no_file(checkpoint, tmp_path):
    content = checkpoint.read_bytes()
    os.mkfifo(tmp_path / "pipe")
    assert run(checkpoint, "--target", "sparsity=0.5", "--out", checkpoint).exit_code == 2
    assert run(checkpoint, "--target", "sparsity=0.5", "--out", tmp_path / "pipe").exit_code == 1
    assert checkpoint.read_bytes() == content
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize(
    ("arguments", "carried"),
    [
        (["--target", "sparsty=0.5"], ["target", "'sparsty'", "'sparsity'"]),
        (["--target", "lora_rank=8"], ["target", "'lora_rank'", "'lora-rank'"]),
        (["--target", "speed=3"], ["target", "'speed'", "sparsity, bits, lora-rank"]),
        (["--target", "sparsity"], ["target", "NAME=NUMBER", "'sparsity'"]),
        (["--target", "sparsity=half"], ["target", "NAME=NUMBER", "'sparsity=half'"]),
        (["--target", "sparsity=1.5"], ["sparsity", 1.5]),
        (["--target", "lora-rank=100"], ["lora-rank", 100]),
        (["--target", "sparsity=0.5", "--format", "csv"], ["format", "table, json", "'csv'"]),
        (["--target", "sparsity=0.5", "--out", "."], ["out", "'.'"]),
        (["--target", "sparsity=0.5", "--exclude", "*"], ["alpha"]),
        (["--target", "bits=9"], ["bits", 9]),
        (["--target", "sparsity=0.5", "--by", "rnd", "--more-where", "larger"], ["by", "alpha_over_random", "'rnd'"]),
        (["--target", "sparsity=0.5", "--by", "alpha", "--more-where", "up"], ["more_where", "smaller", "'up'"]),
        (["--target", "sparsity=0.5", "--group-by", "h.*"], ["group_by", "'h.*'"]),
        (["--target", "sparsity=0.5", "--include", "nothing"], ["include", "'nothing'"]),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_two(checkpoint, arguments, carried):
    assert_bad_usage(run(checkpoint, *arguments), *carried)


def test_the_number_and_the_side_that_gets_more_must_be_given(checkpoint):
    result = run(checkpoint, "--target", "sparsity=0.5", "--by", "alpha")
    assert_bad_usage(result, "more_where", "larger or smaller")
    result = CliRunner().invoke(
        app, ["allocate", str(checkpoint), "--target", "sparsity=0.5", "--more-where", "larger"]
    )
    assert_bad_usage(result, "by", "alpha or alpha_over_random")


def test_a_file_that_diagnose_refuses_is_refused_and_nothing_is_written(tmp_path):
    path = build_case("torch_payload", tmp_path / "files" / "case")
    result = run(path, "--target", "sparsity=0.5", "--out", tmp_path / "allocation.json")
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("error: ")
    assert not (tmp_path / "allocation.json").exists()


def test_no_control_character_of_a_name_reaches_the_terminal(tmp_path):
    path = tmp_path / "names.safetensors"
    save_file({"\x1b[31mred.weight": torch.randn(64, 64), "\x1b[1mzero.weight": torch.zeros(64, 64)}, path)
    for arguments in (["--target", "sparsity=0.5"], ["--target", "lora-rank=4"], ["--target", "\x1b[2J=4"]):
        for form in ("table", "json"):
            result = run(path, "--format", form, *arguments)
            assert not [char for char in result.output if not char.isprintable() and char != "\n"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"table": [1, 2]}, "table"), ({"table": None}, "table"), ({"value": "0.5"}, "value"),
        ({"spread": None}, "spread"),
        ({"spread": "x"}, "spread"), ({"lora_alpha": []}, "lora_alpha"), ({"value": True}, "value"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_named(options, named):
    rows = LayerTable([LayerRow("a", (10, 10), alpha=2.0), LayerRow("b", (10, 10), alpha=4.0)])
    chosen = {**BY_ALPHA, "target": "sparsity", "value": 0.5, "table": rows, **options}
    with raises((TypeError, ValueError), named):
        allocate(chosen.pop("table"), **chosen)


@pytest.mark.parametrize("group_by", [None, "layers.*"])
def test_layers_that_differ_by_no_more_than_their_errors_give_a_warning(group_by, tmp_path):
    alphas = {"layers.0.a": 3.0, "layers.0.b": 3.1, "layers.1.a": 2.9, "layers.1.b": 3.05}
    alike = LayerTable([LayerRow(name, (64, 64), alpha=alpha, alpha_stderr=0.3) for name, alpha in alphas.items()])
    apart = LayerTable([LayerRow(name, (64, 64), alpha=alpha, alpha_stderr=0.01) for name, alpha in alphas.items()])
    options = {**BY_ALPHA, "target": "sparsity", "value": 0.5, "group_by": group_by}
    with pytest.warns(UserWarning, match="noise"):
        allocate(alike, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        allocate(apart, **options)
        allocate(alike, **options, spread=0)


def test_the_command_warns_that_random_layers_spread_noise(tmp_path):
    torch.manual_seed(0)
    save_file({f"layers.{place}.weight": torch.randn(64, 64) for place in range(5)}, tmp_path / "a.safetensors")
    arguments = ["--target", "sparsity=0.5", "--by", "alpha", "--more-where", "larger"]
    result = CliRunner().invoke(app, ["allocate", str(tmp_path / "a.safetensors"), *arguments])
    assert result.exit_code == 0, result.output
    assert "warning: " in result.stderr
    assert "noise" in result.stderr
