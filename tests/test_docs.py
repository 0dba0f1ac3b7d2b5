"""What the documents say is so: links lead somewhere, code runs, figures are those on record."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.cases import GOLDEN, mlp, train_step

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def page_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_relative_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_no_table_has_a_row_that_is_none(page):
    lines = page.read_text().splitlines()
    for head, row in pairwise(lines):
        assert not (head.startswith("| ---") and not row.startswith("|")), f"a table without rows after {head}"


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
    assert "left out: first layer" in printed
    assert "1.500" in printed


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


@pytest.mark.parametrize(
    "example", sorted({*(ROOT / "examples").glob("*.py")} - {*map(Path, EXAMPLE)}), ids=lambda path: path.name
)
def test_an_example_runs(example):
    package = example.name.split("_")[0]
    if package in ("timm", "ultralytics") and find_spec(package) is None:
        pytest.skip(f"{package} has an environment of its own: make test-vision")
    result = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout


@pytest.mark.parametrize("options", [[], ["--shard"]])
def test_the_example_of_many_processes_goes_on_where_it_was_saved(options, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *EXAMPLE, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for epochs in ((1, 2, 3), (4, 5, 6)):
        result = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment)
        assert result.returncode == 0, result.stderr
        assert tuple(map(int, re.findall(r"epoch (\d): loss", result.stdout))) == epochs
