"""What ``tempbalance allocate`` does: diagnose, share out, write JSON if asked, and give the text to print."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from tempbalance import __version__
from tempbalance.allocation import TARGETS, Allocation, By, Target, allocate, check_target
from tempbalance.diagnose_command import diagnose_with_progress, is_same
from tempbalance.diagnosis.text import aligned, as_json, cell
from tempbalance.lab.methods import unknown
from tempbalance.report.text import shown
from tempbalance.runlog import write_whole

_FORMATS = ("table", "json")


def tell_allocation(
    source: str,
    target: str,
    *,
    shares: Mapping[str, Any],
    options: Mapping[str, Any],
    form: str,
    out: Path | None,
    console: Console,
) -> str:
    """Allocate from a checkpoint's diagnosis and say what came out.

    Args:
        source: The checkpoint.
        target: ``NAME=NUMBER``.
        shares: The other options of `allocate`.
        options: Those of `diagnose`.
        form: ``table`` or ``json``.
        out: Where JSON goes beside that.
        console: Where progress and messages go.

    Returns:
        The text for standard output.

    Raises:
        ValueError: If an option is out of range, before anything is read, or does not suit the layers.
    """
    name, value = _read_target(target)
    check_target(name, value, spread=shares["spread"], lora_alpha=shares["lora_alpha"])
    _check_telling(form, out, source)
    reference = options["reference"]
    if reference not in (None, "random"):
        raise ValueError(f"reference must be 'random' or None, got {reference!r}")
    how = {name: value for name, value in options.items() if name != "reference"}
    diagnosis = diagnose_with_progress(source, {**how, "shuffle": False}, console)
    by: By = "alpha" if reference is None else "score"
    found = allocate(diagnosis, target=name, value=value, by=by, **shares)
    about = {"tail": diagnosis.tail, "reference": reference, "group_by": shares["group_by"]}
    told = as_json({"model": diagnosis.model, "tempbalance": __version__, **about, **found.to_dict()})
    if out is not None:
        write_whole(out, f"{told}\n".encode())
        console.print(f"allocation: {shown(out)}", markup=False, highlight=False, soft_wrap=True)
    return told if form == "json" else _as_table(found, diagnosis.model)


def _read_target(given: str) -> tuple[Target, float]:
    """``NAME=NUMBER`` as name and number."""
    name, _, number = given.partition("=")
    try:
        value = float(number)
    except ValueError:
        raise ValueError(f"target must be NAME=NUMBER, such as sparsity=0.5, got {given!r}") from None
    if name not in TARGETS:
        raise ValueError(unknown("target", name, TARGETS))
    return cast(Target, name), value


def _check_telling(form: str, out: Path | None, source: str) -> None:
    if form not in _FORMATS:
        raise ValueError(f"format must be one of {', '.join(_FORMATS)}, got {form!r}")
    if out is not None and out.is_dir():
        raise ValueError(f"out must be a file to write, got the folder {str(out)!r}")
    if out is not None and is_same(out, source):
        raise ValueError(f"out must be a file of its own, got the checkpoint {str(out)!r}")


def _as_table(found: Allocation, model: str) -> str:
    """A line for each layer, the sum, and what was left out."""
    columns: tuple[str, ...] = ("sparsity", "num_pruned") if found.target == "sparsity" else ("rank",)
    if any(layer.compared != layer.alpha for layer in found.layers):
        columns = ("compared", *columns)
    headings = ["layer", "shape", "alpha", *(name.removeprefix("num_") for name in columns)]
    names = ("name", "shape", "alpha", *columns)
    lines = [[cell(getattr(layer, name)) for name in names] for layer in found.layers]
    return "\n".join([aligned([headings, *lines]), "", f"{shown(model)}: {_total(found)}", *_left_out(found)])


def _total(found: Allocation) -> str:
    if found.target == "lora-rank":
        ranks = sum(layer.rank or 0 for layer in found.layers)
        return f"ranks of {len(found.layers)} layers sum to {ranks}, {found.value} on average"
    num_pruned = sum(layer.num_pruned or 0 for layer in found.layers)
    num_all = sum(layer.num_parameters for layer in found.layers)
    return f"{num_pruned:,} of the {num_all:,} weights of {len(found.layers)} layers pruned, sparsity {found.value}"


def _left_out(found: Allocation) -> list[str]:
    """A line for each reason."""
    names: dict[str, list[str]] = {}
    for name, reason in found.left_out.items():
        names.setdefault(reason, []).append(name)
    return [
        f"left out: {shown(each[0]) if len(each) == 1 else f'{len(each)} layers'}: {shown(reason)}"
        for reason, each in names.items()
    ]
