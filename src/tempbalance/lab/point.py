"""What is trained in a study, and in which size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tempbalance.lab.methods import unknown
from tempbalance.lab.options import DATASETS
from tempbalance.lab.paper.rows import PaperResult
from tempbalance.lab.recipe import SEEDS, BaseRecipe, make_recipe


@dataclass(frozen=True)
class Preset:
    """How large a study is.

    Attributes:
        name: ``paper``, ``laptop`` or ``smoke``.
        seeds: What each point is trained with.
        about: In a few words.
        options: What it sets in every recipe; none for the paper's.
        width: Factor on the paper's widths.
        dataset: What stands in for the paper's data; ``None`` for what each study says.
    """

    name: str
    seeds: tuple[int, ...]
    about: str
    options: Mapping[str, Any] = field(default_factory=dict)
    width: float = 1.0
    dataset: str | None = None

    @property
    def is_paper(self) -> bool:
        """Whether it is the paper's own."""
        return not self.options


PRESETS = {
    "paper": Preset("paper", SEEDS, "the paper's own setting, for GPUs"),
    "laptop": Preset("laptop", SEEDS[:3], "small real data, minutes to hours on two cores", {"epochs": 12}, 0.25),
    "smoke": Preset(
        "smoke", SEEDS[:2], "a few steps, to see that it works", {"epochs": 2, "limit": 256, "test_limit": 128}, 0.125
    ),
}


@dataclass(frozen=True)
class Point:
    """A setting that is trained with each seed.

    Attributes:
        cell: What it is one of, by name: dataset, model, method and what else the study varies. Points of the same cell
            are a grid, of which the best counts.
        options: Of a recipe, all but the seed; ``kind`` where it is not of images.
        paper: What the paper reports for the cell.
        is_best: Whether the paper's number is of this point of the grid.
        stands_for: The paper's dataset that its own stands in for, if any.
    """

    cell: Mapping[str, Any]
    options: Mapping[str, Any]
    paper: PaperResult | None = None
    is_best: bool = False
    stands_for: str | None = None

    def recipe(self, seed: int) -> BaseRecipe:
        """What is trained with a seed."""
        return make_recipe({**self.options, "seed": seed})


def find_preset(name: str, *, dataset: str | None = None) -> Preset:
    """A preset by its name.

    Args:
        name: Of `PRESETS`.
        dataset: What stands in for the paper's data, a known name or a path.

    Raises:
        ValueError: If there is none, with the closest, or its data cannot be replaced.
    """
    if name not in PRESETS:
        raise ValueError(unknown("preset", name, PRESETS))
    if dataset is None:
        return PRESETS[name]
    if PRESETS[name].is_paper:
        raise ValueError(f"dataset must not be given with preset paper, which has the paper's own, got {dataset!r}")
    if not dataset.strip():
        raise ValueError(f"dataset must be a name or a path, got {dataset!r}")
    path = Path(dataset)
    known = dataset in DATASETS or not (path.suffix or len(path.parts) > 1 or path.exists())  # a bare word is a name
    return replace(PRESETS[name], dataset=dataset if known else str(Path(dataset).expanduser().resolve()))
