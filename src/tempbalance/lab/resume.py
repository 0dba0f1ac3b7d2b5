"""Whether a folder's run is the one that is asked for."""

from __future__ import annotations

import math
from pathlib import Path

from tempbalance.lab.options import DATASETS
from tempbalance.lab.recipe import Recipe, differences
from tempbalance.runlog import Line, RunFolder, RunFolderError

_PRECISIONS = {"64": "64-true", "32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}  # Lightning's short names
_RESULT = ("test_accuracy", "best_accuracy", "best_epoch", "seconds")


class OtherRunError(Exception):
    """A folder that holds a run of another recipe."""


def check_run(run: RunFolder, recipe: Recipe, *, precision: str, digest: str | None = None) -> None:
    """Refuse a folder that holds a run of another recipe; one in which no epoch was finished is free for any.

    Args:
        run: The folder.
        recipe: What is asked for.
        precision: Of Lightning.
        digest: Of the data; what a folder or the caller does not know is not compared.

    Raises:
        OtherRunError: With what differs.
        RunFolderError: If the folder does not say what its run was started with.
    """
    if not run.is_begun:
        return
    file, content = run.path / "recipe.json", run.recipe or {}
    if not isinstance(content.get("recipe"), dict):
        raise RunFolderError(f"{file}: must say what the run was started with, got {content or 'nothing'}")
    try:
        saved = Recipe.from_dict(content["recipe"])
    except ValueError as err:
        raise RunFolderError(f"{file}: {err}") from err
    changed = differences(saved, recipe)
    precision = _PRECISIONS.get(precision, precision)
    if (before := content.get("precision", precision)) != precision:
        changed.append(f"precision: {before!r} in the folder, {precision!r} asked for")
    if digest is not None and content.get("data", digest) != digest:
        changed.append(f"data: the images or labels of {recipe.dataset} have changed")
    if changed:
        told = "; ".join(changed)
        raise OtherRunError(
            f"{run.path} holds a run of another recipe: {told}; choose another --out or remove the folder"
        )


def is_own_data(recipe: Recipe) -> bool:
    """Whether the data is somebody's own, which can change, and is there."""
    return recipe.dataset not in DATASETS and Path(recipe.dataset).expanduser().exists()


def finished(run: RunFolder) -> Line | None:
    """The result of a run that is complete, otherwise ``None``.

    Raises:
        RunFolderError: If the result lacks something.
    """
    result = run.result
    if result is not None and (missing := [name for name in _RESULT if not _is_number(result.get(name))]):
        file = run.path / "result.json"
        raise RunFolderError(
            f"{file}: must have numbers for {', '.join(missing)}; without the file the same command ends the run again"
        )
    return result


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
