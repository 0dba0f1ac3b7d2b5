"""Runs of detection, in a trainer of ours that behaves like ultralytics'; the real one is tested in `tests/vision`."""

import io
import signal

import pytest
import torch
from rich.console import Console

import tempbalance
from tempbalance.lab.detection import recipe as recipe_module
from tempbalance.lab.detection import training
from tempbalance.lab.detection.recipe import DetectionRecipe
from tempbalance.lab.runs import InterruptedRunError, OtherRunError, TrainingError
from tempbalance.runlog import BusyRunError, RunFolder, RunFolderError
from tests.cases import mlp, raises
from tests.lab.cut import resumed_after
from tests.lab.detection.layout import annotation_xml, make_voc, object_xml
from tests.lab.detection.stand_in import PACKAGE, FakeYolo


@pytest.fixture(autouse=True)
def package(monkeypatch):
    monkeypatch.setattr(training, "load_ultralytics", lambda: PACKAGE)
    monkeypatch.setattr(FakeYolo, "stop_at", None)
    monkeypatch.setattr(FakeYolo, "trained", [])
    monkeypatch.setattr(FakeYolo, "tested", [])


class Runs:
    """Runs of one recipe in one folder."""

    def __init__(self, tmp_path):
        self.cache, self.folder, self.data = tmp_path / "cache", tmp_path / "run", make_voc(tmp_path / "data")
        self.said = io.StringIO()

    def __call__(self, **options):
        defaults = {"dataset": str(self.data), "model": "yolov8n.yaml", "epochs": 3, "lr": 0.01, "batch_size": 4}
        settings = {name: options.pop(name) for name in ("device", "precision") if name in options}
        console = Console(file=self.said, width=200)
        recipe = DetectionRecipe(**{**defaults, **options})
        return training.train_on_ultralytics(
            recipe,
            self.folder,
            console=console,
            cache=self.cache,
            **{"device": "cpu", "checkpoint_every": 0, **settings},
        )

    @property
    def run(self):
        return RunFolder(self.folder)

    def stop(self, event, epoch, problem):
        FakeYolo.stop_at, FakeYolo.problem = (event, epoch), problem


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path)


class Killed(BaseException):
    """As a kill: nobody takes it."""


def kill(_):
    raise Killed


def test_a_run_notes_each_epoch_and_its_result_is_that_of_the_last(runs):
    result = runs()
    assert [line["epoch"] for line in runs.run.metrics] == [1, 2, 3]
    assert [line["test_map"] for line in runs.run.metrics] == [30.0, 60.0, 50.0]
    assert [line["train_loss"] for line in runs.run.metrics] == [3.0, 4.0, 5.0]
    seconds = result.pop("seconds")
    assert seconds > 0
    assert result == {
        "test_map": 50.0,
        "test_map50": 60.0,
        "best_map": 60.0,
        "best_epoch": 2,
        "epochs": 3,
    }
    assert runs.run.result == {**result, "seconds": seconds}
    noted = runs.run.recipe
    assert noted["recipe"]["kind"] == "detection"
    assert noted["versions"]["ultralytics"] == "0.0"
    assert "epoch 2 of 3: train loss 4.0000, test mAP 60.00 %" in runs.said.getvalue()


def test_with_the_published_split_each_epoch_is_validated_and_the_best_and_the_last_one_are_tested(runs):
    result = runs(split="train")
    lines = runs.run.metrics
    assert [line["valid_map"] for line in lines] == [30.0, 60.0, 50.0]
    assert [line["valid_fitness"] for line in lines] == pytest.approx([31.0, 61.0, 51.0])
    assert not any("test_map" in line for line in lines)
    assert (result["best_epoch"], result["valid_map"], result["valid_map50"]) == (2, 60.0, 70.0)
    assert (result["best_map"], result["best_map50"]) == pytest.approx((52.0, 62.0))
    assert (result["test_map"], result["test_map50"]) == pytest.approx((54.0, 64.0))
    assert [each["epoch"] for each in FakeYolo.tested] == [3, 2]
    assert {each["split"] for each in FakeYolo.tested} == {"test"}
    assert "epoch 2 of 3: train loss 4.0000, validation mAP 60.00 %" in runs.said.getvalue()


def test_with_the_split_trainval_no_checkpoint_is_tested_again(runs):
    runs()
    assert FakeYolo.tested == []


@pytest.mark.parametrize(("event", "epoch"), [("on_train_epoch_end", 2), ("on_train_end", 2)])
def test_the_best_checkpoint_is_kept_when_a_run_is_killed(runs, event, epoch):
    whole = runs(split="train")
    runs.folder = runs.folder.with_name("killed")
    runs.stop(event, epoch, kill)
    with pytest.raises(Killed):
        runs(split="train")
    FakeYolo.stop_at = None
    (runs.folder / "ultralytics" / "weights" / "best.pt").unlink(missing_ok=True)
    resumed = runs(split="train")
    assert {**resumed, "seconds": 0} == {**whole, "seconds": 0}


