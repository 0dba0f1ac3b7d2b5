"""What ``tempbalance diagnose`` does: read, work, write a page if asked, and give the text to print."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tempbalance.diagnosis.against import movements, to_dict
from tempbalance.diagnosis.diagnose import Diagnosis, TensorNote, diagnose, list_tensors
from tempbalance.diagnosis.text import NOT_IN_CSV, Format, aligned, as_csv, as_json, cell, exact, layer_text, sort_rows
from tempbalance.ranking.table import DiagnosisRow
from tempbalance.report.text import number, shown
from tempbalance.runlog import write_whole

_WORST = 12  # reasons shown below a table before they are only counted


@dataclass(frozen=True)
class Telling:
    """How a diagnosis is told.

    Attributes:
        form: ``table``, ``json`` or ``csv``.
        sort: Value that the rows are sorted by, or ``depth``.
        top: How many rows are shown; ``None`` for all.
        html: Where a page goes.
        figures: The folder that charts go to.
    """

    form: Any = "table"
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


def tell(
    sources: Sequence[str],
    telling: Telling,
    which: Mapping[str, Any],
    how: Mapping[str, Any] | None,
    *,
    console: Console,
) -> str:
    """Diagnose checkpoints and say what came out.

    Args:
        sources: One checkpoint, or several for a series, the earliest first.
        telling: In which form.
        which: Options of `diagnose` that choose layers.
        how: The others; ``None`` lists the tensors of the first checkpoint instead.
        console: Where progress and messages go.

    Returns:
        The text for standard output.
    """
    if telling.html is not None and any(is_same(telling.html, source) for source in sources):
        raise ValueError(f"html must be a file of its own, got the checkpoint {str(telling.html)!r}")
    if how is None and (len(sources) > 1 or telling.html or telling.figures or telling.top or telling.sort != "depth"):
        raise ValueError("--list shows the tensors of one checkpoint as they are: leave out the other options")
    if how is None:
        return render_list(list_tensors(sources[0], **which), telling.form)
    if len(sources) > 1 and (telling.html or telling.figures or telling.top or telling.sort != "depth"):
        raise ValueError("--html, --figures, --sort and --top are about one checkpoint: leave out --against")
    diagnoses = [diagnose_shown(source, {**which, **how}, console) for source in sources]
    if len(diagnoses) > 1:
        names = [{row.name for row in each.scored} for each in diagnoses]
        if not set.intersection(*names):
            console.print("warning: no scored layer is in all of the checkpoints by the same name", highlight=False)
        return render_series(diagnoses, telling.form)
    diagnosis = diagnoses[0]
    _write(diagnosis, telling, console)
    return render(diagnosis, sort_rows(diagnosis.scored, telling.sort, top=telling.top), telling.form)


def is_same(page: Path, source: str) -> bool:
    """Whether a page would be written over what is diagnosed."""
    return page.exists() and Path(source).exists() and page.samefile(source)


def diagnose_shown(source: str, options: Mapping[str, Any], console: Console) -> Diagnosis:
    """Diagnose, with a bar that shows how far it is."""
    with _shown(console, Path(source).name) as progress:
        diagnosis = diagnose(source, **options, progress=progress)
    for note in diagnosis.notes:
        console.print(f"{shown(diagnosis.model)}: {shown(note)}", markup=False, highlight=False, soft_wrap=True)
    return diagnosis


def _write(diagnosis: Diagnosis, telling: Telling, console: Console) -> None:
    """The page and the figures that were asked for."""
    if telling.html is not None:
        from tempbalance.report import diagnosis_page

        page = diagnosis_page(
            diagnosis.diagnoses, model=diagnosis.model, tail=diagnosis.tail, summary=diagnosis.summary()
        )
        write_whole(telling.html, page.encode())
        console.print(f"page: {telling.html}", markup=False, highlight=False, soft_wrap=True)
    if telling.figures is not None:
        from tempbalance.report import diagnosis_charts, save_figures

        charts = diagnosis_charts(diagnosis.diagnoses, model=diagnosis.model, tail=diagnosis.tail)
        for path in save_figures(charts, telling.figures):
            console.print(f"figure: {path}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _shown(console: Console, name: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(shown(name).replace("[", "("), total=None)

        def update(num_done: int, num_all: int) -> None:
            progress.update(task, completed=num_done, total=num_all)

        yield update


def render(diagnosis: Diagnosis, rows: Sequence[DiagnosisRow], form: Format) -> str:
    """The scored rows of a diagnosis, what was left out and why, and the summary.

    Args:
        diagnosis: What was found.
        rows: Those of its scored rows to show, in this order.
        form: ``table``, ``json`` or ``csv``; the latter has the rows alone.
    """
    if form == "json":
        return as_json({**diagnosis.to_dict(), "layers": [diagnosis.row_dict(row) for row in rows]})
    if form == "csv":
        names = [each.name for each in fields(DiagnosisRow) if each.name not in NOT_IN_CSV]
        over = diagnosis.over_reference  # no field of a row, and only there if asked for
        lines = [[exact(getattr(row, name)) for name in names] + ([exact(row.score)] if over else []) for row in rows]
        return as_csv([*names, over] if over else names, lines)
    return "\n".join([layer_text(rows, reference=diagnosis.reference), *_telling(diagnosis)])


def _telling(diagnosis: Diagnosis) -> list[str]:
    """What stands below a table."""
    summary = diagnosis.summary()
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in summary["verdicts"].items())
    lines = ["", f"{shown(diagnosis.model)}: {summary['num_layers']} layers scored with {diagnosis.tail}: {verdicts}"]
    if summary["num_layers"]:
        means = ", ".join(
            f"{name} {number(summary[name])}"
            for name in ("alpha", "alpha_weighted", "log_alpha_norm", "log_norm", "stable_rank")
            if summary[name] is not None
        )
        lines.append(f"means: {means}")
    if summary["most_out_of_balance"]:
        lines.append("most out of balance: " + ", ".join(map(shown, summary["most_out_of_balance"])))
    left_out = {row.name: row.reason for row in diagnosis.diagnoses if row.alpha is None}
    lines += [f"left out: {shown(name)}: {shown(reason)}" for name, reason in list(left_out.items())[:_WORST]]
    if len(left_out) > _WORST:
        lines.append(f"left out: {len(left_out) - _WORST} more, --list shows them")
    if diagnosis.others:
        lines.append(f"{len(diagnosis.others)} other tensors are no layers (biases, normalisation, ...): --list")
    return lines


def render_series(diagnoses: Sequence[Diagnosis], form: Format) -> str:
    """Checkpoints side by side.

    Args:
        diagnoses: Of at least two, the earliest first.
        form: ``table``, ``json`` or ``csv``.
    """
    if form == "json":
        return as_json(to_dict(diagnoses))
    models = [shown(each.model) for each in diagnoses]
    headings = ["layer", "shape", *(f"alpha {name}" for name in models), "change", "distance", "relative distance"]
    told = cell if form == "table" else exact
    lines = [
        list(map(told, (each.name, each.shape, *each.alphas, each.change, each.distance, each.relative_distance)))
        for each in movements(diagnoses)
    ]
    return as_csv(headings, lines) if form == "csv" else aligned([headings, *lines])


def render_list(notes: Sequence[TensorNote], form: Format) -> str:
    """Every tensor, and why it is or is not scored."""
    if form == "json":
        return as_json([{**vars(note), "shape": list(note.shape)} for note in notes])
    headings = ["tensor", "shape", "dtype", "layer", "left out"]
    lines = [list(map(cell, (note.name, note.shape, note.dtype, note.layer, note.reason))) for note in notes]
    return as_csv(headings, lines) if form == "csv" else aligned([headings, *lines])
