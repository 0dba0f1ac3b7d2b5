"""Does balancing help, and why? Settings with controls, each method at its own best base rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tempbalance.lab.accuracy import Bars
from tempbalance.lab.points import BY_TYPE, Point, Preset, over_rates, variant, with_controls
from tempbalance.lab.studies.comparisons import FAIR, FAIR_NOTE
from tempbalance.lab.study import Study

Options = Mapping[str, Any]
_CAPTION = "Each method at its own best base rate."


def _compared(cell: Options, options: Options, baseline: str, balanced: str, rates: Sequence[float]) -> list[Point]:
    """Return the baseline, TB and its controls over the same base rates."""
    points = [
        Point({**cell, "method": name}, {**options, **cell_options(cell), "method": name}, is_paper=False)
        for name in (baseline, balanced)
    ]
    return over_rates(with_controls(points), rates)


def cell_options(cell: Options) -> dict[str, Any]:
    """Return the options that labels of a cell are."""
    return {name: cell[name] for name in ("dataset", "model") if name in cell}


_RATES = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)
_LLAMA: dict[str, tuple[tuple[int, ...], Sequence[float], dict[str, Any]]] = {
    "paper": ((128, 256), _RATES, {"iterations": 600, "batch_size": 16, "sequence": 64, "evaluate_every": 100}),
    "laptop": (
        (64,), _RATES[1:],
        {"iterations": 120, "batch_size": 8, "sequence": 32, "evaluate_every": 120, "vocabulary": 1024},
    ),
    "smoke": (
        (16,), _RATES[1:3],
        {
            "layers": 1, "head": 8, "sequence": 8, "batch_size": 8, "iterations": 4, "evaluate_every": 2, "interval": 2,
            "min_eigenvalues": 8,
        },
    ),
}  # fmt: skip


def _llama_points(preset: Preset) -> list[Point]:
    """Return Adam alone, TB with its controls, and LLR's form with and without embeddings, at each width."""
    widths, rates, size = _LLAMA[preset.name]
    dataset, found = preset.dataset or "pydoc", []
    for width in widths:
        options = {"kind": "language", "layers": 4, "head": 32, "interval": 10, **size, "dropout": 0.0}
        options |= {"width": width, "inner": 8 * width // 3}
        cell = {"dataset": dataset, "model": "llama", "width": width}
        adam, tb, *controls = _compared(cell, options, "adam", "tb+adam", [rates[0]])
        llr = {"scale_range": (1.0, 5.0), "stop": max(1, options["iterations"] // 5)}
        forms = {
            "LLR": {**llr, "score_embeddings": True},
            "LLR without embeddings": llr,
            "fair": FAIR,
            "attention 0.6 and feed-forward 1.2": {"assignment": "attention=0.6,feed-forward=1.2"},
        }
        more = [variant(tb, name, each) for name, each in forms.items()]
        found += over_rates([adam, tb, *controls, *more], rates)
    return found


_OPERATORS: dict[str, tuple[Sequence[float], dict[str, Any]]] = {
    "paper": (_RATES, {"iterations": 2000}),
    "laptop": (
        (2.5e-4, *_RATES, 1.6e-2),
        {
            "iterations": 150, "test_limit": 100, "grid": 32, "width": 32, "modes": 8, "min_eigenvalues": 16,
            "evaluate_every": 150,
        },
    ),
    "smoke": (
        _RATES[1:3],
        {
            "limit": 4, "test_limit": 8, "grid": 16, "width": 8, "modes": 4, "blocks": 2, "iterations": 4,
            "evaluate_every": 2, "interval": 2, "batch_size": 4, "min_eigenvalues": 8,
        },
    ),
}  # fmt: skip


def _operator_points(preset: Preset) -> list[Point]:
    """Return each equation with the number of solutions at which TB helped or hurt most."""
    rates, size = _OPERATORS[preset.name]
    equations = {"advection": 16, "burgers": 64}
    return [
        point
        for dataset in ([preset.dataset] if preset.dataset else equations)
        for point in _compared(
            {"dataset": dataset, "model": "fno"},
            {"kind": "operator", "limit": equations[dataset], **size},
            "adam",
            "tb+adam",
            rates,
        )
    ]


_FEW: dict[str, tuple[tuple[int, ...], Sequence[float], dict[str, Any]]] = {
    "paper": ((8, 32, 128), (5e-5, 1e-4, 2e-4, 4e-4, 8e-4), {"iterations": 100}),
    "laptop": (
        (8, 32), (4e-4, 1.6e-3),
        {"iterations": 12, "batch_size": 8, "sequence": 20, "blocks": 1, "test_limit": 100, "interval": 4},
    ),
    "smoke": (
        (4,), (1e-4, 4e-4),
        {
            "iterations": 2, "batch_size": 2, "sequence": 8, "blocks": 1, "test_limit": 4, "interval": 1,
            "min_eigenvalues": 8,
        },
    ),
}  # fmt: skip


def _few_label_points(preset: Preset) -> list[Point]:
    """Return fine-tuning of all weights and, but on a laptop, of adapters, by the number of sentences."""
    examples, rates, size = _FEW[preset.name]
    return [
        point
        for model in ("bert", *(() if preset.name == "laptop" else ("bert_lora",)))
        for limit in examples
        for point in _compared(
            {"dataset": preset.dataset or "few_labels", "model": model, "sentences": limit},
            {"kind": "encoder", **size, "limit": limit, "evaluate_every": size["iterations"]},
            "adamw",
            "tb+adamw",
            [rate * (10 if model == "bert_lora" else 1) for rate in rates],
        )
    ]


_IMAGES: dict[str, tuple[str, Sequence[float], dict[str, Any]]] = {
    "paper": ("cifar10", (0.025, 0.05, 0.1, 0.2), {"epochs": 60}),
    "laptop": ("fashion_mnist", (0.05, 0.1), {"epochs": 5, "limit": 2000, "test_limit": 1000}),
    "smoke": ("digits", (0.05, 0.1), {"epochs": 1, "limit": 256, "test_limit": 128}),
}


def _image_points(preset: Preset) -> list[Point]:
    """Return a narrow ResNet18."""
    dataset, rates, size = _IMAGES[preset.name]
    options = {"width": 0.25, "min_eigenvalues": 12, "batch_size": 128, **size}
    cell = {"dataset": preset.dataset or dataset, "model": "resnet18"}
    return _compared(cell, options, "cal", "tb", rates)


STUDIES = (
    Study(
        "llama",
        title="Does balancing help small language models, and is it the spectra?",
        varies="Adam alone, TB with its controls, LLR's form with and without embeddings; widths and base rates",
        points=_llama_points,
        present=Bars(
            "method",
            "Temperature balancing of a small LLaMA",
            _CAPTION,
            notes=(
                FAIR_NOTE,
                "LLR: scales from 1 to 5, embeddings scored, scales fixed after 20 % of the steps. By type: "
                f"{BY_TYPE.replace(',', ' and ')} without spectra. Attention 0.6 and feed-forward 1.2: about "
                "TB's mean scales of these kinds in the size of laptop, without spectra.",
            ),
        ),
        reference={"method": "adam"},
        num_seeds={"laptop": 5},
    ),
    Study(
        "few_labels",
        title="Does balancing help fine-tuning on few labels?",
        varies="AdamW alone, TB with its controls; 8 to 128 sentences of SST-2, all weights or adapters; base rates",
        points=_few_label_points,
        present=Bars("method sentences", "Fine-tuning on few labels", _CAPTION),
        reference={"method": "adamw"},
        num_seeds={"paper": 30, "laptop": 30},
    ),
    Study(
        "operators",
        title="Is an operator's gain from balancing TB's or a smaller rate's?",
        varies="Adam alone, TB with its controls; advection and Burgers; base rates",
        points=_operator_points,
        present=Bars("method", "Temperature balancing of a Fourier neural operator", _CAPTION),
        reference={"method": "adam"},
        num_seeds={"laptop": 5},
    ),
    Study(
        "images",
        title="Does balancing help a narrow ResNet18 over its controls?",
        varies="CAL, TB with its controls; base rates",
        points=_image_points,
        present=Bars("method", "Temperature balancing of a narrow ResNet18", _CAPTION),
        num_seeds={"laptop": 5},
    ),
)
