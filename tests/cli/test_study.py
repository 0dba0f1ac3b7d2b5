"""The commands of studies, as a person runs them: every study end to end in its smallest preset."""

import csv
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tempbalance.cli import app
from tempbalance.lab.executors import local
from tempbalance.lab.executors.local import work
from tempbalance.lab.jobs import Ended, Job, Settings
from tempbalance.lab.points import PRESETS
from tempbalance.lab.study import all_studies, find_study
from tempbalance.report import save_figures
from tempbalance.runlog import take_lock
from tests.cases import assert_bad_usage, assert_carries


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["study", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


class InThisProcess:
    """Trains jobs where the test runs, one at a time."""

    num_slots, num_ahead, place_text = 1, 0, "here"

    def __init__(self, settings: Settings) -> None:
        self._settings, self._ended = {**settings, "threads": 1}, []

    def start(self, job: Job) -> None:
        self._ended.append(Ended(job, *work(job.folder, self._settings)))

    def ended(self) -> Sequence[Ended]:
        found, self._ended = self._ended, []
        return found

    def close(self) -> None:
        pass


@pytest.fixture
def in_process(monkeypatch):
    """Studies of a few images, one epoch and one seed, trained in this process and drawn as SVG alone."""
    monkeypatch.setattr(local, "local_pool", lambda settings, **_: InThisProcess(settings))
    options = {"epochs": 1, "limit": 32, "test_limit": 32}
    monkeypatch.setitem(PRESETS, "smoke", replace(PRESETS["smoke"], options=options, seeds=PRESETS["smoke"].seeds[:1]))
    monkeypatch.setattr(save_figures, "__defaults__", (("svg",),))


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
    "pruning": {"pruning_resnet18", "pruning_gpt"},
    **{name: {name, f"{name}_rates"} for name in ("llama", "operators", "images")},
}


# what each of them says of its data; others are of images
DATA = {"exponent": "nothing is trained", "language": "", "matrices": "", "operator": "", "operators": "", "llama": ""}


# a study of each shape of chart, and as much of it as it takes to draw one
SHAPES = {
    "start": ["start=0"],  # bars
    "width": ["method=cal"],  # lines
    "tail": ["tail=median"],  # bars beside seconds
    "overhead": ["model=resnet18"],
    "gradients": [],
    "rank_one": [],
    "layers": ["model=resnet18"],
    "matrices": [],
    "exponent": [],
    "operators": ["dataset=advection"],
    "llama": [],
    "images": [],
}


@pytest.mark.parametrize(("name", "only"), SHAPES.items(), ids=SHAPES)
def test_a_study_of_each_shape_is_run_and_drawn(name, only, in_process, tmp_path):
    where = (name, "--preset", "smoke", "--out", str(tmp_path / "runs"))
    where += tuple(part for each in only for part in ("--only", each))
    invoke("run", *where, "--device", "cpu")
    num_done, num_left = (int(n) for n in re.search(r"(\d+) done.* (\d+) left", invoke("status", *where)).groups())
    assert (num_done > 0, num_left) == (name != "exponent", 0)
    told = invoke("report", *where, "--html", str(tmp_path / "page.html"), "--figures", str(tmp_path / "figures"))
    assert "preset smoke" in told
    assert re.search(r"\d\.\d", told)
    charts = CHARTS.get(name, {name})
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {f"{chart}.svg" for chart in charts}
    page = (tmp_path / "page.html").read_text()
    assert all(f'id="chart-{chart}"' in page for chart in charts)


def test_few_labels_are_learned_from_a_folder_that_is_given(in_process, tmp_path):
    from tests.lab.encoder.test_training import write_folder

    where = ("few_labels", "--preset", "smoke", "--out", str(tmp_path / "runs"))
    where += ("--dataset", str(write_folder(tmp_path / "tiny")), "--only", "model=bert")
    invoke("run", *where, "--device", "cpu")
    told = invoke("report", *where, "--json", str(tmp_path / "raw.json"))
    assert_carries(
        told, "TB+AdamW, shuffled", "TB+AdamW, mean", "against its scales shuffled", "all methods were tried"
    )
    raw = json.loads((tmp_path / "raw.json").read_text())
    assert raw["command"].endswith("--dataset tiny --only model=bert")
    assert {run["method"] for run in raw["runs"]} == {"adamw", "tb+adamw", "tb+adamw, shuffled", "tb+adamw, mean"}


def test_controls_are_trained_and_reported_with_one_flag(in_process, tmp_path):
    where = ("start", "--preset", "smoke", "--out", str(tmp_path / "runs"), "--only", "start=0", "--controls")
    told = invoke("run", *where, "--device", "cpu")
    assert "tempbalance study report start" in told
    assert "--controls" in told
    assert "3 done, 0 running, 0 failed, 0 left" in invoke("status", *where)
    assert_carries(invoke("report", *where), "TB, shuffled", "TB, mean")


@pytest.mark.slow
# detection has an environment of its own; few_labels needs a folder, and is tested above
@pytest.mark.parametrize("name", sorted({*all_studies()} - {"detection", "few_labels"}))
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


