"""Commands that train: ``train`` and ``compare``. They have a flag for each option of an image recipe."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Optional, Union

import typer
from typer.core import TyperCommand

from tempbalance.cli.terminal import Terminal, answered, messages, out_folder, say, stoppable, tell
from tempbalance.lab.recipe import METHODS, SEEDS
from tempbalance.runlog import RunFolder

_RECIPE, _RUN, _LOGGING = "Recipe", "Run", "Logging"  # panels of the help
CONTROLS_HELP = "Add the controls of balanced methods: scales shuffled among layers, and their mean for every layer."
_Text = Optional[str]  # noqa: UP045
_Number = Optional[int]  # noqa: UP045
_File = Optional[Path]  # noqa: UP045


class RecipeCommand(TyperCommand):
    """Command with a flag for each option of `ImageRecipe` before its own; ``ctx.obj`` has the options that are given.

    The flags are made on first use, because the recipe needs packages that only the lab has.
    """

    skipped: tuple[str, ...] = ()  # options without a flag
    defaults: dict[str, str] = {}  # noqa: RUF012  # defaults that are not those of the recipe
    _all: list[Any]
    _flags: list[Any] | None

    @property
    def params(self) -> list[Any]:
        """Flags of the recipe, then those of the command; always the same list, to which click adds ``--help``."""
        if self._flags is None:
            with answered("lab"):
                self._flags = _make_flags(self.skipped, self.defaults)
            self._all[:0] = self._flags
        return self._all

    @params.setter
    def params(self, own: list[Any]) -> None:
        self._all, self._flags = own, None

    def invoke(self, ctx: Any) -> Any:
        """Collect the options of the recipe, and run the command with the others."""
        given = {each.name: ctx.params.pop(each.name) for each in self._flags or ()}
        ctx.obj = {name: value for name, value in given.items() if value is not None}
        return super().invoke(ctx)


class CompareCommand(RecipeCommand):
    """Flags of ``compare``, which chooses methods and seeds itself."""

    skipped = ("method", "seed")
    defaults = {  # noqa: RUF012
        "epochs": "200; 12 with digits",
        "width": "1.0; 0.25 with digits",
        "min_eigenvalues": "50; 12 with digits",
    }


def _make_flags(skipped: tuple[str, ...], defaults: dict[str, str]) -> list[Any]:
    """Return typer's flags for the options of an image recipe."""
    from tempbalance.lab.images.recipe import ImageRecipe
    from tempbalance.lab.options import Panel, choices_of, type_of

    parameters = []
    for name, field in ImageRecipe.model_fields.items():
        if name in skipped:
            continue
        text, choices, value = field.description or "", choices_of(field.annotation), field.default
        if choices:
            text = f"{text.removesuffix('.')}: {', '.join(choices)}."
        if isinstance(value, bool) or value is None:
            shown = defaults.get(name, False)
        else:
            shown = defaults.get(name) or (" ".join(map(str, value)) if isinstance(value, tuple) else str(value))
        panel = next((each.title for each in field.metadata if isinstance(each, Panel)), _RECIPE)
        kind: Any = tuple[float, float] if type_of(field.annotation) is tuple else type_of(field.annotation)
        option = typer.Option(help=text, show_default=shown, rich_help_panel=panel)
        hint: Any = Annotated[Union[kind, None], option]  # noqa: UP007
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint))

    def command() -> None: ...

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    alone = typer.Typer(add_completion=False)
    alone.command()(command)
    return list(typer.main.get_command(alone).params)


_RecipeFile = Annotated[
    _File,
    typer.Option(
        "--recipe",
        help="YAML or JSON file of options by name, such as a run's recipe.json. Flags override it.",
        rich_help_panel=_RUN,
    ),
]
_Cache = Annotated[
    _File,
    typer.Option(
        help="Folder of datasets. Default: $TEMPBALANCE_CACHE, or the system's folder for caches.",
        rich_help_panel=_RUN,
    ),
]
_Device = Annotated[str, typer.Option(help="Lightning's accelerator: cpu, gpu, auto, ...", rich_help_panel=_RUN)]
_Precision = Annotated[
    str, typer.Option(help="Lightning's precision: 32-true, bf16-mixed, 16-mixed, ...", rich_help_panel=_RUN)
]
_LogEvery = Annotated[int, typer.Option(min=1, help="Steps between readings of the loss.", rich_help_panel=_LOGGING)]
_TensorBoard = Annotated[
    bool, typer.Option(help="Write TensorBoard logs into the folder of the run.", rich_help_panel=_LOGGING)
]

Speed = Annotated[
    str, typer.Option(help="Any of channels_last, fused, compile, with commas between them.", rich_help_panel=_RUN)
]
CheckpointEvery = Annotated[float, typer.Option(min=0, help="Seconds between checkpoints.", rich_help_panel=_RUN)]
KeepCheckpoints = Annotated[
    bool, typer.Option(help="Keep all checkpoints, and the optimizer's state at the end.", rich_help_panel=_RUN)
]


_SETTINGS = (
    "device", "devices", "num_nodes", "precision", "threads", "log_every", "tensorboard", "checkpoint_every",
    "keep_checkpoints",
)  # fmt: skip


