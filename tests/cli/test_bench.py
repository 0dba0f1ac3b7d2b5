"""The command, as a person runs it."""

import json
import re
import subprocess
import sys

import pytest
import torch
import typer
from typer.testing import CliRunner

from tempbalance.bench.measure import PARTS
from tempbalance.bench.results import write_results
from tempbalance.cli.bench import _chosen, bench
from tests.bench.cases import known_results
from tests.cases import assert_bad_usage, assert_carries

app = typer.Typer()
app.command()(bench)


def invoke(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


SMALL = ("--quick", "--networks", "llama_block", "--rounds", "1", "--threads", "1", "--parts", "speed")


def test_a_quick_run_prints_a_table_keeps_its_seconds_and_draws(tmp_path, monkeypatch):
    pytest.importorskip("vl_convert", reason="figures need the extra report")
    for module in ("measure", "contestants"):  # which takes seconds to import
        monkeypatch.setattr(f"tempbalance.bench.{module}.has_weightwatcher", lambda: False)
    out, figure = tmp_path / "a.json", tmp_path / "a.svg"
    result = invoke(*SMALL, "--out", out, "--figure", figure)
    assert result.exit_code == 0, result.output
    assert "goodness_of_fit" in result.stdout
    assert re.search(r"\d\.\d+ \(\d", result.stdout)
    assert "small" in result.stdout
    assert_carries(result.stderr, "speed", "Llama-like block")
    assert json.loads(out.read_text())["complete"] is True
    assert figure.read_text().startswith("<svg")


def test_what_was_kept_is_shown_again_without_measuring(tmp_path):
    write_results(known_results(), tmp_path / "a.json")
    result = invoke("--read", tmp_path / "a.json", "--markdown")
    assert result.exit_code == 0, result.output
    assert "| VGG16 | median | 1.00 | 3.00 (2.50 to 3.50) |" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "carried"),
    [
        (["--networks", "resnet8"], ["network", "'resnet8'", "'resnet18'"]),
        (["--networks", ""], ["network", "''"]),
        (["--parts", "sped"], ["part", "'sped'", "'speed'"]),
        (["--out", "no/such/folder/a.json"], ["out", "no/such/folder"]),
        (["--out", "."], ["out", "got ."]),
        (["--figure", "a.gif"], ["figure", ".svg, .pdf or .png", "'a.gif'"]),
        (["--device", "cpu"], ["device", "'cpu'"]),
        (["--device", "meta"], ["device", "'meta'"]),
        (["--device", "nothing"], ["device", "'nothing'"]),
        (["--device", "mtia:7"], ["device", "'mtia:7'"]),
        (["--device", "cuda", "--parts", "speed"], ["device", "speed"]),
        (["--figure", "a.svg", "--parts", "memory"], ["figure", "speed", "memory"]),
    ],
)
def test_bad_input_is_answered_before_anything_is_measured(arguments, carried):
    assert_bad_usage(invoke(*arguments), *carried)


def test_a_name_that_is_given_twice_counts_once():
    assert _chosen("part", "busy, speed,busy", PARTS) == ("busy", "speed")
    assert _chosen("part", "all", PARTS) == PARTS


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without CUDA")
def test_a_device_that_is_not_there_is_bad_usage():
    assert_bad_usage(invoke("--device", "cuda"), "device", "'cuda'")


def test_a_device_is_compared_with_the_cpu(monkeypatch):
    monkeypatch.setattr("tempbalance.bench.measure.check_device", lambda name: None)
    result = invoke("--quick", "--networks", "llama_block", "--rounds", "1", "--threads", "1", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert_carries(result.stdout, "on the device", "copied to the CPU", "use")


def test_a_file_that_is_not_there_is_answered():
    result = invoke("--read", "absent.json")
    assert result.exit_code == 1
    assert "absent.json" in result.stderr


def test_an_interruption_keeps_and_shows_the_rounds_that_were_whole(tmp_path, monkeypatch):
    def stopped(options, results, tell):
        results.times += known_results().times
        raise KeyboardInterrupt

    monkeypatch.setattr("tempbalance.bench.measure.measure", stopped)
    result = invoke(*SMALL, "--out", tmp_path / "a.json")
    assert result.exit_code == 130
    assert "3.00 (2.50 to 3.50)" in result.stdout
    assert json.loads((tmp_path / "a.json").read_text())["complete"] is False


def test_an_interruption_before_the_first_round_draws_nothing(tmp_path, monkeypatch):
    pytest.importorskip("vl_convert", reason="figures need the extra report")

    def stopped(options, results, tell):
        raise KeyboardInterrupt

    monkeypatch.setattr("tempbalance.bench.measure.measure", stopped)
    result = invoke(*SMALL, "--figure", tmp_path / "a.svg")
    assert result.exit_code == 130
    assert_carries(result.stderr, "figure", "speed")
    assert not (tmp_path / "a.svg").exists()


@pytest.mark.slow
def test_importing_the_command_loads_neither_torch_nor_numpy():
    code = "import sys, tempbalance.cli.bench; print({'torch', 'numpy', 'altair'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
