"""The study of pruning: what is zeroed, what is measured, and what its tables say of it."""

import json

import pytest
import torch
from rich.console import Console

from tempbalance.diagnosis import diagnose
from tempbalance.lab.images.network import build_network
from tempbalance.lab.points import PRESETS, find_preset
from tempbalance.lab.studies.pruning import FILE, THRESHOLD, UNIFORM, WAYS, _key, _prune, evaluate
from tempbalance.lab.study import find_study
from tempbalance.lab.train import train
from tempbalance.runlog import RunFolder, RunFolderError
from tests.cases import raises
from tests.lab.campaign import SETTINGS

STUDY = find_study("pruning")
SMOKE = PRESETS["smoke"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The runs of the smallest preset, trained and pruned."""
    root = tmp_path_factory.mktemp("pruning")
    for job in STUDY.jobs(SMOKE, STUDY.points(SMOKE), root):
        train(job.recipe, job.folder, console=Console(quiet=True), **SETTINGS)
    evaluate(STUDY.find(SMOKE, STUDY.points(SMOKE), root), None)
    return root


def network_and_table():
    torch.manual_seed(0)
    network = build_network("resnet18", num_classes=10, width=0.125)
    return network, diagnose(network, min_eigenvalues=6, shuffle=False)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_zeroes_the_same_number_of_the_smallest_weights(way):
    network, table = network_and_table()
    before = {row.name: network.get_submodule(row.name).weight.detach().clone() for row in table.scored}
    _prune(network, table, way, 0.7, "layer*.*")
    after = {name: network.get_submodule(name).weight.detach() for name in before}
    assert sum(int((each == 0).sum()) for each in after.values()) == round(0.7 * sum(map(torch.numel, before.values())))
    for name, weight in after.items():
        is_zero = weight == 0
        assert torch.equal(weight[~is_zero], before[name][~is_zero])
        if is_zero.any():
            assert before[name][is_zero].abs().max() <= before[name][~is_zero].abs().min()
    shares = {name: float((each == 0).double().mean()) for name, each in after.items()}
    assert (max(shares.values()) - min(shares.values()) < 0.01) == (way == UNIFORM)


def test_one_threshold_is_that_of_all_weights_together():
    network, table = network_and_table()
    weights = [network.get_submodule(row.name).weight.detach().abs().flatten() for row in table.scored]
    every = torch.cat(weights).sort().values
    threshold = every[round(0.5 * len(every)) - 1]
    _prune(network, table, THRESHOLD, 0.5, "layer*.*")
    for row in table.scored:
        kept = network.get_submodule(row.name).weight.detach().abs()
        assert kept[kept > 0].min() > threshold


def test_blocks_have_one_sparsity_each():
    network, table = network_and_table()
    _prune(network, table, "blocks: alpha, larger", 0.5, "layer*.*")
    shares = {}
    for row in table.scored:
        weight = network.get_submodule(row.name).weight.detach()
        shares.setdefault(".".join(row.name.split(".")[:2]), []).append(float((weight == 0).double().mean()))
    assert all(max(each) - min(each) < 0.01 for each in shares.values())
    assert max(max(each) for each in shares.values()) - min(min(each) for each in shares.values()) > 0.1


@pytest.mark.slow
def test_what_is_measured_of_the_trained_network_is_the_result_of_its_run(folder):
    for path in folder.glob(f"*/{FILE}"):
        found, result = json.loads(path.read_text()), RunFolder(path.parent).result
        assert found["dense"] == pytest.approx(result.get("test_accuracy", result.get("test_perplexity")), rel=1e-6)
        assert set(found) == {"dense", *(_key(way, 0.5) for way in WAYS)}


@pytest.mark.slow
def test_nothing_is_measured_twice_and_what_is_missing_is_measured_again(folder):
    findings = STUDY.find(SMOKE, STUDY.points(SMOKE), folder)
    path = next(folder.glob(f"*resnet18*/{FILE}"))
    known = json.loads(path.read_text())
    key = _key(THRESHOLD, 0.5)
    path.write_text(json.dumps({**known, key: -1.0}))
    evaluate(findings, None)
    assert json.loads(path.read_text())[key] == -1.0
    path.write_text(json.dumps({name: value for name, value in known.items() if name != key}))
    evaluate(findings, None)
    assert json.loads(path.read_text()) == known


@pytest.mark.slow
def test_the_table_has_the_paired_difference_from_uniform(folder):
    shown = STUDY.present(STUDY.find(SMOKE, STUDY.points(SMOKE), folder))
    (table,) = shown.tables
    assert len(table.rows) == 2 * (1 + len(WAYS))
    files = [json.loads(path.read_text()) for path in folder.glob(f"*gpt*/{FILE}")]
    way = "alpha, larger"
    differences = [each[_key(way, 0.5)] - each[_key(UNIFORM, 0.5)] for each in files]
    at = table.columns.index
    (row,) = [r for r in table.rows if (r[1], r[at("sparsity")], r[at("pruned")]) == ("GPT", "0.5", way)]
    assert row[at("against uniform")].value == pytest.approx(sum(differences) / 2)
    (same,) = [r for r in table.rows if (r[1], r[at("sparsity")], r[at("pruned")]) == ("GPT", "0.5", UNIFORM)]
    assert same[at("against uniform")] is None
    assert set(shown.charts) == {"pruning_resnet18", "pruning_gpt"}


@pytest.mark.slow
def test_a_run_without_its_last_weights_is_named(folder, tmp_path):
    run = next(path.parent for path in folder.glob(f"*resnet18*/{FILE}"))
    copy = tmp_path / run.name
    copy.mkdir()
    for name in ("recipe.json", "result.json", "metrics.jsonl"):
        (copy / name).write_bytes((run / name).read_bytes())
    with raises(RunFolderError, run.name, "last.ckpt"):
        evaluate(STUDY.find(SMOKE, STUDY.points(SMOKE), tmp_path), None)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["{", "[1]", '{"dense": null}'])
def test_a_damaged_file_is_named(folder, text):
    path = next(folder.glob(f"*resnet18*/{FILE}"))
    content = path.read_bytes()
    path.write_text(text)
    try:
        with raises(RunFolderError, path, "damaged"):
            STUDY.present(STUDY.find(SMOKE, STUDY.points(SMOKE), folder))
    finally:
        path.write_bytes(content)


def test_data_of_ones_own_replace_the_images_or_the_text(tmp_path):
    def data(name):
        preset = find_preset("laptop", dataset=str(tmp_path / name))
        return [point.options["dataset"] for point in STUDY.points(preset)]

    assert data("own.npz") == [str(tmp_path / "own.npz"), "pydoc"]
    assert data("own.txt") == ["digits", str(tmp_path / "own.txt")]
