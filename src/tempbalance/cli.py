"""The command line: parsing and exit codes. Exit 0 is done, 1 a failed run or unreadable input, 2 bad usage."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.console import Console

from tempbalance import __version__
from tempbalance.lab.flags import LOGGING, RECIPE, RUN, with_recipe_options
from tempbalance.lab.methods import METHODS
from tempbalance.lab.options import check_dataset
from tempbalance.lab.recipe import SEEDS, Recipe, read_recipe
from tempbalance.report.text import shown
from tempbalance.runlog import RunFolder

app = typer.Typer(name="tempbalance", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
messages = Console(stderr=True)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tempbalance {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train neural networks layer by layer at the temperature each layer needs."""


_Text = Optional[str]  # noqa: UP045
_Number = Optional[int]  # noqa: UP045
_File = Optional[Path]  # noqa: UP045
_RecipeFile = Annotated[
    _File,
    typer.Option(
        "--recipe",
        help="YAML or JSON with options by name, such as a run's recipe.json; options given beside it override it.",
        rich_help_panel=RUN,
    ),
]
_Cache = Annotated[
    _File,
    typer.Option(
        help="Where datasets are kept; without it $TEMPBALANCE_CACHE, or the system's folder for caches.",
        rich_help_panel=RUN,
    ),
]
_Device = Annotated[str, typer.Option(help="cpu, gpu, auto, ...: Lightning's accelerator.", rich_help_panel=RUN)]
_Precision = Annotated[
    str, typer.Option(help="Lightning's precision: 32-true, bf16-mixed, 16-mixed, ...", rich_help_panel=RUN)
]
_LogEvery = Annotated[int, typer.Option(min=1, help="Steps between two readings of the loss.", rich_help_panel=LOGGING)]
_TensorBoard = Annotated[
    bool, typer.Option(help="Write TensorBoard logs into a run's folder.", rich_help_panel=LOGGING)
]


@app.command()
@with_recipe_options()
def train(
    options: dict[str, Any],
    out: Annotated[_Text, typer.Option(help="The run's folder; without it runs/NAME.", rich_help_panel=RUN)] = None,
    recipe: _RecipeFile = None,
    cache: _Cache = None,
    device: _Device = "auto",
    devices: Annotated[int, typer.Option(min=1, help="How many devices.", rich_help_panel=RUN)] = 1,
    num_nodes: Annotated[int, typer.Option(min=1, help="How many machines.", rich_help_panel=RUN)] = 1,
    precision: _Precision = "32-true",
    threads: Annotated[_Number, typer.Option(min=1, help="Threads of torch.", rich_help_panel=RUN)] = None,
    log_every: _LogEvery = 10,
    tensorboard: _TensorBoard = False,
) -> None:
    """Train one recipe; the same command on the same folder goes on where it stopped."""
    with _answered("lab"), _stoppable():
        given = {**(read_recipe(recipe) if recipe else {}), **options}
        chosen = Recipe.from_dict(given)
        folder = _folder(out, Path("runs") / chosen.name)
        if not RunFolder(folder).is_begun:
            check_dataset(chosen.dataset)
        from tempbalance.lab.compare import doubts
        from tempbalance.lab.processes import seconds_text
        from tempbalance.lab.start import say, start

        for doubt in doubts(options, [chosen]):
            say(messages, f"warning: {doubt}")
        result = start(
            chosen,
            folder,
            cache=cache,
            threads=threads,
            console=messages,
            log_every=log_every,
            tensorboard=tensorboard,
            accelerator=device,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,
        )
        if result is not None:
            best = f"best {result['best_accuracy']:.2f} % in epoch {result['best_epoch']}"
            time = seconds_text(result["seconds"])
            typer.echo(f"{chosen.name}: test accuracy {result['test_accuracy']:.2f} %, {best}, {time}")


@app.command()
@with_recipe_options("method", "seed", defaults={"epochs": "200; 12 with digits", "width": "1.0; 0.25 with digits"})
def compare(
    options: dict[str, Any],
    methods: Annotated[
        str,
        typer.Option(help=f"Methods with commas between them: {', '.join(METHODS)}, ...", rich_help_panel=RECIPE),
    ] = "cal,tb",
    seeds: Annotated[
        int,
        typer.Option(
            min=1,
            max=len(SEEDS),
            help=f"How many of the paper's seeds: {', '.join(map(str, SEEDS))}.",
            rich_help_panel=RECIPE,
        ),
    ] = 3,
    out: Annotated[_Text, typer.Option(help="Where the runs go.", show_default="runs", rich_help_panel=RUN)] = None,
    recipe: _RecipeFile = None,
    cache: _Cache = None,
    workers: Annotated[
        _Number, typer.Option(min=1, help="Processes at a time; without it one a core.", rich_help_panel=RUN)
    ] = None,
    device: _Device = "auto",
    precision: _Precision = "32-true",
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch, a process.", rich_help_panel=RUN)] = 1,
    log_every: _LogEvery = 10,
    tensorboard: _TensorBoard = False,
) -> None:
    """Train methods with several seeds each, side by side, and say what the differences amount to."""
    with _answered("lab"), _stoppable():
        from tempbalance.lab.compare import (
            comparison_table,
            doubts,
            headline,
            plan,
            summarize,
            verdict,
            write_comparison,
        )
        from tempbalance.lab.processes import check_all, run_all
        from tempbalance.report.write import write_runs

        given = {**(read_recipe(recipe) if recipe else {}), **options}
        names = [name.strip() for name in methods.split(",")]
        recipes = plan(given, names, SEEDS[:seeds])
        folder = _folder(out, Path("runs"))
        check_all(recipes, folder, precision=precision)
        for line in (headline(recipes), *(f"warning: {doubt}" for doubt in doubts(given, recipes))):
            messages.print(line, markup=False, highlight=False, soft_wrap=True)
        arguments = ["--device", device, "--precision", precision, "--threads", str(threads)]
        arguments += ["--log-every", str(log_every), *(["--tensorboard"] if tensorboard else [])]
        arguments += ["--cache", str(cache)] if cache else []
        run_all(recipes, folder, num_workers=workers or os.cpu_count() or 1, arguments=arguments, console=messages)
        comparisons = summarize(names, recipes, folder)
        write_comparison(comparisons, recipes, folder)
        Console().print(comparison_table(comparisons))
        (page,) = write_runs([folder / each.name for each in recipes], folder / "report.html")
        for sentence in (*verdict(comparisons), f"The runs are in {folder}, a page to look at them is {page}"):
            typer.echo(sentence)


