"""Allocations: exact sums, bounds, the maps of the papers, and tools that take the JSON as it is."""

import json
import math
import os
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


def pruned(alphas, shapes=None, *, value=0.5, **options):
    return [
        each.num_pruned for each in allocate(table(alphas, shapes), target="sparsity", value=value, **options).layers
    ]


def ranks(alphas, shapes=None, *, value=4, **options):
    return [each.rank for each in allocate(table(alphas, shapes), target="lora-rank", value=value, **options).layers]


ALPHAS = st.floats(1.0001, 1e4)
SHAPES = st.tuples(st.integers(2, 60), st.integers(2, 60))
LAYERS = st.lists(st.tuples(ALPHAS, SHAPES), min_size=1, max_size=12)


def test_sparsity_is_a_line_from_the_smallest_alpha_to_the_largest():
    found = allocate(table([2.0, 4.0, 3.0]), target="sparsity", value=0.5)
    assert [each.sparsity for each in found.layers] == [0.35, 0.65, 0.5]
    assert pruned([2.0, 4.0, 3.0], spread=0.1) == [900, 1100, 1000]
    assert pruned([2.0, 4.0, 3.0], spread=0) == [1000, 1000, 1000]


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


def test_ranks_are_in_proportion_to_alpha():
    assert ranks([2.0, 4.0, 6.0]) == [2, 4, 6]
    assert ranks([2.0, 4.0, 6.0], spread=0.5) == [2, 4, 6]
    assert ranks([2.0, 4.0, 6.0], spread=0.25) == [3, 4, 5]


def test_among_equal_remainders_the_first_layer_gets_the_rank_that_is_left():
    # 27 / 8, 27 / 8 and 18 / 8
    assert ranks([3.0, 3.0, 2.0], value=3) == [4, 3, 2]


def test_no_rank_is_below_one_or_above_the_smaller_side():
    assert ranks([1.01, 500.0], value=2) == [1, 3]
    assert ranks([2.0, 9.0], [(64, 64), (64, 3)], value=8) == [13, 3]


def test_the_smaller_side_is_that_of_the_matrix_an_adapter_multiplies_to():
    assert ranks([2.0], [(64, 3, 3, 3)], value=27) == [27]
    with raises(ValueError, "lora-rank", 27, 28):
        ranks([2.0], [(64, 3, 3, 3)], value=28)
    experts = LayerRow("experts", (4, 64, 32), alpha=2.0, parts=(PartRow("0", 32), PartRow("1", 32)))
    assert allocate(LayerTable([experts]), target="lora-rank", value=32).layers[0].rank == 32


