"""Checkpoints beside each other: which layers are pairs, and how far they moved."""

import json
import time

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from tempbalance.cli import app
from tempbalance.diagnosis.against import pair_layers
from tests.cases import assert_bad_usage, raises
from tests.diagnosis.test_diagnose import heavy


def run(*arguments):
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (["encoder.0.fc", "encoder.1.fc", "pooler"], ["bert.encoder.0.fc", "bert.encoder.1.fc", "bert.pooler"]),
        (["model.a.fc", "model.b.fc"], ["transformer.a.fc", "transformer.b.fc"]),
        (["module.fc"], ["fc"]),
        (["a.fc", "fc"], ["a.fc", "fc"]),
        (["bert.encoder.0.fc", "head.out"], ["encoder.0.fc", "head.out"]),
        (["one"], ["two.one"]),
    ],
)
def test_layers_are_paired_by_the_ends_of_their_names(first, second):
    assert pair_layers(first, second) == dict(zip(first, second, strict=True))
    assert pair_layers(second, first) == dict(zip(second, first, strict=True))


def test_names_end_alike_in_whole_words_only():
    with raises(ValueError, "myfc", "fc"):
        pair_layers(["a.fc", "b.out"], ["a.myfc", "b.out"])


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (["encoder.fc", "head.fc"], ["bert.encoder.fc", "other.classifier"], ["head.fc", "other.classifier"]),
        (["fc.out", "a.in"], ["x.fc.out", "y.fc.out", "a.in"], ["fc.out", "x.fc.out", "y.fc.out"]),
        (["x.fc.out", "y.fc.out", "a.in"], ["fc.out", "a.in"], ["x.fc.out", "y.fc.out", "fc.out"]),
        ([f"a.{index}" for index in range(9)], ["b.10", "c.11"], ["a.0", "a.4", "and 6 more"]),
    ],
)
def test_a_layer_without_a_partner_or_with_several_is_named(first, second, named):
    with raises(ValueError, *named):
        pair_layers(first, second)


def test_layers_that_are_not_required_may_stay_alone():
    assert pair_layers(["a.fc", "b.head"], ["a.fc", "c.other"], required={"a.fc"}) == {"a.fc": "a.fc"}


def test_layers_of_a_model_with_a_head_in_front_are_compared(tmp_path):
    torch.manual_seed(0)
    weights = {f"encoder.{index}.fc.weight": torch.randn(64, 64) for index in range(2)}
    inside = {f"bert.{name}": weight * 2 for name, weight in weights.items()}
    save_file(weights, tmp_path / "a.safetensors")
    save_file({**inside, "classifier.weight": torch.randn(3, 64)}, tmp_path / "b.safetensors")
    result = run(tmp_path / "a.safetensors", "--against", tmp_path / "b.safetensors", "--format", "json")
    layers = json.loads(result.stdout)["layers"]
    assert [layer["name"] for layer in layers] == ["encoder.0.fc", "encoder.1.fc"]
    assert [layer["relative_distance"] for layer in layers] == pytest.approx([1, 1])
    save_file({**inside, "decoder.weight": torch.randn(80, 64)}, tmp_path / "c.safetensors")
    assert_bad_usage(run(tmp_path / "a.safetensors", "--against", tmp_path / "c.safetensors"), "decoder")


def test_a_layer_that_is_broken_in_one_checkpoint_has_no_change(tmp_path):
    torch.manual_seed(0)
    weights = {"a.weight": torch.randn(64, 64), "b.weight": torch.randn(64, 64)}
    save_file(weights, tmp_path / "a.safetensors")
    save_file({**weights, "b.weight": torch.full((64, 64), float("nan"))}, tmp_path / "b.safetensors")
    result = run(tmp_path / "a.safetensors", "--against", tmp_path / "b.safetensors", "--format", "json")
    changes = {layer["name"]: layer["change"] for layer in json.loads(result.stdout)["layers"]}
    assert changes == {"a": 0, "b": None}


