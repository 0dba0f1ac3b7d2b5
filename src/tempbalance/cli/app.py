"""The command line: parsing and exit codes. Exit 0 is done, 1 a failed run or unreadable input, 2 bad usage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.console import Console

from tempbalance import __version__
from tempbalance.cli.bench import bench
from tempbalance.cli.data import data
from tempbalance.cli.study import study
from tempbalance.cli.terminal import answered, messages, out_folder, stoppable
from tempbalance.lab.flags import LOGGING, RECIPE, RUN, with_recipe_options
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.methods import METHODS
from tempbalance.lab.options import read_options
from tempbalance.lab.recipe import SEEDS, find_kind, read_recipe
from tempbalance.lab.runs import EVERY
from tempbalance.runlog import RunFolder

app = typer.Typer(name="tempbalance", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(study, name="study")
app.add_typer(data, name="data")
app.command()(bench)


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
_Speed = Annotated[
    str, typer.Option(help="Any of channels_last, fused, compile, with commas between them.", rich_help_panel=RUN)
]
_CheckpointEvery = Annotated[float, typer.Option(min=0, help="Seconds between checkpoints.", rich_help_panel=RUN)]
_KeepCheckpoints = Annotated[
    bool, typer.Option(help="Keep all checkpoints, and the optimizer's state at the end.", rich_help_panel=RUN)
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
    speed: _Speed = "",
    checkpoint_every: _CheckpointEvery = EVERY,
    keep_checkpoints: _KeepCheckpoints = False,
) -> None:
    """Train one recipe; the same command on the same folder goes on where it stopped."""
    with answered("lab"), stoppable():
        kind = find_kind(str(read_options(recipe).get("kind", "images")) if recipe else "images")
        chosen = kind.from_dict({**(read_recipe(recipe, kind) if recipe else {}), **options})
        folder = out_folder(out, Path("runs") / chosen.name)
        if not RunFolder(folder).is_begun:
            chosen.check_data()
        from tempbalance.lab.compare import doubts
        from tempbalance.lab.progress import say, seconds_text
        from tempbalance.lab.train import train as train_recipe

        for doubt in doubts(options, [chosen]) if isinstance(chosen, ImageRecipe) else ():
            say(messages, f"warning: {doubt}")
        result = train_recipe(
            chosen,
            folder,
            cache=cache,
            threads=threads,
            console=messages,
            log_every=log_every,
            tensorboard=tensorboard,
            device=device,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,
            speed=[each for each in speed.split(",") if each],
            checkpoint_every=checkpoint_every,
            keep_checkpoints=keep_checkpoints,
        )
        if result is not None:
            value, time = chosen.measure.text(result[chosen.measure.name]), seconds_text(result["seconds"])
            name = f"best_{chosen.measure.name.removeprefix('test_')}"
            best = chosen.measure.text(result[name]).removeprefix("test ").removeprefix(chosen.measure.word)
            typer.echo(f"{chosen.name}: {value}, best{best} in epoch {result['best_epoch']}, {time}")


_WITH_DIGITS = {
    "epochs": "200; 12 with digits",
    "width": "1.0; 0.25 with digits",
    "min_eigenvalues": "50; 12 with digits",
}


@app.command()
@with_recipe_options("method", "seed", defaults=_WITH_DIGITS)
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
    with answered("lab"), stoppable():
        from tempbalance.lab.compare import (
            comparison_table,
            doubts,
            headline,
            plan,
            summarize,
            verdict,
            write_comparison,
        )
        from tempbalance.lab.executors.local import local_pool
        from tempbalance.lab.jobs import Job
        from tempbalance.lab.sweep import check_all, raise_failures, train_all
        from tempbalance.report.run_page import write_runs

        given = {**(read_recipe(recipe, ImageRecipe) if recipe else {}), **options}
        names = [name.strip() for name in methods.split(",")]
        recipes = plan(given, names, SEEDS[:seeds])
        folder = out_folder(out, Path("runs"))
        jobs = [Job(each, folder / each.name) for each in recipes]
        check_all(jobs, precision=precision)
        for line in (headline(recipes), *(f"warning: {doubt}" for doubt in doubts(given, recipes))):
            messages.print(line, markup=False, highlight=False, soft_wrap=True)
        settings = {"device": device, "precision": precision, "threads": threads, "cache": cache and str(cache)}
        settings |= {"log_every": log_every, "tensorboard": tensorboard}
        raise_failures(train_all(jobs, local_pool(settings, num_workers=workers), messages, stop_at_failure=True))
        comparisons = summarize(names, recipes, folder)
        write_comparison(comparisons, recipes, folder)
        Console().print(comparison_table(comparisons))
        (page,) = write_runs([folder / each.name for each in recipes], folder / "report.html")
        for sentence in (*verdict(comparisons), f"The runs are in {folder}, a page to look at them is {page}"):
            typer.echo(sentence)


_Patterns = Optional[list[str]]  # noqa: UP045
_Key = Annotated[
    _Text, typer.Option(help="Which weights of a file to take, such as ema or netG; without it the largest.")
]


@app.command()
def diagnose(
    checkpoint: Annotated[
        str, typer.Argument(help="A file (.safetensors, .pt, .pth, .bin, .ckpt, .npz, ...) or a folder.")
    ],
    against: Annotated[_Patterns, typer.Option(help="A later checkpoint to compare with; repeat for a series.")] = None,
    tail: Annotated[str, typer.Option(help="median, median_published, goodness_of_fit or peak.")] = "median",
    tail_fraction: Annotated[float, typer.Option(help="With median, how much of the spectrum is the tail.")] = 0.5,
    min_eigenvalues: Annotated[int, typer.Option(help="Layers with fewer are skipped.")] = 50,
    include: Annotated[_Patterns, typer.Option(help="Pattern of layer names to score, such as '*.mlp.*'.")] = None,
    exclude: Annotated[_Patterns, typer.Option(help="Pattern of layer names to skip.")] = None,
    fused: Annotated[_Patterns, typer.Option(help="PATTERN=N: layers whose weight holds N parts side by side.")] = None,
    stacked: Annotated[_Patterns, typer.Option(help="Pattern of 3-D weights that are stacked experts.")] = None,
    key: _Key = None,
    shuffle: Annotated[bool, typer.Option(help="Count eigenvalues beyond the edge after shuffling too.")] = True,
    form: Annotated[str, typer.Option("--format", help="table, json or csv.")] = "table",
    wide: Annotated[bool, typer.Option(help="Show every column of the table and whole names.")] = False,
    sort: Annotated[str, typer.Option(help="Value to sort by, largest first: alpha, alpha_over_random, ...")] = "depth",
    top: Annotated[Optional[int], typer.Option(min=1, help="Show only this many layers.")] = None,  # noqa: UP045
    list_: Annotated[
        bool, typer.Option("--list", help="Show all tensors of all mappings, and why each is or is not scored.")
    ] = False,
    html: Annotated[Optional[Path], typer.Option(help="Write a page to look at.")] = None,  # noqa: UP045
    figures: Annotated[Optional[Path], typer.Option(help="Write charts as SVG, PDF and PNG into a folder.")] = None,  # noqa: UP045
) -> None:
    """Judge each layer of a checkpoint: random-like, under-trained, typical or strongly correlated.

    Nothing in the file is executed.
    """
    with answered():
        from tempbalance.cli.diagnose import Output, run

        output = Output(form=form, wide=wide, sort=sort, top=top, html=html, figures=figures)
        which = {
            "min_eigenvalues": min_eigenvalues,
            "include": include or (),
            "exclude": exclude or (),
            "fused": _read_fused(fused or []),
            "stacked": stacked or (),
            "key": key,
        }
        how = {"tail": tail, "tail_fraction": tail_fraction, "shuffle": shuffle}
        run([checkpoint, *(against or [])], output, which, None if list_ else how, console=messages)


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
def allocate(
    checkpoint: Annotated[str, typer.Argument(help="What diagnose takes.")],
    target: Annotated[
        str, typer.Option(help="sparsity=S or bits=B, the mean over all weights, or lora-rank=R, the mean over layers.")
    ],
    by: Annotated[
        _Text, typer.Option(help="Must be given: alpha, or alpha_over_random, over that of a random matrix.")
    ] = None,
    more_where: Annotated[
        _Text, typer.Option(help="Must be given: larger or smaller, where layers get more of the target.")
    ] = None,
    spread: Annotated[float, typer.Option(help="Shares lie on a line from 1 - SPREAD to 1 + SPREAD.")] = 0.3,
    lora_alpha: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="peft's lora_alpha at the mean rank; without it that rank."),
    ] = None,
    group_by: Annotated[
        _Text,
        typer.Option(help="Layers whose names begin like this pattern, such as 'model.layers.*', share their mean."),
    ] = None,
    tail: Annotated[str, typer.Option(help="median, median_published, goodness_of_fit or peak.")] = "median",
    tail_fraction: Annotated[float, typer.Option(help="With median, how much of the spectrum is the tail.")] = 0.5,
    min_eigenvalues: Annotated[int, typer.Option(help="Skip layers with fewer.")] = 50,
    include: Annotated[_Patterns, typer.Option(help="Pattern of layer names to allocate to.")] = None,
    exclude: Annotated[_Patterns, typer.Option(help="Pattern of layer names to skip, such as lm_head.")] = None,
    fused: Annotated[_Patterns, typer.Option(help="PATTERN=N: layers whose weight holds N parts side by side.")] = None,
    stacked: Annotated[_Patterns, typer.Option(help="Pattern of 3-D weights that are stacked experts.")] = None,
    key: _Key = None,
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
    out: Annotated[_File, typer.Option(help="Write JSON into a file, whatever is printed.")] = None,
) -> None:
    """Allocate sparsity, bit widths or LoRA ranks to the layers of a checkpoint by alpha."""
    with answered():
        from tempbalance.cli.allocate import tell_allocation

        options = {
            "tail": tail,
            "tail_fraction": tail_fraction,
            "min_eigenvalues": min_eigenvalues,
            "include": include or (),
            "exclude": exclude or (),
            "fused": _read_fused(fused or []),
            "stacked": stacked or (),
            "key": key,
        }
        shares = {"by": by, "more_where": more_where, "spread": spread, "lora_alpha": lora_alpha, "group_by": group_by}
        typer.echo(
            tell_allocation(checkpoint, target, shares=shares, options=options, form=form, out=out, console=messages)
        )


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that hold some.")],
    html: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    figures: Annotated[Optional[Path], typer.Option(help="Write charts as SVG, PDF and PNG into a folder.")] = None,  # noqa: UP045
) -> None:
    """Show runs of the lab on one page: curves, methods, layers over time."""
    with answered():
        from tempbalance.report.run_page import write_runs

        for path in write_runs(runs, html, figures):
            typer.echo(path)
