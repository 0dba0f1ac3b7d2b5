"""The commands, as a person types them: data on stdout, messages on stderr, exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tempbalance.lab.compare import CompareError, Comparison, plan, summarize, verdict
from tempbalance.lab.recipe import Recipe
from tempbalance.runlog import RunFolder

TINY = ["--dataset", "digits", "--model", "mlp", "--width", "0.25", "--epochs", "2", "--limit", "200"]


def tempbalance(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tempbalance.cli", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)


def test_a_run_is_trained_told_about_and_left_alone_when_it_is_complete(tmp_path):
    first = tempbalance("train", *TINY, "--method", "tb", "--out", "run", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("digits-mlp-0.25-tb-43: test accuracy")
    assert "epoch 2: train loss" in first.stderr
    again = tempbalance("train", *TINY, "--method", "tb", "--out", "run", cwd=tmp_path)
    assert again.returncode == 0
    assert again.stdout == first.stdout
    assert "is complete already" in again.stderr
    other = tempbalance("train", *TINY, "--method", "cal", "--out", "run", cwd=tmp_path)
    assert other.returncode == 1
    assert "method: 'tb' in the folder, 'cal' asked for" in other.stderr


def test_a_recipe_file_is_read_and_options_go_before_it(tmp_path):
    (tmp_path / "r.yaml").write_text("dataset: digits\nmodel: mlp\nwidth: 0.25\nepochs: 9\nlimit: 200\nmethod: cal\n")
    result = tempbalance("train", "--recipe", "r.yaml", "--epochs", "1", "--scale-range", "0.6", "1.4", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    recipe = RunFolder(tmp_path / "runs" / "digits-mlp-0.25-cal-43").recipe["recipe"]
    assert (recipe["epochs"], recipe["scale_range"], recipe["method"]) == (1, [0.6, 1.4], "cal")


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--method", "tbb"], "unknown method 'tbb': did you mean 'tb'"),
        (["--model", "resnet19"], "resnet18"),
        (["--dataset", "cifar11"], "cifar10"),
        (["--epochs", "0"], "epochs must be at least 1, got 0"),
    ],
)
def test_bad_usage_is_answered_in_one_line_with_exit_code_2(tmp_path, arguments, answer):
    result = tempbalance("train", *TINY, "--out", "run", *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert answer in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr


def test_methods_are_compared_seed_by_seed(tmp_path):
    result = tempbalance("compare", *TINY, "--methods", "cal,tb", "--seeds", "2", "--out", "all", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    names = {f"digits-mlp-0.25-{method}-{seed}" for method in ("cal", "tb") for seed in (43, 37)}
    assert {path.name for path in (tmp_path / "all").iterdir()} == names
    assert all(RunFolder(tmp_path / "all" / name).result is not None for name in names)
    for text in ("cal", "tb", "points", "spread of alpha", "The runs are in all."):
        assert text in result.stdout


def test_a_comparison_says_what_failed(tmp_path):
    result = tempbalance("compare", *TINY, "--dataset", "none.npz", "--seeds", "1", "--out", "all", cwd=tmp_path)
    assert result.returncode == 1
    assert "none.npz" in result.stderr
    assert "Traceback" not in result.stderr


def finished(folder: Path, recipe: Recipe, accuracy: float, alphas: list[float]) -> None:
    run = RunFolder(folder / recipe.name)
    run.append(layers=[{"epoch": 5, "layer": str(i), "alpha": alpha} for i, alpha in enumerate(alphas)])
    run.write_result({"test_accuracy": accuracy})


def test_the_interval_of_the_paired_difference_is_students(tmp_path):
    recipes = plan({"dataset": "digits"}, ["cal", "tb"], [43, 37, 13])
    for recipe in recipes:
        gain = {43: 1.0, 37: 2.0, 13: 3.0}[recipe.seed] if recipe.method == "tb" else 0.0
        finished(tmp_path, recipe, 90 + recipe.seed / 10 + gain, [2.0, 4.0])
    cal, tb = summarize(["cal", "tb"], recipes, tmp_path)
    assert cal.difference == 0
    assert tb.difference == pytest.approx(2.0)
    assert tb.interval == pytest.approx(4.302652730 * 1.0 / 3**0.5, rel=1e-6)  # t(0.975, 2), standard deviation 1
    assert tb.alpha_spread == 1.0


@pytest.mark.parametrize(
    ("difference", "interval", "words"),
    [
        (1.0, 2.0, "no difference"),
        (1.0, 0.5, "better than cal"),
        (-1.0, 0.5, "worse than cal"),
        (0.5, None, "one seed"),
    ],
)
def test_what_was_measured_is_said_also_where_the_method_loses(difference, interval, words):
    cal = Comparison("cal", (90.0,), 90.0, 0.0, 0.0, interval, 0.1)
    (sentence,) = verdict([cal, Comparison("tb", (91.0,), 91.0, 0.0, difference, interval, 0.1)])
    assert words in sentence


def test_a_plan_gives_each_method_its_own_rate():
    recipes = plan({"model": "vgg16"}, ["cal", "adam"], [43])
    assert [recipe.lr for recipe in recipes] == [0.05, 1e-3]
    assert issubclass(CompareError, Exception)
    assert json.dumps([recipe.to_dict() for recipe in recipes])