def test_two_checkpoints_stand_side_by_side_with_the_change_in_alpha_and_the_distance(tmp_path):
    torch.manual_seed(0)
    before, after = heavy(80, 80, alpha=3), heavy(80, 80, alpha=4)
    weights = [{"fc.weight": before}, {"fc.weight": after}, {"fc.weight": after * 2}]
    paths = [tmp_path / f"step{index}.pt" for index in range(3)]
    for path, state in zip(paths, weights, strict=True):
        torch.save(state, path)
    found = json.loads(run(paths[0], "--against", paths[1], "--format", "json").stdout)
    (layer,) = found["layers"]
    assert found["models"] == ["step0.pt", "step1.pt"]
    assert layer["change"] == pytest.approx(layer["alphas"][1] - layer["alphas"][0])
    assert layer["change"] > 0.5
    assert layer["distance"] == pytest.approx(float((after - before).norm()), rel=1e-5)
    assert layer["relative_distance"] == pytest.approx(float((after - before).norm() / before.norm()), rel=1e-5)
    series = json.loads(run(*paths[:1], "--against", paths[1], "--against", paths[2], "--format", "json").stdout)
    rows = {layer["name"]: layer for layer in series["layers"]}
    assert len(rows["fc"]["alphas"]) == 3
    assert rows["fc"]["alphas"][1] == pytest.approx(rows["fc"]["alphas"][2])
    table = run(paths[0], "--against", paths[1]).stdout.splitlines()
    assert table[0].split("  ")[-1].strip() == "relative distance"
    assert table[1].startswith("fc ")


def test_distances_of_any_precision_and_magnitude_are_numbers_or_nothing(tmp_path):
    torch.manual_seed(0)
    weight = torch.randn(64, 64)
    others = {
        "f8": weight.to(torch.float8_e4m3fn),
        "large": weight * 1e25,
        "other": torch.randn(64, 70),
        "tiny": weight.double() * 1e-200,
    }
    save_file({"fc.weight": weight}, tmp_path / "a.safetensors")
    for name, other in others.items():
        save_file({"fc.weight": other}, tmp_path / f"{name}.safetensors")
        for pair in ((name, "a"), ("a", name)):
            paths = [tmp_path / f"{each}.safetensors" for each in pair]
            result = run(paths[0], "--against", paths[1], "--format", "json")
            assert result.exit_code == 0, result.stderr
            (layer,) = json.loads(result.stdout)["layers"]
            assert (layer["distance"] is None) == (name == "other")


def test_adapters_have_no_distance_because_only_the_spectrum_of_their_product_is_known(tmp_path):
    for index, rank in enumerate((8, 16)):
        (tmp_path / str(index)).mkdir()
        config = {"peft_type": "LORA", "r": rank, "lora_alpha": 16}
        (tmp_path / str(index) / "adapter_config.json").write_text(json.dumps(config))
        factors = {"A": torch.randn(rank, 64), "B": torch.randn(64, rank)}
        stored = {f"base_model.model.q.lora_{side}.weight": factor for side, factor in factors.items()}
        save_file(stored, tmp_path / str(index) / "adapter_model.safetensors")
    result = run(tmp_path / "0", "--against", tmp_path / "1", "--format", "json")
    (layer,) = json.loads(result.stdout)["layers"]
    assert layer["change"] is not None
    assert layer["distance"] is None


def test_a_model_within_another_is_paired_by_its_prefix_also_where_names_end_alike():
    inner, outer = ["fc", "deep.fc"], ["base.fc", "base.deep.fc", "head"]
    pairs = {"fc": "base.fc", "deep.fc": "base.deep.fc"}
    assert pair_layers(inner, outer, required=inner) == pairs
    assert pair_layers(outer, inner, required=outer[:2]) == {other: name for name, other in pairs.items()}
    with raises(ValueError, "head"):
        pair_layers(inner, outer)
    with raises(ValueError, "fc", "a.fc", "b.fc"):
        pair_layers(["fc"], ["a.fc", "b.fc"])
    with raises(ValueError, "fc"):
        pair_layers(["a.fc", "fc"], ["fc"])


def test_layers_of_blocks_with_different_numbers_are_not_paired():
    with raises(ValueError, "layer.0.fc", "layer.1.fc"):
        pair_layers(["layer.0.fc"], ["layer.1.fc"])
    assert pair_layers(["student.fc"], ["teacher.fc"]) == {"student.fc": "teacher.fc"}


def test_the_time_to_pair_layers_does_not_grow_with_the_square_of_their_number():
    ends, blocks = [f"x{number}.fc" for number in range(20_000)], [f"l.{number}.fc" for number in range(20_000)]
    start = time.process_time()
    with raises(ValueError, "fc", "x0.fc"):
        pair_layers(["fc", *(f"a{number}" for number in range(20_000))], ends)
    assert len(pair_layers(blocks, [f"m.{name}" for name in blocks])) == len(blocks)
    assert time.process_time() - start < 5
