"""The commands of studies, as a person runs them: every study end to end in its smallest preset."""

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tempbalance.cli import app
from tempbalance.lab.jobs import Job
from tempbalance.lab.point import PRESETS
from tempbalance.lab.study import all_studies, find_study
from tempbalance.runlog import take_lock


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["study", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="session")
def shared(tmp_path_factory) -> Path:
    """One folder for all processes that test: studies share runs, and two sweeps at a time do no harm."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if root.name.startswith("popen-") else root
    return root / "smoke"


CHARTS = {
    "matrices": {"matrices", "spectra"},
    "alpha": {"alpha_boxes", "alpha_histograms"},
    "gradients": {"gradients", "gradient_histograms"},
    "layers": {"layers", "two_layers"},
}


# what each of them says of its data; others are of images
DATA = {"exponent": "nothing is trained", "language": "", "matrices": "", "operator": ""}


@pytest.mark.parametrize("name", sorted({*all_studies()} - {"detection"}))  # which has an environment of its own
def test_every_study_runs_end_to_end_with_its_table_and_figure(name, shared, tmp_path):
    where = (name, "--preset", "smoke", "--out", str(shared))
    invoke("run", *where, "--workers", "2", "--device", "cpu")
    status = invoke("status", *where)
    study, smoke = find_study(name), PRESETS["smoke"]
    num_runs = len({point.recipe(seed).id for point in study.points(smoke) for seed in study.seeds(smoke)})
    assert f"{num_runs} done, 0 running, 0 failed, 0 left" in status
    page = tmp_path / "page.html"
    told = invoke("report", *where, "--html", str(page), "--figures", str(tmp_path / "figures"))
    setting = f"preset smoke: {DATA.get(name, 'digits, 256 + 128 images')}"
    assert setting in told
    assert "runs complete" not in told
    assert re.search(r"\d\.\d", told)
    charts = CHARTS.get(name, {name})
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        f"{chart}.{form}" for chart in charts for form in ("svg", "pdf", "png")
    }
    for chart in charts:
        assert setting in (tmp_path / "figures" / f"{chart}.svg").read_text()
    html = page.read_text()
    assert setting in html
    assert all(f'id="chart-{chart}"' in html for chart in charts)
    for table in invoke("report", *where, "--format", "csv").split("\n\n"):
        rows = list(csv.DictReader(io.StringIO(table)))
        assert rows
        assert {(row["study"], row["preset"]) for row in rows} == {(name, "smoke")}
    latex = invoke("report", *where, "--format", "latex")
    assert latex.count(r"\begin{table}") == latex.count(r"\end{table}") >= 1
    assert "preset smoke" in latex


def test_the_list_names_every_study_with_its_runs():
    told = invoke("list")
    for name in all_studies():
        assert name in told
    assert re.search(r"main .*530", told)


def test_a_dry_run_lists_the_papers_grid_and_starts_nothing(tmp_path):
    told = invoke("run", "main", "--preset", "paper", "--dry-run", "--out", str(tmp_path / "runs"))
    assert "530 runs: 180 CAL, 230 SNR, 60 TB, 60 TB+SNR" in told
    assert f"0 complete in {tmp_path / 'runs'}, 530 to run: time not known" in told
    assert len(re.findall(r"│ +5 │ +0 │", told)) == 106
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_tells_the_time_from_the_runs_that_exist(tmp_path):
    study, preset = find_study("start"), PRESETS["laptop"]
    recipe = study.points(preset)[0].recipe(43)
    run = Job(recipe, tmp_path / recipe.id).run
    run.write_recipe({"recipe": recipe.to_dict()})
    run.write_result({"test_accuracy": 1.0, "best_accuracy": 1.0, "best_epoch": 1, "seconds": 120.0})
    told = invoke("run", "start", "--dry-run", "--out", str(tmp_path), "--workers", "1")
    assert "1 complete" in told
    assert "11 to run: about 22 min to go, 1 at a time" in told


def test_status_tells_what_runs_and_what_failed_from_another_terminal(tmp_path):
    study, preset = find_study("start"), PRESETS["smoke"]
    jobs = [Job(r, tmp_path / r.id) for p in study.points(preset) for r in (p.recipe(43), p.recipe(37))]
    running, failed = jobs[0], jobs[1]
    running.run.append([{"epoch": 1, "test_accuracy": 12.5}])
    running.run.write_recipe({"recipe": running.recipe.to_dict()})
    lock = take_lock(running.folder / "run.lock")
    assert lock is not None
    failed.folder.mkdir()
    (failed.folder / "failure.txt").write_text("Traceback (most recent call last):\nValueError: too bad")
    told = invoke("status", "start", "--preset", "smoke", "--out", str(tmp_path))
    assert "0 done, 1 running, 1 failed, 2 left" in told
    assert "seed 43, start 0  epoch 2 of 2  test accuracy 12.50 %" in told
    assert f"{failed.folder.name} failed: ValueError: too bad (all of it in" in told
    lock.release()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "mian"), "unknown study 'mian': did you mean 'main'"),
        (("run", "main", "--preset", "desk"), "unknown preset 'desk': known are paper, laptop, smoke"),
        (("run", "main", "--only", "model=resnet"), "main: unknown model 'resnet'"),
        (("run", "main", "--dataset", "no.npz"), "no.npz': known are digits"),
        (("run", "main", "--dataset", " "), "dataset must be a name or a path, got ' '"),
        (("run", "main", "--device", "gpus"), "unknown device 'gpus': did you mean 'gpu'"),
        (("run", "main", "--precision", "fp16"), "unknown precision 'fp16'"),
        (("run", "main", "--preset", "paper", "--dataset", "digits"), "dataset must not be given with preset paper"),
        (("report", "main", "--format", "tex"), "unknown format 'tex': "),
        (("report", "main", "--html", "."), "html must be a file to write, got the folder '.'"),
    ],
)
def test_bad_usage_is_told_in_a_line_and_exits_with_2(arguments, said, tmp_path):
    command = [sys.executable, "-m", "tempbalance.cli", "study", *arguments]
    result = subprocess.run([*command, "--out", "runs"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert said in result.stderr
    assert result.stderr.startswith("error: ")
    assert list(tmp_path.iterdir()) == []


def test_runs_of_own_data_and_a_part_of_a_study(tmp_path):
    import numpy as np

    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    labels = np.arange(40) % 4
    np.savez(tmp_path / "own.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    where = ("main", "--preset", "smoke", "--dataset", str(tmp_path / "own.npz"), "--out", str(tmp_path / "runs"))
    part = ("--only", "model=resnet18", "--only", "method=cal")
    invoke("run", *where, *part, "--device", "cpu", "--workers", "2")
    told = invoke("report", *where, *part)
    assert "own.npz" in told
    assert "2 of 2" in told
    recipes = [json.loads(path.read_text())["recipe"] for path in (tmp_path / "runs").glob("*/recipe.json")]
    assert {(each["model"], each["method"], each["dataset"]) for each in recipes} == {
        ("resnet18", "cal", str(tmp_path / "own.npz"))
    }
