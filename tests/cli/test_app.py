"""The commands, as a person types them: data on stdout, messages on stderr, exit codes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner, Result

from tempbalance.cli import app, main
from tempbalance.cli.terminal import answered, stoppable
from tempbalance.lab.executors import local
from tempbalance.runlog import RunFolder
from tests.cases import assert_bad_usage, assert_carries
from tests.cli.test_study import InThisProcess

TINY = ["--dataset", "digits", "--model", "mlp", "--width", "0.25", "--epochs", "2", "--limit", "200"]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


def tempbalance(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "tempbalance.cli", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def in_process(monkeypatch):
    """Comparisons train in this process."""
    monkeypatch.setattr(local, "local_pool", lambda settings, **_: InThisProcess(settings))


def test_a_run_is_trained_told_about_and_left_alone_when_it_is_complete(tmp_path):
    logged = ("--tensorboard", "--log-every", "1", "--device", "cpu")
    first = invoke("train", *TINY, "--method", "tb", "--out", "run", *logged)
    assert first.exit_code == 0, first.stderr
    assert_carries(first.stdout, "digits-mlp-0.25-tb-43", "test accuracy")
    assert_carries(first.stderr, "epoch 2", "train loss")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [each.step for each in events.Scalars("loss")] == [0, 1, 2, 3]
    accuracies = [line["test_accuracy"] for line in RunFolder(tmp_path / "run").metrics]
    assert [each.value for each in events.Scalars("test_accuracy")] == pytest.approx(accuracies)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run").glob("*.json*")}
    again = invoke("train", "--recipe", "run/recipe.json", "--out", "run")
    assert again.exit_code == 0
    assert again.stdout == first.stdout
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run").glob("*.json*")} == before
    other = invoke("train", *TINY, "--method", "cal", "--out", "run")
    assert other.exit_code == 1
    assert_carries(other.stderr, "method", "'tb'", "'cal'")


@pytest.mark.slow
def test_a_run_is_trained_and_another_is_refused_in_processes_of_their_own(tmp_path):
    first = tempbalance("train", *TINY, "--method", "tb", "--out", "run", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("digits-mlp-0.25-tb-43: ")
    assert "epoch 2" in first.stderr
    assert RunFolder(tmp_path / "run").result is not None
    other = tempbalance("train", *TINY, "--method", "cal", "--out", "run", cwd=tmp_path)
    assert (other.returncode, other.stdout) == (1, "")
    wrong = tempbalance("train", *TINY, "--method", "tbb", cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (2, "", 1)
    assert_carries(wrong.stderr, "'tbb'", "'tb'")


def test_a_recipe_file_is_read_and_options_go_before_it(tmp_path):
    (tmp_path / "r.yaml").write_text("dataset: digits\nmodel: mlp\nwidth: 0.25\nepochs: 9\nlimit: 200\nmethod: cal\n")
    result = invoke("train", "--recipe", "r.yaml", "--epochs", "1", "--scale-range", "0.6", "1.4")
    assert result.exit_code == 0, result.stderr
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
    first = invoke("train", "--recipe", "gpt.yaml", "--lr", "0.01")
    assert first.exit_code == 0, first.stderr
    assert_carries(first.stdout, "text-gpt-adam-43", "test perplexity")
    assert_carries(first.stderr, "epoch 2 of 2", "test perplexity", "warning", "min_eigenvalues")  # it is that small
    folder = RunFolder(tmp_path / "runs" / "text-gpt-adam-43")
    assert (folder.recipe["recipe"]["kind"], folder.recipe["recipe"]["lr"]) == ("language", 0.01)
    again = invoke("train", "--recipe", "gpt.yaml", "--lr", "0.01")
    assert again.stdout == first.stdout
    for content, carried in {
        GPT.replace("language", "langage"): ["kind", "'langage'", "'language'"],
        GPT + "momentum: 0.9\n": ["gpt.yaml", "'momentum'"],
        GPT.replace("text.txt", "none.txt"): ["dataset", "'none.txt'"],
    }.items():
        (tmp_path / "gpt.yaml").write_text(content)
        assert_bad_usage(invoke("train", "--recipe", "gpt.yaml", "--out", "other"), *carried)


@pytest.mark.parametrize(
    ("arguments", "carried"),
    [
        (["--method", "tbb"], ["method", "'tbb'", "'tb'"]),
        (["--model", "resnet19"], ["model", "'resnet19'", "resnet18"]),
        (["--dataset", "cifar11"], ["dataset", "'cifar11'", "cifar10"]),
        (["--epochs", "0"], ["epochs", "got 0"]),
        (["--tail", "medan"], ["tail", "'medan'", "'median'"]),
        (["--out", ""], ["out", "''"]),
        (["--out", "file"], ["out", "file"]),
        (["--recipe", "file"], ["file"]),
        (["--device", "gpu"], ["gpu"]),
    ],
)
def test_bad_usage_is_answered_in_one_line_with_exit_code_2(tmp_path, arguments, carried):
    (tmp_path / "file").touch()
    assert_bad_usage(invoke("train", *TINY, "--out", "run", *arguments), *carried)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", ["--log-every", "--threads", "--devices", "--num-nodes"])
def test_counts_are_at_least_one(tmp_path, option):
    result = invoke("train", *TINY, option, "0")
    assert result.exit_code == 2
    assert option in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_methods_are_compared_in_one_process_and_another_comparison_in_the_folder_is_refused(in_process, tmp_path):
    arguments = (*TINY, "--methods", "cal,tb", "--seeds", "1", "--out", "all", "--device", "cpu")
    result = invoke("compare", *arguments)
    assert result.exit_code == 0, result.stderr
    names = {f"digits-mlp-0.25-{method}-43" for method in ("cal", "tb")}
    assert {path.name for path in (tmp_path / "all").iterdir()} == names | {"comparison.json", "report.html"}
    assert_carries(result.stderr, "digits", "mlp", "2 epochs", *names)
    assert_carries(result.stdout, "cal", "tb", "points", "all/report.html")
    other = invoke("compare", *arguments, "--epochs", "3")
    assert other.exit_code == 1
    assert_carries(other.stderr, "epochs", "2", "3", "--out")


def test_controls_are_compared_with_one_flag_in_folders_of_their_own(in_process, tmp_path):
    result = invoke("compare", *TINY, "--seeds", "2", "--out", "all", "--device", "cpu", "--controls")
    assert result.exit_code == 0, result.stderr
    ends = ("cal-{}", "tb-{}", "tb-{}-shuffled", "tb-{}-mean")
    names = {f"digits-mlp-0.25-{end.format(seed)}" for end in ends for seed in (43, 37)}
    assert {path.name for path in (tmp_path / "all").iterdir()} == names | {"comparison.json", "report.html"}
    text = " ".join(result.stdout.split())
    assert_carries(text, "tb, shuffled", "tb, mean", "TB against CAL", "its scales shuffled", "their mean")
    assert "shuffled" in (tmp_path / "all" / "report.html").read_text()


def test_a_warning_of_a_run_in_a_sweep_reaches_the_terminal_once(in_process, tmp_path):
    arguments = ("compare", *TINY, "--methods", "tb", "--seeds", "1", "--out", "all", "--min-eigenvalues", "900")
    result = invoke(*arguments, "--device", "cpu")
    assert result.exit_code == 0, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if "warning: " in line]
    assert_carries(line, "digits-mlp-0.25-tb-43", "min_eigenvalues is 900")


HOSTILE = "\x1b[31mred\u202e\x07"


def test_control_characters_of_names_and_folders_reach_the_terminal_as_escapes(in_process, tmp_path):
    images, labels = np.zeros((60, 8, 8), np.uint8), np.arange(60) % 10
    arrays = {"train_images": images, "train_labels": labels, "test_images": images, "test_labels": labels}
    np.savez(tmp_path / f"{HOSTILE}.npz", **arrays)
    given = [*TINY, "--dataset", f"{HOSTILE}.npz", "--epochs", "1", "--out", HOSTILE, "--device", "cpu"]
    for arguments in (
        ["train", *given],
        ["train", *given, "--method", "cal"],  # refused: the folder is taken
        ["compare", *given, "--seeds", "1"],
        ["train", "--dataset", HOSTILE],
        ["study", "status", "main", "--preset", "smoke", "--out", HOSTILE],
        ["study", "run", "main", "--preset", "smoke", "--out", HOSTILE, "--dataset", f"{HOSTILE}.npz", "--dry-run"],
    ):
        result = invoke(*arguments)
        assert not isinstance(result.exception, Exception), arguments
        assert not set(result.output) & {"\x1b", "\u202e", "\x07"}, arguments
        assert "\\x1b[31mred\\u202e\\x07" in result.output, arguments


@pytest.mark.parametrize("content", ["3", "[]", '{"recipe": 3}', '{"recipe": [1]}', '{"recipe": null}', "[" * 100_000])
def test_a_report_on_a_run_whose_recipe_is_no_object_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text(content)
    (tmp_path / "run" / "metrics.jsonl").write_text('{"epoch": 1, "test_accuracy": 3.0}\n')
    result = invoke("report", "run", "--html", "page.html")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert_carries(result.stderr, "recipe.json")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "memory"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 94371840000 bytes"), "memory"),
    ],
)
def test_too_little_memory_and_too_deep_nesting_are_answered_in_one_line(capsys, error, words):
    with pytest.raises(SystemExit) as stopped, answered():
        raise error
    said = capsys.readouterr().err
    assert (stopped.value.code, said.count("\n")) == (1, 1)
    assert words in said


@pytest.mark.slow
def test_methods_are_compared_seed_by_seed(tmp_path):
    result = tempbalance("compare", *TINY, "--methods", "cal,tb", "--seeds", "2", "--out", "all", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    names = {f"digits-mlp-0.25-{method}-{seed}" for method in ("cal", "tb") for seed in (43, 37)}
    assert {path.name for path in (tmp_path / "all").iterdir()} == names | {"comparison.json", "report.html"}
    assert_carries(result.stderr, "digits", "mlp", "width 0.25", "2 epochs", "cal, tb", "43, 37")
    assert all(result.stderr.count(f"{name}: test accuracy") == 1 for name in names)
    assert all(RunFolder(tmp_path / "all" / name).result is not None for name in names)
    assert_carries(result.stdout, "cal", "tb", "points", "alpha", "all/report.html")


def test_a_comparison_of_which_nothing_can_come_starts_nothing(tmp_path):
    for arguments in (["--dataset", "none.npz"], ["--methods", "cal,cal"], ["--methods", "cal,tb+cal"]):
        result = invoke("compare", *TINY, *arguments, "--seeds", "1", "--out", "all")
        assert_bad_usage(result, arguments[1].split(",")[-1])
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_says_what_failed(in_process):
    diverging = ("--lr", "1e20", "--weight-decay", "1e30")
    result = invoke("compare", *TINY, *diverging, "--methods", "cal", "--seeds", "1", "--device", "cpu")
    assert result.exit_code == 1
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert_carries(line, "cal diverged", "loss", "1e+20")


@pytest.mark.slow
def test_a_comparison_that_is_asked_to_stop_leaves_no_process_behind(tmp_path):
    command = [sys.executable, "-m", "tempbalance.cli", "compare", *TINY, "--epochs", "10000", "--seeds", "1"]
    command += ["--checkpoint-every", "0"]
    process = subprocess.Popen([*command, "--workers", "2"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    runs = [RunFolder(tmp_path / "runs" / f"digits-mlp-0.25-{method}-43") for method in ("cal", "tb")]
    deadline = time.monotonic() + 60
    while not all(len(run.metrics) > 1 for run in runs) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.terminate()
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told.count("Traceback") == 0
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
def test_without_the_packages_of_the_lab_a_command_says_what_to_install_and_others_work(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "tempbalance.lab.images.recipe", None)
    result = invoke(command, "--epochs", "1")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert_carries(result.stderr, "pip install", "'.[lab]'")
    for others in ([], ["diagnose"], ["study"]):
        assert invoke(*others, "--help").exit_code == 0


@pytest.mark.parametrize("command", ["train", "compare"])
def test_the_help_has_a_text_for_each_option_and_its_default(command, monkeypatch):
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 200)
    text = invoke(command, "--help").stdout
    for panel in ("Recipe", "Balancing", "Method", "Run", "Logging"):
        assert f"─ {panel} ─" in text
    for words in ("median_published", "wrn28_6", "[default: (0.5 1.5)]", "$TEMPBALANCE_CACHE"):
        assert words in text
    assert ("43, 37, 13, 51, 71" in text) == (command == "compare")


def test_ctrl_c_before_a_command_has_begun_ends_with_130(monkeypatch):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["tempbalance.cli.app"], "app", interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
