"""``tempbalance allocate``: diagnose a checkpoint, allocate, write JSON if asked, and return the text to print."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from tempbalance import __version__
from tempbalance.cli.diagnose import diagnose_with_progress, is_same
from tempbalance.cli.terminal import say
from tempbalance.diagnosis.allocation import TARGETS, Allocation, Target, allocate, check_target
from tempbalance.diagnosis.text import as_json, tabulated
from tempbalance.errors import unknown
from tempbalance.report.text import short, shown
from tempbalance.runlog import write_whole

_FORMATS = ("table", "json")


def allocation_text(
    source: str, target: str, *, shares: Mapping[str, Any], options: Mapping[str, Any], form: str, out: Path | None
) -> str:
    """Allocate from a checkpoint's diagnosis, write JSON to ``out``, and return the text to print.

    ``shares`` are further options of `allocate`, ``options`` those of `diagnose`.
    """
    name, value = _read_target(target)
    check_target(name, value, **{key: each for key, each in shares.items() if key != "group_by"})
    _check_output(form, out, source)
    diagnosis = diagnose_with_progress(source, {**options, "shuffle": False})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = allocate(diagnosis, target=name, value=value, **shares)
    for each in caught:
        say(f"warning: {shown(each.message)}")
    how = {"tail": diagnosis.tail, "group_by": shares["group_by"]}
    text = as_json({"model": diagnosis.model, "tempbalance": __version__, **how, **found.to_dict()})
    if out is not None:
        write_whole(out, f"{text}\n".encode())
        say(f"allocation: {shown(out)}")
    return text if form == "json" else _as_table(found, diagnosis.model)


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


def _check_output(form: str, out: Path | None, source: str) -> None:
    if form not in _FORMATS:
        raise ValueError(f"format must be one of {', '.join(_FORMATS)}, got {form!r}")
    if out is not None and out.is_dir():
        raise ValueError(f"out must be a file to write, got the folder {str(out)!r}")
    if out is not None and is_same(out, source):
        raise ValueError(f"out must not be a file of the checkpoint, got {str(out)!r}")


def _as_table(found: Allocation, model: str) -> str:
    """A line for each layer, the sum, and the skipped layers."""
    columns = {"sparsity": ("sparsity", "num_pruned"), "bits": ("bits",), "lora-rank": ("rank",)}[found.target]
    if any(layer.compared != layer.alpha for layer in found.layers):
        columns = ("compared", *columns)
    headings = ["layer", "shape", "alpha", *(name.removeprefix("num_") for name in columns)]
    names = ("name", "shape", "alpha", *columns)
    table = tabulated(headings, [[getattr(layer, name) for name in names] for layer in found.layers], "table")
    return "\n".join([table, "", f"{short(model)}: {_total(found)}", *_skipped(found)])


def _total(found: Allocation) -> str:
    num_layers, num_all = len(found.layers), sum(layer.num_parameters for layer in found.layers)
    if found.target == "lora-rank":
        ranks = sum(layer.rank or 0 for layer in found.layers)
        return f"ranks of {num_layers} layers sum to {ranks}, {found.value} on average"
    if found.target == "bits":
        num_bits = sum((layer.bits or 0) * layer.num_parameters for layer in found.layers)
        return f"{num_bits / num_all:.4g} bits on average over the {num_all:,} weights of {num_layers} layers"
    num_pruned = sum(layer.num_pruned or 0 for layer in found.layers)
    return f"{num_pruned:,} of the {num_all:,} weights of {num_layers} layers pruned, sparsity {found.value}"


def _skipped(found: Allocation) -> list[str]:
    """A line for each reason."""
    names: dict[str, list[str]] = {}
    for name, reason in found.skipped.items():
        names.setdefault(reason, []).append(name)
    return [
        f"skipped: {short(each[0]) if len(each) == 1 else f'{len(each)} layers'}: {short(reason, 200)}"
        for reason, each in names.items()
    ]
