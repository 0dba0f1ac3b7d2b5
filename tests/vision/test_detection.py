"""Runs and the study of detection with ultralytics itself, on drawn shapes, from random weights."""

import copy
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("ultralytics", reason="runs in its own environment: make test-vision")

from rich.console import Console
from ultralytics import YOLO

from tempbalance.lab.detection import training
from tempbalance.lab.detection.data import draw_shapes, ready_data
from tempbalance.lab.detection.recipe import DetectionRecipe
from tempbalance.lab.detection.training import Callbacks
from tempbalance.lab.jobs import Job
from tempbalance.runlog import RunFolder
from tests.integrations.contract import assert_same, note_rates
from tests.integrations.test_ultralytics import recomputed

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parent.parent.parent
SETTINGS = {"device": "cpu", "precision": "32-true", "threads": 1, "log_every": 1, "tensorboard": False}
STEPS_AN_EPOCH = 8


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shapes")
    draw_shapes(folder, num_images=(8 * STEPS_AN_EPOCH, 16))
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def environment(tmp_path):
    """For other processes: with what conftest.py does for torchvision, before anything is imported."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import tests.vision.conftest\n")
    paths = os.pathsep.join([str(tmp_path / "site"), str(REPOSITORY)])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def recipe_on(data, **options):
    small = {"model": "yolov8n.yaml", "epochs": 2, "batch_size": 8, "image_size": 64, "lr": 2e-3, "mosaic": 0.0}
    return DetectionRecipe(dataset=str(data), **{**small, **options})


def train(recipe, folder, cache, *, said=None):
    return training.train_on_ultralytics(
        recipe, folder, console=Console(file=said or io.StringIO()), cache=cache, **SETTINGS
    )


class Watch:
    """The rates of each step and the weights at the start of each epoch, of all trainings while it is there."""

    def __init__(self, monkeypatch):
        self.noted, self.held, attach = [], {}, Callbacks.attach

        def watched(recorder, model):
            attach(recorder, model)
            model.add_callback(
                "on_train_start", lambda trainer: note_rates(trainer.optimizer, trainer.model, self.noted)
            )
            model.add_callback("on_train_epoch_start", self._keep)

        monkeypatch.setattr(Callbacks, "attach", watched)

    def _keep(self, trainer):
        self.held[trainer.epoch] = copy.deepcopy(trainer.model)


def test_it_learns_to_find_shapes_and_the_precision_is_that_of_ultralytics_on_the_test_set(data, cache, tmp_path):
    result = train(recipe_on(data, epochs=16), tmp_path / "run", cache)
    lines = RunFolder(tmp_path / "run").metrics
    assert lines[-1]["train_loss"] < lines[0]["train_loss"]
    assert result["test_map"] > 5
    assert result["test_map"] == lines[-1]["test_map"]
    assert result["best_map"] == max(line["test_map"] for line in lines)
    description = ready_data(str(data), cache=cache).description
    model = YOLO(tmp_path / "run" / "ultralytics" / "weights" / "last.pt")
    own = model.val(data=str(description), imgsz=64, batch=16, device="cpu", workers=0, plots=False, split="test")
    assert result["test_map"] == pytest.approx(100 * own.box.map, abs=0.1)
    assert result["test_map50"] == pytest.approx(100 * own.box.map50, abs=0.1)


def test_with_the_published_split_the_best_checkpoint_on_val_is_tested_on_test(data, cache, tmp_path):
    result = train(recipe_on(data, epochs=12, batch_size=4, split="train"), tmp_path / "run", cache)
    lines = RunFolder(tmp_path / "run").metrics
    fitness = [line["valid_fitness"] for line in lines]
    assert result["best_epoch"] == 1 + fitness.index(max(fitness))
    assert result["valid_map"] == lines[result["best_epoch"] - 1]["valid_map"] > 0
    description = ready_data(str(data), cache=cache, split="train").description
    for name, part, key in (("best", "val", "valid_map"), ("best", "test", "best_map"), ("last", "test", "test_map")):
        model = YOLO(tmp_path / "run" / "ultralytics" / "weights" / f"{name}.pt")
        own = model.val(data=str(description), imgsz=64, batch=16, device="cpu", workers=0, plots=False, split=part)
        assert result[key] == pytest.approx(100 * own.box.map, abs=0.1)


def test_each_step_is_at_the_cosines_rate_times_the_scales_of_the_weights_it_held(data, cache, tmp_path, monkeypatch):
    watch = Watch(monkeypatch)
    train(recipe_on(data), tmp_path / "run", cache)
    assert len(watch.noted) == 2 * STEPS_AN_EPOCH
    base = {0: 2e-3, 1: 1e-3}  # half of the cosine is half of the rate
    expected = []
    for step, rates in enumerate(watch.noted):
        epoch = step // STEPS_AN_EPOCH
        expected.append(recomputed(watch.held[epoch], dict.fromkeys(rates, base[epoch])))
    assert_same(watch.noted, expected)
    lines = RunFolder(tmp_path / "run").layers
    assert {line["epoch"] for line in lines} == {0, 1}
    for line in lines:
        assert line["rate"] == pytest.approx(watch.noted[line["epoch"] * STEPS_AN_EPOCH][f"{line['layer']}.weight"])
    by_alpha = sorted((line for line in lines if line["epoch"] == 1), key=lambda line: line["alpha"])
    scales = [line["scale"] for line in by_alpha]
    assert scales == sorted(scales)
    assert (scales[0], scales[-1]) == pytest.approx((0.6, 1.4))


def test_without_balancing_every_layer_has_the_cosines_rate_and_the_same_seed_gives_the_same_run(
    data, cache, tmp_path, monkeypatch
):
    watch = Watch(monkeypatch)
    for name in ("one", "other"):
        train(recipe_on(data, method="adamw", lr=1e-3), tmp_path / name, cache)
    for step, rates in enumerate(watch.noted):
        epoch = step // STEPS_AN_EPOCH % 2
        assert [*rates.values()] == pytest.approx([(1e-3, 5e-4)[epoch]] * len(rates))
    one, other = (RunFolder(tmp_path / name).metrics for name in ("one", "other"))
    assert one == other


def test_a_run_that_was_killed_goes_on_from_its_last_epoch(data, cache, tmp_path, environment):
    recipe, folder = recipe_on(data, epochs=4), tmp_path / "run"
    folder.mkdir()
    Job(recipe, folder).ask()
    code = (
        "import sys; from pathlib import Path; from tempbalance.lab.executors.local import work; import json;"
        "print(work(Path(sys.argv[1]), json.loads(sys.argv[2])))"
    )
    settings = json.dumps({**SETTINGS, "cache": str(cache), "checkpoint_every": 0})
    process = subprocess.Popen([sys.executable, "-c", code, str(folder), settings], env=environment)
    deadline = time.monotonic() + 300
    while len(RunFolder(folder).metrics) < 2 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = RunFolder(folder).metrics
    assert 2 <= len(before) < 4
    moved = tmp_path / "elsewhere"
    folder.rename(moved)  # a folder may be carried to another machine
    said = io.StringIO()
    result = train(recipe, moved, cache, said=said)
    lines = RunFolder(moved).metrics
    assert "after epoch" in said.getvalue()  # not from the start
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4]
    assert lines[0] == before[0]  # the second may have been killed between its line and its checkpoint
    assert [line["lr_max"] for line in lines] == pytest.approx(
        [2.8e-3, 2.8e-3 * 0.8535534, 2.8e-3 * 0.5, 2.8e-3 * 0.1464466]
    )
    assert {line["epoch"] for line in RunFolder(moved).layers} == {0, 1, 2, 3}
    assert result["epochs"] == 4
    assert not folder.exists()


def test_the_study_runs_in_its_smallest_preset_and_reports_beside_the_paper(tmp_path, environment, cache):
    where = ["detection", "--preset", "smoke", "--only", "optimizer=adam", "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "tempbalance.cli", "study"]
    environment["TEMPBALANCE_CACHE"] = str(cache)
    ran = subprocess.run([*command, "run", *where], env=environment, capture_output=True, text=True, timeout=1200)
    assert ran.returncode == 0, ran.stderr
    told = subprocess.run(
        [*command, "report", *where, "--format", "csv"], env=environment, capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
    assert "60.03" in told.stdout
    assert "59.59" in told.stdout
