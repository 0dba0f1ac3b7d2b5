"""Whole diagnoses: against the library's own table, known spectra, and every kind of source."""

import json
import math

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import tempbalance
from tempbalance.diagnosis.diagnose import diagnose, list_tensors
from tempbalance.errors import CheckpointError
from tempbalance.lab.images.network import build_network
from tempbalance.model.layers import Layer
from tests.cases import assert_carries, raises
from tests.checkpoint.test_layers import GPT, Experts


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build_network("resnet18", num_classes=10, channels=3, side=32, width=0.25)


def heavy(rows: int, columns: int, *, alpha: float = 3.0) -> torch.Tensor:
    """A matrix whose eigenvalues are the quantiles of a power law."""
    size = min(rows, columns)
    quantiles = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    eigenvalues = (1 - quantiles) ** (-1 / (alpha - 1))
    left, _ = torch.linalg.qr(torch.randn(rows, size, dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(columns, size, dtype=torch.float64))
    return left @ torch.diag(eigenvalues.sqrt()) @ right.T


def test_alphas_are_those_of_training():
    model = network()
    optimizer = torch.optim.SGD(tempbalance.param_groups(model), lr=0.1)
    table = tempbalance.TempBalance(optimizer, model, score_first=True, score_last=True).table()
    found = diagnose(model)
    assert [row.name for row in found] == [row.name for row in table]
    assert [row.alpha for row in found] == [row.alpha for row in table]
    assert [row.reason for row in found] == [row.reason for row in table]


@pytest.mark.parametrize(
    ("make", "tail"),
    [(network, "median"), (network, "goodness_of_fit"), (network, "peak"), (lambda: GPT(tied=True), "median"),
     (Experts, "median")],
    ids=["resnet-median", "resnet-goodness_of_fit", "resnet-peak", "gpt", "experts"],
)  # fmt: skip
def test_a_module_its_state_dict_and_its_files_have_the_same_table(make, tail, tmp_path):
    model = make()
    state = model.state_dict()
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "model.ckpt")
    distinct = {name: tensor.clone() for name, tensor in state.items() if name != "tok_emb.weight"}
    save_file(distinct, tmp_path / "model.safetensors")
    rows = {row.name: row for row in diagnose(model, tail=tail)}
    assert {row.name: row for row in diagnose(state, tail=tail)} == rows
    assert {row.name: row for row in diagnose(tmp_path / "model.ckpt", tail=tail)} == rows
    in_file = {row.name: row for row in diagnose(tmp_path / "model.safetensors", tail=tail)}
    assert in_file == {name: row for name, row in rows.items() if name != "tok_emb"}


@pytest.mark.parametrize("alpha", [1.6, 3.0, 7.5])
def test_an_exact_power_law_gets_its_exponent(alpha):
    (row,) = diagnose({"fc.weight": heavy(400, 500, alpha=alpha)}, tail="goodness_of_fit")
    assert row.alpha == pytest.approx(alpha, rel=0.05)


def test_what_stands_beside_alpha_follows_from_the_eigenvalues():
    weight = heavy(60, 80)
    (row,) = diagnose({"fc.weight": weight}).judged
    values = torch.linalg.svdvals(weight).square()
    shares = values / values.sum()
    assert row.spectral_norm == pytest.approx(float(values.max()))
    assert row.stable_rank == pytest.approx(float(values.sum() / values.max()))
    assert row.log_norm == pytest.approx(math.log10(values.sum()))
    assert row.alpha_weighted == pytest.approx(row.alpha * math.log10(values.max()))
    assert row.log_alpha_norm == pytest.approx(math.log10((values**row.alpha).sum()))
    assert row.entropy == pytest.approx(float(-(shares * shares.log()).sum()) / math.log(60))
    assert row.num_beyond == int((values > row.mp_edge).sum()) > 0
    assert row.num_beyond_shuffled == 0
    assert torch.tensor(row.spectra[""]).tolist() == pytest.approx(values.sort().values.tolist())


def test_layers_as_initialised_are_random_like_whatever_the_fit():
    for tail in ("median", "goodness_of_fit", "peak"):
        found = diagnose(network(), tail=tail)
        assert {row.verdict for row in found.judged} == {"random-like"}
        assert found.summary()["verdicts"] == {"random-like": len(found.judged)}


