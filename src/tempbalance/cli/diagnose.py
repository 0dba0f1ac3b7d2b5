"""``tempbalance diagnose``: diagnose checkpoints, write a page if asked, and return the text to print."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from textwrap import wrap
from typing import Any, get_args

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from tempbalance.cli.terminal import messages, on_ctrl_c, say
from tempbalance.diagnosis.against import movements, to_dict
from tempbalance.diagnosis.diagnose import Diagnosis, TensorNote, diagnose, list_tensors
from tempbalance.diagnosis.text import WIDTH, Format, as_json, layer_csv, layer_text, sort_rows, tabulated
from tempbalance.errors import CheckpointError
from tempbalance.report.text import VERDICT_LOOKS, number, short, shown
from tempbalance.runlog import write_whole

_MOST_REASONS = 12  # shown below a table before the others are only counted


@dataclass(frozen=True)
class Output:
    """The form of a diagnosis, as the options of the command."""

    form: Any = "table"
    wide: bool = False
    sort: str = "depth"
    top: int | None = None
    html: Path | None = None
    figures: Path | None = None

    def __post_init__(self) -> None:
        if self.form not in get_args(Format):
            raise ValueError(f"format must be one of {', '.join(get_args(Format))}, got {self.form!r}")
        sort_rows([], self.sort)
        if self.html is not None and self.html.is_dir():
            raise ValueError(f"html must be a file to write, got the folder {str(self.html)!r}")

    @property
    def is_of_one(self) -> bool:
        """Whether an option was given that makes sense for one checkpoint only."""
        return bool(self.html or self.figures or self.top or self.wide) or self.sort != "depth"


def run(sources: Sequence[str], output: Output, which: Mapping[str, Any], how: Mapping[str, Any] | None) -> None:
    """Diagnose checkpoints, the earliest first, or list the tensors of one; print the text, then write the files.

    ``which`` are the options of `diagnose` that choose layers, ``how`` the others; without them tensors are listed.
    """
    if output.html is not None and any(is_same(output.html, source) for source in sources):
        raise ValueError(f"html must be another file than the checkpoint {str(output.html)!r}")
    if how is None and (len(sources) > 1 or output.is_of_one):
        raise ValueError("--list shows the tensors of one checkpoint as they are: it goes with no other option")
    if how is None:
        return _print(render_list(list_tensors(sources[0], **which), output.form))
    if len(sources) > 1 and output.is_of_one:
        raise ValueError("--html, --figures, --sort, --top and --wide are about one checkpoint: not with --against")
    if output.html is not None or output.figures is not None:
        with on_ctrl_c(signal.SIG_DFL):
            import_module("tempbalance.report.diagnosis")  # a missing extra is an error before the work, not after
    diagnoses = [diagnose_with_progress(source, {**which, **how}) for source in sources]
    for each in diagnoses:
        if not each.judged:
            raise CheckpointError(f"{short(each.model)}: {each.why_none_is_scored()}")
    if len(diagnoses) > 1:
        return _print(render_series(diagnoses, output.form))
    _print(render(diagnoses[0], output), is_coloured=output.form == "table")
    _write(diagnoses[0], output)


def _print(text: str, *, is_coloured: bool = False) -> None:
    terminal = Console()
    if terminal.is_terminal and is_coloured:
        terminal.print(colour(text), soft_wrap=True, highlight=False)
    else:
        typer.echo(text)


def is_same(page: Path, source: str) -> bool:
    """Return whether a page would be written over the checkpoint, or over a file in its folder."""
    if not page.exists() or not Path(source).exists():
        return False
    return page.samefile(source) or page.resolve().is_relative_to(Path(source).resolve())


def diagnose_with_progress(source: str, options: Mapping[str, Any]) -> Diagnosis:
    """Diagnose behind a progress bar, and print the notes about the file."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=messages, transient=True, disable=not messages.is_terminal) as bar:
        task = bar.add_task(short(Path(source).name).replace("[", "("), total=None)

        def progress(num_done: int, num_all: int) -> None:
            bar.update(task, completed=num_done, total=num_all)

        def stop(*_: object) -> None:  # without waiting for solves under way; nothing is being written meanwhile
            bar.stop()
            say("stopped")
            os._exit(130)

        with on_ctrl_c(stop):
            diagnosis = diagnose(source, **options, progress=progress)
    for note in diagnosis.notes:
        say(f"{short(diagnosis.model)}: {short(note, 300)}")
    return diagnosis


