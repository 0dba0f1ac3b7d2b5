"""What an import loads. Which module may import which is in pyproject.toml, and `make check` checks it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tempbalance

SPECTRAL = Path(tempbalance.__file__).parent / "spectral"
TORCH = "import torch, numpy, torch.optim.swa_utils"


@pytest.mark.parametrize("path", sorted(SPECTRAL.glob("*.py")), ids=lambda path: path.stem)
def test_spectral_uses_neither_torch_nn_nor_torch_optim(path):
    tree = ast.parse(path.read_text())
    names = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not [name for name in names if name.startswith(("torch.nn", "torch.optim"))]


def loaded_after(statement: str) -> set[str]:
    """The top-level packages that a fresh interpreter has loaded after a statement, beyond those it starts with."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in result.stdout.split()}


def test_a_bare_import_loads_the_standard_library_only():
    assert loaded_after("import tempbalance") <= {"tempbalance", *sys.stdlib_module_names}


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "import tempbalance; [getattr(tempbalance, name) for name in tempbalance.__all__]",
        "import tempbalance.integrations.logs, tempbalance.integrations.timm, tempbalance.integrations.ultralytics",
    ],
)
def test_the_library_loads_torch_numpy_and_the_standard_library_only(statement):
    assert loaded_after(statement) - loaded_after(TORCH) - {"tempbalance"} <= set(sys.stdlib_module_names)


@pytest.mark.slow
def test_the_command_line_loads_neither_torch_nor_numpy():
    assert not {"torch", "numpy"} & loaded_after("import tempbalance.cli")


@pytest.mark.slow
def test_studies_are_listed_without_what_trains_and_draws_them():
    loaded = loaded_after("from tempbalance.lab.study import all_studies; all_studies()")
    assert not {"torch", "lightning", "scipy", "altair", "vl_convert"} & loaded
