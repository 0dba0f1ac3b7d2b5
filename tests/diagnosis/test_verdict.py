"""Verdicts: on weights whose verdict is known, and rule by rule on rows."""

import json
from dataclasses import replace
from statistics import fmean, pstdev

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import init

from tempbalance.diagnosis import diagnose
from tempbalance.diagnosis.verdict import VERDICTS, advise, judge
from tempbalance.ranking.table import DiagnosisRow
from tempbalance.report.text import VERDICT_LOOKS
from tempbalance.spectral.random_matrix import random_alpha
from tests.diagnosis.test_diagnose import heavy

TAILS = ["median", "median_published", "goodness_of_fit", "peak"]
SHAPES = [(50, 50), (50, 800), (64, 256), (200, 100), (256, 256), (64, 64, 1, 1), (64, 64, 3, 3), (128, 64, 3, 3)]
INITIALISATIONS = {
    "normal": init.normal_,
    "uniform": init.xavier_uniform_,
    "orthogonal": init.orthogonal_,
    "truncated": lambda weight: init.trunc_normal_(weight, std=0.02, a=-0.04, b=0.04),
}


def weights_of(initialise, shapes=SHAPES, *, num=1):
    weights = {f"layers.{index}.weight": torch.empty(shape) for index, shape in enumerate(shapes * num)}
    for weight in weights.values():
        initialise(weight)
    return weights


def verdicts_of(weights, **options):
    return [row.verdict for row in diagnose(weights, **options).diagnoses]


def row_of(name="fc", *, ratio=0.8, upper=None, excess=0.1, num_tail=200, error=0.02, size=400, **more):
    """A layer of this alpha over that of a random matrix, which is 2, with its standard error."""
    values = {"alpha_over_random": ratio, "upper_over_random": ratio if upper is None else upper, "excess": excess}
    fit = {"alpha": 2 * ratio, "alpha_stderr": 2 * error, "num_tail": num_tail, "score": ratio}
    beyond = {"num_beyond": 9, "num_beyond_shuffled": 0, "upper_stderr": 2.2 / size}
    return DiagnosisRow(name, (size, size), size, spectra={"": [1.0] * size}, **values, **fit, **beyond | more)


@pytest.mark.parametrize("name", INITIALISATIONS)
def test_random_weights_are_random_like_in_at_least_95_of_100_layers(name):
    torch.manual_seed(0)
    found = verdicts_of(weights_of(INITIALISATIONS[name], num=5))
    assert found.count("random-like") >= 0.95 * len(found)


@pytest.mark.parametrize("tail", TAILS)
def test_random_weights_are_random_like_whichever_tail_is_fitted(tail):
    torch.manual_seed(0)
    assert set(verdicts_of(weights_of(init.normal_, SHAPES[:4]), tail=tail)) == {"random-like"}


@pytest.mark.parametrize("scale", [1e-20, 1e15])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_neither_the_scale_nor_the_precision_of_weights_matters(scale, dtype):
    torch.manual_seed(0)
    for initialise in (init.normal_, init.orthogonal_):
        weights = {"random.weight": initialise(torch.empty(80, 120)), "learned.weight": heavy(80, 120, alpha=1.6)}
        found = verdicts_of({name: (weight * scale).to(dtype) for name, weight in weights.items()})
        assert found == ["random-like", "typical"]


def test_entries_with_a_heavy_tail_or_a_mean_are_random_too():
    torch.manual_seed(0)
    heavy_tailed = torch.distributions.StudentT(4.0).sample((300, 300))
    assert verdicts_of({"a.weight": heavy_tailed, "b.weight": torch.rand(300, 300)}) == ["random-like"] * 2


def test_weights_of_low_rank_or_with_a_strong_direction_are_not_random():
    torch.manual_seed(0)
    noise = torch.randn(200, 200)
    low_rank = torch.randn(200, 40) @ torch.randn(40, 200) / 7
    strong = 60 * torch.outer(*torch.nn.functional.normalize(torch.randn(2, 200), dim=1))
    found = verdicts_of({"low.weight": low_rank + 0.05 * noise, "strong.weight": noise + strong})
    assert found == ["typical", "under-trained"]


def test_a_layer_frozen_at_its_initialisation_in_a_trained_network_is_found():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(100, 100) for _ in range(4)))
    model[2].weight.requires_grad_(False)
    inputs = torch.randn(256, 100)
    targets = inputs @ torch.randn(100, 8) @ torch.randn(8, 100) / 30
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    found = {row.name: row.verdict for row in diagnose(model).diagnoses}
    assert [name for name, verdict in found.items() if verdict == "random-like"] == ["2"]


@pytest.mark.parametrize(("rows", "columns", "num_slices"), [(60, 60, 1), (100, 400, 1), (64, 64, 9)])
def test_the_scatter_of_random_matrices_is_known(rows, columns, num_slices):
    torch.manual_seed(0)
    side = (3, 3) if num_slices == 9 else ()
    found = diagnose({f"{index}.weight": torch.randn(rows, columns, *side) for index in range(40)}, shuffle=False)
    ratios = [row.upper_over_random for row in found.diagnoses]
    assert fmean(ratios) == pytest.approx(1, abs=0.015)
    assert 0.5 < pstdev(ratios) / found.diagnoses[0].upper_stderr < 1.2


