"""The training loop: a run that is stopped anywhere goes on to the bit, and its folder is never half written."""

import io
import multiprocessing
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, Literal

import pytest
import torch
from lightning.fabric import Fabric
from rich.console import Console

from tempbalance.lab import recipe as recipes
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.options import Count
from tempbalance.lab.recipe import BaseRecipe, Measure, find_kind, make_recipe, recipe_dict
from tempbalance.lab.runs import Epoch, InterruptedRunError, OtherRunError, TrainingError, disk_needed
from tempbalance.lab.train import Training, train
from tempbalance.runlog import BusyRunError, RunFolder, RunFolderError, read_signed
from tests.cases import assert_carries, raises
from tests.lab.cut import resumed_after


class Walk(BaseRecipe):
    """A random walk of so many epochs."""

    kind = "walk"
    measure = Measure("test_distance", "distance", "m", is_lower_better=True)
    result_names = ("test_distance", "seconds")

    dataset: str = "street"
    model: Literal["feet", "wheels"] = "feet"
    method: str = "straight"
    seed: int = 0
    length: Count = 4

    digest: ClassVar[str] = "d"

    def load(self, cache=None):
        return SimpleNamespace(digest=lambda digest=Walk.digest: digest)

    @property
    def num_epochs(self) -> int:
        return self.length

    @property
    def has_own_data(self) -> bool:
        return True


class Walking(Training[Walk]):
    """Adds a random number an epoch."""

    def __init__(self, recipe: Walk, fabric: Fabric, stop_at: int | None = None, error=KeyboardInterrupt) -> None:
        network = torch.nn.Linear(1, 1)
        network.register_buffer("place", torch.zeros(2, dtype=torch.float64))
        super().__init__(recipe, network, torch.optim.SGD(network.parameters(), lr=0.1), fabric)
        self.stop_at, self.error = stop_at, error

    @property
    def num_steps(self):
        return self.recipe.length

    def first_lines(self):
        return [{"epoch": 0, "layer": "foot", "alpha": 2.0}]

    def epoch(self, number):
        if number == self.stop_at:
            raise self.error("stop")
        generator = torch.Generator().manual_seed(self.recipe.seed * 1000 + number)
        self.network.place += torch.randn(2, dtype=torch.float64, generator=generator)
        value = float(self.network.place.norm())
        self.metrics = {"epoch": number, "test_distance": value}
        return Epoch(self.metrics, [{"epoch": number, "layer": "foot", "alpha": value}])


@pytest.fixture(autouse=True)
def walks(monkeypatch):
    monkeypatch.setitem(recipes._KINDS, "walk", "walk.Walk")
    monkeypatch.setattr(recipes, "find_kind", lambda name: Walk if name == "walk" else find_kind(name))


def walk(
    folder: Path,
    said: list[str] | None = None,
    task: Walk | None = None,
    digest: str = "d",
    every: float = 0,
    **stop,
):
    kind = SimpleNamespace(build=lambda recipe, data, fabric: stop.pop("of", Walking)(recipe, fabric, **stop))
    Walk.digest = digest
    console = Console(file=io.StringIO(), width=10_000)
    try:
        return train(task or Walk(), folder, kind=kind, device="cpu", console=console, checkpoint_every=every)
    finally:
        (said if said is not None else []).extend(console.file.getvalue().splitlines())


def content(folder: Path) -> tuple:
    run = RunFolder(folder)
    return run.metrics, run.layers, {name: value for name, value in (run.result or {}).items() if name != "seconds"}


@pytest.mark.parametrize("stop_at", [1, 2, 4])
def test_a_run_that_is_stopped_goes_on_to_the_bit(tmp_path, stop_at):
    result = walk(tmp_path / "whole")
    with raises(InterruptedRunError, f"{stop_at - 1} of 4"):
        walk(tmp_path / "stopped", stop_at=stop_at)
    said: list[str] = []
    again = walk(tmp_path / "stopped", said)
    assert again["test_distance"] == result["test_distance"]
    assert content(tmp_path / "whole") == content(tmp_path / "stopped")
    assert [line["epoch"] for line in RunFolder(tmp_path / "stopped").layers] == [0, 1, 2, 3, 4]
    assert resumed_after(said[0]) == [stop_at - 1] * (stop_at > 1)


