"""What the documents say is so: links lead somewhere, code runs, figures are those on record."""

import ast
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import typer

import tempbalance
from tempbalance.cli import app
from tests.cases import GOLDEN, mlp, train_step

ROOT = Path(__file__).parent.parent
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - {ROOT / "docs/cli.md"})  # cli.md is generated


def page_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_relative_links_lead_to_files():
    links = [(page, target) for page in PAGES for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())]
    relative = [(page, target) for page, target in links if not target.startswith("http")]
    assert relative
    assert [f"{page_name(page)}: {target}" for page, target in relative if not (page.parent / target).exists()] == []


def test_every_table_has_rows():
    for page in PAGES:
        for head, row in pairwise(page.read_text().splitlines()):
            assert not (head.startswith("| ---") and not row.startswith("|")), (
                f"{page_name(page)}: no rows after {head}"
            )


def test_the_lines_of_use_in_the_readme_run(capsys):
    readme = (ROOT / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", readme, re.S)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    model = mlp()
    before = [parameter.clone() for parameter in model.parameters()]

    def train_one_epoch(model, optimizer):
        train_step(model, optimizer, torch.ones(4, 64))

    exec(code, {"model": model, "train_one_epoch": train_one_epoch})
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    printed = capsys.readouterr().out
    assert "1.500" in printed


HOW_TO = re.findall(r"```python\n(.*?)```", (ROOT / "docs/howto.md").read_text(), re.S)


@pytest.mark.filterwarnings("ignore:TempBalance")  # advice about the small network of the page
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # in torch.compile
@pytest.mark.parametrize("number", range(1, len(HOW_TO)))
def test_a_block_of_the_how_to_page_runs_after_the_first(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(HOW_TO[0], names)
    exec(HOW_TO[number], names)
    assert "optimizer" in names


# what a README or a page of docs tells a person to type
COMMANDS = sorted(
    {
        (page_name(page), line)
        for page in PAGES
        if page.name != "CHANGELOG.md"
        for block in re.findall(r"```(?:bash|sh|console|text)?\n(.*?)```", page.read_text().replace("\\\n", " "), re.S)
        for line in block.splitlines()
        if line.startswith("tempbalance ")
    }
)


def test_the_reference_lists_every_public_name():
    listed = re.findall(r"auto\w+:: tempbalance\.(\w+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(tempbalance.__all__)


def test_every_command_and_option_in_the_documents_exists():
    root = typer.main.get_command(app)
    assert len(COMMANDS) > 5
    for page, line in COMMANDS:
        parts = shlex.split(line, comments=True)[1:]
        command, options = root, {"--help", "--version"}
        while parts and hasattr(command, "commands"):
            assert parts[0] in command.commands or parts[0] in options, f"{page}: {line}"
            command = command.commands.get(parts.pop(0), command)
        options |= {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        unknown = [part for part in parts if part.startswith("--") and part.partition("=")[0] not in options]
        assert not unknown, f"{page}: {line}"


def test_the_table_of_recorded_alphas_is_that_of_the_golden_file():
    page = (ROOT / "docs" / "numbers.md").read_text()
    for entry in GOLDEN["weights"]:
        expected = GOLDEN["expected"][entry["layer"]]
        figures = (
            f"| {expected['num_eigenvalues']} | {expected['eq3_alpha']:.4f} | {expected['authors_median_alpha']:.4f} |"
        )
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {entry['layer']} ")]
        assert row.endswith(figures)


def test_large_layers_rank_the_same_with_eq_3_and_with_the_authors_code():
    large = [each for each in GOLDEN["expected"].values() if each["num_eigenvalues"] >= 50]
    by_ours = sorted(large, key=lambda each: each["eq3_alpha"])
    assert by_ours == sorted(large, key=lambda each: each["authors_median_alpha"])


EXAMPLE = [str(ROOT / "examples" / "many_processes.py")]
EXAMPLES = sorted({*(ROOT / "examples").glob("*.py")} - {*map(Path, EXAMPLE)})


@pytest.mark.parametrize("example", [*EXAMPLES, *map(Path, EXAMPLE)], ids=lambda path: path.name)
def test_an_example_parses_and_its_imports_from_the_library_exist(example):
    """A fast sibling of running it."""
    for node in ast.walk(ast.parse(example.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "tempbalance":
            if node.module.endswith((".timm", ".ultralytics")):
                continue  # their packages have an environment of their own
            assert all(hasattr(import_module(node.module), each.name) for each in node.names), ast.unparse(node)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(example):
    package = example.name.split("_")[0]
    if package in ("timm", "ultralytics") and find_spec(package) is None:
        pytest.skip(f"{package} has an environment of its own: make test-vision")
    result = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--shard"]])
def test_the_example_of_many_processes_goes_on_where_it_was_saved(options, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *EXAMPLE, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for epochs in ((1, 2, 3), (4, 5, 6)):
        result = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment)
        assert result.returncode == 0, result.stderr
        assert tuple(map(int, re.findall(r"epoch (\d): loss", result.stdout))) == epochs
