"""Training survives what happens to it: kills, damage, other recipes, losses that are not finite."""

import io
import multiprocessing
import os
import random
import re
import shutil
import signal
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.images.training import ImageTraining, initial_network
from tempbalance.lab.recipe import METHODS
from tempbalance.lab.runs import DivergedError, InterruptedRunError, OtherRunError, TrainingError, load_weights
from tempbalance.lab.train import train
from tempbalance.report.runs import write_runs
from tempbalance.runlog import BusyRunError, RunFolder, RunFolderError
from tests.cases import assert_carries, changed, raises
from tests.lab.cut import cpu

SMALL = ImageRecipe(dataset="digits", model="mlp", width=0.25, method="tb+snr", epochs=5, limit=300)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def run(recipe: ImageRecipe, folder: Path, slow: float = 0.0) -> None:
    """Train in a process of its own, with every write to the disk drawn out."""
    torch.set_num_threads(1)
    if slow:
        real = os.fsync

        def fsync(descriptor):
            time.sleep(slow)
            real(descriptor)

        os.fsync = fsync
    train(recipe, folder, device="cpu", checkpoint_every=0)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    checkpoint = torch.load(folder / "last.ckpt", weights_only=True)
    return {**checkpoint["training"]["network"], **checkpoint["training"]["regularizer"]}


