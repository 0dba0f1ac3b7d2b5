"""Trained networks pruned by magnitude, with the sparsity of each layer allocated in several ways."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, cast

from tempbalance.lab.findings import Cell, Findings
from tempbalance.lab.options import pretty
from tempbalance.lab.points import Grid, Point, Preset
from tempbalance.lab.recipe import BaseRecipe
from tempbalance.lab.runs import check_run, load_weights
from tempbalance.lab.study import Study
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
_HEADS = {"language": ("head",)}  # not pruned; that of images is too small to be scored
FILE = "pruned.json"  # in a run's folder

_GPT: dict[str, dict[str, Any]] = {
    "paper": {"dataset": "penn_treebank", "min_eigenvalues": 40},
    "laptop": {
        "dataset": "pydoc", "layers": 4, "width": 64, "head": 64, "inner": 256, "batch_size": 16, "iterations": 2500,
        "evaluate_every": 500, "lr": 2.5e-3,
    },
    "smoke": {
        "dataset": "pydoc", "layers": 2, "width": 16, "head": 16, "inner": 32, "batch_size": 8,
        "iterations": 8, "evaluate_every": 8, "min_eigenvalues": 8, "lr": 1e-3,
    },
}  # fmt: skip
_OTHER_IMAGES = {"width": 0.125, "limit": 4_000}  # than digits, on a laptop
_CAPTION = (
    "The test set after pruning, by sparsity and how it is allocated; ratio is alpha over that of a random matrix."
)
_TEXTS = (".txt", ".text", ".md")


def points(preset: Preset) -> list[Point]:
    """ResNet18 with CAL and a GPT with Adam; ``--dataset`` replaces the images, or the text if it is a text file."""
    is_text = preset.dataset is not None and (preset.dataset.endswith(_TEXTS) or preset.dataset == "penn_treebank")
    grid = Grid("main", (), ("cifar10",), ("resnet18",), ("cal",), best=True, stand_ins={"cifar10": "digits"})
    images = grid(replace(preset, dataset=None) if is_text else preset)
    smaller = _OTHER_IMAGES if preset.name == "laptop" and images[0].options["dataset"] != "digits" else {}
    images = [replace(each, options={**each.options, **smaller}, paper=None, is_paper=False) for each in images]
    options = _GPT[preset.name]
    if is_text:
        options = {**options, "dataset": preset.dataset}
    names = {"dataset": options["dataset"], "model": "gpt", "method": "adam"}
    return [*images, Point(names, {**options, **names, "kind": "language"}, is_paper=False)]


def evaluate(findings: Findings, cache: Path | None) -> None:
    """Prune the final weights of each complete run in each way, and keep what the test set says in its folder."""
    for cell in findings.cells:
        for tried in cell.tried:
            for seed, run in tried.runs.items():
                _prune_run(run, tried.point.recipe(seed), sparsities(findings.preset), cache)


def sparsities(preset: Preset) -> tuple[float, ...]:
    """The sparsities that networks are pruned to."""
    return (0.5,) if preset.name == "smoke" else (0.5, 0.6, 0.7)


def _prune_run(run: RunFolder, recipe: BaseRecipe, wanted_sparsities: tuple[float, ...], cache: Path | None) -> None:
    wanted = {_key(way, sparsity): (way, sparsity) for way in WAYS for sparsity in wanted_sparsities}
    known = _outcomes(run)
    if not (missing := [each for each in ("dense", *wanted) if each not in known]):
        return
    from tempbalance.diagnosis import diagnose

    network, measured = _trained(run, recipe, cache)
    options = {"min_eigenvalues": vars(recipe)["min_eigenvalues"], "exclude": _HEADS.get(recipe.kind, ())}
    table = diagnose(network, shuffle=False, **options)
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


def present(findings: Findings) -> Report:
    """A row for each network, sparsity and way, with the paired difference from uniform sparsity."""
    found = {id(cell): _by_seed(cell) for cell in findings.cells}
    rows = [row for cell in findings.cells for row in _rows(findings, cell, found[id(cell)])]
    table = ResultTable(
        "Accuracy in % or perplexity on the test set after magnitude pruning without further training: mean ± standard "
        "deviation over the seeds. Layers, or blocks, are sparser where alpha, or alpha over that of a random matrix, "
        "is larger or smaller; one threshold prunes the smallest weights of all layers together. Against uniform: mean "
        "of the differences seed by seed ± half its 95 % interval; p of the paired t-test.",
        ["data", "network", "measure", "sparsity", "pruned", "test", "seeds", "against uniform", "p"],
        rows,
        spread=("test", "against uniform"),
    )
    charts: dict[str, alt.TopLevelMixin] = {}
    for cell in findings.cells:
        if found[id(cell)]:
            charts[f"pruning_{cell.labels['model']}"] = _chart(findings, cell, found[id(cell)])
    captions = dict.fromkeys(charts, _CAPTION)
    return Report([table], charts, captions, [*_notes(findings, found)])


Outcomes = Mapping[int, Mapping[str, float]]  # by seed, then by way and sparsity


def _by_seed(cell: Cell) -> Outcomes:
    runs = cell.best.runs if cell.best is not None else {}
    return {seed: outcomes for seed, run in runs.items() if (outcomes := _outcomes(run))}


def _values(found: Outcomes, key: str) -> dict[int, float]:
    return {seed: outcomes[key] for seed, outcomes in found.items() if key in outcomes}


def _against(found: Outcomes, way: str, sparsity: float) -> Paired | None:
    ours, theirs = (_values(found, _key(each, sparsity)) for each in (way, UNIFORM))
    return None if way == UNIFORM else paired(ours, theirs)


def _rows(findings: Findings, cell: Cell, found: Outcomes) -> Iterator[list[Entry]]:
    names: list[Entry] = [pretty(cell.labels["dataset"]), pretty(cell.labels["model"]), cell.tried[0].measure.title]
    for way, sparsity in [("not pruned", 0.0), *((way, each) for each in sparsities(findings.preset) for way in WAYS)]:
        values = list(_values(found, _key(way, sparsity) if sparsity else "dense").values())
        outcome = Number(fmean(values), stdev(values) if len(values) > 1 else None) if values else None
        test = _against(found, way, sparsity) if sparsity else None
        difference = None if test is None else Number(test.mean, test.interval, signed=True)
        p_value = None if test is None or test.p_value is None else Number(test.p_value, digits=3, least=0.001)
        seeds = f"{len(values)} of {cell.num_seeds}"
        yield [*names, f"{sparsity:g}", way, outcome, seeds, difference, p_value]


def _chart(findings: Findings, cell: Cell, found: Outcomes) -> alt.TopLevelMixin:
    """A panel for each sparsity."""
    from tempbalance.report.study_charts import Bar, bar_chart

    bars = []
    for sparsity in sparsities(findings.preset):
        for way in WAYS:
            values = list(_values(found, _key(way, sparsity)).values())
            spread = stdev(values) if len(values) > 1 else None
            label = way.replace("over random", "ratio")  # which has room under a bar
            bars.append(Bar(f"sparsity {sparsity:g}", label, fmean(values) if values else None, spread))
    title, measure = f"Magnitude pruning of {cell.panel}", cell.tried[0].measure.title
    return bar_chart(bars, title=title, subtitle=findings.subtitle, y_title=f"test {measure}")


def _notes(findings: Findings, found: Mapping[int, Outcomes]) -> Iterator[str]:
    """Describe the differences from uniform sparsity that the tests show, and count the tests."""
    for cell in findings.cells:
        if (num_left := len(cell.outcomes) - len(found[id(cell)])) > 0:
            yield f"{cell.panel}: {num_left} complete runs are not pruned yet; study run does it."
        places = [(sparsity, way) for sparsity in sparsities(findings.preset) for way in WAYS]
        tests = {place: test for place in places if (test := _against(found[id(cell)], place[1], place[0])) is not None}
        p_values = dict(zip(tests, holm([test.p_value for test in tests.values()]), strict=True))
        clear = [place for place, p_value in p_values.items() if p_value is not None and p_value < LEVEL]
        if tests:
            where = ", ".join(f"{way} at {sparsity:g} ({tests[sparsity, way].mean:+.2f})" for sparsity, way in clear)
            text = f"{len(clear)} of {len(tests)} differences from uniform have p < {LEVEL:g}, corrected"
            yield f"{cell.panel}: {text}{f': {where}' if where else ''}."


STUDIES = (
    Study(
        "pruning",
        title="Does alpha say which layers can be pruned more?",
        varies="sparsity and how it is allocated to layers: uniformly, by alpha, by alpha over random, by blocks",
        points=points,
        present=present,
        num_seeds={"laptop": 5},
        evaluate=evaluate,
    ),
)
