"""Trained networks pruned by magnitude, with the sparsity of each layer allocated in several ways."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, cast

from tempbalance.lab.findings import Cell, Findings
from tempbalance.lab.options import pretty
from tempbalance.lab.recipe import BaseRecipe
from tempbalance.lab.runs import check_run, load_weights
from tempbalance.report.statistics import LEVEL, Paired, holm, paired
from tempbalance.report.tables import Entry, Number, Report, ResultTable
from tempbalance.runlog import RunFolder, RunFolderError, write_whole

if TYPE_CHECKING:
    import altair as alt
    from torch import nn

    from tempbalance.diagnosis import Diagnosis

UNIFORM, THRESHOLD = "uniform", "one threshold"
_RANDOM = "alpha_over_random"
# options of `tempbalance.allocate`, but for the pattern of a network's blocks
WAYS: dict[str, dict[str, Any]] = {
    UNIFORM: {"by": "alpha", "more_where": "larger", "spread": 0.0},
    "alpha, larger": {"by": "alpha", "more_where": "larger"},
    "alpha, smaller": {"by": "alpha", "more_where": "smaller"},
    "over random, larger": {"by": _RANDOM, "more_where": "larger"},
    "over random, smaller": {"by": _RANDOM, "more_where": "smaller"},
    "blocks: alpha, larger": {"by": "alpha", "more_where": "larger"},
    "blocks: alpha, smaller": {"by": "alpha", "more_where": "smaller"},
    "blocks: over random, larger": {"by": _RANDOM, "more_where": "larger"},
    "blocks: over random, smaller": {"by": _RANDOM, "more_where": "smaller"},
    THRESHOLD: {},
}
_BLOCKS = {"resnet18": "layer*.*", "gpt": "blocks.*"}
FILE = "pruned.json"  # in a run's folder


def evaluate(findings: Findings, cache: Path | None) -> None:
    """Prune the final weights of each complete run in each way, and keep what the test set says in its folder."""
    wanted = {_key(way, sparsity): (way, sparsity) for way in WAYS for sparsity in sparsities(findings)}
    for tried in findings.tried:
        for seed, run in tried.runs.items():
            _prune_run(run, tried.point.recipe(seed), wanted, cache)


def sparsities(findings: Findings) -> tuple[float, ...]:
    """Return the sparsities that networks are pruned to."""
    return (0.5,) if findings.preset.name == "smoke" else (0.5, 0.6, 0.7)


def _prune_run(run: RunFolder, recipe: BaseRecipe, wanted: Mapping[str, tuple[str, float]], cache: Path | None) -> None:
    known = _outcomes(run)
    if not (missing := [each for each in ("dense", *wanted) if each not in known]):
        return
    from tempbalance.diagnosis import diagnose

    network, measured = _trained(run, recipe, cache)
    # a language model's head is not pruned; that of images is too small to be scored
    exclude = ("head",) if recipe.kind == "language" else ()
    table = diagnose(network, shuffle=False, min_eigenvalues=vars(recipe)["min_eigenvalues"], exclude=exclude)
    trained = {name: each.clone() for name, each in network.state_dict().items()}
    for key in missing:
        network.load_state_dict(trained)
        if key != "dense":
            _prune(network, table, *wanted[key], _BLOCKS[recipe.model])
        known[key] = measured()
    write_whole(run.path / FILE, (json.dumps(known, indent=2) + "\n").encode())


def _key(way: str, sparsity: float) -> str:
    """The name of an outcome in a run's file."""
    return f"{sparsity:g} {way}"


def _outcomes(run: RunFolder) -> dict[str, float]:
    """The outcomes that a run's folder has.

    Raises:
        RunFolderError: If the file is damaged.
    """
    path = run.path / FILE
    try:
        return {key: float(each) for key, each in json.loads(path.read_bytes()).items()} if path.exists() else {}
    except (ValueError, TypeError, AttributeError) as err:
        raise RunFolderError(f"{path}: damaged: {err}; without the file, study run measures again") from err


def _prune(network: nn.Module, table: Diagnosis, way: str, sparsity: float, blocks: str) -> None:
    """Zero the smallest weights of each layer that has an alpha, round(sparsity x weights) in all."""
    import torch

    from tempbalance.diagnosis.allocation import allocate

    group_by = blocks if way.startswith("blocks") else None
    options = {**(WAYS[way] or WAYS[UNIFORM]), "group_by": group_by}
    shares = allocate(table, target="sparsity", value=sparsity, **options).on(network)
    weights = {name: cast(torch.Tensor, network.get_submodule(name).weight).detach() for name in shares}
    counts = [share.num_pruned or 0 for share in shares.values()]
    if way == THRESHOLD:
        layers = torch.cat([torch.full((each.numel(),), place) for place, each in enumerate(weights.values())])
        smallest = torch.cat([each.abs().flatten() for each in weights.values()]).argsort(stable=True)[: sum(counts)]
        counts = torch.bincount(layers[smallest], minlength=len(weights)).tolist()
    for weight, count in zip(weights.values(), counts, strict=True):
        weight.view(-1)[weight.abs().flatten().argsort(stable=True)[:count]] = 0