def test_a_table_is_printed_with_its_verdicts():
    text = str(diagnose(network()))
    assert text.splitlines()[0].split()[0] == "layer"
    assert "layer4.0.conv1" in text
    assert "random-like" in text


def test_a_layer_that_training_would_refuse_is_skipped_with_its_reason():
    weights = {
        "good.weight": torch.randn(64, 64),
        "nan.weight": torch.full((64, 64), float("nan")),
        "zero.weight": torch.zeros(64, 64),
        "low.weight": torch.randn(64, 2) @ torch.randn(2, 64),
        "flat.weight": torch.linalg.qr(torch.randn(64, 64))[0],
        "complex.weight": torch.randn(64, 64, dtype=torch.complex64),
        "small.weight": torch.randn(8, 64),
        "high.weight": torch.randn(2, 2, 2, 2, 2, 2),
    }
    found = diagnose(weights)
    assert {row.name: row.verdict for row in found.judged} == {"good": "random-like", "flat": "random-like"}
    assert found["flat"].alpha is found["flat"].alpha_over_random is None
    reasons = found.skipped
    assert set(reasons) == {name.removesuffix(".weight") for name in weights} - {"good", "flat"}
    assert all(reasons.values())
    assert "NaN" in reasons["nan"]
    assert_carries(reasons["small"], 8, "min_eigenvalues", 50)
    assert_carries(reasons["complex"], "complex64")


def test_a_module_that_is_lazy_on_meta_wrapped_or_empty_is_diagnosed_too():
    lazy = diagnose(nn.Sequential(nn.LazyLinear(64), nn.Linear(64, 64)))
    assert lazy["0"].reason
    assert lazy["1"].alpha is not None
    assert_carries(diagnose(nn.Sequential(nn.Linear(64, 64, device="meta")))["0"].reason, "meta")
    assert [row.name for row in diagnose(nn.DataParallel(nn.Sequential(nn.Linear(64, 64)))).judged] == ["0"]
    assert len(diagnose(nn.ReLU())) == 0


def test_a_table_in_which_nothing_is_scored_has_a_summary_too():
    found = diagnose({"fc.weight": torch.zeros(64, 64)})
    assert found.summary()["num_layers"] == 0
    assert found.summary()["alpha"] is None
    (skipped,) = json.loads(json.dumps(found.to_dict()))["skipped"]
    assert skipped == {"name": "fc", "reason": found["fc"].reason}
    assert skipped["reason"]


def test_patterns_choose_layers_and_one_that_matches_nothing_is_refused():
    model = network()
    assert {row.name for row in diagnose(model, include=["layer4.?.conv?"]).judged} == {
        f"layer4.{block}.{conv}" for block in (0, 1) for conv in ("conv1", "conv2")
    }
    excluded = diagnose(model, exclude=["layer3.*"])
    assert_carries(excluded["layer3.1.conv1"].reason, "excluded")
    assert not [row.name for row in excluded.judged if row.name.startswith("layer3.")]
    for option in ("include", "exclude"):
        with raises(ValueError, option, "'nothing'"):
            diagnose(model, **{option: ["nothing"]})
    with raises(TypeError, "include", "'layer1.*'"):
        diagnose(model, include="layer1.*")


def test_fused_and_stacked_weights_are_scored_part_by_part():
    weights = {"qkv.weight": torch.randn(192, 64), "ffn.weight": torch.randn(3, 64, 128)}
    found = diagnose(weights, fused={"qkv": 3}, stacked=["ffn"])
    assert [part.num_eigenvalues for part in found["qkv"].parts] == [64, 64, 64]
    assert [part.name for part in found["ffn"].parts] == ["expert 0", "expert 1", "expert 2"]
    assert found["qkv"].mp_edge is None
    assert set(found["ffn"].spectra) == {"expert 0", "expert 1", "expert 2"}
    assert len(diagnose(nn.ModuleDict({"ffn": nn.Conv1d(64, 64, 3)}), stacked=["ffn"])["ffn"].parts) == 64


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_weights_at_the_ends_of_float64_have_an_alpha_and_valid_json(scale):
    torch.manual_seed(0)
    weight = heavy(64, 64)
    (row,) = diagnose({"fc.weight": weight * scale}).judged
    assert row.alpha == pytest.approx(diagnose({"fc.weight": weight})["fc"].alpha)
    assert row.mp_edge is row.num_beyond is row.num_beyond_shuffled is None
    json.dumps(row.to_dict(), allow_nan=False)


