"""A diagnosis beside random matrices: one more number, and only for those who ask."""

import csv
import io
import json
from statistics import fmean

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from tempbalance.cli import app
from tempbalance.diagnosis import diagnose
from tempbalance.spectral.random_matrix import random_alpha
from tests.cases import assert_bad_usage
from tests.diagnosis.test_diagnose import heavy


def weights():
    torch.manual_seed(0)
    return {
        "square.weight": torch.randn(80, 80),
        "long.weight": torch.randn(320, 80),
        "trained.weight": heavy(80, 80, alpha=1.6),
        "qkv.weight": torch.randn(192, 64),
        "small.weight": torch.randn(10, 10),
    }


def run(*arguments):
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(weights(), path)
    return path


@pytest.mark.parametrize("tail", ["median", "peak"])
def test_the_number_is_alpha_over_that_of_a_random_matrix_of_the_shape_part_by_part(tail):
    found = diagnose(weights(), tail=tail, fused={"qkv": 3}, reference="random", shuffle=False)
    told = {layer["name"]: layer["alpha_over_random"] for layer in found.to_dict()["layers"]}
    for name, shape in {"square": (80, 80), "long": (320, 80), "trained": (80, 80)}.items():
        expected = found[name].alpha / random_alpha(rows=shape[0], columns=shape[1], tail=tail)
        assert told[name] == pytest.approx(expected, rel=1e-12)
    of_part = random_alpha(rows=64, columns=64, tail=tail)
    assert told["qkv"] == pytest.approx(fmean(part.alpha / of_part for part in found["qkv"].parts), rel=1e-12)
    assert set(told) == {"square", "long", "trained", "qkv"}


def test_random_matrices_of_any_shape_have_1_and_trained_ones_less():
    found = diagnose(weights(), reference="random", shuffle=False).to_dict()["layers"]
    told = {layer["name"]: layer["alpha_over_random"] for layer in found}
    assert [told["square"], told["long"]] == pytest.approx([1, 1], abs=0.1)
    assert told["trained"] < 0.85


def test_alphas_verdicts_and_the_summary_are_those_without_it():
    plain, found = (diagnose(weights(), reference=reference) for reference in (None, "random"))
    assert [row.to_dict() for row in found.diagnoses] == [row.to_dict() for row in plain.diagnoses]
    assert found.summary() == plain.summary()


def test_every_form_has_the_number_when_asked_for_and_only_then(checkpoint):
    expected = {row.name: row.score for row in diagnose(checkpoint, reference="random").scored}
    for arguments, is_there in (((), False), (("--reference", "random"), True)):
        lines = run(checkpoint, *arguments).stdout.splitlines()
        assert ("/ random" in lines[0]) is is_there
        in_json = json.loads(run(checkpoint, "--format", "json", *arguments).stdout)
        assert ("reference" in in_json) is is_there
        in_csv = csv.DictReader(io.StringIO(run(checkpoint, "--format", "csv", *arguments).stdout))
        in_frame = diagnose(checkpoint, reference="random" if is_there else None).to_pandas()
        if is_there:
            assert {layer["name"]: layer["alpha_over_random"] for layer in in_json["layers"]} == expected
            assert {row["name"]: float(row["alpha_over_random"]) for row in in_csv} == expected
            assert in_frame["alpha_over_random"].dropna().to_dict() == expected
        else:
            assert all("alpha_over_random" not in layer for layer in in_json["layers"])
            assert "alpha_over_random" not in in_csv.fieldnames
            assert "alpha_over_random" not in in_frame.columns


def test_the_column_stands_beside_alpha_and_its_error_in_the_printed_table(checkpoint):
    heading, *lines = str(diagnose(checkpoint, reference="random")).splitlines()
    place = heading.index("/ random") + len("/ random")
    assert heading[:place].split()[-4:] == ["alpha", "±", "/", "random"]
    assert all(float(line[:place].split()[-1]) < 1.2 for line in lines)


def test_a_product_of_adapters_has_no_random_matrix_to_be_compared_with(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8, "lora_alpha": 16}))
    factors = {"A": torch.randn(8, 64), "B": torch.randn(96, 8)}
    stored = {f"base_model.model.q.lora_{side}.weight": factor for side, factor in factors.items()}
    save_file(stored, tmp_path / "adapter_model.safetensors")
    (layer,) = diagnose(tmp_path, reference="random").to_dict()["layers"]
    assert layer["alpha"] is not None
    assert layer["alpha_over_random"] is None


@pytest.mark.parametrize(
    ("arguments", "carried"),
    [
        (["--reference", "shuffled"], ["reference", "'random'", "'shuffled'"]),
        (["--reference", "random", "--against", "later.pt"], ["--reference", "--against"]),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_two(checkpoint, arguments, carried):
    assert_bad_usage(run(checkpoint, *arguments), *carried)
