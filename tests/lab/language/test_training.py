import io
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from tempbalance.lab.language.data import load_text
from tempbalance.lab.language.recipe import LanguageRecipe
from tempbalance.lab.language.training import LanguageTraining
from tempbalance.lab.runs import TrainingError, load_weights
from tempbalance.lab.train import train
from tempbalance.runlog import RunFolder
from tests.cases import raises
from tests.lab.cut import cpu, train_one_epoch

TINY: dict[str, Any] = {
    "layers": 1, "width": 16, "head": 8, "inner": 24, "sequence": 8, "batch_size": 4, "iterations": 10, "interval": 2,
    "evaluate_every": 4, "min_eigenvalues": 8, "lr": 0.01, "tokens": "characters",
}  # fmt: skip


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "own.txt"
    path.write_text("the cat sat on the mat, and the dog saw it.\n" * 20)
    return str(path)


def training(text: str, **options: Any) -> LanguageTraining:
    task = LanguageRecipe(**{**TINY, "dataset": text, **options})
    return LanguageTraining(task, load_text(text, tokens=task.tokens), cpu())


def weights(found: LanguageTraining) -> list[torch.Tensor]:
    return [each.detach().clone() for each in found.network.parameters()]


@pytest.mark.parametrize("method", ["adam", "tb+adam"])
@pytest.mark.parametrize("model", ["published", "tensorized", "gpt"])
def test_a_resumed_run_equals_one_that_never_stopped(text: str, model: str, method: str) -> None:
    more = {"causal": False, "clip": 0.25, "hold_rates": True} if model == "published" else {}
    straight = training(text, model=model, method=method, **more)
    lines = [straight.epoch(number) for number in (1, 2, 3)]
    first = training(text, model=model, method=method, **more)
    first.epoch(1)
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    torch.rand(7)  # what others draw moves nothing
    second = training(text, model=model, method=method, **more)
    second.load_state_dict(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True))
    assert [second.epoch(number) for number in (2, 3)] == lines[1:]
    for ours, theirs in zip(weights(second), weights(straight), strict=True):
        assert torch.equal(ours, theirs)


def test_rates_are_the_cosine_times_each_layers_scale(text: str) -> None:
    found = training(text)
    found.epoch(1)
    cosine = 0.01 * (1 + math.cos(math.pi * 4 / 10)) / 2
    scales = found.scheduler.last_scales
    assert max(scales.values()) == pytest.approx(1.5)
    assert min(scales.values()) == pytest.approx(0.5)
    for group in found.optimizer.param_groups:
        assert group["lr"] == pytest.approx(cosine * scales.get(group.get("layer"), 1.0))


def test_held_rates_change_only_with_a_balancing(text: str) -> None:
    found = training(text, hold_rates=True, interval=3)
    rates = []
    found.on_step = lambda loss: rates.append([group["lr"] for group in found.optimizer.param_groups])
    for number in (1, 2):
        found.epoch(number)
    assert len(rates) == 8
    assert all(rates[step] == rates[step // 3 * 3] for step in range(8))
    assert len({tuple(each) for each in rates}) == 3
    cosine = 0.01 * (1 + math.cos(math.pi * 6 / 10)) / 2
    assert max(rates[-1]) == pytest.approx(1.5 * cosine)
    alone = training(text, hold_rates=True, method="adam")
    alone.epoch(1)
    assert alone.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * (1 + math.cos(math.pi * 4 / 10)) / 2)


def test_clipped_gradients_have_the_norm_that_is_asked_for(text: str) -> None:
    found = training(text, model="published", causal=False, clip=1e-3)
    found.epoch(1)
    total = sum(float(each.grad.norm()) ** 2 for each in found.network.parameters())
    assert math.sqrt(total) == pytest.approx(1e-3, rel=1e-3)


def test_without_balancing_all_train_at_the_cosine_and_layers_are_scored_with_each_epoch(text: str) -> None:
    found = training(text, method="adam")
    lines = found.epoch(1).layers
    assert {line["scale"] for line in lines} == {1.0}
    assert all(line["rate"] == pytest.approx(0.01 * (1 + math.cos(math.pi * 4 / 10)) / 2) for line in lines)
    assert len(found.timings["balancing"]) == 1


def test_perplexity_is_that_of_the_tokens_one_by_one(text: str) -> None:
    found = training(text)
    metrics = found.epoch(1).metrics
    tokens, losses = found.parts["test"], []
    for place in range(1, len(tokens)):
        begin = (place - 1) // 8 * 8
        logits = found.network(tokens[None, begin:place])[0, -1]
        losses.append(-logits.log_softmax(0)[tokens[place]].item())
    assert metrics["test_perplexity"] == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-5)


