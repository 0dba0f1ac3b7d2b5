"""Recipes and methods: the paper's defaults, and clear answers to what is not known."""

import json
import tempfile

import pytest
from torch import nn

from tempbalance.lab.images.optimizers import build_optimizer
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.images.training import build_schedule
from tempbalance.lab.recipe import METHODS, SEEDS, find_method, read_recipe, recipe_dict
from tempbalance.lab.runs import OtherRunError, check_run
from tempbalance.runlog import RunFolder
from tests.cases import assert_carries, raises


def test_the_defaults_are_the_papers():
    recipe = ImageRecipe()
    assert (recipe.batch_size, recipe.momentum, recipe.weight_decay, recipe.epochs) == (128, 0.9, 5e-4, 200)
    assert recipe.scale_range == (0.5, 1.5)
    assert SEEDS == (43, 37, 13, 51, 71)
    assert recipe.seed == 43
    assert recipe.restart_epochs == 100


@pytest.mark.parametrize(
    ("model", "method", "lr"),
    [
        ("resnet18", "cal", 0.1),
        ("vgg16", "tb", 0.05),
        ("vgg19", "sgdp", 0.05),
        ("resnet34", "adam", 1e-3),
        ("vgg16", "lars", 28.0),
    ],
)
def test_a_rate_that_is_not_given_is_the_methods_own(model, method, lr):
    assert ImageRecipe(model=model, method=method).lr == lr
    assert ImageRecipe(model=model, method=method, lr=0.3).lr == 0.3


def test_a_recipe_goes_through_json_and_back():
    recipe = ImageRecipe(method="tb+snr", scale_range=(0.6, 1.4), limit=10, lr=0.2)
    assert ImageRecipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


@pytest.mark.parametrize(
    ("options", "closest"),
    [({"methd": "tb"}, "'method'"), ({"scale-range": 1}, "'scale_range'"), ({"method": "tb+snt"}, "'tb+snr'")],
)
def test_unknown_names_are_answered_with_the_closest(options, closest):
    with raises(ValueError, closest):
        ImageRecipe.from_dict(options)


def test_a_recipe_is_read_from_yaml_and_from_a_runs_own_json(tmp_path):
    yaml, run = tmp_path / "a.yaml", tmp_path / "recipe.json"
    yaml.write_text("method: cal\nlr: 0.05\n")
    run.write_text(json.dumps({"recipe": ImageRecipe().to_dict(), "versions": {}}))
    assert read_recipe(yaml) == {"method": "cal", "lr": 0.05}
    assert ImageRecipe.from_dict(read_recipe(run)) == ImageRecipe()


