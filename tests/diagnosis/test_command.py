"""The command: what it prints where, in which form, and with which exit code."""

import csv
import io
import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from tempbalance.cli import app
from tests.cases import assert_bad_usage, assert_carries
from tests.diagnosis.test_diagnose import heavy, network
from tests.hostile import MARKER, VARIABLE, build_case


def run(*arguments):
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "model.safetensors"
    save_file(network().state_dict(), path)
    return path


def test_the_table_has_a_line_for_each_scored_layer_and_says_what_was_skipped(checkpoint):
    result = run(checkpoint)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split()[:4] == ["layer", "shape", "eigenvalues", "alpha"]
    assert sum(line.startswith("layer") and " x " in line for line in lines) == 8
    (conv,) = [line for line in lines if "layer1.0.conv1" in line]
    assert_carries(conv, 16, "min_eigenvalues", 50)
    assert any("8 layers" in line and "median" in line for line in lines)


def test_json_has_what_it_promises_and_nothing_else_is_on_standard_output(checkpoint):
    result = run(checkpoint, "--format", "json", "--tail", "goodness_of_fit")
    found = json.loads(result.stdout)
    assert set(found) == {"model", "tail", "layers", "left_out", "summary"}
    assert found["model"] == "model.safetensors"
    wanted = {"name", "shape", "num_eigenvalues", "alpha", "alpha_stderr", "ks", "xmin", "num_tail", "spectral_norm",
              "stable_rank", "alpha_weighted", "log_alpha_norm", "entropy", "mp_edge", "num_beyond",
              "num_beyond_shuffled", "verdict"}  # fmt: skip
    assert all(wanted <= set(layer) for layer in found["layers"])
    (reason,) = [each["reason"] for each in found["left_out"] if each["name"] == "linear"]
    assert_carries(reason, 10, "min_eigenvalues", 50)
    assert {"alpha", "log_norm", "alpha_weighted", "log_alpha_norm", "stable_rank"} <= set(found["summary"])


def test_csv_can_be_read_back(checkpoint):
    rows = list(csv.DictReader(io.StringIO(run(checkpoint, "--format", "csv").stdout)))
    assert len(rows) == 8
    assert {row["verdict"] for row in rows} == {"random-like"}
    assert all(float(row["alpha"]) > 1 for row in rows)


def test_rows_are_sorted_from_the_largest_and_cut(checkpoint):
    found = json.loads(run(checkpoint, "--format", "json", "--sort", "alpha", "--top", 3).stdout)["layers"]
    alphas = [layer["alpha"] for layer in json.loads(run(checkpoint, "--format", "json").stdout)["layers"]]
    assert [layer["alpha"] for layer in found] == sorted(alphas, reverse=True)[:3]
    names = [
        layer["name"] for layer in json.loads(run(checkpoint, "--format", "json", "--sort", "name").stdout)["layers"]
    ]
    assert names == sorted(names)


def test_every_tensor_is_listed(checkpoint):
    result = run(checkpoint, "--list", "--exclude", "layer3.*", "--format", "json")
    notes = {note["name"]: note for note in json.loads(result.stdout)}
    assert set(notes) == set(network().state_dict())
    assert notes["layer3.1.conv1.weight"]["reason"]
    assert not notes["layer4.0.conv1.weight"]["reason"]
    assert "layer4.0.conv1.weight" in run(checkpoint, "--list").stdout


def test_two_checkpoints_stand_side_by_side_with_the_change_in_alpha_and_the_distance(tmp_path):
    torch.manual_seed(0)
    before, after = heavy(80, 80, alpha=3), heavy(80, 80, alpha=4)
    weights = [{"fc.weight": before}, {"fc.weight": after}, {"fc.weight": after * 2, "new.weight": before}]
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
    assert rows["new"]["alphas"][:2] == [None, None]
    assert rows["new"]["distance"] is None
    table = run(paths[0], "--against", paths[1]).stdout.splitlines()
    assert table[0].split("  ")[-1].strip() == "relative distance"
    assert table[1].startswith("fc ")