def scales_of(net):
    groups = tempbalance.param_groups(net)
    return tempbalance.TempBalance(torch.optim.SGD(groups, lr=1.0), net, scale_range=(0.6, 1.4)).last_scales


def test_layers_are_noted_with_the_scales_of_the_weights_before_each_epoch_and_the_rates_in_it(runs):
    runs()
    lines = runs.run.layers
    first = {line["layer"]: line["scale"] for line in lines if line["epoch"] == 0}
    assert first == pytest.approx(scales_of(mlp()))
    assert {line["epoch"] for line in lines} == {0, 1, 2}
    base = {epoch: 0.01 * (1 - epoch / 3) for epoch in range(3)}
    for line in lines:
        assert line["rate"] == pytest.approx(base[line["epoch"]] * line["scale"])
    for epoch, line in enumerate(runs.run.metrics):
        scales = [each["scale"] for each in lines if each["epoch"] == epoch]
        assert line["lr_min"] == pytest.approx(base[epoch] * min(*scales, 1))
        assert line["lr_max"] == pytest.approx(base[epoch] * max(*scales, 1))


def test_without_balancing_layers_are_scored_and_keep_the_rate(runs):
    runs(method="adamw")
    assert {line["scale"] for line in runs.run.layers} == {1.0}
    assert all(line["alpha"] > 1 for line in runs.run.layers)


@pytest.mark.parametrize("event", ["on_train_epoch_end", "on_model_save", "on_fit_epoch_end"])
def test_a_run_that_was_killed_goes_on_after_its_last_epoch(runs, event):
    runs.stop(event, 1, kill)
    with pytest.raises(Killed):
        runs()
    finished = 2 if event == "on_fit_epoch_end" else 1
    FakeYolo.stop_at = None
    runs()
    first, second = FakeYolo.trained
    assert not first["resume"]
    assert second["resume"]
    assert second["source"] == str(runs.folder / "ultralytics" / "weights" / "last.pt")
    assert [line["epoch"] for line in runs.run.metrics] == [1, 2, 3]
    noted = [(line["epoch"], line["layer"]) for line in runs.run.layers]
    assert len(noted) == len({*noted})
    assert {epoch for epoch, _ in noted} == {0, 1, 2}
    assert resumed_after(runs.said.getvalue()) == [finished]


def test_a_kill_between_the_log_and_the_checkpoint_repeats_the_epoch_without_a_second_line(runs, monkeypatch):
    save = RunFolder.save_checkpoint

    def kill_second(self, content, **options):
        if len(self.metrics) == 2:
            raise Killed
        save(self, content, **options)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_checkpoint", kill_second)
        with pytest.raises(Killed):
            runs()
    assert len(runs.run.metrics) == 2
    runs()
    assert [line["epoch"] for line in runs.run.metrics] == [1, 2, 3]
    noted = [(line["epoch"], line["layer"]) for line in runs.run.layers]
    assert len(noted) == len({*noted})


def test_a_run_that_was_killed_before_its_result_was_written_only_writes_it(runs):
    runs.stop("on_train_end", 2, kill)
    with pytest.raises(Killed):
        runs()
    assert runs.run.result is None
    assert runs()["test_map"] == 50.0
    assert len(FakeYolo.trained) == 1


def test_seconds_are_those_of_all_parts(runs, monkeypatch):
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr("tempbalance.lab.detection.training.time.monotonic", lambda: float(next(clock)))
    runs.stop("on_fit_epoch_end", 0, kill)
    with pytest.raises(Killed):
        runs()
    FakeYolo.stop_at = None
    assert runs()["seconds"] == 10 + 20  # a reading at each start and each epoch


def test_a_complete_run_is_not_trained_again(runs):
    result = runs()
    assert runs() == result
    assert len(FakeYolo.trained) == 1
    assert str(runs.folder) in runs.said.getvalue()


@pytest.fixture
def handler():
    """What somebody else has asked SIGTERM to do."""

    def handle(*_):
        raise AssertionError("SIGTERM did not end the run")

    before = signal.signal(signal.SIGTERM, handle)
    at_ctrl_c = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
    yield handle
    signal.signal(signal.SIGTERM, before)
    signal.signal(signal.SIGINT, at_ctrl_c)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_with_what_is_kept(runs, handler, number):
    runs.stop("on_train_epoch_start", 2, lambda _: signal.raise_signal(number))
    with raises(InterruptedRunError, "2 of 3", runs.folder):
        runs()
    assert signal.getsignal(signal.SIGTERM) is handler


