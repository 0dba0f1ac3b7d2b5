"""The command ``bench``: measure the cost of one balancing on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from tempbalance.cli.terminal import answered, messages, say, stoppable, wide_output
from tempbalance.errors import unknown

if TYPE_CHECKING:
    from tempbalance.bench.measure import Options, ShowProgress
    from tempbalance.bench.results import Results

_Text = Optional[str]  # noqa: UP045
_Number = Optional[int]  # noqa: UP045
_File = Optional[Path]  # noqa: UP045
_FORMATS = ("svg", "pdf", "png")


def bench(
    networks: Annotated[
        str,
        typer.Option(
            help="With commas between them: resnet18, resnet34, resnet101, vgg16, wrn28_6, gpt2, llama_block."
        ),
    ] = "all",
    parts: Annotated[str, typer.Option(help="With commas between them: speed, memory, growth, busy.")] = "all",
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds, after one to warm up.")] = 5,
    threads: Annotated[_Number, typer.Option(min=1, help="Torch threads. Default: torch's number.")] = None,
    device: Annotated[
        _Text,
        typer.Option(
            help="Only compare scoring on this device, such as cuda, with copying its weights to the CPU; with "
            "--estimate, solve there."
        ),
    ] = None,
    estimate: Annotated[
        _File,
        typer.Option(
            metavar="CHECKPOINT-OR-CONFIG",
            help="Only predict the cost of one balancing of this model, from its shapes and a short calibration. "
            "A transformers config.json is enough.",
        ),
    ] = None,
    ranks: Annotated[int, typer.Option(min=1, help="With --estimate, processes that share the work.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Small networks: a trial, whose times mean nothing.")] = False,
    out: Annotated[_File, typer.Option(help="Write all measurements to a JSON file.")] = None,
    read: Annotated[_File, typer.Option(help="Measure nothing, show a file of --out.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables in Markdown.")] = False,
    figure: Annotated[_File, typer.Option(help="Write a chart of the speed: .svg, .pdf or .png.")] = None,
) -> None:
    """Measure one balancing beside the published procedure, WeightWatcher and training."""
    with answered("lab"), stoppable():
        _check_places(out, figure)
        if estimate is not None:
            _estimate(estimate, ranks, threads, device)
            return
        if read is not None:
            from tempbalance.bench.results import read_results

            _show(read_results(read), markdown=markdown, figure=figure)
            return
        options = _options(networks, parts, rounds, threads, quick, device)
        if figure is not None and "speed" not in options.parts:
            raise ValueError(f"figure draws the speed, which is not among the parts {', '.join(options.parts)}")
        from tempbalance.bench.measure import measure, new_results

        results = new_results(options)
        try:
            with _progress() as tell:
                measure(options, results, tell)
        finally:  # whatever ends it, what is measured is not lost
            if out is not None:
                from tempbalance.bench.results import write_results

                write_results(results, out)
            _show(results, markdown=markdown, figure=figure)


def _estimate(path: Path, num_ranks: int, threads: int | None, device: str | None) -> None:
    import torch

    from tempbalance.bench.estimate import estimate, estimate_text, read_layers
    from tempbalance.bench.measure import check_device

    if device not in (None, "cpu"):
        check_device(device)
    layers = read_layers(path)
    num_threads = threads or torch.get_num_threads()
    found = estimate(layers, num_ranks=num_ranks, num_threads=num_threads, device=device or "cpu")
    for line in estimate_text(found, num_ranks=num_ranks, num_threads=num_threads):
        typer.echo(line)


def _check_places(out: Path | None, figure: Path | None) -> None:
    """Check before measuring that the output files can be written."""
    for name, path in {"out": out, "figure": figure}.items():
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise ValueError(f"{name} must be a file in a folder that exists, got {path}")
    if figure is not None:
        if figure.suffix.removeprefix(".") not in _FORMATS:
            raise ValueError(f"figure must end in .svg, .pdf or .png, got {figure.name!r}")
        import altair  # noqa: F401
        import vl_convert  # noqa: F401


def _options(networks: str, parts: str, rounds: int, threads: int | None, quick: bool, device: str | None) -> Options:
    from tempbalance.bench.measure import DEVICE, PARTS, Options, check_device
    from tempbalance.bench.networks import NETWORKS

    names, which = _chosen("network", networks, tuple(NETWORKS)), _chosen("part", parts, PARTS)
    if device is not None:
        if parts != "all":
            raise ValueError(f"device is measured alone, without the parts {parts}")
        check_device(device)
        which = (DEVICE,)
    return Options(names, which, rounds, threads, quick, device)


def _chosen(what: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a list with commas, each once."""
    names = known if text == "all" else tuple(dict.fromkeys(each.strip() for each in text.split(",")))
    for name in names:
        if name not in known:
            raise ValueError(unknown(what, name, known))
    return names


@contextmanager
def _progress() -> Iterator[ShowProgress]:
    """Show a bar in a terminal, elsewhere a line for each finished measurement."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn("{task.completed} of {task.total}"), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=messages, transient=True) as progress:
        task = progress.add_task("", total=None)

        def show(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)
            if done == total:
                progress.console.print(f"measured: {what}", highlight=False)

        yield show


def _show(results: Results, *, markdown: bool, figure: Path | None) -> None:
    from tempbalance.bench.results import setting_text, tables, to_markdown
    from tempbalance.report.tables import to_rich

    if markdown:
        typer.echo(to_markdown(results), nl=False)
    else:
        console = wide_output(160)
        for table in tables(results):
            console.print(f"\n{table.caption}", highlight=False)
            console.print(to_rich(table))
        console.print(setting_text(results), highlight=False, soft_wrap=True)
    if figure is not None and not results.of_part("speed"):
        say("no figure is drawn: no speed was measured")
    elif figure is not None:
        from tempbalance.bench.chart import draw_speed

        say(draw_speed(results, figure))