def _write(diagnosis: Diagnosis, output: Output) -> None:
    """Write the page and the figures that were asked for."""
    about = {"model": diagnosis.model, "tail": diagnosis.tail}
    if output.html is not None:
        from tempbalance.report import diagnosis_page

        with on_ctrl_c(signal.SIG_DFL):
            page = diagnosis_page(diagnosis.diagnoses, **about, summary=diagnosis.summary())
        write_whole(output.html, page.encode())
        say(f"page: {shown(output.html)}")
    if output.figures is not None:
        from tempbalance.report import diagnosis_charts, save_figures

        with on_ctrl_c(signal.SIG_DFL):
            paths = save_figures(diagnosis_charts(diagnosis.diagnoses, **about), output.figures)
        for path in paths:
            say(f"figure: {shown(path)}")


def render(diagnosis: Diagnosis, output: Output) -> str:
    """Return the judged rows of a diagnosis, the summary, and why other layers are skipped; CSV has the rows alone."""
    rows = sort_rows(diagnosis.judged, output.sort, top=output.top)
    if output.form == "json":
        return as_json({**diagnosis.to_dict(), "layers": [row.to_dict() for row in rows]})
    if output.form == "csv":
        return layer_csv(rows)
    return "\n".join([layer_text(rows, wide=output.wide), "", *_summary(diagnosis)])


def colour(text: str) -> Text:
    """Return a table with its verdicts in the colours of the page."""
    coloured = Text(text)
    for verdict, (style, _) in VERDICT_LOOKS.items():
        coloured.highlight_regex(rf"(?m)(?<=  ){verdict}$", style)
    return coloured


def _summary(diagnosis: Diagnosis) -> list[str]:
    """Return the lines below a table: advice first, then counts and skipped layers."""
    summary = diagnosis.summary()
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in summary["verdicts"].items())
    means = ", ".join(
        f"{label} {number(summary[name], 3)}"
        for label, name in (("alpha", "alpha"), ("alpha over random", "alpha_over_random"))
        if summary[name] is not None
    )
    lines = [summary["advice"], f"{short(diagnosis.model)}, tail {diagnosis.tail}: {verdicts}; mean {means}"]
    reasons: dict[str, list[str]] = {}
    for row in diagnosis.diagnoses:
        if not row.verdict:
            reasons.setdefault(row.reason, []).append(row.name)
    for reason, names in list(reasons.items())[:_MOST_REASONS]:
        which = short(names[0]) if len(names) == 1 else f"{short(names[0])} and {len(names) - 1} more"
        lines.append(f"skipped: {which}: {short(reason, 200)}")
    if len(reasons) > _MOST_REASONS or diagnosis.others:
        num_others = sum(map(len, list(reasons.values())[_MOST_REASONS:])) + len(diagnosis.others)
        lines.append(f"skipped: {num_others} other tensors (biases, normalisation, ...), --list shows them")
    return [part for line in lines for part in wrap(line, WIDTH, break_long_words=False, break_on_hyphens=False)]


def render_series(diagnoses: Sequence[Diagnosis], form: Format) -> str:
    """Return at least two checkpoints side by side, the earliest first."""
    if form == "json":
        return as_json(to_dict(diagnoses))
    models = [short(each.model) for each in diagnoses]
    if len(set(models)) < len(models):  # as checkpoints of one run in several folders have
        models = [f"{name} {place}" for place, name in enumerate(models, 1)]
    alphas = [heading for name in models for heading in (f"alpha {name}", f"± {name}" if form == "csv" else "±")]
    change = ["change", "± change" if form == "csv" else "±", "distance", "relative distance"]
    rows = (
        [
            *(each.name, each.shape, *chain(*zip(each.alphas, each.alpha_stderrs, strict=True))),
            *(each.change, each.change_stderr, each.distance, each.relative_distance),
        ]
        for each in movements(diagnoses)
    )
    return tabulated(["layer", "shape", *alphas, *change], rows, form)


def render_list(notes: Sequence[TensorNote], form: Format) -> str:
    """Return every tensor of every mapping, and why it is or is not scored."""
    if form == "json":
        return as_json([{**vars(note), "shape": list(note.shape)} for note in notes])
    rows = ((note.key, note.name, note.shape, note.dtype, note.layer, note.reason) for note in notes)
    return tabulated(["key", "tensor", "shape", "dtype", "layer", "skipped"], rows, form)