def test_distances_of_any_precision_and_magnitude_are_numbers_or_nothing(tmp_path):
    torch.manual_seed(0)
    weight = torch.randn(64, 64)
    others = {
        "f8": weight.to(torch.float8_e4m3fn),
        "nan": weight * float("nan"),
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
            assert (layer["distance"] is None) == (name in ("nan", "other"))


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


def test_a_page_replaces_neither_the_checkpoint_nor_what_is_no_file(checkpoint, tmp_path):
    content = checkpoint.read_bytes()
    os.mkfifo(tmp_path / "pipe")
    assert run(checkpoint, "--html", checkpoint).exit_code == 2
    assert run(checkpoint, "--html", tmp_path / "pipe").exit_code == 1
    assert checkpoint.read_bytes() == content
    assert (tmp_path / "pipe").is_fifo()


def test_a_page_is_written_where_asked(tmp_path):
    save_file({"fc.weight": torch.randn(64, 64)}, tmp_path / "small.safetensors")
    result = run(tmp_path / "small.safetensors", "--html", tmp_path / "page.html")
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert "page.html" in result.stderr


@pytest.mark.slow
def test_a_page_and_figures_are_written_where_asked(checkpoint, tmp_path):
    result = run(checkpoint, "--html", tmp_path / "page.html", "--figures", tmp_path / "figures")
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".svg", ".pdf", ".png"}
    assert "page.html" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "carried"),
    [
        (["--tail", "mode"], ["tail", "median", "'mode'"]),
        (["--format", "xml"], ["format", "table, json, csv", "'xml'"]),
        (["--sort", "beauty"], ["sort", "depth", "'beauty'"]),
        (["--include", "nothing"], ["include", "'nothing'"]),
        (["--fused", "qkv"], ["fused", "PATTERN=N", "'qkv'"]),
        (["--stacked", "nothing"], ["stacked", "'nothing'"]),
        (["--min-eigenvalues", "1"], ["min_eigenvalues", 1]),
        (["--tail-fraction", "2"], ["tail_fraction", 2]),
        (["--html", "."], ["html", "'.'"]),
        (["--fused", "linear=0"], ["fused", "PATTERN=N", "'linear=0'"]),
        (["--list", "--top", "3"], ["--list"]),
        (["--against", "other.pt", "--html", "page.html"], ["--against", "--html"]),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_two(checkpoint, arguments, carried):
    assert_bad_usage(run(checkpoint, *arguments), *carried)


# one of each kind: test_hostile_files.py reads them all
KINDS = [
    "archive_eval", "torch_payload", "torch_legacy_payload_up_front", "torch_empty", "zip_bomb", "tar_with_payload",
    "safetensors_overlap", "safetensors_dtype_with_markup", "index_above", "index_of_a_missing_tensor",
    "adapter_without_alpha", "distributed_payload", "folder_without_weights", "format_onnx", "fifo", "device",
    "missing",
]  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_a_hostile_file_is_refused_in_one_line(name, tmp_path):
    path = build_case(name, tmp_path / "files" / "case")
    before = sorted(tmp_path.rglob("*"))
    result = run(path, "--html", tmp_path / "page.html")
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.strip().splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before
    assert not list(tmp_path.rglob(MARKER))
    assert VARIABLE not in os.environ


NAMES = [
    "\x1b[31mred", "\x1b[2J", "\x1b]0;title\x07", "\x1b]52;c;aGk=\x07", "\x9b31m", "\x07bell", "back\x08space",
    "carriage\rreturn", "line\nfeed", "tab\there", "\x00nul", "\x7fdelete", "\x1bP+q\x1b\\", "\x1b[?1049h", "\x0e\x0f",
    "\x1b[6n", "\u202eevil", "\u2066a\u2069", "\u200bzero", "\u2028line", "\x85next", "\x1b]8;;http://a\x1b\\link",
]  # fmt: skip


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_no_control_character_of_a_name_reaches_the_terminal(form, tmp_path):
    assert len(NAMES) >= 20
    path = tmp_path / "names.safetensors"
    weights = {f"{name}.weight": torch.randn(64, 64) for name in NAMES}
    save_file({**weights, "\x1b[1mbias": torch.zeros(3), "\x1b[1mzero.weight": torch.zeros(64, 64)}, path)
    for arguments in ([], ["--list"], ["--against", path], ["--include", "\x1b[31mnothing"], ["--sort", "name"]):
        result = run(path, "--format", form, *arguments)
        for text in (result.stdout, result.stderr):
            assert not [char for char in text if not char.isprintable() and char != "\n"]
        if not arguments:
            assert ("\\u001b[31mred" if form == "json" else "\\x1b[31mred") in result.stdout


def test_control_characters_in_the_name_of_the_file_are_shown(tmp_path):
    path = tmp_path / "\x1b[31m.safetensors"
    save_file({"fc.weight": torch.randn(64, 64)}, path)
    for arguments in ([path], [path, "--format", "json"], [tmp_path / "\x1b[2J.pt"]):
        result = run(*arguments)
        assert "\x1b" not in result.output


@pytest.mark.slow
def test_the_command_reads_a_file_and_refuses_another_in_a_process_of_its_own(checkpoint, tmp_path):
    command = [sys.executable, "-m", "tempbalance.cli", "diagnose"]
    read = subprocess.run([*command, str(checkpoint), "--format", "json"], capture_output=True, text=True)
    assert (read.returncode, read.stderr) == (0, "")
    assert len(json.loads(read.stdout)["layers"]) == 8  # layers with a side of 50 or more
    refused = subprocess.run([*command, str(tmp_path / "none.pt")], capture_output=True, text=True)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert_carries(refused.stderr, "error: ", "none.pt")


@pytest.mark.slow
def test_nothing_of_torch_is_loaded_for_help():
    code = "import sys; from tempbalance.cli import app; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
