"""The commands of studies: list, run, status, report."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from rich.console import Console
from rich.table import Table

from tempbalance.terminal import answered, messages, out_folder, stoppable

if TYPE_CHECKING:
    from tempbalance.lab.jobs import Executor, Settings
    from tempbalance.lab.point import Point, Preset
    from tempbalance.lab.study import Study

study = typer.Typer(no_args_is_help=True, help="The paper's experiments: list, run, watch and report them.")

_Text = Optional[str]  # noqa: UP045
_Number = Optional[int]  # noqa: UP045
_File = Optional[Path]  # noqa: UP045
_Texts = Optional[list[str]]  # noqa: UP045
SWEEP, DATA, CLUSTER = "Running many", "What to run", "Ray"  # panels of the help
_Preset = Annotated[str, typer.Option(help="paper, laptop or smoke.", rich_help_panel=DATA)]
_Out = Annotated[
    _Text, typer.Option(help="Where runs are kept, of all studies.", show_default="runs/studies", rich_help_panel=DATA)
]
_Only = Annotated[
    _Texts,
    typer.Option(
        help="NAME=VALUE: only what has this label, such as model=resnet18; repeat for more.", rich_help_panel=DATA
    ),
]
_Dataset = Annotated[
    _Text,
    typer.Option(help="In place of the preset's data: a known name, an .npz file or a folder.", rich_help_panel=DATA),
]
_Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Studies; see study list.")]


@study.command("list")
def list_() -> None:
    """Show all studies, what they vary, where the paper has them and how many runs they take."""
    with answered("lab"):
        from tempbalance.lab.point import PRESETS
        from tempbalance.lab.study import all_studies

        table = Table()
        table.add_column("study", no_wrap=True)
        table.add_column("what varies, and the paper's figure", overflow="fold")
        for name in PRESETS:
            table.add_column(name, justify="right", no_wrap=True)
        for each in all_studies().values():
            figures = ", ".join(each.figures)
            counts = [len(each.jobs(preset, each.points(preset), Path())) for preset in PRESETS.values()]
            table.add_row(each.name, each.varies + (f" ({figures})" if figures else ""), *map(str, counts))
        Console().print(table)
        typer.echo("Numbers are of runs in each preset.")
        for preset in PRESETS.values():
            typer.echo(f"{preset.name}: {preset.about}")


@study.command()
def run(
    names: _Names,
    preset: _Preset = "laptop",
    only: _Only = None,
    dataset: _Dataset = None,
    out: _Out = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would run and how long it takes.", rich_help_panel=DATA)
    ] = False,
    workers: Annotated[
        _Number, typer.Option(min=1, help="Processes at a time; without it one a GPU or core.", rich_help_panel=SWEEP)
    ] = None,
    threads: Annotated[
        _Number, typer.Option(min=1, help="Threads of torch, a process; without it its share.", rich_help_panel=SWEEP)
    ] = None,
    retries: Annotated[
        int, typer.Option(min=0, help="Starts again of a run whose process died in one epoch.", rich_help_panel=SWEEP)
    ] = 5,
    device: Annotated[str, typer.Option(help="cpu, gpu, auto, ...", rich_help_panel=SWEEP)] = "auto",
    precision: Annotated[str, typer.Option(help="Lightning's.", rich_help_panel=SWEEP)] = "32-true",
    cache: Annotated[_File, typer.Option(help="Where datasets are kept.", rich_help_panel=SWEEP)] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Start or join a Ray cluster.", rich_help_panel=CLUSTER)] = False,
    ray_address: Annotated[_Text, typer.Option(help="The cluster to join.", rich_help_panel=CLUSTER)] = None,
    cpus: Annotated[float, typer.Option(min=0, help="CPUs that a run asks for.", rich_help_panel=CLUSTER)] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs that a run asks for.", rich_help_panel=CLUSTER)] = 0,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Machines do not share --out: fetch results.", rich_help_panel=CLUSTER)
    ] = False,
) -> None:
    """Train what studies need; complete runs are left alone, interrupted ones go on, and studies share theirs."""
    with answered("cluster" if ray or ray_address else "lab"), stoppable():
        from tempbalance.lab.executors.local import local_pool
        from tempbalance.lab.plan import jobs_of_all, totals_text
        from tempbalance.lab.sweep import check_data, check_settings, raise_failures, train_all, unfit

        check_settings(device, precision)
        studies, size, chosen, folder = _chosen(names, preset, only, dataset, out)
        jobs = jobs_of_all(chosen, studies, size, folder)
        settings = {"device": device, "precision": precision, "threads": threads, "cache": cache and str(cache)}
        settings |= {"log_every": 10, "tensorboard": False}
        if dry_run:
            _tell_plan(studies, size, chosen, folder, local_pool(settings, num_workers=workers).num_slots)
            return
        check_data(jobs)
        failures = unfit(jobs, precision=precision)
        folder.mkdir(parents=True, exist_ok=True)
        alone = [each for each in studies if each.is_timed and size.name != "smoke"]
        timed = [job for job in jobs_of_all(chosen, alone, size, folder) if job not in failures]
        others = [job for job in jobs if job not in timed and job not in failures]
        messages.print(totals_text(jobs), highlight=False)
        for part, num_workers in ((others, workers), (timed, 1)):
            if not part:
                continue
            executor: Executor
            if ray or ray_address:
                executor = _cluster(settings, num_cpus=cpus, num_gpus=gpus, address=ray_address, fetch=fetch)
            else:
                executor = local_pool(settings, num_workers=num_workers)
            failures |= train_all(part, executor, messages, retries=retries)
        raise_failures(failures)
        _say_next(names, preset, only, dataset, out)


def _cluster(settings: Settings, **options: Any) -> Executor:
    from tempbalance.lab.executors.ray import Cluster

    return Cluster(settings, **options)


def _chosen(
    names: list[str], preset: str, only: list[str] | None, dataset: str | None, out: str | None
) -> tuple[list[Study], Preset, dict[str, list[Point]], Path]:
    """The studies, the preset, the points of each study and the folder of runs."""
    from tempbalance.lab.plan import points_of, read_only
    from tempbalance.lab.point import find_preset
    from tempbalance.lab.study import find_study

    size = find_preset(preset, dataset=dataset)
    studies = [find_study(name) for name in dict.fromkeys(names)]
    chosen = {each.name: points_of(each, size, read_only(only or [])) for each in studies}
    return studies, size, chosen, out_folder(out, Path("runs") / "studies")


def _tell_plan(
    studies: list[Study], size: Preset, chosen: dict[str, list[Point]], folder: Path, num_slots: int
) -> None:
    from tempbalance.lab.plan import jobs_of_all, known_jobs, plan_table, totals_text
    from tempbalance.lab.progress import Times, time_text

    console = _wide()
    for each in studies:
        console.print(plan_table(each, size, chosen[each.name], folder))
    jobs = jobs_of_all(chosen, studies, size, folder)
    left = [job for job in jobs if not job.is_done]
    typer.echo(totals_text(jobs))
    typer.echo(f"{len(jobs) - len(left)} complete in {folder}, {len(left)} to run: ", nl=False)
    typer.echo(time_text(Times(known_jobs(folder)), left, num_slots))


def _wide() -> Console:
    """Standard output; where it is no terminal, lines are as long as they need to be."""
    console = Console()
    return console if console.is_terminal else Console(width=240)


def _say_next(names: list[str], preset: str, only: list[str] | None, dataset: str | None, out: str | None) -> None:
    given: dict[str, Any] = {"--preset": preset, "--dataset": dataset, "--out": out}
    more = [part for flag, value in given.items() if value is not None for part in (flag, value)]
    more += [part for each in only or [] for part in ("--only", each)]
    for name in dict.fromkeys(names):
        typer.echo(f"complete; see: {shlex.join(['tempbalance', 'study', 'report', name, *more])}")


@study.command()
def status(
    names: _Names,
    preset: _Preset = "laptop",
    only: _Only = None,
    dataset: _Dataset = None,
    out: _Out = None,
) -> None:
    """Say how many runs are done, running, failed and left, from any terminal at any time."""
    with answered("lab"):
        from tempbalance.lab.plan import jobs_of_all, known_jobs
        from tempbalance.lab.progress import Times, count_text, running_table, time_text

        studies, size, chosen, folder = _chosen(names, preset, only, dataset, out)
        jobs = jobs_of_all(chosen, studies, size, folder)
        states = {job: job.state for job in jobs}
        console = _wide()
        typer.echo(f"{', '.join(chosen)}, preset {size.name}, in {folder}: {count_text(Counter(states.values()))}")
        running = [job for job, state in states.items() if state == "running"]
        left = [job for job, state in states.items() if state in ("running", "left")]
        if begun := [job for job in left if job not in running and job.num_finished]:
            typer.echo(f"{len(begun)} of those left {'is' if len(begun) == 1 else 'are'} begun and will go on")
        if left:
            typer.echo(time_text(Times(known_jobs(folder)), left, max(1, len(running))))
        if running:
            console.print(running_table(running, jobs))
        for job in (job for job, state in states.items() if state == "failed"):
            typer.echo(f"{job.folder.name} failed: {job.failure} (all of it in {job.folder / 'failure.txt'})")


@study.command()
def report(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A study; see study list.")],
    preset: _Preset = "laptop",
    only: _Only = None,
    dataset: _Dataset = None,
    out: _Out = None,
    html: Annotated[_File, typer.Option(help="Write a page to look at.")] = None,
    figures: Annotated[_File, typer.Option(help="Write charts as SVG, PDF and PNG into a folder.")] = None,
    form: Annotated[str, typer.Option("--format", help="table, csv or latex.")] = "table",
) -> None:
    """Show what a study has found so far beside the paper's numbers, and draw its figure."""
    with answered("lab"):
        from tempbalance.lab.telling import check_form, check_places, print_findings, write_findings

        check_form(form)
        check_places(html, figures)
        (chosen_study,), size, chosen, folder = _chosen([name], preset, only, dataset, out)
        findings = chosen_study.find(size, chosen[name], folder)
        shown = chosen_study.present(findings)
        print_findings(findings, shown, form, _wide())
        for path in write_findings(chosen_study, findings, shown, html=html, figures=figures):
            messages.print(str(path), markup=False, highlight=False, soft_wrap=True)