def test_claims_of_all_studies_are_shown_before_any_run(tmp_path):
    told = invoke("claims", "--preset", "smoke", "--out", str(tmp_path / "runs"), "--html", str(tmp_path / "page.html"))
    assert_carries(told, "TB is better than CAL on every dataset and network.", "undecided", "Holm")
    assert "TB is better than CAL" in (tmp_path / "page.html").read_text()
    rows = list(csv.DictReader(io.StringIO(invoke("claims", "--out", str(tmp_path / "runs"), "--format", "csv"))))
    assert {row["verdict"] for row in rows if row["study"] != "exponent"} == {"undecided"}
    assert {row["verdict"] for row in rows if row["study"] == "exponent"} == {"holds"}  # which trains nothing
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_lists_the_papers_grid_and_starts_nothing(tmp_path):
    told = invoke("run", "main", "--preset", "paper", "--dry-run", "--out", str(tmp_path / "runs"))
    assert_carries(told, "530 runs", "180 CAL", "230 SNR", "60 TB", "60 TB+SNR", tmp_path / "runs", "530 to run")
    assert_carries(told, "on this machine", "at a time with", "disk: about", "GB when complete", "free")
    assert len(re.findall(r"│ +5 │ +0 │", told)) == 106
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_tells_the_time_from_the_runs_that_exist(tmp_path):
    study, preset = find_study("start"), PRESETS["laptop"]
    recipe = study.points(preset)[0].recipe(43)
    run = Job(recipe, tmp_path / recipe.id).run
    run.write_recipe({"recipe": recipe.to_dict()})
    run.write_result({"test_accuracy": 1.0, "best_accuracy": 1.0, "best_epoch": 1, "seconds": 120.0})
    told = invoke("run", "start", "--dry-run", "--out", str(tmp_path), "--workers", "1")
    assert_carries(told, "1 complete", "14 to run", "28 min", "1 at a time")


def test_a_dry_run_on_ray_estimates_with_the_slots_of_the_cluster(tmp_path, monkeypatch):
    class Cluster(InThisProcess):
        num_slots, place_text = 7, "on Ray: 7 at a time"

        def __init__(self, settings: Settings, **options) -> None:
            assert options == {"num_gpus": 0.5, "num_cpus": 1, "address": None, "fetch": False}

    monkeypatch.setattr("tempbalance.lab.executors.ray.Cluster", Cluster)
    found = invoke("run", "start", "--dry-run", "--ray", "--gpus", "0.5", "--out", str(tmp_path / "runs"))
    assert "on Ray: 7 at a time" in found
    assert not (tmp_path / "runs").exists()


def test_status_tells_the_pace_and_the_expected_end(tmp_path):
    study, preset = find_study("start"), PRESETS["smoke"]
    done, running = [Job(r, tmp_path / r.id) for r in (study.points(preset)[0].recipe(seed) for seed in (43, 37))]
    done.run.write_recipe({"recipe": done.recipe.to_dict()})
    os.utime(done.folder / "recipe.json", (time.time() - 1800, time.time() - 1800))
    done.run.write_result({"test_accuracy": 1.0, "best_accuracy": 1.0, "best_epoch": 1, "seconds": 120.0})
    running.folder.mkdir()
    lock = take_lock(running.folder / "run.lock")
    assert lock is not None
    found = invoke("status", "start", "--preset", "smoke", "--out", str(tmp_path))
    lock.release()
    assert_carries(found, "2 runs an hour over the last 1", "the last ends on ")


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
    assert_carries(told, "0 done, 1 running, 1 failed, 4 left", "epoch 2 of 2", "12.50 %")
    (line,) = [line for line in told.splitlines() if failed.folder.name in line]
    assert_carries(line, "ValueError: too bad", failed.folder / "failure.txt")
    lock.release()


@pytest.mark.parametrize(
    ("arguments", "carried"),
    [
        (("run", "mian"), ["'mian'", "'main'"]),
        (("run", "main", "--preset", "desk"), ["preset", "'desk'", "paper, laptop, smoke"]),
        (("run", "main", "--only", "model=resnet"), ["main", "model", "'resnet'"]),
        (("run", "main", "--dataset", "no.npz"), ["no.npz'", "digits"]),
        (("run", "main", "--dataset", " "), ["dataset", "' '"]),
        (("run", "main", "--device", "gpus"), ["device", "'gpus'", "'gpu'"]),
        (("run", "main", "--precision", "fp16"), ["precision", "'fp16'"]),
        (("run", "main", "--preset", "paper", "--dataset", "digits"), ["dataset", "paper"]),
        (("report", "main", "--format", "tex"), ["format", "'tex'"]),
        (("report", "main", "--html", "."), ["html", "'.'"]),
        (("claims", "--format", "tex"), ["format", "'tex'"]),
    ],
)
def test_bad_usage_is_told_in_a_line_and_exits_with_2(arguments, carried, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["study", *arguments, "--out", "runs"])
    assert_bad_usage(result, "error: ", *carried)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_process_that_is_used_badly_exits_with_2(tmp_path):
    command = [sys.executable, "-m", "tempbalance.cli", "study", "run", "mian", "--out", "runs"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert_carries(result.stderr, "error: ", "'mian'", "'main'")
    assert list(tmp_path.iterdir()) == []


def test_runs_of_own_data_and_a_part_of_a_study(in_process, tmp_path):
    import numpy as np

    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    labels = np.arange(40) % 4
    np.savez(tmp_path / "own.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    where = ("main", "--preset", "smoke", "--dataset", str(tmp_path / "own.npz"), "--out", str(tmp_path / "runs"))
    part = ("--only", "model=resnet18", "--only", "method=cal")
    invoke("run", *where, *part, "--device", "cpu")
    told = invoke("report", *where, *part)
    assert "own.npz" in told
    assert "1 of 1" in told
    recipes = [json.loads(path.read_text())["recipe"] for path in (tmp_path / "runs").glob("*/recipe.json")]
    assert {(each["model"], each["method"], each["dataset"]) for each in recipes} == {
        ("resnet18", "cal", str(tmp_path / "own.npz"))
    }
