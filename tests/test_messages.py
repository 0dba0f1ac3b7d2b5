"""What a person reads when something is wrong: the sentences, word by word.

Other tests look at an error's type and at the names and values it carries. To change a sentence, change it in the code,
run ``python -m tests.test_messages`` and look at the difference of tests/golden/messages.json.
"""

import contextlib
import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import tempbalance
from tempbalance.cli import app
from tests.cases import mlp

GOLDEN = Path(__file__).parent / "golden" / "messages.json"


def balanced(model: nn.Module | None = None, **options) -> tempbalance.TempBalance:
    model = mlp() if model is None else model
    return tempbalance.TempBalance(torch.optim.SGD(tempbalance.param_groups(model), lr=0.1), model, **options)


def spoiled(value: float) -> nn.Module:
    model = mlp()
    with torch.no_grad():
        model[3].weight[0, 0] = value
    return model


def unlabelled() -> None:
    model = mlp()
    tempbalance.TempBalance(torch.optim.SGD(model.parameters(), lr=0.1), model)


def lazy() -> None:
    balanced(nn.Sequential(nn.Linear(64, 64), nn.LazyLinear(64), nn.Linear(64, 64)))


def of_another_schedule() -> None:
    state = balanced().state_dict()
    model = mlp()
    optimizer = torch.optim.SGD(tempbalance.param_groups(model), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    tempbalance.TempBalance(optimizer, model, schedule).load_state_dict(state)


def stepped_twice() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(tempbalance.param_groups(model), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scheduler = tempbalance.TempBalance(optimizer, model, schedule)
    optimizer.step()
    schedule.step()
    scheduler.step()


def table() -> None:
    raise AssertionError(str(balanced().table()))  # shown like an error, so that it can stand beside the others


MESSAGES: dict[str, Callable[[], object]] = {
    "scale_range": lambda: balanced(scale_range=(2, 1)),
    "tail": lambda: balanced(tail="mean"),
    "score": lambda: balanced(score="beta"),
    "exclude": lambda: balanced(exclude="head"),
    "fused": lambda: balanced(fused={"*.qkv": 3}),
    "interval": lambda: balanced(interval=0),
    "no layer is scored": lambda: balanced(min_eigenvalues=1000),
    "exclude without effect": lambda: balanced(exclude=["head"]),
    "nan": lambda: balanced(spoiled(float("nan"))),
    "lazy": lazy,
    "unlabelled": unlabelled,
    "another schedule": of_another_schedule,
    "schedule stepped twice": stepped_twice,
    "log2": lambda: tempbalance.assign({"good": 2.0, "bad": 0.5}, assignment="log2"),
    "short tail": lambda: tempbalance.fit_tail(torch.tensor([1.0, 2.0])),
    "integer weight": lambda: tempbalance.spectrum(torch.ones(3, 3, dtype=torch.int8)),
    "table": table,
}
COMMANDS = {
    "no file": ["diagnose", "nothing.safetensors"],
    "no checkpoint": ["diagnose", "text.pt"],
    "bad tail": ["diagnose", "text.pt", "--tail", "mean"],
    "bad method": ["train", "--method", "tbb"],
    "bad dataset": ["train", "--dataset", "digit"],
    "bad epochs": ["train", "--dataset", "digits", "--epochs", "0"],
    "no study": ["study", "run", "mian"],
    "no runs": ["report", "nothing"],
}


def message_of(provoke: Callable[[], object]) -> str:
    """What is raised, or warned of, with its type."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            provoke()
        except Exception as err:
            return f"{type(err).__name__}: {err}"
    return f"{caught[0].category.__name__}: {caught[0].message}"


def answer_to(arguments: list[str], folder: Path) -> str:
    """What a command says on standard error, with its exit code."""
    (folder / "text.pt").write_text("no checkpoint")
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    return f"exit {result.exit_code}: {result.stderr.strip()}".replace(str(folder), "FOLDER")


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_reads_as_recorded(name):
    assert message_of(MESSAGES[name]) == json.loads(GOLDEN.read_text())[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_answers_as_recorded(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert answer_to(COMMANDS[name], tmp_path) == json.loads(GOLDEN.read_text())[name]


def record() -> None:
    """Write the golden file anew."""
    messages = {name: message_of(each) for name, each in MESSAGES.items()}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        messages |= {name: answer_to(each, Path(folder)) for name, each in COMMANDS.items()}
    GOLDEN.write_text(json.dumps(messages, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    record()
