"""The command line: parsing and exit codes. Exit 0 is done, 1 a failed run or unreadable input, 2 bad usage."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Optional, get_type_hints

import typer
from rich.console import Console

from tempbalance import __version__
from tempbalance.lab.methods import METHODS
from tempbalance.lab.recipe import SEEDS, Recipe, read_recipe
from tempbalance.report.text import shown

app = typer.Typer(name="tempbalance", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
messages = Console(stderr=True)

_HELP = {
    "dataset": "digits, fashion_mnist, mnist, cifar10, cifar100, svhn, tiny_imagenet, an .npz file or a folder.",
    "model": "resnet18, resnet34, resnet50, resnet101, vgg16, vgg19, wrn16_8, wrn28_6 or mlp.",
    "width": "Factor on the network's channels.",
    "method": f"{', '.join(METHODS)}; tb+ goes before any.",
    "seed": "All randomness follows from it and the epoch.",
    "lr": "Initial rate; without it the method's own.",
    "scale_range": "Smallest and largest scale of a balanced method.",
    "interval": "Epochs between scorings.",
    "start": "Epochs before the first scoring.",
    "snr": "Strength of spectral norm regularisation, where the method has it.",
    "restart_epochs": "Of sgdr; without it half the epochs.",
    "limit": "Use only the first so many images.",
    "log_gradients": "Add gradient norms to layers.jsonl.",
    "log_eigenvalues": "Add spectra to layers.jsonl.",
}


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


def _with_recipe_options(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of `Recipe`, gathered in its argument ``options``."""
    hints = get_type_hints(Recipe)
    names = [field.name for field in fields(Recipe) if field.name not in left_out]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters

        def wrapped(**values: Any) -> None:
            given = {name: values.pop(name) for name in names}
            command(options={name: value for name, value in given.items() if value is not None}, **values)

        parameters = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own.values() if each.name != "options"
        ]
        for name in names:
            hint: Any = Optional[hints[name]]  # noqa: UP045
            annotation = Annotated[hint, typer.Option(help=_HELP.get(name), show_default=False)]
            parameters.append(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            )
        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {each.name: each.annotation for each in parameters}
        wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
        return wrapped

    return decorate


_RecipeFile = Annotated[Optional[Path], typer.Option("--recipe", help="YAML or JSON with any of the options.")]  # noqa: UP045
_Cache = Annotated[Optional[Path], typer.Option(help="Where datasets are kept.")]  # noqa: UP045
_Device = Annotated[str, typer.Option(help="cpu, gpu, auto, ...: Lightning's accelerator.")]
_Precision = Annotated[str, typer.Option(help="Lightning's precision: 32-true, bf16-mixed, 16-mixed, ...")]


@app.command()
@_with_recipe_options()
def train(
    options: dict[str, Any],
    out: Annotated[Optional[Path], typer.Option(help="The run's folder; runs/NAME without it.")] = None,  # noqa: UP045
    recipe: _RecipeFile = None,
    cache: _Cache = None,
    device: _Device = "auto",
    devices: Annotated[int, typer.Option(help="How many devices.")] = 1,
    num_nodes: Annotated[int, typer.Option(help="How many machines.")] = 1,
    precision: _Precision = "32-true",
    threads: Annotated[Optional[int], typer.Option(help="Threads of torch.")] = None,  # noqa: UP045
    log_every: Annotated[int, typer.Option(help="Steps between two readings of the loss.")] = 10,
    tensorboard: Annotated[bool, typer.Option(help="Write TensorBoard logs into the run's folder.")] = False,
) -> None:
    """Train one recipe; the same command on the same folder goes on where it stopped."""
    with _answered():
        chosen = Recipe.from_dict({**(read_recipe(recipe) if recipe else {}), **options})
        folder = out or Path("runs") / chosen.name
        from tempbalance.lab.start import start

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
        best = f"best {result['best_accuracy']:.2f} % in epoch {result['best_epoch']}"
        typer.echo(f"{chosen.name}: test accuracy {result['test_accuracy']:.2f} %, {best}, {result['seconds']:.0f} s")


@app.command()
@_with_recipe_options("method", "seed")
def compare(
    options: dict[str, Any],
    methods: Annotated[str, typer.Option(help="Methods with commas between them.")] = "cal,tb",
    seeds: Annotated[int, typer.Option(min=1, max=len(SEEDS), help="How many of the paper's seeds.")] = 3,
    out: Annotated[Path, typer.Option(help="Where the runs go.")] = Path("runs"),
    recipe: _RecipeFile = None,
    cache: _Cache = None,
    workers: Annotated[Optional[int], typer.Option(help="Processes at a time; a core each without it.")] = None,  # noqa: UP045
    device: _Device = "auto",
    precision: _Precision = "32-true",
) -> None:
    """Train methods with several seeds each, side by side, and say what the differences amount to."""
    with _answered():
        from tempbalance.lab.compare import comparison_table, plan, run_all, summarize, verdict

        small = {"epochs": 12, "width": 0.25}  # what ends within minutes on two cores with the digits
        given = {**(small if "dataset" not in options else {}), **(read_recipe(recipe) if recipe else {}), **options}
        names = [name.strip() for name in methods.split(",")]
        recipes = plan(given, names, SEEDS[:seeds])
        arguments = ["--device", device, "--precision", precision, *(["--cache", str(cache)] if cache else [])]
        run_all(recipes, out, num_workers=workers or os.cpu_count() or 1, arguments=arguments, console=messages)
        comparisons = summarize(names, recipes, out)
        Console().print(comparison_table(comparisons))
        for sentence in verdict(comparisons):
            typer.echo(sentence)
        typer.echo(f"The runs are in {out}.")


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
        if not pattern or not number.isdigit():
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
def _answered() -> Iterator[None]:
    """Turn what went wrong into one line and an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        messages.print("stopped: what was finished is kept, the same command goes on from there")
        sys.exit(130)
    except ModuleNotFoundError as err:
        hint = "the lab and reports need more packages, from a clone: pip install -c constraints.txt '.[lab,report]'"
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