@settings(deadline=None)
@given(LAYERS, st.integers(1, 40), st.none() | st.floats(0, 0.95))
def test_ranks_sum_to_the_mean_times_the_layers_within_their_bounds(layers, value, spread):
    alphas, shapes = zip(*layers, strict=True)
    if value * len(shapes) > sum(map(min, shapes)):
        with raises(ValueError, "lora-rank", sum(map(min, shapes)) // len(shapes), value):
            ranks(alphas, shapes, value=value, spread=spread)
        return
    found = ranks(alphas, shapes, value=value, spread=spread)
    assert sum(found) == value * len(shapes)
    assert all(1 <= rank <= min(shape) for rank, shape in zip(found, shapes, strict=True))


def grouped(alphas, group_by, **options):
    rows = [LayerRow(name, (40, 50), alpha=alpha) for name, alpha in alphas.items()]
    options = {"target": "sparsity", "value": 0.5, "group_by": group_by, **options}
    return {each.name: each for each in allocate(LayerTable(rows), **options).layers}


BLOCKS = {"h.0.q": 2.0, "h.0.up": 4.0, "h.1.q": 5.0, "h.1.up": 7.0, "head": 4.5}


@pytest.mark.parametrize("group_by", ["h.*", lambda name: name[:3] if name != "head" else None], ids=["*", "function"])
def test_layers_of_a_group_share_the_mean_of_their_alphas(group_by):
    found = grouped(BLOCKS, group_by)
    assert {name: each.alpha for name, each in found.items()} == BLOCKS
    assert [each.compared for each in found.values()] == [3.0, 3.0, 6.0, 6.0, 4.5]
    assert [each.sparsity for each in found.values()] == [0.35, 0.35, 0.65, 0.65, 0.5]


def test_the_sum_is_exact_with_groups_and_a_group_of_ranks_may_differ_by_the_one_that_is_left():
    # 5 x 3 = 15 as 3 : 3 : 6 : 6 : 4.5, which is 2, 2, 4, 4 and 3
    assert [each.rank for each in grouped(BLOCKS, "h.*", target="lora-rank", value=3).values()] == [2, 2, 4, 4, 3]
    # 10 as the same, 1.33, 1.33, 2.67, 2.67 and 2
    assert [each.rank for each in grouped(BLOCKS, "h.*", target="lora-rank", value=2).values()] == [1, 1, 3, 3, 2]
    assert [
        each.rank
        for each in grouped({"h.0.a": 3.0, "h.0.b": 3.0, "c": 2.0}, "h.*", target="lora-rank", value=3).values()
    ] == [4, 3, 2]


def test_a_group_pattern_that_puts_no_allocated_layers_together_is_refused():
    with raises(ValueError, "group_by", "'blocks.*'"):
        grouped(BLOCKS, "blocks.*")
    with raises(TypeError, "group_by", 3):
        grouped(BLOCKS, 3)


def test_layers_can_be_compared_by_their_score_and_one_without_is_left_out():
    rows = [LayerRow(name, (40, 50), alpha=9.0, score=score) for name, score in {"a": 1.0, "b": 3.0, "c": None}.items()]
    found = allocate(LayerTable(rows), target="lora-rank", value=4, by="score")
    assert [(each.alpha, each.compared, each.rank) for each in found.layers] == [(9.0, 1.0, 2), (9.0, 3.0, 6)]
    assert set(found.left_out) == {"c"}
    assert_carries(found.left_out["c"], "score")


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
    options = {"target": "sparsity", "value": 0.7}
    plain = allocate(diagnose(random_llama(), shuffle=False), **options)
    square, long = by_kind(plain, "sparsity")
    assert max(square) < min(long)
    assert fmean(long) - fmean(square) > 0.25
    compared = allocate(diagnose(random_llama(), shuffle=False), by="score", **options)
    square, long = by_kind(compared, "sparsity")
    # one matrix scatters over the whole line, the means of 48 and 36 by 0.03
    assert fmean(square) == pytest.approx(fmean(long), abs=0.1)
    assert sum(each.num_pruned for each in compared.layers) == sum(each.num_pruned for each in plain.layers)


def test_compared_with_random_ones_random_matrices_get_about_the_same_rank_whatever_their_shape():
    options = {"target": "lora-rank", "value": 16}
    square, long = by_kind(allocate(diagnose(random_llama(), shuffle=False), **options), "rank")
    assert max(square) < 16 < min(long)
    compared = allocate(diagnose(random_llama(), shuffle=False), by="score", **options)
    assert all(each.compared == pytest.approx(1, abs=0.15) for each in compared.layers)
    assert all(abs(each.rank - 16) <= 2 for each in compared.layers)


def test_shares_in_proportion_need_scores_above_0_and_a_line_does_not():
    rows = LayerTable([LayerRow(name, (40, 50), alpha=2.0, score=score) for name, score in (("a", -1.0), ("b", 3.0))])
    with raises(ValueError, -1.0, "spread"):
        allocate(rows, target="lora-rank", value=4, by="score")
    assert [each.rank for each in allocate(rows, target="lora-rank", value=4, by="score", spread=0.5).layers] == [2, 6]


def test_layers_without_an_alpha_are_left_out_with_their_reason():
    rows = LayerTable([LayerRow("emb", (9, 9), reason="embedding"), LayerRow("fc", (9, 9), alpha=2.0)])
    found = allocate(rows, target="lora-rank", value=2)
    assert [each.name for each in found.layers] == ["fc"]
    assert found.left_out == {"emb": "embedding"}
    with raises(ValueError, "alpha"):
        allocate(LayerTable(rows[:1]), target="lora-rank", value=2)


def test_the_table_of_a_scheduler_will_do():
    model = mlp()
    scheduler = tempbalance.TempBalance(torch.optim.SGD(tempbalance.param_groups(model), lr=0.1), model)
    found = allocate(scheduler.table(), target="sparsity", value=0.5)
    assert [each.name for each in found.layers] == list(scheduler.last_scores)
    assert_carries(found.left_out["0"], "first")


@pytest.mark.parametrize(
    ("options", "carried"),
    [
        ({"target": "rank", "value": 2}, ["target", "sparsity, lora-rank", "'rank'"]),
        ({"target": "sparsity", "value": 1.0}, ["sparsity", "got 1.0"]),
        ({"target": "sparsity", "value": 0.0}, ["sparsity", "got 0.0"]),
        ({"target": "sparsity", "value": math.nan}, ["sparsity", "got nan"]),
        ({"target": "sparsity", "value": 0.9999}, ["sparsity", 3998, 4000, 0.9999]),
        ({"target": "sparsity", "value": 0.5, "lora_alpha": 8}, ["lora_alpha", "lora-rank"]),
        ({"target": "sparsity", "value": 0.5, "by": "ks"}, ["by", "alpha, score", "'ks'"]),
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
        allocate(table([2.0, 3.0]), **options)


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


def run(*arguments):
    return CliRunner().invoke(app, ["allocate", *map(str, arguments)], env={"COLUMNS": "200"})


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


def test_json_has_what_it_promises(checkpoint):
    shared = {"model", "tempbalance", "tail", "reference", "group_by", "target", "layers", "left_out"}
    found = json.loads(run(checkpoint, "--target", "sparsity=0.5", "--format", "json", "--tail", "peak").stdout)
    assert set(found) == shared | {"sparsity"}
    assert (found["model"], found["tempbalance"], found["tail"]) == (
        "model.safetensors",
        tempbalance.__version__,
        "peak",
    )
    assert found["target"] == {"name": "sparsity", "value": 0.5, "spread": 0.3}
    assert set(found["layers"][0]) == {"name", "shape", "num_parameters", "alpha", "compared", "num_pruned", "sparsity"}
    (left_out,) = found["left_out"]
    assert left_out["name"] == "last.fc"
    assert_carries(left_out["reason"], 10, "min_eigenvalues", 50)
    alphas = {row.name: row.alpha for row in diagnose(checkpoint, tail="peak").scored}
    assert {layer["name"]: layer["alpha"] for layer in found["layers"]} == alphas
    ranked = json.loads(run(checkpoint, "--target", "lora-rank=4", "--format", "json").stdout)
    assert set(ranked) == shared | {"rank_pattern", "alpha_pattern", "target_modules"}
    assert ranked["target"] == {"name": "lora-rank", "value": 4, "spread": None, "lora_alpha": 4}
    assert set(ranked["layers"][0]) == {"name", "shape", "num_parameters", "alpha", "compared", "rank"}
    assert ranked["rank_pattern"] == {
        f"^{layer['name']}".replace(".", r"\."): layer["rank"] for layer in ranked["layers"]
    }


def test_the_table_tells_the_layers_the_sum_and_what_was_left_out(checkpoint):
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


def test_the_command_compares_with_random_matrices_and_by_groups(checkpoint):
    arguments = ("--target", "sparsity=0.5", "--format", "json", "--reference", "random", "--group-by", "deep")
    found = json.loads(run(checkpoint, *arguments).stdout)
    assert (found["reference"], found["group_by"]) == ("random", "deep")
    scores = {row.name: row.score for row in diagnose(checkpoint, shuffle=False).scored}
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
        (["--target", "speed=3"], ["target", "'speed'", "sparsity, lora-rank"]),
        (["--target", "sparsity"], ["target", "NAME=NUMBER", "'sparsity'"]),
        (["--target", "sparsity=half"], ["target", "NAME=NUMBER", "'sparsity=half'"]),
        (["--target", "sparsity=1.5"], ["sparsity", 1.5]),
        (["--target", "lora-rank=100"], ["lora-rank", 100]),
        (["--target", "sparsity=0.5", "--format", "csv"], ["format", "table, json", "'csv'"]),
        (["--target", "sparsity=0.5", "--out", "."], ["out", "'.'"]),
        (["--target", "sparsity=0.5", "--exclude", "*"], ["alpha"]),
        (["--target", "sparsity=0.5", "--reference", "rnd"], ["reference", "'random'", "'rnd'"]),
        (["--target", "sparsity=0.5", "--group-by", "h.*"], ["group_by", "'h.*'"]),
        (["--target", "sparsity=0.5", "--include", "nothing"], ["include", "'nothing'"]),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_two(checkpoint, arguments, carried):
    assert_bad_usage(run(checkpoint, *arguments), *carried)


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
