"""The commands, as a person types them: data on stdout, messages on stderr, exit codes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tempbalance.runlog import RunFolder
from tempbalance.terminal import stoppable

TINY = ["--dataset", "digits", "--model", "mlp", "--width", "0.25", "--epochs", "2", "--limit", "200"]


def tempbalance(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tempbalance.cli", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)


def test_a_run_is_trained_told_about_and_left_alone_when_it_is_complete(tmp_path):
    logged = ("--tensorboard", "--log-every", "1")
    first = tempbalance("train", *TINY, "--method", "tb", "--out", "run", *logged, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("digits-mlp-0.25-tb-43: test accuracy")
    assert "epoch 2: train loss" in first.stderr
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [each.step for each in events.Scalars("loss")] == [0, 1, 2, 3]
    accuracies = [line["test_accuracy"] for line in RunFolder(tmp_path / "run").metrics]
    assert [each.value for each in events.Scalars("test_accuracy")] == pytest.approx(accuracies)
    again = tempbalance("train", "--recipe", "run/recipe.json", "--out", "run", cwd=tmp_path)
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


GPT = """kind: language
dataset: text.txt
tokens: characters
model: gpt
method: adam
layers: 1
width: 16
head: 8
inner: 16
sequence: 8
batch_size: 4
iterations: 4
evaluate_every: 2
"""


def test_a_recipe_file_of_another_kind_is_trained_as_that(tmp_path):
    (tmp_path / "text.txt").write_text("to be, or not to be, that is the question\n" * 20)
    (tmp_path / "gpt.yaml").write_text(GPT)
    first = tempbalance("train", "--recipe", "gpt.yaml", "--lr", "0.01", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("text-gpt-adam-43: test perplexity")
    assert "epoch 2 of 2: test perplexity" in first.stderr
    folder = RunFolder(tmp_path / "runs" / "text-gpt-adam-43")
    assert (folder.recipe["recipe"]["kind"], folder.recipe["recipe"]["lr"]) == ("language", 0.01)
    again = tempbalance("train", "--recipe", "gpt.yaml", "--lr", "0.01", cwd=tmp_path)
    assert again.stdout == first.stdout
    for content, answer in {
        GPT.replace("language", "langage"): "unknown kind 'langage': did you mean 'language'",
        GPT + "momentum: 0.9\n": "gpt.yaml: unknown option 'momentum'",
        GPT.replace("text.txt", "none.txt"): "unknown dataset 'none.txt'",
    }.items():
        (tmp_path / "gpt.yaml").write_text(content)
        refused = tempbalance("train", "--recipe", "gpt.yaml", "--out", "other", cwd=tmp_path)
        assert refused.returncode == 2
        assert answer in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--method", "tbb"], "unknown method 'tbb': did you mean 'tb'"),
        (["--model", "resnet19"], "resnet18"),
        (["--dataset", "cifar11"], "cifar10"),
        (["--epochs", "0"], "epochs must be at least 1, got 0"),
        (["--tail", "medan"], "unknown tail 'medan': did you mean 'median'?"),
        (["--out", ""], "out must be a folder, got ''"),
        (["--out", "file"], "out must be a folder, file is a file"),
        (["--recipe", "file"], "file: a recipe must be options by name, got nothing"),
        (["--device", "gpu"], "gpu"),
    ],
)
def test_bad_usage_is_answered_in_one_line_with_exit_code_2(tmp_path, arguments, answer):
    (tmp_path / "file").touch()
    result = tempbalance("train", *TINY, "--out", "run", *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert not (tmp_path / "run").exists()
    assert answer in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("option", ["--log-every", "--threads", "--devices", "--num-nodes"])
def test_counts_are_at_least_one(tmp_path, option):
    result = tempbalance("train", *TINY, option, "0", cwd=tmp_path)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert option in result.stderr


def test_methods_are_compared_seed_by_seed(tmp_path):
    result = tempbalance("compare", *TINY, "--methods", "cal,tb", "--seeds", "2", "--out", "all", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    names = {f"digits-mlp-0.25-{method}-{seed}" for method in ("cal", "tb") for seed in (43, 37)}
    assert {path.name for path in (tmp_path / "all").iterdir()} == names | {"comparison.json", "report.html"}
    assert "digits, mlp, width 0.25, 2 epochs, cal, tb, seeds 43, 37" in result.stderr
    assert all(result.stderr.count(f"{name}: test accuracy") == 1 for name in names)
    assert all(RunFolder(tmp_path / "all" / name).result is not None for name in names)
    for text in (
        "cal",
        "tb",
        "points",
        "spread of alpha",
        "The runs are in all, a page to look at them is all/report.html",
    ):
        assert text in result.stdout
    other = tempbalance("compare", *TINY, "--epochs", "3", "--seeds", "2", "--out", "all", cwd=tmp_path)
    assert other.returncode == 1
    assert "epochs: 2 in the folder, 3 asked for; choose another --out or remove the folder" in other.stderr


def test_a_comparison_of_which_nothing_can_come_starts_nothing(tmp_path):
    for arguments in (["--dataset", "none.npz"], ["--methods", "cal,cal"], ["--methods", "cal,tb+cal"]):
        result = tempbalance("compare", *TINY, *arguments, "--seeds", "1", "--out", "all", cwd=tmp_path)
        assert result.returncode == 2
        assert arguments[1].split(",")[-1] in result.stderr
        assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_says_what_failed(tmp_path):
    result = tempbalance("compare", *TINY, "--lr", "1e20", "--weight-decay", "1e30", "--seeds", "1", cwd=tmp_path)
    assert result.returncode == 1
    assert "error: the run in runs/digits-mlp-0.25-" in result.stderr
    assert "failed: the loss is" in result.stderr
    assert "rate 1e+20 (a traceback is in failure.txt, all a run said in output.txt)" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_comparison_that_is_asked_to_stop_leaves_no_process_behind(tmp_path):
    command = [sys.executable, "-m", "tempbalance.cli", "compare", *TINY, "--epochs", "10000", "--seeds", "1"]
    process = subprocess.Popen([*command, "--workers", "2"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    runs = [RunFolder(tmp_path / "runs" / f"digits-mlp-0.25-{method}-43") for method in ("cal", "tb")]
    deadline = time.monotonic() + 60
    while not all(len(run.metrics) > 1 for run in runs) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.terminate()
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on from there" in told
    for run in runs:
        with run.locked():  # nobody else has it
            assert run.checkpoint() is not None


def get_signal(number: int) -> None:
    """A signal comes while a command runs."""
    with stoppable():
        os.kill(os.getpid(), number)
        time.sleep(0.1)


def test_signals_stop_a_command_as_ctrl_c_does_unless_they_are_ignored():
    for number in (signal.SIGTERM, signal.SIGHUP):
        before = signal.signal(number, signal.SIG_DFL)  # under nohup it is ignored
        with pytest.raises(KeyboardInterrupt):
            get_signal(number)
        assert signal.getsignal(number) == signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN)
        get_signal(number)
        signal.signal(number, before)


@pytest.mark.parametrize("command", ["train", "compare"])
def test_the_help_has_a_text_for_each_option_and_its_default(command, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    text = tempbalance(command, "--help", cwd=tmp_path).stdout
    for panel in ("Recipe", "Balancing", "Method", "Run", "Logging"):
        assert f"─ {panel} ─" in text
    for words in ("median, goodness_of_fit, peak", "wrn28_6", "[default: (0.5 1.5)]", "$TEMPBALANCE_CACHE"):
        assert words in text
    assert ("43, 37, 13, 51, 71" in text) == (command == "compare")