@pytest.mark.parametrize("tail", ["median", "peak"])
def test_alpha_over_random_is_that_of_the_shape_part_by_part(tail):
    torch.manual_seed(0)
    weights = {"long.weight": torch.randn(320, 80), "learned.weight": heavy(80, 80), "qkv.weight": torch.randn(192, 64)}
    found = diagnose(weights, tail=tail, fused={"qkv": 3}, shuffle=False)
    for name, shape in {"long": (320, 80), "learned": (80, 80)}.items():
        expected = found[name].alpha / random_alpha(rows=shape[0], columns=shape[1], tail=tail)
        assert found[name].alpha_over_random == pytest.approx(expected, rel=1e-12)
    of_part = random_alpha(rows=64, columns=64, tail=tail)
    expected = fmean(part.alpha / of_part for part in found["qkv"].parts)
    assert found["qkv"].alpha_over_random == pytest.approx(expected, rel=1e-12)


def test_a_product_of_adapters_has_no_random_matrix_to_be_compared_with(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8, "lora_alpha": 16}))
    factors = {"A": torch.randn(8, 64), "B": torch.randn(96, 8)}
    stored = {f"base_model.model.q.lora_{side}.weight": factor for side, factor in factors.items()}
    save_file(stored, tmp_path / "adapter_model.safetensors")
    (row,) = diagnose(tmp_path).judged
    assert row.alpha is not None
    assert row.alpha_over_random is None
    assert row.verdict == "cannot tell"


OTHERS = [row_of(f"other{index}", ratio=0.8 + 0.01 * index) for index in range(-4, 5)]  # spread 0.03


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (row_of(ratio=0.82), "typical"),
        (row_of(ratio=0.95), "under-trained"),
        (row_of(ratio=0.6), "strongly correlated"),
        (row_of(ratio=0.95, error=0.1), "typical"),  # within two standard errors
        (row_of(ratio=0.98, excess=0.005), "random-like"),
        (row_of(ratio=1.3, excess=0.0), "random-like"),  # flatter than random, as truncated orthogonal matrices are
        (row_of(ratio=0.98, excess=0.2), "under-trained"),  # a few eigenvalues have left a random bulk
        (row_of(ratio=0.98, excess=0.2, num_beyond_shuffled=9), "random-like"),  # by single large entries
        (row_of(ratio=0.9, excess=0.0, size=50), "random-like"),  # within three standard deviations of random ones
        (row_of(ratio=0.9, excess=0.0), "under-trained"),
        (row_of(ratio=0.5, num_tail=19), "cannot tell"),
        (row_of(ratio=0.5, upper=1.0, excess=0.0, num_tail=19), "random-like"),  # the tail is not asked
        (row_of(ratio=0.5, size=38), "cannot tell"),
    ],
)
def test_each_rule_decides_as_documented(row, verdict):
    judged = judge([*OTHERS, row])[-1]
    assert judged.verdict == verdict
    assert judged.evidence.endswith(".")
    assert replace(judged, verdict="", evidence="") == row


def test_random_layers_do_not_move_what_the_others_are_compared_with():
    frozen = [row_of(f"frozen{index}", ratio=1.0, excess=0.0) for index in range(30)]
    judged = {row.name: row.verdict for row in judge([*frozen, *OTHERS, row_of(ratio=0.95)])}
    assert judged["fc"] == "under-trained"
    assert {judged[row.name] for row in OTHERS} == {"typical"}


def test_a_search_for_the_threshold_is_less_certain_than_a_fixed_one():
    rows = [*OTHERS, row_of(ratio=0.95)]
    assert judge(rows, tail="median")[-1].verdict == "under-trained"
    assert judge(rows, tail="peak")[-1].verdict == "typical"


def test_two_layers_are_not_compared_with_each_other_and_the_advice_says_so():
    rows = judge([row_of("a", ratio=0.5), row_of("b", ratio=0.9)])
    assert {row.verdict for row in rows} == {"typical"}
    assert "too few" in advise(rows)


def test_searched_tails_are_compared_from_eight_layers_on():
    ratios = [0.3, 0.31, 0.32, 0.3, 0.31, 0.29, 0.9, 0.3]
    rows = [row_of(f"layer{place}", ratio=ratio) for place, ratio in enumerate(ratios)]
    assert "under-trained" in {row.verdict for row in judge(rows[1:])}
    assert {row.verdict for row in judge(rows[1:], tail="peak")} == {"typical"}
    assert "under-trained" in {row.verdict for row in judge(rows, tail="peak")}


@pytest.mark.parametrize(
    ("verdicts", "carried"),
    [
        (["random-like"] * 2, ["every scored layer"]),
        (["random-like", "typical"], ["Check", "layer0"]),
        (["under-trained", "typical"], ["Train", "layer0", "learning rate"]),
        (["random-like", "under-trained"], ["Train layer1", "check", "layer0 looks random"]),
        (["strongly correlated", "typical"], ["overfits", "layer0"]),
        (["typical"] * 2, ["Nothing to do"]),
        (["cannot tell"], ["No layer can be judged"]),
        (["under-trained"] * 5 + ["typical"], ["layer2 and 2 more"]),
    ],
)
def test_the_advice_is_one_sentence_that_names_layers(verdicts, carried):
    advice = advise([row_of(f"layer{index}", verdict=verdict) for index, verdict in enumerate(verdicts)])
    assert all(each in advice for each in carried)
    assert advice.endswith(".")
    assert advice.count(". ") == 0


def test_each_verdict_has_a_look():
    assert tuple(VERDICT_LOOKS) == VERDICTS


@pytest.mark.parametrize("place", [(5,), (slice(None), slice(0, 3))])
def test_a_layer_with_large_rows_or_columns_is_not_random(place):
    torch.manual_seed(0)
    weight = torch.randn(256, 256)
    weight[place] *= 30
    (row,) = diagnose({"fc.weight": weight}).judged
    assert row.excess > 0.1
    assert row.verdict != "random-like"