def _trained(run: RunFolder, recipe: BaseRecipe, cache: Path | None) -> tuple[nn.Module, Callable[[], float]]:
    """The network of a complete run with its final weights, and a function that measures it on the test set.

    Raises:
        RunFolderError: If the run has no whole checkpoint.
        OtherRunError: If the data have changed since.
    """
    import torch
    from lightning.fabric import Fabric

    weights = load_weights(run.path)
    if recipe.kind == "language":
        from tempbalance.lab.language.recipe import LanguageRecipe
        from tempbalance.lab.language.training import LanguageTraining

        assert isinstance(recipe, LanguageRecipe)
        text = recipe.load(cache)
        check_run(run, recipe, digest=text.digest())
        with warnings.catch_warnings():  # advice about balancing
            warnings.filterwarnings("ignore", "TempBalance: ")
            training = LanguageTraining(recipe, text, Fabric(accelerator="cpu", devices=1))
        training.network.load_state_dict(weights)
        return training.network, lambda: float(training.perplexity("test"))
    from tempbalance.lab.images.data import batch_bounds, normalize
    from tempbalance.lab.images.recipe import ImageRecipe
    from tempbalance.lab.images.training import initial_network

    assert isinstance(recipe, ImageRecipe)
    data = recipe.load(cache)
    check_run(run, recipe, digest=data.digest())
    network = initial_network(recipe, data).eval()
    network.load_state_dict(weights)

    @torch.no_grad()
    def accuracy() -> float:
        bounds = batch_bounds(len(data.test_labels), 500)
        images = (normalize(data.test_images[start:end], data.mean, data.std) for start, end in bounds)
        found = torch.cat([network(each).argmax(1) for each in images])
        return 100 * float((found == data.test_labels).double().mean())

    return network, accuracy


Outcomes = Mapping[int, Mapping[str, float]]  # by seed, then by way and sparsity


def present(findings: Findings) -> Report:
    """Return a row for each network, sparsity and way, with the paired difference from uniform sparsity."""
    rows: list[list[Entry]] = []
    charts: dict[str, alt.TopLevelMixin] = {}
    notes: list[str] = []
    for cell in findings.cells:
        found = {seed: outcomes for seed, run in cell.best.runs.items() if (outcomes := _outcomes(run))}
        places = [(sparsity, way) for sparsity in sparsities(findings) for way in WAYS]
        tests = {place: _against(found, *place) for place in places}
        rows += _rows(cell, found, tests)
        if found:
            charts[f"pruning_{cell.labels['model']}"] = _chart(findings, cell, found)
        if (num_left := len(cell.best.outcomes) - len(found)) > 0:
            notes.append(f"{cell.panel}: {num_left} complete runs are not pruned yet; study run does it.")
        notes += _notes(cell, {place: test for place, test in tests.items() if test is not None})
    table = ResultTable(
        "Accuracy in % or perplexity on the test set after magnitude pruning without further training: mean ± standard "
        "deviation over the seeds. Layers, or blocks, are sparser where alpha, or alpha over that of a random matrix, "
        "is larger or smaller; one threshold prunes the smallest weights of all layers together. Against uniform: mean "
        "of the differences seed by seed ± half its 95 % interval; p of the paired t-test.",
        ["data", "network", "measure", "sparsity", "pruned", "test", "seeds", "against uniform", "p"],
        rows,
        spread=("test", "against uniform"),
    )
    return Report([table], charts, {}, notes)


def _values(found: Outcomes, key: str) -> dict[int, float]:
    return {seed: outcomes[key] for seed, outcomes in found.items() if key in outcomes}


def _against(found: Outcomes, sparsity: float, way: str) -> Paired | None:
    ours, theirs = (_values(found, _key(each, sparsity)) for each in (way, UNIFORM))
    return None if way == UNIFORM else paired(ours, theirs)


def _mean_and_spread(found: Outcomes, key: str) -> tuple[float | None, float | None]:
    values = _values(found, key).values()
    return fmean(values) if values else None, stdev(values) if len(values) > 1 else None


def _rows(cell: Cell, found: Outcomes, tests: Mapping[tuple[float, str], Paired | None]) -> Iterator[list[Entry]]:
    names: list[Entry] = [pretty(cell.labels["dataset"]), pretty(cell.labels["model"]), cell.tried[0].measure.title]
    for (sparsity, way), test in {(0.0, "not pruned"): None, **tests}.items():
        key = _key(way, sparsity) if sparsity else "dense"
        mean, spread = _mean_and_spread(found, key)
        difference = None if test is None else Number(test.mean, test.interval, signed=True)
        p_value = None if test is None or test.p_value is None else Number(test.p_value, digits=3, least=0.001)
        outcome, seeds = (
            None if mean is None else Number(mean, spread),
            f"{len(_values(found, key))} of {cell.num_seeds}",
        )
        yield [*names, f"{sparsity:g}", way, outcome, seeds, difference, p_value]


def _chart(findings: Findings, cell: Cell, found: Outcomes) -> alt.TopLevelMixin:
    """Draw a panel for each sparsity."""
    from tempbalance.report.study_charts import Bar, bar_chart

    bars = []
    for sparsity in sparsities(findings):
        for way in WAYS:
            label = way.replace("over random", "ratio")  # which has room under a bar
            bars.append(Bar(f"sparsity {sparsity:g}", label, *_mean_and_spread(found, _key(way, sparsity))))
    title, measure = f"Magnitude pruning of {cell.panel}", cell.tried[0].measure.title
    return bar_chart(bars, title=title, subtitle=findings.subtitle, y_title=f"test {measure}")


def _notes(cell: Cell, tests: Mapping[tuple[float, str], Paired]) -> Iterator[str]:
    """Describe the differences from uniform sparsity that the tests show, and count the tests."""
    p_values = dict(zip(tests, holm([test.p_value for test in tests.values()]), strict=True))
    clear = [place for place, p_value in p_values.items() if p_value is not None and p_value < LEVEL]
    if tests:
        where = ", ".join(f"{way} at {sparsity:g} ({tests[sparsity, way].mean:+.2f})" for sparsity, way in clear)
        text = f"{len(clear)} of {len(tests)} differences from uniform have p < {LEVEL:g}, corrected"
        yield f"{cell.panel}: {text}{f': {where}' if where else ''}."