def spoil_loss(trainer):
    trainer.tloss["cls_loss"] = float("nan")


def halve_batch(trainer):
    trainer.batch_size //= 2


@pytest.mark.parametrize(
    ("problem", "carried"),
    [
        (spoil_loss, ["nan", "epoch 2", "0.00"]),
        (halve_batch, ["batch_size", 4, 640, 2]),
    ],
)
def test_what_ultralytics_would_pass_over_ends_the_run(runs, problem, carried):
    runs.stop("on_train_epoch_end", 1, problem)
    with raises(TrainingError, *carried):
        runs()
    assert len(runs.run.metrics) == 1


def test_a_full_disk_is_told_with_the_epoch(runs, monkeypatch):
    def full(*_, **options):
        raise OSError("no space left")

    monkeypatch.setattr(RunFolder, "save_checkpoint", full)
    with raises(TrainingError, "epoch 1", runs.folder, "no space left"):
        runs()


def test_another_recipe_and_changed_data_are_refused(runs):
    runs()
    with raises(OtherRunError, "lr", 0.01, 0.02):
        runs(lr=0.02)
    (runs.data / "Annotations" / "a.xml").write_text(annotation_xml(object_xml("cat")))
    with raises(OtherRunError, "data", runs.data):
        runs()


def test_a_folder_in_which_another_process_trains_is_busy(runs):
    with RunFolder(runs.folder).locked(), pytest.raises(BusyRunError):
        runs()


def test_a_log_that_lacks_an_epoch_is_not_gone_on_from(runs):
    runs.stop("on_train_epoch_start", 2, kill)
    with pytest.raises(Killed):
        runs()
    path = runs.folder / "metrics.jsonl"
    path.write_text(path.read_text().splitlines()[1] + "\n")
    with raises(RunFolderError, "metrics.jsonl", 2):
        runs()


def test_damaged_checkpoints_are_said_and_the_run_starts_again(runs):
    runs.stop("on_train_epoch_start", 2, kill)
    with pytest.raises(Killed):
        runs()
    (runs.folder / "last.ckpt").write_bytes(b"damaged")
    FakeYolo.stop_at = None
    runs()
    assert "last.ckpt" in runs.said.getvalue()
    assert not FakeYolo.trained[-1]["resume"]
    assert [line["epoch"] for line in runs.run.metrics] == [1, 2, 3]


def test_the_options_of_ultralytics_are_the_papers():
    options = training.train_options(DetectionRecipe(method="adamw"), known={"cls_remap"})
    expected = {
        "optimizer": "AdamW", "lr0": 1e-5, "lrf": 0.0, "cos_lr": True, "momentum": 0.9, "weight_decay": 5e-4,
        "epochs": 200, "batch": 64, "nbs": 64, "patience": 0, "warmup_epochs": 0.0, "cls_remap": False, "seed": 43,
    }  # fmt: skip
    assert options.items() >= expected.items()
    assert "cls_remap" not in training.train_options(DetectionRecipe(), known={})


def test_betas_and_eps_are_set_in_the_optimizer(runs):
    seen = []
    runs.stop("on_train_epoch_end", 0, lambda trainer: seen.extend(trainer.optimizer.param_groups))
    runs(betas=(0.8, 0.99), eps=1e-6)
    assert {(group["betas"], group["eps"]) for group in seen} == {((0.8, 0.99), 1e-6)}


@pytest.mark.parametrize(
    ("options", "carried"),
    [
        ({"device": "tpu"}, ["device", "cuda", "'tpu'"]),
        ({"precision": "64-true"}, ["precision", "'64-true'"]),
        pytest.param(
            {"device": "cuda"},
            ["device", "cpu", "'cuda'"],
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_a_device_or_precision_that_cannot_be_is_refused(runs, options, carried):
    with raises(ValueError, *carried):
        runs(**options)
    assert not runs.folder.exists()


def test_weights_are_found_or_downloaded_only_when_the_model_asks_for_them(runs, monkeypatch, tmp_path):
    monkeypatch.setattr(training, "fetch", lambda file, cache: tmp_path / file.name)
    runs(model="yolov8n")
    assert FakeYolo.trained[0]["source"] == str(tmp_path / "detection" / "yolov8n.pt")


def test_what_to_install_is_said_where_ultralytics_is_missing(runs, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(recipe_module, "find_spec", lambda name: None)
    with raises(ModuleNotFoundError, "pip install ultralytics"):
        runs()
    assert not runs.folder.exists()


def test_adam_that_is_not_scored_trains_the_same(runs, tmp_path):
    runs(method="adam")
    scored, runs.folder = runs.run, tmp_path / "bare"
    runs(method="adam", score_baseline=False)
    assert runs.run.metrics == scored.metrics
    assert scored.layers
    assert not runs.run.layers
