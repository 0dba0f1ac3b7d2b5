"""What the documents say is so: links lead somewhere, code runs, figures are those on record."""

import ast
import json
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
GENERATED = {ROOT / "docs/cli.md", ROOT / "docs/claims.md"}
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - GENERATED)


def page_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_relative_links_lead_to_files():
    links = [(page, target) for page in PAGES for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())]
    relative = [(page, target) for page, target in links if not target.startswith("http")]
    assert relative
    assert [f"{page_name(page)}: {target}" for page, target in relative if not (page.parent / target).exists()] == []


def test_the_security_policy_names_a_test_for_every_defect():
    tests = " ".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    defined = re.findall(r"^def (test_\w+)", tests, re.MULTILINE)
    text = (ROOT / "SECURITY.md").read_text().partition("| defect | test |")[2]
    rows = re.findall(r"^\| (\d+) [^|]*\|([^|]*)\|$", text, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 21))
    for number, cell in rows:
        names = [name for name in re.findall(r"\b[a-z0-9]+(?:_[a-z0-9]+)+\b", cell) if not name.startswith("test_")]
        assert names, number
        assert [name for name in names if not any(name in each for each in defined)] == []


def test_every_table_has_rows():
    for page in PAGES:
        for head, row in pairwise(page.read_text().splitlines()):
            assert not (head.startswith("| ---") and not row.startswith("|")), (
                f"{page_name(page)}: no rows after {head}"
            )


def test_the_readme_is_short_and_its_new_lines_train_balanced():
    readme = (ROOT / "README.md").read_text()
    assert len(readme.split()) <= 700
    (change,) = re.findall(r"```diff\n(.*?)```", readme, re.S)
    old, new = ("\n".join(line[1:] for line in change.splitlines() if line[0] != sign) for sign in "+-")
    rates = {}
    for name, code in (("old", old), ("new", new)):
        model = mlp()

        def train_one_epoch(model, optimizer):
            train_step(model, optimizer, torch.ones(4, 64))

        names = {"torch": torch, "model": model, "train_one_epoch": train_one_epoch}
        exec(code.replace("200", "2"), names)
        rates[name] = {group["lr"] for group in names["optimizer"].param_groups}
    assert (len(rates["old"]), len(rates["new"])) == (1, 1)  # the schedule ends at 0
    assert names["schedule"].table()["3"].scale in (0.5, 1.5)
    assert change.count("\n+") + change.startswith("+") == 3


TUTORIALS = sorted((ROOT / "docs").glob("tutorial-*.md"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:TempBalance")
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = re.findall(r"```(python|sh)\n(.*?)```", page.read_text(), re.S)
    assert len(blocks) >= 3
    for language, code in blocks:
        if language == "python":
            exec(code, names)
            continue
        for line in code.splitlines():
            assert line.startswith("tempbalance "), line
            command = line.replace("tempbalance", f"{shlex.quote(sys.executable)} -m tempbalance.cli", 1)
            result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=400)
            assert result.returncode == 0, f"{line}\n{result.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "diagnose"])
def test_a_notebook_runs_and_has_the_outputs_it_gives(name, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    monkeypatch.setenv("PATH", os.environ["PATH"])
    notebooks = import_module("notebooks")
    (path,) = (each for each in notebooks.NOTEBOOKS if each.stem == name)
    stored, new = json.loads(path.read_text())["cells"], notebooks.executed(path)["cells"]
    assert stored[1]["source"][0].startswith("%pip install")  # Colab begins empty
    kinds = [
        [[output["output_type"] for output in cell.get("outputs", [])] for cell in cells] for cells in (stored, new)
    ]
    assert kinds[0] == kinds[1]
    assert sum(map(len, kinds[0])) >= 3


def test_the_gpu_check_says_so_without_a_gpu_and_its_page_lists_every_check(monkeypatch, capsys):
    from benchmarks import gpu_check

    if not torch.cuda.is_available():
        monkeypatch.setattr(sys, "argv", ["gpu_check.py"])
        assert gpu_check.main() != 0
        assert len(capsys.readouterr().err.splitlines()) == 1
    listed = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/gpu.md").read_text(), re.MULTILINE)
    assert listed == [each.__name__ for each in gpu_check.CHECKS]


def test_the_gpu_check_can_be_rehearsed_on_a_cpu(monkeypatch, tmp_path):
    from benchmarks import gpu_check

    report = tmp_path / "report.md"
    checks = "training,no_waiting,resuming,optimizers,background"
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--device", "cpu", "--only", checks, "--out", str(report)])
    assert gpu_check.main() == 0
    outcomes = re.findall(r"^\| (\w+): .*? \| ([\w ]+) \|", report.read_text(), re.MULTILINE)
    assert dict(outcomes) == {name: "not run" if name == "no_waiting" else "pass" for name in checks.split(",")}


def test_a_failed_gpu_check_is_reported_with_its_cause(monkeypatch, tmp_path):
    from benchmarks import gpu_check

    def broken(device: str) -> str:
        """Fails."""
        return gpu_check.check(False, "0.3 on the device, 0.4 on the CPU")

    report = tmp_path / "report.md"
    monkeypatch.setattr(gpu_check, "CHECKS", [broken])
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--device", "cpu", "--out", str(report)])
    assert gpu_check.main() == 1
    assert "| broken: Fails. | FAIL | AssertionError: 0.3 on the device, 0.4 on the CPU |" in report.read_text()


HOW_TO = re.findall(r"```python\n(.*?)```", (ROOT / "docs/howto.md").read_text(), re.S)


@pytest.mark.filterwarnings("ignore:TempBalance")  # advice about the small network of the page
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # in torch.compile
@pytest.mark.parametrize("number", range(1, len(HOW_TO)))
def test_a_block_of_the_how_to_page_runs_after_the_first(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(HOW_TO[0], names)
    before = set(names)
    exec(HOW_TO[number], names)
    assert len(names) > len(before)


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