def test_training_learns_a_text_that_repeats_itself(text: str) -> None:
    found = training(text, iterations=300, evaluate_every=150, dropout=0.0)
    before = found.perplexity("test")
    found.epoch(1)
    assert found.perplexity("test") < 3 < before


def test_seeds_give_other_weights_and_the_same_seed_the_same(text: str) -> None:
    one, same, other = (weights(training(text, seed=seed))[0] for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_run_writes_what_reports_read_and_says_when_it_is_complete(text: str, tmp_path: Path) -> None:
    task = LanguageRecipe(**{**TINY, "dataset": text})
    console = Console(file=io.StringIO())
    result = train(task, tmp_path / "run", console=console, device="cpu")
    folder = RunFolder(tmp_path / "run")
    assert [line["epoch"] for line in folder.metrics] == [1, 2, 3]
    assert result["test_perplexity"] == folder.metrics[-1]["test_perplexity"]
    assert result["num_balancings"] == 5
    assert all(math.isfinite(result[name]) for name in task.result_names)
    assert {"epoch_seconds", "balancing_seconds"} <= set(result)
    assert {line["epoch"] for line in folder.layers} == {0, 1, 2, 3}
    assert set(folder.layers[0]) == {"epoch", "layer", "alpha", "score", "scale", "rate"}
    assert RunFolder(tmp_path / "run").result == result
    assert train(task, tmp_path / "run", console=console, device="cpu") == result
    assert str(tmp_path / "run") in console.file.getvalue().replace("\n", "")  # type: ignore[attr-defined]


def test_a_loss_that_is_not_finite_ends_the_run_with_iteration_and_rate(text: str) -> None:
    found = training(text, method="adam", lr=1e30)
    with raises(TrainingError, "nan", "iteration 2", "e+29"):
        found.epoch(1)


def test_a_perplexity_beyond_all_numbers_ends_the_run(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = training(text, method="adam")
    monkeypatch.setattr("tempbalance.lab.language.training._MOST", 0.1)
    with raises(TrainingError, "valid perplexity", "inf", "iteration 4"):
        found.epoch(1)


def test_a_device_that_is_not_there_is_refused(text: str, tmp_path: Path) -> None:
    task = LanguageRecipe(**{**TINY, "dataset": text})
    with raises(ValueError, "device", "'tpu'"):
        train(task, tmp_path / "run", device="tpu")
    with raises(ValueError, "devices", 1, 2):
        train(task, tmp_path / "run", device="cpu", devices=2)
    assert not (tmp_path / "run").exists()


def test_a_run_in_mixed_precision_goes_on_in_it_to_the_bit(text: str, tmp_path: Path) -> None:
    task = LanguageRecipe(**{**TINY, "dataset": text})
    train(task, tmp_path / "whole", device="cpu", precision="bf16-mixed")
    train_one_epoch(tmp_path / "cut", task, precision="bf16-mixed")
    train(task, tmp_path / "cut", device="cpu", precision="bf16")
    cut, whole = RunFolder(tmp_path / "cut"), RunFolder(tmp_path / "whole")
    assert (cut.metrics, cut.layers) == (whole.metrics, whole.layers)
    train(task, tmp_path / "full", device="cpu")
    assert RunFolder(tmp_path / "full").metrics != whole.metrics


def test_the_best_epoch_is_chosen_on_the_validation_part(text: str, tmp_path: Path) -> None:
    result = train(LanguageRecipe(**{**TINY, "dataset": text}), tmp_path, device="cpu")
    best = min(RunFolder(tmp_path).metrics, key=lambda line: line["valid_perplexity"])
    assert (result["best_epoch"], result["best_perplexity"]) == (best["epoch"], best["test_perplexity"])
    assert load_weights(tmp_path, best=True).keys() == load_weights(tmp_path).keys()


def test_adam_that_is_not_scored_trains_the_same(text: str) -> None:
    scored, bare = training(text, method="adam"), training(text, method="adam", score_baseline=False)
    for number in (1, 2, 3):
        ours, theirs = scored.epoch(number), bare.epoch(number)
        assert ours.metrics == theirs.metrics
        assert ours.layers
        assert not theirs.layers
    assert not bare.first_lines()
    assert all(map(torch.equal, weights(scored), weights(bare)))