def test_lines_of_an_epoch_whose_checkpoint_was_not_written_are_forgotten(tmp_path):
    walk(tmp_path / "whole")
    with pytest.raises(InterruptedRunError):
        walk(tmp_path / "cut", stop_at=3)
    RunFolder(tmp_path / "cut").append([{"epoch": 3, "test_distance": -1.0}], [{"epoch": 3, "layer": "foot"}])
    walk(tmp_path / "cut")
    assert content(tmp_path / "whole") == content(tmp_path / "cut")


def test_a_run_whose_log_is_lost_does_not_go_on(tmp_path):
    with pytest.raises(InterruptedRunError):
        walk(tmp_path, stop_at=4)
    (tmp_path / "metrics.jsonl").unlink()
    with raises(RunFolderError, "metrics.jsonl", 3, "1, 2, 3"):
        walk(tmp_path)


def test_a_complete_run_is_not_trained_again(tmp_path):
    first = walk(tmp_path)
    said: list[str] = []
    assert walk(tmp_path, said, stop_at=1) == first
    assert_carries(*said, tmp_path)


def test_a_folder_of_another_recipe_other_data_or_another_kind_is_refused(tmp_path):
    walk(tmp_path / "walk")
    with raises(OtherRunError, "seed", 0, 1):
        walk(tmp_path / "walk", task=Walk(seed=1))
    with raises(OtherRunError, "data", "street"):
        walk(tmp_path / "walk", digest="other")
    run = RunFolder(tmp_path / "images")
    run.write_recipe({"recipe": ImageRecipe().to_dict()})
    run.append([{"epoch": 1}])
    with raises(OtherRunError, "kind", "'images'", "'walk'"):
        walk(tmp_path / "images")


def test_a_run_whose_checkpoint_is_damaged_starts_again(tmp_path):
    walk(tmp_path / "whole")
    with pytest.raises(InterruptedRunError):
        walk(tmp_path / "hurt", stop_at=4)
    (tmp_path / "hurt" / "last.ckpt").write_bytes(b"dust")
    said: list[str] = []
    walk(tmp_path / "hurt", said)
    assert_carries(said[0], "last.ckpt", tmp_path / "hurt")
    assert content(tmp_path / "whole") == content(tmp_path / "hurt")


def test_checkpoints_are_written_by_time_and_at_the_end(tmp_path, monkeypatch):
    walk(tmp_path / "whole")
    saved, now = [], iter(range(0, 10_000, 100))
    save = RunFolder.save_checkpoint
    monkeypatch.setattr("tempbalance.lab.runs.time", SimpleNamespace(perf_counter=lambda: next(now)))
    monkeypatch.setattr(
        RunFolder,
        "save_checkpoint",
        lambda self, state, **keep: saved.append(state["epoch"]) or save(self, state, **keep),
    )
    with raises(InterruptedRunError, "epoch 7", "6 of 9"):
        walk(tmp_path / "run", task=Walk(length=9), every=150, stop_at=7)
    assert saved == [2, 4, 6]  # every second epoch, each of 100 seconds
    walk(tmp_path / "run", task=Walk(length=9), every=1e9)
    assert saved == [2, 4, 6, 9, 9]  # the last time without the optimizer's state
    assert RunFolder(tmp_path / "run").metrics[:4] == RunFolder(tmp_path / "whole").metrics


def test_a_complete_run_has_its_weights_and_no_state_of_the_optimizer_unless_all_is_kept(tmp_path):
    walk(tmp_path / "run")
    last = RunFolder(tmp_path / "run").checkpoint()
    assert {"network", "metrics"} <= last["training"].keys()
    assert "optimizer" not in last["training"]
    best = read_signed(tmp_path / "run" / "best.ckpt")
    assert best.keys() == last["training"]["network"].keys()
    (tmp_path / "run" / "result.json").unlink()
    said: list[str] = []
    walk(tmp_path / "run", said, stop_at=1)  # trains nothing
    assert resumed_after(said[0]) == [4]
    assert RunFolder(tmp_path / "run").result is not None


