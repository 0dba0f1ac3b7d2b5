"""The command, as a person runs it."""

import json
import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from tempbalance.bench.command import bench
from tempbalance.bench.results import write_results
from tests.bench.cases import known_results

app = typer.Typer()
app.command()(bench)


def invoke(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


SMALL = ("--quick", "--networks", "llama_block", "--rounds", "1", "--threads", "1", "--parts", "speed")


def test_a_quick_run_prints_a_table_keeps_its_seconds_and_draws(tmp_path):
    pytest.importorskip("vl_convert", reason="figures need the extra report")
    out, figure = tmp_path / "a.json", tmp_path / "a.svg"
    result = invoke(*SMALL, "--out", out, "--figure", figure)
    assert result.exit_code == 0, result.output
    assert "goodness_of_fit" in result.stdout
    assert re.search(r"\d\.\d+ \(\d", result.stdout)
    assert "whose times mean nothing" in result.stdout
    assert "measured: speed of Llama-like block" in result.stderr
    assert json.loads(out.read_text())["complete"] is True
    assert figure.read_text().startswith("<svg")


def test_what_was_kept_is_shown_again_without_measuring(tmp_path):
    write_results(known_results(), tmp_path / "a.json")
    result = invoke("--read", tmp_path / "a.json", "--markdown")
    assert result.exit_code == 0, result.output
    assert "| VGG16 | median | 1.00 | 3.00 (2.50 to 3.50) |" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--networks", "resnet8"], "unknown network 'resnet8': did you mean 'resnet18'"),
        (["--networks", ""], "unknown network ''"),
        (["--parts", "sped"], "unknown part 'sped': did you mean 'speed'"),
        (["--out", "no/such/folder/a.json"], "out must be a file in a folder that exists"),
        (["--out", "."], "out must be a file in a folder that exists"),
        (["--figure", "a.gif"], "figure must end in .svg, .pdf or .png, got 'a.gif'"),
        (["--figure", "a.svg", "--parts", "memory"], "figure draws the speed, which is not among the parts memory"),
    ],
)
def test_bad_input_is_answered_before_anything_is_measured(arguments, answer):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert answer in result.stderr


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
    assert "stopped before its end" in result.stdout
    assert result.stderr.strip().endswith("stopped")
    assert json.loads((tmp_path / "a.json").read_text())["complete"] is False


def test_an_interruption_before_the_first_round_draws_nothing(tmp_path, monkeypatch):
    pytest.importorskip("vl_convert", reason="figures need the extra report")

    def stopped(options, results, tell):
        raise KeyboardInterrupt

    monkeypatch.setattr("tempbalance.bench.measure.measure", stopped)
    result = invoke(*SMALL, "--figure", tmp_path / "a.svg")
    assert result.exit_code == 130
    assert "no figure is drawn: no speed was measured" in result.stderr
    assert not (tmp_path / "a.svg").exists()


def test_importing_the_command_loads_neither_torch_nor_numpy():
    code = "import sys, tempbalance.bench.command; print({'torch', 'numpy', 'altair'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