def run_settings(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of `tempbalance.lab.train.train` among the flags of a command."""
    found = {name: params[name] for name in _SETTINGS if name in params}
    speeds = [name.strip() for name in params["speed"].split(",") if name.strip()]
    return {**found, "cache": params["cache"] and str(params["cache"]), "speed": speeds}


def train(
    ctx: typer.Context,
    out: Annotated[_Text, typer.Option(help="Folder of the run. Default: runs/NAME.", rich_help_panel=_RUN)] = None,
    recipe: _RecipeFile = None,
    cache: _Cache = None,
    device: _Device = "auto",
    devices: Annotated[int, typer.Option(min=1, help="Number of devices.", rich_help_panel=_RUN)] = 1,
    num_nodes: Annotated[int, typer.Option(min=1, help="Number of machines.", rich_help_panel=_RUN)] = 1,
    precision: _Precision = "32-true",
    threads: Annotated[_Number, typer.Option(min=1, help="Torch threads.", rich_help_panel=_RUN)] = None,
    log_every: _LogEvery = 10,
    tensorboard: _TensorBoard = False,
    speed: Speed = "",
    checkpoint_every: CheckpointEvery = 300.0,
    keep_checkpoints: KeepCheckpoints = False,
) -> None:
    """Train one recipe. The same command on the same folder resumes an interrupted run."""
    with answered("lab"), stoppable():
        from tempbalance.lab.images.recipe import ImageRecipe
        from tempbalance.lab.recipe import make_recipe, read_recipe

        chosen = make_recipe({**(read_recipe(recipe) if recipe else {}), **ctx.obj})
        folder = out_folder(out, Path("runs") / chosen.name)
        if not RunFolder(folder).is_begun:
            chosen.check_data()
        from tempbalance.lab.compare import doubts
        from tempbalance.lab.progress import seconds_text
        from tempbalance.lab.train import train as train_recipe

        for doubt in doubts(ctx.obj, [chosen]) if isinstance(chosen, ImageRecipe) else ():
            say(f"warning: {doubt}")
        result = train_recipe(chosen, folder, console=messages, **run_settings(ctx.params))
        if result is not None:
            value, time = chosen.measure.text(result[chosen.measure.name]), seconds_text(result["seconds"])
            name = f"best_{chosen.measure.name.removeprefix('test_')}"
            best = chosen.measure.text(result[name]).removeprefix("test ").removeprefix(chosen.measure.word)
            tell(f"{chosen.name}: {value}, best{best} in epoch {result['best_epoch']}, {time}")


def compare(
    ctx: typer.Context,
    methods: Annotated[
        str,
        typer.Option(help=f"Methods, separated by commas: {', '.join(METHODS)}, ...", rich_help_panel=_RECIPE),
    ] = "cal,tb",
    seeds: Annotated[
        int,
        typer.Option(
            min=1,
            max=len(SEEDS),
            help=f"Number of the paper's seeds: {', '.join(map(str, SEEDS))}.",
            rich_help_panel=_RECIPE,
        ),
    ] = 3,
    controls: Annotated[bool, typer.Option("--controls", help=CONTROLS_HELP, rich_help_panel=_RECIPE)] = False,
    out: Annotated[_Text, typer.Option(help="Folder of the runs.", show_default="runs", rich_help_panel=_RUN)] = None,
    recipe: _RecipeFile = None,
    cache: _Cache = None,
    workers: Annotated[
        _Number, typer.Option(min=1, help="Processes at a time. Default: one per core.", rich_help_panel=_RUN)
    ] = None,
    device: _Device = "auto",
    precision: _Precision = "32-true",
    threads: Annotated[int, typer.Option(min=1, help="Torch threads per process.", rich_help_panel=_RUN)] = 1,
    log_every: _LogEvery = 10,
    tensorboard: _TensorBoard = False,
    speed: Speed = "",
    checkpoint_every: CheckpointEvery = 300.0,
    keep_checkpoints: KeepCheckpoints = False,
) -> None:
    """Train several methods with the same seeds, and test the differences."""
    with answered("lab"), stoppable():
        from tempbalance.lab import compare as lab
        from tempbalance.lab.executors.local import local_pool
        from tempbalance.lab.jobs import Job
        from tempbalance.lab.recipe import read_recipe
        from tempbalance.lab.sweep import check_all, raise_failures, train_all
        from tempbalance.report.runs import write_runs

        given = {**(read_recipe(recipe) if recipe else {}), **ctx.obj}
        if given.pop("kind", "images") != "images":
            raise ValueError(f"compare trains images: {recipe} must be a recipe of them")
        recipes = lab.plan(given, [name.strip() for name in methods.split(",")], SEEDS[:seeds], controls=controls)
        folder = out_folder(out, Path("runs"))
        jobs = [Job(each, folder / each.name) for each in recipes]
        settings = run_settings(ctx.params)
        check_all(jobs, precision=precision, speed=settings["speed"])
        for line in (lab.headline(recipes), *(f"warning: {doubt}" for doubt in lab.doubts(given, recipes))):
            say(line)
        raise_failures(train_all(jobs, local_pool(settings, num_workers=workers), messages, stop_at_failure=True))
        comparisons = lab.summarize(recipes, folder)
        lab.write_comparison(comparisons, recipes, folder)
        Terminal().print(lab.comparison_table(comparisons))
        (page,) = write_runs([folder / each.name for each in recipes], folder / "report.html")
        for sentence in (*lab.verdict(comparisons), f"The runs are in {folder}, with a page about them: {page}"):
            tell(sentence)
