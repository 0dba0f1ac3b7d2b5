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
from tempbalance.cli.diagnose import colour
from tempbalance.report.text import VERDICT_LOOKS
from tests.cases import assert_bad_usage, assert_carries
from tests.checkpoint.hostile import MARKER, VARIABLE, build_case
from tests.diagnosis.test_diagnose import network


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
    assert lines[0].split() == ["layer", "shape", "alpha", "/", "random", "verdict"]
    assert sum(line.startswith("layer") and " x " in line for line in lines) == 8
    (conv,) = [line for line in lines if "layer1.0.conv1" in line]
    assert_carries(conv, "skipped", 16, "min_eigenvalues", 50)
    assert_carries(" ".join(lines[10:12]), "every scored layer")  # the summary begins with what to do
    assert_carries(" ".join(lines[11:13]), "median", "8 random-like")


def test_a_table_has_at_most_100_columns_unless_it_may_be_wide(tmp_path):
    name = "base_model.model.model.language_model.layers.11.self_attention.query_key_value_projection.linear"
    save_file({f"{name}.weight": torch.randn(64, 128), "fc.weight": torch.randn(64, 64)}, tmp_path / "a.safetensors")
    text = run(tmp_path / "a.safetensors").stdout
    table, _, summary = text.partition("\n\n")
    assert max(map(len, text.splitlines())) <= 100
    assert summary
    assert "…" in table
    assert "random-like" in table
    wide = run(tmp_path / "a.safetensors", "--wide").stdout
    assert name in wide
    assert_carries(wide.splitlines()[0], "eigenvalues", "±", "xmin", "shuffled", "excess")


def test_verdicts_have_the_colours_of_the_page_on_a_terminal(checkpoint):
    text = colour(run(checkpoint).stdout)
    styles = [str(span.style) for span in text.spans]
    assert styles == [VERDICT_LOOKS["random-like"][0]] * 8


def test_a_checkpoint_without_a_layer_to_score_is_an_error_that_says_why(tmp_path):
    save_file({"fc.weight": torch.randn(10, 64), "out.weight": torch.zeros(64, 64)}, tmp_path / "small.safetensors")
    result = run(tmp_path / "small.safetensors")
    assert (result.exit_code, result.stdout) == (1, "")
    assert_carries(result.stderr, "small.safetensors", "all eigenvalues are zero", "min_eigenvalues", "--list")
    assert len(result.stderr.strip().splitlines()) == 1


def test_json_has_what_it_promises_and_nothing_else_is_on_standard_output(checkpoint):
    result = run(checkpoint, "--format", "json", "--tail", "goodness_of_fit")
    found = json.loads(result.stdout)
    assert set(found) == {"model", "tail", "layers", "skipped", "summary"}
    assert found["model"] == "model.safetensors"
    wanted = {"name", "shape", "num_eigenvalues", "alpha", "alpha_stderr", "ks", "xmin", "num_tail", "spectral_norm",
              "stable_rank", "alpha_weighted", "log_alpha_norm", "entropy", "mp_edge", "num_beyond",
              "num_beyond_shuffled", "verdict", "alpha_over_random", "evidence"}  # fmt: skip
    assert all(wanted <= set(layer) for layer in found["layers"])
    (reason,) = [each["reason"] for each in found["skipped"] if each["name"] == "linear"]
    assert_carries(reason, 10, "min_eigenvalues", 50)
    means = {"alpha", "alpha_over_random", "log_norm", "alpha_weighted", "log_alpha_norm", "stable_rank"}
    assert {"advice", "verdicts", *means} <= set(found["summary"])


def test_csv_can_be_read_back(checkpoint):
    rows = list(csv.DictReader(io.StringIO(run(checkpoint, "--format", "csv").stdout)))
    assert len(rows) == 8
    assert {row["verdict"] for row in rows} == {"random-like"}
    assert all(float(row["alpha"]) > 1 for row in rows)
    assert all(0.8 < float(row["alpha_over_random"]) < 1.2 for row in rows)