def flat(state: dict) -> dict[str, torch.Tensor]:
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def assert_same_run(one: Path, other: Path) -> None:
    """Equal to the bit: the logs, and everything in the last checkpoint that is a tensor."""
    for name in ("metrics.jsonl", "layers.jsonl"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    ours, theirs = flat(weights(one)), flat(weights(other))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert RunFolder(one).result["test_accuracy"] == RunFolder(other).result["test_accuracy"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    run(SMALL, folder)
    return folder


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    """A copy of that run, to be damaged."""
    return shutil.copytree(whole, tmp_path / "copy")


def test_a_run_that_is_killed_goes_on_to_the_bit(whole, tmp_path):
    process = multiprocessing.get_context("fork").Process(target=run, args=(SMALL, tmp_path, 0.05))
    process.start()
    deadline = time.monotonic() + 60
    while not RunFolder(tmp_path).metrics and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert 1 <= len(RunFolder(tmp_path).metrics) < SMALL.epochs
    run(SMALL, tmp_path)
    assert_same_run(tmp_path, whole)


def test_a_run_leaves_what_it_should(whole):
    folder = RunFolder(whole)
    assert {path.name for path in whole.iterdir()} >= {
        "recipe.json",
        "metrics.jsonl",
        "layers.jsonl",
        "last.ckpt",
        "best.ckpt",
        "result.json",
    }
    assert ImageRecipe.from_dict(folder.recipe["recipe"]) == SMALL
    assert "torch" in folder.recipe["versions"]
    assert [line["epoch"] for line in folder.metrics] == [1, 2, 3, 4, 5]
    assert sorted({line["epoch"] for line in folder.layers}) == [0, 1, 2, 3, 4, 5]
    result = folder.result
    assert result["test_accuracy"] == folder.metrics[-1]["test_accuracy"]
    assert result["best_accuracy"] == max(line["test_accuracy"] for line in folder.metrics)
    assert result["seconds"] > 0


def test_a_run_is_read_in_python_as_the_documentation_says(whole, tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[3] / "docs" / "lab.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    shutil.copytree(whole, tmp_path / "runs" / "c100-tb-43")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(code, names)
    assert capsys.readouterr().out.startswith(str(RunFolder(whole).result["test_accuracy"]))
    assert names["recipe"] == SMALL
    assert sum(parameter.numel() for parameter in names["network"].parameters()) > 1000


def test_the_weights_of_a_finished_run_are_read_with_one_function(whole, tmp_path):
    network = initial_network(SMALL, SMALL.load())
    network.load_state_dict(load_weights(whole))
    saved = torch.load(whole / "last.ckpt", weights_only=True)["training"]["network"]
    assert all(torch.equal(each, saved[name]) for name, each in network.state_dict().items())
    network.load_state_dict(load_weights(whole, best=True))
    with raises(RunFolderError, tmp_path, "last.ckpt"):
        load_weights(tmp_path)


def test_layers_are_trained_at_rates_within_the_range_that_follow_alpha(whole):
    lines = RunFolder(whole).layers
    for epoch in range(5):  # after the last one the cosine is zero
        layers = [line for line in lines if line["epoch"] == epoch]
        assert len(layers) >= 2
        base = SMALL.lr / 2 * (1 + torch.cos(torch.tensor(epoch / 5, dtype=torch.float64) * torch.pi).item())
        assert all(line["rate"] == pytest.approx(base * line["scale"], rel=1e-9) for line in layers)
        assert {min(line["scale"] for line in layers), max(line["scale"] for line in layers)} == {0.5, 1.5}
        by_alpha = sorted(layers, key=lambda line: line["alpha"])
        assert [line["rate"] for line in by_alpha] == sorted(line["rate"] for line in layers)


@pytest.mark.slow
def test_ten_kills_at_random_instants_change_no_bit(tmp_path):
    """Every write to the disk takes 0.2 s here, and every other kill waits for one."""
    recipe = ImageRecipe.from_dict({**SMALL.to_dict(), "epochs": 30})
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(recipe, whole)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.lab.images.test_training"])
    instants, kills, in_write = random.Random(1), 0, 0
    while kills < 10:
        process = context.Process(target=run, args=(recipe, killed, 0.2))
        process.start()
        process.join(instants.uniform(0.2, 2.5))
        while kills % 2 and process.exitcode is None and not is_writing(killed):
            time.sleep(0.005)
        assert process.exitcode is None, "the run was over before it was killed ten times"
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        kills += 1
        in_write += is_writing(killed)
    assert in_write > 0
    run(recipe, killed)
    assert_same_run(killed, whole)


def is_writing(folder: Path) -> bool:
    return any(folder.glob(".*.new"))


@pytest.mark.parametrize(
    "damage", [lambda content: content[: len(content) // 2], lambda content: content[:99] + b"\xff" + content[100:]]
)
def test_a_damaged_checkpoint_is_noticed_and_the_run_starts_again(whole, copy, damage):
    (copy / "result.json").unlink()
    last = copy / "last.ckpt"
    last.write_bytes(damage(last.read_bytes()))
    run(SMALL, copy)
    assert_same_run(copy, whole)


def test_a_finished_run_is_left_alone(whole):
    before = {path: path.stat().st_mtime_ns for path in whole.iterdir()}
    assert train(SMALL, whole) == RunFolder(whole).result
    assert {path: path.stat().st_mtime_ns for path in whole.iterdir()} == before


def test_another_recipe_is_refused_with_the_difference(whole):
    other = ImageRecipe.from_dict({**SMALL.to_dict(), "lr": 0.2})
    with raises(OtherRunError, "lr", 0.1, 0.2):
        train(other, whole)


def test_a_loss_that_is_not_finite_ends_the_run_with_the_epoch_the_layer_and_its_rate(tmp_path):
    broken = ImageRecipe.from_dict({**SMALL.to_dict(), "method": "cal", "lr": 1e20, "weight_decay": 1e30})
    with raises(DivergedError, "epoch 1", "'linear", "1e+20") as found:
        train(broken, tmp_path, device="cpu")
    assert RunFolder(tmp_path).result is None
    RunFolder(tmp_path).write_result(found.value.result)  # as a sweep does
    with raises(DivergedError, tmp_path, "epoch 1"):
        train(broken, tmp_path, device="cpu")


def test_a_loss_that_breaks_in_the_very_last_step_is_noticed_too(tmp_path):
    options = {"method": "cal", "lr": 1e20, "limit": 100, "epochs": 1}  # one step
    broken = ImageRecipe.from_dict({**SMALL.to_dict(), **options})
    with raises(TrainingError, "test loss", "epoch 1", "1e+20"):
        train(broken, tmp_path, device="cpu")
    assert RunFolder(tmp_path).metrics == []


def test_a_run_that_finished_no_epoch_leaves_its_folder_free(whole, tmp_path):
    broken = ImageRecipe.from_dict({**SMALL.to_dict(), "method": "cal", "lr": 1e20, "weight_decay": 1e30})
    with pytest.raises(TrainingError):
        train(broken, tmp_path, device="cpu")
    assert RunFolder(tmp_path).recipe["recipe"]["lr"] == 1e20
    run(SMALL, tmp_path)
    assert_same_run(tmp_path, whole)


@pytest.mark.parametrize(
    ("options", "trainer", "carried"),
    [
        ({"dataset": "cifar11"}, {}, ["dataset", "'cifar11'"]),
        ({"model": "resnet18", "batch_size": 1}, {}, ["resnet18", "BatchNorm", 1, 300]),
        ({}, {"device": "none"}, ["accelerator", "'none'"]),
        ({}, {"device": "cpu", "precision": "3"}, ["recision"]),
        ({"batch_size": 3}, {"device": "cpu", "devices": 4}, ["batch_size", 4, 3]),
    ],
)
def test_what_cannot_be_trained_is_refused_before_there_is_a_folder(tmp_path, options, trainer, carried):
    with raises(ValueError, *carried):
        train(ImageRecipe.from_dict({**SMALL.to_dict(), **options}), tmp_path / "run", **trainer)
    assert list(tmp_path.iterdir()) == []


def test_a_last_batch_of_one_image_does_not_stop_a_network_with_batchnorm(tmp_path):
    recipe = ImageRecipe(model="resnet18", width=0.0625, epochs=1, batch_size=32, limit=33)
    assert train(recipe, tmp_path, device="cpu")["test_accuracy"] >= 0


def write_npz(path: Path, **changes: np.ndarray) -> str:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (40, 5, 7), dtype=np.uint8), np.arange(40) % 4
    arrays = {"train_images": images, "train_labels": labels, "test_images": images[:8], "test_labels": labels[:8]}
    np.savez(path, **{**arrays, **changes})
    return str(path)


def test_a_run_does_not_go_on_with_other_data_or_another_precision(tmp_path):
    path = tmp_path / "own.npz"
    recipe = ImageRecipe(dataset=write_npz(path), model="mlp", width=0.25, epochs=1)
    folder = tmp_path / "run"
    result = train(recipe, folder, device="cpu")
    assert train(recipe, folder, device="cpu", precision="32") == result
    with raises(OtherRunError, "precision", "'32-true'", "'bf16-mixed'"):
        train(recipe, folder, device="cpu", precision="bf16")
    write_npz(path, train_labels=np.zeros(40, int), test_labels=np.zeros(8, int))
    with raises(OtherRunError, "data", path):
        train(recipe, folder, device="cpu")
    content = RunFolder(folder).recipe
    assert (content["precision"], content["devices"]) == ("32-true", 1)
    RunFolder(folder).write_recipe({"recipe": content["recipe"]})  # as an older version has left it
    assert train(recipe, folder, device="cpu") == result
    path.unlink()
    assert train(recipe, folder, device="cpu") == result


def test_one_process_trains_in_a_folder(tmp_path):
    with RunFolder(tmp_path).locked(), raises(BusyRunError, tmp_path):
        train(SMALL, tmp_path, device="cpu")
    assert RunFolder(tmp_path).recipe is None


def test_a_person_is_told_where_a_run_goes_on_and_what_is_damaged(copy):
    console = Console(file=io.StringIO(), width=10_000)
    for damaged in ([], ["last.ckpt"]):
        (copy / "result.json").unlink()
        for name in damaged:
            (copy / name).write_bytes(b"")
        train(SMALL, copy, device="cpu", console=console)
    train(SMALL, copy, device="cpu", console=console)
    told = [line for line in console.file.getvalue().splitlines() if not line.startswith("epoch ")]
    carried = [["epoch 5"], ["last.ckpt"], []]
    for text, parts in zip(told, carried, strict=True):
        assert_carries(text, copy, *parts)


@pytest.mark.parametrize(("keep", "lacking"), [(0, "1, 2, 3, 4, 5"), (3, "4, 5")])
def test_a_log_that_does_not_reach_the_checkpoint_is_named(copy, keep, lacking):
    (copy / "result.json").unlink()
    lines = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_text("".join(lines[:keep]))
    with raises(RunFolderError, "metrics.jsonl", 5, lacking):
        train(SMALL, copy, device="cpu")


@pytest.mark.parametrize("change", [lambda path: path.write_bytes(b""), Path.unlink], ids=["emptied", "removed"])
def test_training_notices_that_a_complete_run_has_lost_its_layers(copy, change):
    change(copy / "layers.jsonl")
    with raises(RunFolderError, "layers.jsonl", "complete"):
        train(SMALL, copy, device="cpu")


def test_a_log_of_layers_that_lacks_epochs_is_named(copy):
    (copy / "result.json").unlink()
    (copy / "layers.jsonl").unlink()
    with raises(RunFolderError, "layers.jsonl"):
        train(SMALL, copy, device="cpu")


@pytest.mark.parametrize(("name", "carried"), [("result.json", "test_accuracy"), ("recipe.json", "recipe.json")])
def test_an_empty_file_of_a_run_is_named(copy, name, carried):
    (copy / name).write_text("{}")
    with raises(RunFolderError, name, carried):
        train(SMALL, copy, device="cpu")


def test_a_layers_rate_is_that_of_its_weight(tmp_path):
    """LARS trains vectors at another."""
    recipe = ImageRecipe(model="mlp", width=0.25, method="lars", epochs=1, limit=100)
    train(recipe, tmp_path, device="cpu")
    assert {line["rate"] for line in RunFolder(tmp_path).layers if line["epoch"] == 0} == {28.0}


def test_nothing_of_a_run_goes_through_the_temporary_folder(whole, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    run(SMALL, tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)


def test_a_full_disk_stops_the_run_and_keeps_the_last_good_checkpoint(whole, tmp_path, monkeypatch):
    real, calls = RunFolder.save_checkpoint, []

    def save_checkpoint(self, content, **options):
        calls.append(1)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        real(self, content, **options)

    monkeypatch.setattr(RunFolder, "save_checkpoint", save_checkpoint)
    with raises(TrainingError, "epoch 3", tmp_path, "No space left on device", "MB", "after epoch 2"):
        train(SMALL, tmp_path, device="cpu", checkpoint_every=0)
    monkeypatch.undo()
    assert RunFolder(tmp_path).checkpoint()["epoch"] == 2
    run(SMALL, tmp_path)
    assert_same_run(tmp_path, whole)


def test_being_asked_to_stop_says_what_is_kept(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=told, args=(queue, tmp_path))
    process.start()
    deadline = time.monotonic() + 60
    while not RunFolder(tmp_path).metrics and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    message = queue.get(timeout=60)
    process.join()
    assert_carries(message, "of 10000", tmp_path)
    assert RunFolder(tmp_path).result is None


def told(queue, folder: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the tests' process may have a handler, for coverage
    torch.set_num_threads(1)
    try:
        train(ImageRecipe.from_dict({**SMALL.to_dict(), "epochs": 10_000}), folder, device="cpu")
    except InterruptedRunError as err:
        queue.put(str(err))


FAST = ("tb", "sgdr", "lookahead")  # one that balances, one with another schedule, one that wraps an optimizer


@pytest.mark.parametrize(
    "method", [each if each in FAST else pytest.param(each, marks=pytest.mark.slow) for each in METHODS]
)
def test_every_method_learns_the_digits_with_its_defaults(method, tmp_path):
    result = train(ImageRecipe(model="mlp", width=0.25, epochs=15, method=method), tmp_path, device="cpu")
    assert result["test_accuracy"] > 90


def scales(folder: Path) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for line in RunFolder(folder).layers:
        found.setdefault(line["epoch"], []).append(line["scale"])
    return found


def test_balancing_every_so_many_steps_is_balancing_every_epoch_where_an_epoch_has_as_many(tmp_path):
    recipe = changed(SMALL, method="tb", epochs=3, batch_size=100)  # three steps an epoch
    run(recipe, tmp_path / "epochs")
    run(changed(recipe, interval_steps=3), tmp_path / "steps")
    for ours, theirs in zip(RunFolder(tmp_path / "steps").metrics, RunFolder(tmp_path / "epochs").metrics, strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-6)
    for name in ("steps", "epochs"):
        assert scales(tmp_path / name).keys() == {0, 1, 2, 3}
        assert RunFolder(tmp_path / name).result["num_balancings"] == 3
    run(changed(recipe, interval_steps=1, start=1), tmp_path / "often")
    assert RunFolder(tmp_path / "often").result["num_balancings"] == 6  # none in the first epoch
    assert RunFolder(tmp_path / "often").result["balancing_seconds"] > 0
    assert 0 < RunFolder(tmp_path / "often").result["epoch_seconds"] < RunFolder(tmp_path / "often").result["seconds"]


def test_a_run_that_balances_in_steps_and_notes_them_goes_on_to_the_bit(tmp_path):
    recipe = changed(SMALL, interval_steps=2, log_steps=2, log_eigenvalues=True)
    run(recipe, tmp_path / "whole")
    for stop in (1, 3):
        folder = tmp_path / f"stopped{stop}"
        stop_at(stop, recipe, folder)
        run(recipe, folder)
        assert_same_run(folder, tmp_path / "whole")
        assert (folder / "steps.jsonl").read_bytes() == (tmp_path / "whole" / "steps.jsonl").read_bytes()


def stop_at(epoch: int, recipe: ImageRecipe, folder: Path) -> None:
    """Leave a run as a kill in the middle of the next epoch does: its lines are written, its checkpoint is not."""
    train(changed(recipe, stop_after=epoch), folder, device="cpu", keep_checkpoints=True)
    (folder / "result.json").unlink()
    content = RunFolder(folder).recipe
    RunFolder(folder).write_recipe({**content, "recipe": recipe.to_dict()})
    late = [{"epoch": epoch + 1, "step": 99, "layer": "linear1", "gradient_norm": 1.0}]
    RunFolder(folder).append([{"epoch": epoch + 1, "train_loss": 0}], steps=late)


def test_gradients_and_spectra_of_all_layers_are_noted_every_so_many_steps(tmp_path):
    recipe = changed(SMALL, method="cal", epochs=2, batch_size=100, log_steps=2, log_eigenvalues=True)
    run(recipe, tmp_path)
    lines = RunFolder(tmp_path).steps
    assert [(line["epoch"], line["step"]) for line in lines if line["layer"] == "linear1"] == [(1, 0), (1, 2), (2, 4)]
    assert {line["layer"] for line in lines} == {"linear1", "linear2", "linear3", "linear"}
    assert all(line["gradient_norm"] > 0 for line in lines)
    assert all(line["eigenvalues"] == sorted(line["eigenvalues"]) for line in lines)
    run(changed(recipe, log_eigenvalues=False), tmp_path / "short")
    assert "eigenvalues" not in RunFolder(tmp_path / "short").steps[0]


def test_only_the_layers_asked_for_are_logged(tmp_path):
    recipe = changed(SMALL, epochs=1, log_steps=2, log_eigenvalues=True, log_layers="*2")
    run(recipe, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert {line["layer"] for line in folder.steps} == {"linear2"}
    assert {line["layer"] for line in folder.layers if "eigenvalues" in line} == {"linear2"}
    with raises(ValueError, "log_layers", "'linear9'"):
        run(changed(recipe, log_layers="linear9"), tmp_path / "none")


def test_a_run_of_the_first_epochs_is_the_beginning_of_the_whole_one(whole, tmp_path):
    run(changed(SMALL, stop_after=2), tmp_path)
    assert RunFolder(tmp_path).metrics == RunFolder(whole).metrics[:2]
    assert RunFolder(tmp_path).result["epochs"] == 2


def test_the_test_set_can_be_smaller_than_the_training_set(tmp_path):
    run(changed(SMALL, epochs=1, limit=200, test_limit=10), tmp_path)
    assert (RunFolder(tmp_path).result["test_accuracy"] * 10 / 100) % 1 == pytest.approx(0, abs=1e-9)


def test_a_recipe_decides_followers_flips_and_power_iterations(tmp_path):
    options = {"model": "resnet18", "width": 0.0625, "method": "tb+snr", "limit": 64, "epochs": 1}
    training = ImageTraining(
        published := ImageRecipe(**options, norms="name", snr_iterations=5, flip=True), published.load(), cpu()
    )
    assert (training.regularizer.num_iterations, training.regularizer.fresh) == (5, True)
    label = {each: group.get("layer") for group in training.optimizer.param_groups for each in group["params"]}
    assert label[training.network.layer2[0].shortcut[1].weight] is None
    plain = ImageTraining(ours := ImageRecipe(**options), ours.load(), cpu())
    assert (plain.regularizer.num_iterations, plain.regularizer.fresh) == (1, False)
    label = {each: group.get("layer") for group in plain.optimizer.param_groups for each in group["params"]}
    assert label[plain.network.layer2[0].shortcut[1].weight] == "layer2.0.shortcut.0"
    flipped, straight = (next(each.batches(1))[0] for each in (training, plain))
    same = (flipped == straight).flatten(1).all(1)
    mirrored = (flipped == straight.flip(3)).flatten(1).all(1)
    assert (same | mirrored).all()
    assert mirrored.sum() > same.sum() / 4


@pytest.fixture
def solved(monkeypatch) -> list[tuple[int, ...]]:
    """Shapes of the matrices whose eigenvalues or singular values torch was asked for."""
    found: list[tuple[int, ...]] = []
    for name in ("eigvalsh", "svdvals", "eigh", "svd"):
        real = getattr(torch.linalg, name)

        def noted(matrix, *args, _real=real, **kwargs):
            found.append(tuple(matrix.shape))
            return _real(matrix, *args, **kwargs)

        monkeypatch.setattr(torch.linalg, name, noted)
    return found


@pytest.mark.parametrize("options", [{}, {"interval_steps": 2}, {"method": "sgdr"}, {"model": "resnet18"}])
def test_a_baseline_that_is_not_scored_trains_the_same_and_solves_nothing(tmp_path, solved, options):
    small = {"method": "cal", "epochs": 2, "min_eigenvalues": 3, "width": 0.0625, "limit": 64, "batch_size": 32}
    recipe = changed(SMALL, **{**small, **options})
    run(recipe, tmp_path / "scored")
    assert solved
    solved.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", module="lightning")
        run(changed(recipe, score_baseline=False), tmp_path / "bare")
    assert not solved
    scored, bare = RunFolder(tmp_path / "scored"), RunFolder(tmp_path / "bare")
    assert bare.metrics == scored.metrics
    assert scored.layers
    assert bare.layers == []
    assert bare.result["num_balancings"] == 0
    ours, theirs = load_weights(tmp_path / "scored"), load_weights(tmp_path / "bare")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_baseline_that_is_not_scored_resumes_and_has_a_page(tmp_path):
    recipe = changed(SMALL, method="cal", score_baseline=False, epochs=2)
    run(recipe, tmp_path / "whole")
    first = changed(recipe, stop_after=1)
    run(first, tmp_path / "cut")
    state = torch.load(tmp_path / "cut" / "last.ckpt", weights_only=True)
    training = ImageTraining(recipe, recipe.load(), cpu())
    training.epoch(1)
    resumed = ImageTraining(recipe, recipe.load(), cpu())
    resumed.load_state_dict(training.state_dict())
    assert state["training"]["scheduler"]["last_epoch"] == training.scheduler.last_epoch
    assert [resumed.epoch(2).metrics] == RunFolder(tmp_path / "whole").metrics[1:]
    (page,) = write_runs([tmp_path / "whole", tmp_path / "cut"], tmp_path / "report.html")
    assert page.stat().st_size


SPEEDY = ImageRecipe(model="resnet18", width=0.25, epochs=2, limit=64, batch_size=32, min_eigenvalues=3)


def fast(recipe: ImageRecipe, folder: Path, *speed: str) -> RunFolder:
    train(recipe, folder, device="cpu", checkpoint_every=0, keep_checkpoints=True, speed=speed)
    return RunFolder(folder)


def assert_speed_is_kept(recipe: ImageRecipe, tmp_path: Path, *speed: str) -> None:
    """Train with options of speed, whole and resumed after the first epoch; compare with a run without them."""
    plain = fast(changed(recipe, stop_after=1), tmp_path / "plain")
    whole = fast(recipe, tmp_path / "whole", *speed)
    loss, expected = (each.metrics[0]["train_loss"] for each in (whole, plain))
    assert loss == pytest.approx(expected, rel=1e-3)
    cut = tmp_path / "cut"
    shutil.copytree(tmp_path / "whole", cut)
    (cut / "result.json").unlink()
    shutil.copy(cut / "epoch-1.ckpt", cut / "last.ckpt")
    resumed = fast(recipe, cut, *speed)
    assert resumed.metrics == whole.metrics
    assert resumed.layers == whole.layers
    with raises(OtherRunError, "speed", *speed):
        fast(recipe, tmp_path / "whole")
    with raises(OtherRunError, "speed", *speed):
        fast(changed(recipe, stop_after=1), tmp_path / "plain", *speed)


@pytest.mark.parametrize("method", ["tb", "tb+snr", "tb+sgdp", "adamp", "lars", "lookahead", "lamb"])
def test_weights_in_channels_last_order_train_and_resume(tmp_path, method):
    recipe = changed(SPEEDY, method=method, lr=None)
    assert_speed_is_kept(recipe, tmp_path, "channels_last")
    training = ImageTraining(recipe, recipe.load(), cpu())
    training.accelerate(["channels_last"])
    convs = [each for each in training.network.parameters() if each.dim() == 4 and each.shape[-1] > 1]
    assert all(each.is_contiguous(memory_format=torch.channels_last) for each in convs)


@pytest.mark.parametrize("method", ["tb", "adam", "adamw"])
def test_fused_optimizers_train_and_resume(tmp_path, method):
    recipe = changed(SPEEDY, method=method, lr=None)
    assert_speed_is_kept(recipe, tmp_path, "fused")
    training = ImageTraining(recipe, recipe.load(), cpu())
    training.accelerate(["fused"])
    assert all(group["fused"] for group in training.optimizer.param_groups)


def test_an_optimizer_without_a_fused_form_and_unknown_options_of_speed_are_refused(tmp_path):
    with raises(ValueError, "speed", "LARS", "fused"):
        fast(changed(SPEEDY, method="lars"), tmp_path / "lars", "fused")
    with raises(ValueError, "channels_last", 16, 4):
        fast(changed(SPEEDY, width=0.0625), tmp_path / "narrow", "channels_last")
    with raises(ValueError, "speed", "'fuse'", "'fused'"):
        fast(SPEEDY, tmp_path / "unknown", "fuse")


@pytest.mark.slow
def test_a_compiled_network_trains_and_resumes(tmp_path):
    assert_speed_is_kept(changed(SPEEDY, model="mlp", method="tb"), tmp_path, "compile")
    assert_speed_is_kept(changed(SPEEDY, method="tb"), tmp_path / "all", "channels_last", "fused", "compile")