def test_all_checkpoints_are_kept_on_demand(tmp_path):
    kind = SimpleNamespace(build=lambda recipe, data, fabric: Walking(recipe, fabric))
    train(Walk(), tmp_path, kind=kind, device="cpu", checkpoint_every=0, keep_checkpoints=True)
    assert [read_signed(tmp_path / f"epoch-{epoch}.ckpt")["epoch"] for epoch in range(1, 5)] == [1, 2, 3, 4]
    assert "optimizer" in RunFolder(tmp_path).checkpoint()["training"]


@pytest.mark.parametrize("name", ["metrics.jsonl", "layers.jsonl"])
def test_a_run_does_not_go_on_from_a_log_that_was_changed(tmp_path, name):
    with pytest.raises(InterruptedRunError):
        walk(tmp_path, stop_at=4)
    path = tmp_path / name
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0].replace(": 2.", ": 3.").replace(": 0.", ": 1."), *lines[1:]]))
    assert path.read_text().splitlines(keepends=True) != lines
    with raises(RunFolderError, path):
        walk(tmp_path)


def test_an_error_of_the_training_is_its_own_and_nothing_is_lost(tmp_path):
    with raises(TrainingError, "stop"):
        walk(tmp_path, stop_at=3, error=TrainingError)
    assert [line["epoch"] for line in RunFolder(tmp_path).metrics] == [1, 2]
    assert RunFolder(tmp_path).result is None


def test_two_processes_never_train_in_one_folder(tmp_path):
    with RunFolder(tmp_path).locked(), raises(BusyRunError, tmp_path):
        walk(tmp_path)


def test_recipes_of_every_kind_come_back_from_their_options():
    for kind in ("images", "language", "matrices", "detection"):
        task = find_kind(kind)()
        assert make_recipe(recipe_dict(task)) == task
        assert make_recipe({**recipe_dict(task), "seed": 7}).id != task.id
    with raises(ValueError, "kind", "'langage'", "'language'"):
        make_recipe({"kind": "langage"})
    with raises(ValueError, "length", 1, 0):
        Walk(length=0)
    with raises(ValueError, "model", "'wheel'", "'wheels'"):
        Walk(model="wheel")


def test_a_measure_in_words():
    distance = Walk.measure
    assert (distance.title, distance.text(1.234), distance.sign(2.0)) == ("distance, m", "test distance 1.23 m", -2.0)


class SlowWalking(Walking):
    """Takes long enough over an epoch to be killed in it."""

    def epoch(self, number):
        time.sleep(0.02)
        return super().epoch(number)


def walk_slowly(folder: Path) -> None:
    walk(folder, task=Walk(length=30), of=SlowWalking)


def test_kills_at_any_instant_change_nothing(tmp_path):
    walk(tmp_path / "whole", task=Walk(length=30))
    context = multiprocessing.get_context("fork")
    for num_epochs in (3, 11, 19):
        process = context.Process(target=walk_slowly, args=(tmp_path / "killed",))
        process.start()
        deadline = time.monotonic() + 60
        while len(RunFolder(tmp_path / "killed").metrics) < num_epochs and time.monotonic() < deadline:
            time.sleep(0.005)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    said: list[str] = []
    walk(tmp_path / "killed", said, task=Walk(length=30))
    assert resumed_after(said[0])
    assert content(tmp_path / "whole") == content(tmp_path / "killed")


@pytest.mark.parametrize("kind", ["images", "language", "matrices", "operator", "detection"])
def test_the_disk_that_a_run_needs_is_estimated_for_every_kind(kind):
    needed = disk_needed(find_kind(kind)())
    assert 0 < needed.kept < needed.peak
    assert disk_needed(find_kind(kind)(), keep_checkpoints=True).kept >= needed.kept


def test_a_network_of_twice_the_width_needs_about_four_times_the_disk():
    small, large = (disk_needed(ImageRecipe(dataset="cifar10", width=width)) for width in (1.0, 2.0))
    assert 3.8 < large.peak / small.peak < 4.1
    assert small.kept > 2 * 4 * 11_000_000  # the weights of ResNet18, after the last and the best epoch
