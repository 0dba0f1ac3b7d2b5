"""The command line. Exit codes: 0 done, 1 a failed run or unreadable input, 2 bad usage, 130 stopped."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from tempbalance import __version__
from tempbalance.cli.bench import bench
from tempbalance.cli.data import data
from tempbalance.cli.study import study
from tempbalance.cli.terminal import answered, on_ctrl_c, tell
from tempbalance.cli.train import CompareCommand, RecipeCommand, compare, train

app = typer.Typer(name="tempbalance", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(study, name="study")
app.add_typer(data, name="data")
app.command(cls=RecipeCommand)(train)
app.command(cls=CompareCommand)(compare)
app.command()(bench)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tempbalance {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Balance the learning rates of layers by the spectra of their weights, and diagnose checkpoints."""


_Text = Optional[str]  # noqa: UP045
_File = Optional[Path]  # noqa: UP045
_Texts = Optional[list[str]]  # noqa: UP045

# Options of diagnose and allocate: which layers are scored, and how
_Tail = Annotated[str, typer.Option(help="How to fit the tail: median, median_published, goodness_of_fit or peak.")]
_TailFraction = Annotated[float, typer.Option(help="Share of the eigenvalues in the tail, with median.")]
_MinEigenvalues = Annotated[int, typer.Option(help="Skip layers with fewer eigenvalues.")]
_Include = Annotated[_Texts, typer.Option(help="Pattern of layer names to score, such as '*.mlp.*'; repeatable.")]
_Exclude = Annotated[_Texts, typer.Option(help="Pattern of layer names to skip, such as lm_head; repeatable.")]
_Fused = Annotated[_Texts, typer.Option(help="PATTERN=N: layers whose weight holds N parts side by side.")]
_Stacked = Annotated[_Texts, typer.Option(help="Pattern of 3-D weights that are stacked experts.")]
_Key = Annotated[_Text, typer.Option(help="Weights of the file to take, such as ema or netG. Default: the largest.")]
_Figures = Annotated[_File, typer.Option(help="Write charts as SVG, PDF and PNG into this folder.")]


def _scoring(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `tempbalance.diagnose` among the arguments of a command."""
    lists = {name: given[name] or () for name in ("include", "exclude", "stacked")}
    return {
        **{name: given[name] for name in ("tail", "tail_fraction", "min_eigenvalues", "key")},
        **lists,
        "fused": _read_fused(given["fused"] or []),
    }


@app.command()
def diagnose(
    ctx: typer.Context,
    checkpoint: Annotated[
        str, typer.Argument(help="A file (.safetensors, .pt, .pth, .bin, .ckpt, .npz, ...) or a folder.")
    ],
    against: Annotated[_Texts, typer.Option(help="A later checkpoint to compare with; repeat for a series.")] = None,
    tail: _Tail = "median",
    tail_fraction: _TailFraction = 0.5,
    min_eigenvalues: _MinEigenvalues = 50,
    include: _Include = None,
    exclude: _Exclude = None,
    fused: _Fused = None,
    stacked: _Stacked = None,
    key: _Key = None,
    shuffle: Annotated[bool, typer.Option(help="Count eigenvalues beyond the edge after shuffling too.")] = True,
    form: Annotated[str, typer.Option("--format", help="table, json or csv.")] = "table",
    wide: Annotated[bool, typer.Option(help="Show every column of the table and whole names.")] = False,
    sort: Annotated[str, typer.Option(help="Value to sort by, largest first: alpha, alpha_over_random, ...")] = "depth",
    top: Annotated[Optional[int], typer.Option(min=1, help="Show only this many layers.")] = None,  # noqa: UP045
    list_: Annotated[
        bool, typer.Option("--list", help="Show all tensors of all mappings, and why each is or is not scored.")
    ] = False,
    html: Annotated[_File, typer.Option(help="Write an HTML page.")] = None,
    figures: _Figures = None,
) -> None:
    """Judge each layer of a checkpoint: random-like, under-trained, typical or strongly correlated.

    Nothing in the file is executed.
    """
    with answered():
        with on_ctrl_c(signal.SIG_DFL):
            from tempbalance.cli.diagnose import Output, run

        output = Output(form=form, wide=wide, sort=sort, top=top, html=html, figures=figures)
        which = _scoring(ctx.params)
        how = {"tail": which.pop("tail"), "tail_fraction": which.pop("tail_fraction"), "shuffle": shuffle}
        run([checkpoint, *(against or [])], output, which, None if list_ else how)


def _read_fused(given: list[str]) -> dict[str, int]:
    """Read ``PATTERN=N`` as patterns and numbers."""
    found = {}
    for each in given:
        pattern, _, number = each.rpartition("=")
        if not pattern or not number.isdecimal() or int(number) < 1:
            raise ValueError(f"fused must be PATTERN=N, such as '*.qkv=3', got {each!r}")
        found[pattern] = int(number)
    return found


@app.command()
def allocate(
    ctx: typer.Context,
    checkpoint: Annotated[str, typer.Argument(help="A checkpoint, as for diagnose.")],
    target: Annotated[
        str, typer.Option(help="sparsity=S or bits=B, the mean over all weights, or lora-rank=R, the mean over layers.")
    ],
    by: Annotated[
        _Text, typer.Option(help="Required: alpha, or alpha_over_random, its ratio to that of a random matrix.")
    ] = None,
    more_where: Annotated[
        _Text, typer.Option(help="Required: larger or smaller, the layers that get more of the target.")
    ] = None,
    spread: Annotated[float, typer.Option(help="Shares lie on a line from 1 - SPREAD to 1 + SPREAD.")] = 0.3,
    lora_alpha: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="peft's lora_alpha at the mean rank. Default: that rank."),
    ] = None,
    group_by: Annotated[
        _Text,
        typer.Option(help="Layers whose names begin like this pattern, such as 'model.layers.*', share their mean."),
    ] = None,
    tail: _Tail = "median",
    tail_fraction: _TailFraction = 0.5,
    min_eigenvalues: _MinEigenvalues = 50,
    include: _Include = None,
    exclude: _Exclude = None,
    fused: _Fused = None,
    stacked: _Stacked = None,
    key: _Key = None,
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
    out: Annotated[_File, typer.Option(help="Write JSON into this file as well.")] = None,
) -> None:
    """Allocate sparsity, bit widths or LoRA ranks to the layers of a checkpoint by alpha."""
    with answered():
        with on_ctrl_c(signal.SIG_DFL):
            from tempbalance.cli.allocate import allocation_text

        shares = {"by": by, "more_where": more_where, "spread": spread, "lora_alpha": lora_alpha, "group_by": group_by}
        options = _scoring(ctx.params)
        typer.echo(allocation_text(checkpoint, target, shares=shares, options=options, form=form, out=out))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that hold some.")],
    html: Annotated[Path, typer.Option(help="HTML page to write.")] = Path("report.html"),
    figures: _Figures = None,
) -> None:
    """Show runs of the lab on one page: curves, methods, layers over time."""
    with answered():
        from tempbalance.report.runs import write_runs

        for path in write_runs(runs, html, figures):
            tell(path)


def main() -> None:
    """Run the command line; Ctrl-C before a command has begun ends it without a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
