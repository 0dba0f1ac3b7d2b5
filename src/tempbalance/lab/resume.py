"""Whether a folder's run is the one that is asked for."""

from __future__ import annotations

import math

from tempbalance.lab.recipe import BaseRecipe, differences, make_recipe
from tempbalance.runlog import Line, RunFolder, RunFolderError

_PRECISIONS = {"64": "64-true", "32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}  # Lightning's short names


class OtherRunError(Exception):
    """A folder that holds a run of another recipe."""


def check_run(run: RunFolder, task: BaseRecipe, *, precision: str | None = None, digest: str | None = None) -> None:
    """Refuse a folder that holds a run of another recipe; one in which no epoch was finished is free for any.

    Args:
        run: The folder.
        task: What is asked for.
        precision: Of Lightning, where that trains.
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
        saved = make_recipe(content["recipe"])
    except ValueError as err:
        raise RunFolderError(f"{file}: {err}") from err
    same_kind = saved.kind == task.kind
    changed = (
        differences(saved, task) if same_kind else [f"kind: {saved.kind!r} in the folder, {task.kind!r} asked for"]
    )
    precision = _PRECISIONS.get(precision or "", precision)
    if (before := content.get("precision", precision)) != precision and precision is not None:
        changed.append(f"precision: {before!r} in the folder, {precision!r} asked for")
    if digest is not None and content.get("data", digest) != digest:
        changed.append(f"data: the content of {vars(task)['dataset']} has changed")
    if changed:
        told = "; ".join(changed)
        raise OtherRunError(
            f"{run.path} holds a run of another recipe: {told}; choose another --out or remove the folder"
        )


def finished(run: RunFolder, task: BaseRecipe) -> Line | None:
    """The result of a run that is complete, otherwise ``None``.

    Raises:
        RunFolderError: If the result lacks something.
    """
    result = run.result
    if result is not None and (missing := [name for name in task.result_names if not _is_number(result.get(name))]):
        file = run.path / "result.json"
        raise RunFolderError(
            f"{file}: must have numbers for {', '.join(missing)}; without the file the same command ends the run again"
        )
    return result


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