@pytest.mark.parametrize("name", ["alpha", "alpha_over_random"])
def test_rows_are_sorted_from_the_largest_and_cut(checkpoint, name):
    found = json.loads(run(checkpoint, "--format", "json", "--sort", name, "--top", 3).stdout)["layers"]
    values = [layer[name] for layer in json.loads(run(checkpoint, "--format", "json").stdout)["layers"]]
    assert [layer[name] for layer in found] == sorted(values, reverse=True)[:3]


def test_rows_are_sorted_by_name(checkpoint):
    names = [
        layer["name"] for layer in json.loads(run(checkpoint, "--format", "json", "--sort", "name").stdout)["layers"]
    ]
    assert names == sorted(names)


def test_a_checkpoint_without_a_scored_layer_says_why_and_ends_with_code_one(tmp_path):
    torch.save({"fc.weight": torch.ones(64, 64, dtype=torch.int8), "fc.bias": torch.ones(64)}, tmp_path / "a.pt")
    result = run(tmp_path / "a.pt")
    assert (result.exit_code, result.stdout) == (1, "")
    assert_carries(result.stderr, "a.pt", "int8", "--list")
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_packed_weight_of_unknown_layout_is_the_reason_why_no_layer_is_scored(tmp_path):
    packed = {"qweight": torch.zeros(16, 128), "qzeros": torch.zeros(1, 16), "scales": torch.ones(1, 128)}
    torch.save({f"a.{name}": each.int() for name, each in packed.items()}, tmp_path / "a.pt")
    result = run(tmp_path / "a.pt")
    assert (result.exit_code, result.stdout) == (1, "")
    assert_carries(result.stderr, "quantization_config")
    assert "part of a weight" not in result.stderr


def test_a_key_chooses_the_weights_and_the_list_shows_all_of_them(tmp_path):
    torch.save(
        {"netG": {"g.weight": torch.randn(64, 80)}, "netD": {"d.weight": torch.randn(60, 60)}}, tmp_path / "a.pt"
    )
    first = run(tmp_path / "a.pt", "--format", "json")
    assert [each["name"] for each in json.loads(first.stdout)["layers"]] == ["g"]
    assert_carries(first.stderr, "'netG'", "'netD'", "--key")
    second = run(tmp_path / "a.pt", "--format", "json", "--key", "netD")
    assert [each["name"] for each in json.loads(second.stdout)["layers"]] == ["d"]
    listed = json.loads(run(tmp_path / "a.pt", "--list", "--format", "json").stdout)
    assert [(each["key"], each["name"], each["layer"]) for each in listed] == [
        ("netG", "g.weight", "g"), ("netD", "d.weight", ""),
    ]  # fmt: skip
    assert_carries(listed[1]["reason"], "--key netD")


def test_every_tensor_is_listed(checkpoint):
    result = run(checkpoint, "--list", "--exclude", "layer3.*", "--format", "json")
    notes = {note["name"]: note for note in json.loads(result.stdout)}
    assert set(notes) == set(network().state_dict())
    assert notes["layer3.1.conv1.weight"]["reason"]
    assert not notes["layer4.0.conv1.weight"]["reason"]
    assert "layer4.0.conv1.weight" in run(checkpoint, "--list").stdout


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
        (["--against", "other.pt", "--wide"], ["--against", "--wide"]),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_two(checkpoint, arguments, carried):
    assert_bad_usage(run(checkpoint, *arguments), *carried)


# one of each kind: tests/checkpoint/test_hostile.py reads them all
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


def test_a_page_is_not_written_over_a_file_of_the_folder_that_is_diagnosed(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"fc.weight": torch.randn(64, 64)}, path)
    before = path.read_bytes()
    assert_bad_usage(run(tmp_path, "--html", path), "model.safetensors")
    assert path.read_bytes() == before
