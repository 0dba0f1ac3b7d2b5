"""Pages and figures of runs, written whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tempbalance.errors import CheckpointError
from tempbalance.report import runs_charts, runs_page, save_figures
from tempbalance.report.text import shown
from tempbalance.runlog import RunFolder, write_whole


def find_runs(folders: Sequence[Path]) -> list[RunFolder]:
    """The runs of images that the folders are or hold, in the order of their names.

    Raises:
        CheckpointError: If a folder is or holds none, or none has finished an epoch or is of images.
    """
    found: dict[Path, RunFolder] = {}
    for folder in folders:
        paths = sorted(path.parent for path in folder.rglob("recipe.json"))
        if not paths:
            raise CheckpointError(f"{shown(str(folder))} is no run and holds none: a run has a recipe.json")
        found.update((path.resolve(), RunFolder(path)) for path in paths)
    begun = [run for run in found.values() if run.metrics]
    runs = [run for run in begun if _kind(run) == "images"]
    if begun and not runs:
        kinds = ", ".join(dict.fromkeys(map(_kind, begun)))
        raise CheckpointError(
            f"{shown(str(folders[0]))} holds runs of {kinds}, pages are of images: see tempbalance study report {kinds}"
        )
    if not runs:
        raise CheckpointError(f"no run in {', '.join(shown(str(each)) for each in folders)} has finished an epoch yet")
    return runs


def _kind(run: RunFolder) -> str:
    return str(((run.recipe or {}).get("recipe") or {}).get("kind", "images"))


def write_runs(folders: Sequence[Path], html: Path, figures: Path | None = None) -> list[Path]:
    """Write the page of runs, and its charts if there is a folder for them.

    Args:
        folders: Runs, or folders that hold some.
        html: The page.
        figures: Where charts go as SVG, PDF and PNG.

    Returns:
        What was written.

    Raises:
        CheckpointError: If there are no runs.
        ValueError: If the page's place is a folder.
    """
    if html.is_dir():
        raise ValueError(f"html must be a file to write, got the folder {str(html)!r}")
    runs = find_runs(folders)
    write_whole(html, runs_page(runs).encode())
    return [html, *(save_figures(runs_charts(runs), figures) if figures is not None else [])]