def differences(saved: ImageRecipe, wanted: ImageRecipe) -> list[str]:
    """The options in which the run of a folder is not the one asked for."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(folder)
        run.write_recipe({"recipe": recipe_dict(saved)})
        run.append([{"epoch": 1}])
        try:
            check_run(run, wanted)
        except OtherRunError as err:
            return str(err).partition("another recipe: ")[2].split("; ")[:-1]
    return []


def test_differences_are_told_in_words():
    (rate,) = differences(ImageRecipe(lr=0.1), ImageRecipe(lr=0.2))
    assert_carries(rate, "lr", 0.1, 0.2)
    (epochs,) = differences(ImageRecipe(epochs=10), ImageRecipe(epochs=20))
    assert_carries(epochs, "epochs", 10, 20)
    _, restarts = differences(ImageRecipe(epochs=10, method="sgdr"), ImageRecipe(epochs=20, method="sgdr"))
    assert_carries(restarts, "restart_epochs", 5, 10)


@pytest.mark.parametrize(("epochs", "shares"), [(3, [1, 0.5, 1]), (4, [1, 0.5, 1, 0.5]), (5, [1, 0.75, 0.25, 1, 0.75])])
def test_sgdr_restarts_after_half_the_epochs_rounded_up(epochs, shares):
    recipe = ImageRecipe(method="sgdr", epochs=epochs)
    optimizer = build_optimizer([{"params": list(nn.Linear(8, 8).parameters())}], recipe)
    schedule = build_schedule(optimizer, recipe)
    rates = []
    for _ in range(epochs):
        rates.append(optimizer.param_groups[0]["lr"] / recipe.lr)
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx(shares)


def test_the_methods_are_the_papers_and_tb_goes_before_any():
    expected = "cal snr tb tb+snr sgdr lars lookahead sgdp tb+sgdp adam adamw adamp lamb tb+adam tb+adamw"
    assert list(METHODS) == expected.split()
    assert find_method("tb+lars").optimizer == "lars"
    assert find_method("tb+sgdr").balanced
    assert find_method("tb+sgdr").restarts


@pytest.mark.parametrize("method", METHODS)
def test_each_method_has_its_optimizer_and_schedule(method):
    groups = [{"params": [each]} for each in nn.Linear(8, 8).parameters()]
    recipe = ImageRecipe(method=method, epochs=10)
    optimizer = build_optimizer(groups, recipe)
    schedule = build_schedule(optimizer, recipe)
    kinds = {"sgdr": "CosineAnnealingWarmRestarts"}
    assert type(schedule).__name__ == kinds.get(method, "CosineAnnealingLR")
    names = {
        "lars": "LARS",
        "lookahead": "Lookahead",
        "sgdp": "SGDP",
        "adam": "Adam",
        "adamw": "AdamW",
        "adamp": "AdamP",
        "lamb": "Lamb",
    }
    assert type(optimizer).__name__ == names.get(method.removeprefix("tb+"), "SGD")
    assert {group["lr"] for group in optimizer.param_groups} == {recipe.lr}
    assert {group["weight_decay"] for group in optimizer.param_groups} == {5e-4}


def test_a_run_is_known_by_what_its_method_uses():
    assert (
        ImageRecipe(method="cal").id == ImageRecipe(method="cal", scale_range=(0.6, 1.4), snr=0.5, restart_epochs=3).id
    )
    assert ImageRecipe(method="tb").id != ImageRecipe(method="tb", scale_range=(0.6, 1.4)).id
    assert ImageRecipe(method="snr").id != ImageRecipe(method="snr", snr=0.5).id
    assert ImageRecipe(method="sgdr").id != ImageRecipe(method="sgdr", restart_epochs=3).id
    assert ImageRecipe(method="lookahead").id != ImageRecipe(method="lookahead", lookahead_alpha=0.5).id
    assert ImageRecipe().id == ImageRecipe(lr=0.1, tail="median", tail_fraction=0.5).id
    assert len({ImageRecipe(seed=seed, epochs=epochs).id for seed in (43, 37) for epochs in (1, 2)}) == 4
    # names of folders stay what they are when options are added
    assert ImageRecipe().id == "digits-resnet18-1-tb-43-c924a5f4"
    assert ImageRecipe(method="cal", model="mlp", limit=10, scale_range=(0.1, 9)).key == {
        "method": "cal", "model": "mlp", "limit": 10, "lr": 0.1,
    }  # fmt: skip


def test_options_that_no_method_uses_do_not_make_another_run():
    assert differences(ImageRecipe(method="cal"), ImageRecipe(method="cal", scale_range=(0.6, 1.4))) == []
    (told,) = differences(ImageRecipe(method="tb"), ImageRecipe(method="tb", scale_range=(0.6, 1.4)))
    assert_carries(told, "scale_range", [0.5, 1.5], [0.6, 1.4])


def test_the_epochs_that_are_trained_and_scored_follow_from_the_recipe():
    assert (ImageRecipe(epochs=200, stop_after=10).num_epochs, ImageRecipe(epochs=5, stop_after=10).num_epochs) == (
        10,
        5,
    )
    recipe = ImageRecipe(epochs=10, start=1, interval=3)
    assert [epoch for epoch in range(11) if recipe.scores_after(epoch)] == [1, 4, 7, 10]
    in_steps = ImageRecipe(epochs=4, start=2, interval_steps=5)
    assert [epoch for epoch in range(5) if in_steps.scores_after(epoch)] == [2, 3, 4]
