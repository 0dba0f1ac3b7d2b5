"""The public names, options and flags, so that a change to them is a decision."""

import inspect
import subprocess
import sys
from dataclasses import MISSING, fields

import pytest
from typer.testing import CliRunner

import tempbalance
from tempbalance.cli import app
from tempbalance.optim.state import Options
from tests.cases import raises

NAMES = {
    "CheckpointError",
    "Comparison",
    "Execution",
    "Layer",
    "LayerRow",
    "LayerTable",
    "ScoreError",
    "TailError",
    "TailFit",
    "TempBalance",
    "TempBalanceError",
    "WeightError",
    "allocate",
    "assign",
    "compute_score",
    "diagnose",
    "find_layers",
    "fit_tail",
    "param_groups",
    "spectrum",
    "split_param_groups",
}

OPTIONS = {
    "scale_range": (0.5, 1.5),
    "score": "alpha",
    "tail": "median",
    "tail_fraction": 0.5,
    "assignment": "linear",
    "balance": None,
    "interval": 1,
    "start": 0,
    "stop": None,
    "score_first": False,
    "score_last": False,
    "score_embeddings": False,
    "min_eigenvalues": 50,
    "exclude": (),
    "fused": None,
    "roots": (),
    "comparison": None,
    "execution": None,
}


def test_the_public_names_are_these_and_each_has_a_docstring():
    assert set(tempbalance.__all__) == NAMES
    assert set(dir(tempbalance)) == NAMES | {"__version__"}
    for name in NAMES:
        public = getattr(tempbalance, name)
        assert inspect.getdoc(public), name
        for attribute, member in vars(public).items() if inspect.isclass(public) else ():
            if not attribute.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{name}.{attribute}"


def test_an_unknown_name_is_an_attribute_error():
    with raises(AttributeError, "'nothing'"):
        _ = tempbalance.nothing


def test_the_options_of_the_scheduler_are_these_and_keyword_only():
    parameters = inspect.signature(tempbalance.TempBalance).parameters
    assert list(parameters)[:3] == ["optimizer", "model", "schedule"]
    options = {name: each for name, each in parameters.items() if each.kind is inspect.Parameter.KEYWORD_ONLY}
    assert {name: each.default for name, each in options.items()} == OPTIONS
    assert len(options) <= 18
    of_dataclass = {each.name: each.default for each in fields(Options)}
    assert of_dataclass == OPTIONS | {"fused": MISSING, "comparison": MISSING, "execution": MISSING}


def test_the_help_of_the_scheduler_fits_on_two_screens():
    assert len(inspect.getdoc(tempbalance.TempBalance).splitlines()) <= 2 * 50


@pytest.mark.parametrize(
    "name", ["assign", "compute_score", "diagnose", "find_layers", "fit_tail", "spectrum", "split_param_groups"]
)
def test_after_the_subject_arguments_are_keyword_only(name):
    parameters = list(inspect.signature(getattr(tempbalance, name)).parameters.values())
    subjects = {"compute_score": 2, "split_param_groups": 2}.get(name, 1)
    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in parameters[subjects:])


def test_the_command_has_its_version_and_its_help():
    version = CliRunner().invoke(app, ["--version"])
    assert (version.exit_code, version.stdout) == (0, f"tempbalance {tempbalance.__version__}\n")
    help_text = CliRunner().invoke(app, ["--help"])
    assert help_text.exit_code == 0
    assert "--version" in help_text.stdout


@pytest.mark.slow
def test_the_command_has_its_version_and_its_help_in_a_process_of_its_own():
    version = subprocess.run([sys.executable, "-m", "tempbalance.cli", "--version"], capture_output=True, text=True)
    assert version.stdout == f"tempbalance {tempbalance.__version__}\n"
    help_text = subprocess.run([sys.executable, "-m", "tempbalance.cli", "--help"], capture_output=True, text=True)
    assert help_text.returncode == 0
    assert "--version" in help_text.stdout