def test_a_weight_with_many_parts_is_read_once_for_each_pass(monkeypatch):
    loads = []
    weight = Layer.weight
    monkeypatch.setattr(Layer, "weight", lambda layer: loads.append(layer.name) or weight(layer))
    found = diagnose({"experts.w1": torch.randn(6, 64, 64)})
    assert len(found["experts.w1"].parts) == 6
    assert loads == ["experts.w1"] * 2


@pytest.mark.parametrize(("rank", "least", "is_scored"), [(8, 50, True), (6, 50, False), (6, 5, True)])
def test_products_of_adapters_have_a_minimum_of_their_own(rank, least, is_scored, tmp_path):
    torch.manual_seed(0)
    down, up = torch.randn(rank, 64), torch.randn(96, rank)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 16}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    factors = {"base_model.model.q.lora_A.weight": down, "base_model.model.q.lora_B.weight": up}
    save_file(factors, tmp_path / "adapter_model.safetensors")
    (row,) = diagnose(tmp_path, min_eigenvalues=least)
    assert row.shape == (96, 64)
    assert (row.alpha is not None) is is_scored
    if is_scored:
        product = (up.double() @ down.double()) * 16 / rank
        values = torch.linalg.svdvals(product).square().flip(0)[-rank:]
        assert row.spectra[""] == pytest.approx(values.tolist(), rel=1e-4)
        assert row.mp_edge is row.num_beyond is None


def test_a_data_frame_has_a_row_for_each_layer():
    frame = diagnose(network()).to_pandas()
    assert frame.loc["layer4.0.conv1", "alpha"] == pytest.approx(diagnose(network())["layer4.0.conv1"].alpha)
    assert "verdict" in frame.columns


def test_the_chart_shows_each_scored_layer_and_is_refused_where_there_is_none():
    found = diagnose(network())
    chart = found.chart().to_json()
    assert all(row.name in chart for row in found.judged)
    with pytest.raises(ValueError):  # noqa: PT011 - there is no value to name
        diagnose({"fc.weight": torch.zeros(64, 64)}).chart()


def test_every_tensor_is_listed_with_its_layer_or_its_reason(tmp_path):
    save_file(network().state_dict(), tmp_path / "model.safetensors")
    notes = {note.name: note for note in list_tensors(tmp_path / "model.safetensors", exclude=["layer3.*"])}
    assert set(notes) == set(network().state_dict())
    assert (notes["layer4.0.conv1.weight"].layer, notes["layer4.0.conv1.weight"].reason) == ("layer4.0.conv1", "")
    assert_carries(notes["layer1.0.conv1.weight"].reason, 16, "min_eigenvalues", 50)
    assert_carries(notes["layer3.1.conv1.weight"].reason, "excluded")
    assert_carries(notes["bn1.running_mean"].reason, "vector")
    assert_carries(notes["linear.weight"].reason, 10, "min_eigenvalues", 50)


def test_progress_ends_at_its_total():
    calls = []
    diagnose(network(), progress=lambda done, total: calls.append((done, total)))
    assert calls[-1][0] == calls[-1][1] == len(calls)


def test_a_path_that_is_not_there_and_a_source_that_is_none_are_refused(tmp_path):
    with raises(CheckpointError, "nothing.safetensors"):
        diagnose(tmp_path / "nothing.safetensors")
    with raises(TypeError, "int"):
        diagnose(3)


@pytest.mark.parametrize(
    "options",
    [
        {"include": None}, {"include": "fc"}, {"include": [3]}, {"stacked": 3}, {"exclude": [3]}, {"key": 3},
        {"shuffle": "no"}, {"progress": 3}, {"tail_fraction": "x"}, {"min_eigenvalues": "50"}, {"fused": ["a"]},
        {"tail": []},
    ],
)  # fmt: skip
def test_an_option_of_another_type_is_named(options):
    with raises((TypeError, ValueError), *options):
        diagnose({"fc.weight": torch.randn(64, 64)}, **options)