def _folder(given: str | None, default: Path) -> Path:
    """The folder of ``--out``.

    Raises:
        ValueError: If it can be none.
    """
    if given is not None and not given.strip():
        raise ValueError(f"out must be a folder, got {given!r}")
    folder = default if given is None else Path(given)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out must be a folder, {folder} is a file")
    return folder


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP stop a command as Ctrl-C does; who has them ignored, as nohup has, keeps that."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_Patterns = Optional[list[str]]  # noqa: UP045


@app.command()
def diagnose(
    checkpoint: Annotated[str, typer.Argument(help="A .safetensors, .pt, .pth, .bin or .ckpt file, or a folder.")],
    against: Annotated[_Patterns, typer.Option(help="A later checkpoint to compare with; repeat for a series.")] = None,
    tail: Annotated[str, typer.Option(help="median, goodness_of_fit or peak.")] = "median",
    tail_fraction: Annotated[float, typer.Option(help="With median, how much of the spectrum is the tail.")] = 0.5,
    min_eigenvalues: Annotated[int, typer.Option(help="Layers with fewer are left out.")] = 50,
    include: Annotated[_Patterns, typer.Option(help="Pattern of layer names to score, such as '*.mlp.*'.")] = None,
    exclude: Annotated[_Patterns, typer.Option(help="Pattern of layer names to leave out.")] = None,
    fused: Annotated[_Patterns, typer.Option(help="PATTERN=N: layers whose weight holds N parts side by side.")] = None,
    stacked: Annotated[_Patterns, typer.Option(help="Pattern of 3-D weights that are stacked experts.")] = None,
    shuffle: Annotated[bool, typer.Option(help="Count eigenvalues beyond the edge after shuffling too.")] = True,
    form: Annotated[str, typer.Option("--format", help="table, json or csv.")] = "table",
    sort: Annotated[str, typer.Option(help="Value to sort by, largest first: alpha, ks, spectral_norm, ...")] = "depth",
    top: Annotated[Optional[int], typer.Option(min=1, help="Show only the first so many layers.")] = None,  # noqa: UP045
    list_: Annotated[bool, typer.Option("--list", help="Show every tensor and why it is or is not scored.")] = False,
    html: Annotated[Optional[Path], typer.Option(help="Write a page to look at.")] = None,  # noqa: UP045
    figures: Annotated[Optional[Path], typer.Option(help="Write charts as SVG, PDF and PNG into a folder.")] = None,  # noqa: UP045
) -> None:
    """Tell which layers of a checkpoint are over- and under-trained; nothing in the file is executed."""
    with _answered():
        from tempbalance.tell import Telling, tell

        telling = Telling(form=form, sort=sort, top=top, html=html, figures=figures)
        which = {
            "min_eigenvalues": min_eigenvalues,
            "include": include or (),
            "exclude": exclude or (),
            "fused": _read_fused(fused or []),
            "stacked": stacked or (),
        }
        how = {"tail": tail, "tail_fraction": tail_fraction, "shuffle": shuffle}
        sources = [checkpoint, *(against or [])]
        typer.echo(tell(sources, telling, which, None if list_ else how, console=messages))


def _read_fused(given: list[str]) -> dict[str, int]:
    """``PATTERN=N`` as patterns and numbers."""
    found = {}
    for each in given:
        pattern, _, number = each.rpartition("=")
        if not pattern or not number.isdecimal() or int(number) < 1:
            raise ValueError(f"fused must be PATTERN=N, such as '*.qkv=3', got {each!r}")
        found[pattern] = int(number)
    return found


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that hold some.")],
    html: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    figures: Annotated[Optional[Path], typer.Option(help="Write charts as SVG, PDF and PNG into a folder.")] = None,  # noqa: UP045
) -> None:
    """Show runs of the lab on one page: curves, methods, layers over time."""
    with _answered():
        from tempbalance.report.write import write_runs

        for path in write_runs(runs, html, figures):
            typer.echo(path)


@contextmanager
def _answered(extra: str = "report") -> Iterator[None]:
    """Turn what went wrong into one line and an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        kept = ": what was finished is kept, the same command goes on from there" if extra == "lab" else ""
        messages.print(f"stopped{kept}")
        sys.exit(130)
    except ModuleNotFoundError as err:
        hint = f"this needs more packages, from a clone: pip install -c constraints.txt '.[{extra}]'"
        messages.print(f"error: {err}: {hint}", markup=False, soft_wrap=True)
        sys.exit(1)
    except Exception as err:
        is_ours = type(err).__module__.startswith("tempbalance")
        if not is_ours and not isinstance(err, ValueError | TypeError | OSError):
            raise
        messages.print(f"error: {shown(err)}", style="red", markup=False, soft_wrap=True, highlight=False)
        if type(err).__name__ == "InterruptedRunError":
            sys.exit(130)
        sys.exit(2 if isinstance(err, ValueError | TypeError) and not is_ours else 1)


if __name__ == "__main__":
    app()
