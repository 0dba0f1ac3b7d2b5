"""Commands of studies: list, run, status, claims, report."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from rich.table import Table

from tempbalance.cli.terminal import Terminal, answered, messages, out_folder, say, stoppable, tell, wide_output
from tempbalance.cli.train import CONTROLS_HELP, CheckpointEvery, KeepCheckpoints, Speed, run_settings
from tempbalance.runlog import write_whole

if TYPE_CHECKING:
    from tempbalance.lab.jobs import Executor, Job, Settings
    from tempbalance.lab.points import Point, Preset
    from tempbalance.lab.study import Study
    from tempbalance.report.tables import Report

study = typer.Typer(no_args_is_help=True, help="The paper's experiments: list, run, watch and report them.")

_Text = Optional[str]  # noqa: UP045
_Number = Optional[int]  # noqa: UP045
_File = Optional[Path]  # noqa: UP045
_Texts = Optional[list[str]]  # noqa: UP045
SWEEP, DATA, CLUSTER = "Running many", "What to run", "Ray"  # panels of the help
_Preset = Annotated[str, typer.Option(help="paper, laptop or smoke.", rich_help_panel=DATA)]
_Out = Annotated[
    _Text, typer.Option(help="Folder of the runs of all studies.", show_default="runs/studies", rich_help_panel=DATA)
]
_Only = Annotated[
    _Texts,
    typer.Option(
        help="NAME=VALUE: only settings with this label, such as model=resnet18; repeat for more.", rich_help_panel=DATA
    ),
]
_Dataset = Annotated[
    _Text,
    typer.Option(help="Data instead of the preset's: a known name, an .npz file or a folder.", rich_help_panel=DATA),
]
_Controls = Annotated[bool, typer.Option("--controls", help=CONTROLS_HELP, rich_help_panel=DATA)]
_Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Studies; see study list.")]


@study.command("list")
def list_() -> None:
    """List all studies with what they vary, the paper's figures and the number of runs."""
    with answered("lab"):
        from tempbalance.lab.points import PRESETS
        from tempbalance.lab.study import all_studies

        table = Table()
        table.add_column("study", no_wrap=True)
        table.add_column("what varies, and the paper's figure", overflow="fold")
        for name in PRESETS:
            table.add_column(name, justify="right", no_wrap=True)
        for each in all_studies().values():
            figures = ", ".join(each.figures)
            counts = [str(each.num_runs(preset)) for preset in PRESETS.values()]
            if (theirs := str(each.num_runs(PRESETS["paper"], only_paper=True))) != counts[0]:
                counts[0] = f"{theirs} of {counts[0]}"
            table.add_row(each.name, each.varies + (f" ({figures})" if figures else ""), *counts)
        Terminal().print(table)
        tell("Numbers are runs in each preset. “100 of 200” says how many of them the paper trained:")
        tell("study run --only-paper runs just these, and --dry-run lists them.")
        for preset in PRESETS.values():
            tell(f"{preset.name}: {preset.about}")


@study.command()
def run(
    ctx: typer.Context,
    names: _Names,
    preset: _Preset = "laptop",
    only: _Only = None,
    only_paper: Annotated[
        bool, typer.Option("--only-paper", help="Skip settings that the paper did not train.", rich_help_panel=DATA)
    ] = False,
    controls: _Controls = False,
    dataset: _Dataset = None,
    out: _Out = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run and how long it takes.", rich_help_panel=DATA)
    ] = False,
    workers: Annotated[
        _Number, typer.Option(min=1, help="Processes at a time. Default: one per GPU or core.", rich_help_panel=SWEEP)
    ] = None,
    threads: Annotated[
        _Number, typer.Option(min=1, help="Torch threads per process. Default: an equal share.", rich_help_panel=SWEEP)
    ] = None,
    retries: Annotated[
        int,
        typer.Option(
            min=0, help="How often to restart a run that dies again in the same epoch.", rich_help_panel=SWEEP
        ),
    ] = 5,
    device: Annotated[str, typer.Option(help="cpu, gpu, auto, ...", rich_help_panel=SWEEP)] = "auto",
    precision: Annotated[
        str, typer.Option(help="Lightning's precision, such as 32-true or bf16-mixed.", rich_help_panel=SWEEP)
    ] = "32-true",
    cache: Annotated[_File, typer.Option(help="Folder of datasets.", rich_help_panel=SWEEP)] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Start or join a Ray cluster.", rich_help_panel=CLUSTER)] = False,
    ray_address: Annotated[_Text, typer.Option(help="Address of the cluster to join.", rich_help_panel=CLUSTER)] = None,
    cpus: Annotated[float, typer.Option(min=0, help="CPUs per run.", rich_help_panel=CLUSTER)] = 1,
    gpus: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            min=0,
            help="GPUs per run; a fraction shares one among small runs.",
            show_default="1 if there are any",
            rich_help_panel=SWEEP,
        ),
    ] = None,
    fetch: Annotated[
        bool,
        typer.Option("--fetch", help="Fetch results from machines that do not share --out.", rich_help_panel=CLUSTER),
    ] = False,
    speed: Speed = "",
    checkpoint_every: CheckpointEvery = 300.0,
    keep_checkpoints: KeepCheckpoints = False,
) -> None:
    """Train the runs of studies. Complete runs are skipped, interrupted ones resume, and studies share runs."""
    with answered("cluster" if ray or ray_address else "lab"), stoppable():
        from tempbalance.lab.study import jobs_of_all, totals_text
        from tempbalance.lab.sweep import check_data, check_settings, raise_failures, train_all, unfit

        settings = run_settings(ctx.params)
        check_settings(device, precision, settings["speed"])
        studies, size, chosen, folder = _chosen(
            names, preset, only, dataset, out, controls=controls, only_paper=only_paper
        )
        jobs = jobs_of_all(chosen, studies, size, folder)
        on_ray = {"num_cpus": cpus, "address": ray_address, "fetch": fetch} if ray or ray_address else None
        if dry_run:
            _print_plan(studies, size, chosen, folder, _executor(settings, workers, gpus, on_ray), keep_checkpoints)
            return
        check_data(jobs)
        failures: dict[Job, object] = {**unfit(jobs, precision=precision, speed=settings["speed"])}
        folder.mkdir(parents=True, exist_ok=True)
        alone = [each for each in studies if each.is_timed and size.name != "smoke"]
        timed = [job for job in jobs_of_all(chosen, alone, size, folder) if job not in failures]
        others = [job for job in jobs if job not in timed and job not in failures]
        say(totals_text(jobs))
        for part, num_workers in ((others, workers), (timed, 1)):
            if not part:
                continue
            executor = _executor(settings, num_workers, gpus, on_ray)
            failures |= train_all(part, executor, messages, retries=retries)
        for each in studies:
            if each.evaluate is not None:
                each.evaluate(each.find(size, chosen[each.name], folder), cache)
        raise_failures(failures)
        for name in dict.fromkeys(names):
            tell(f"complete; see: {_study_command('report', name, preset, only, controls, dataset, out)}")


def _executor(
    settings: Settings, num_workers: int | None, gpus: float | None, on_ray: dict[str, Any] | None
) -> Executor:
    if on_ray is None:
        from tempbalance.lab.executors.local import local_pool

        return local_pool(settings, num_workers=num_workers, gpus=gpus)
    from tempbalance.lab.executors.ray import Cluster

    return Cluster(settings, num_gpus=gpus, **on_ray)


def _chosen(
    names: list[str],
    preset: str,
    only: list[str] | None,
    dataset: str | None,
    out: str | None,
    *,
    controls: bool = False,
    only_paper: bool = False,
) -> tuple[list[Study], Preset, dict[str, list[Point]], Path]:
    """Return the studies, the preset, the points of each study and the folder of runs."""
    from tempbalance.lab.points import find_preset
    from tempbalance.lab.study import find_study, read_only

    size = find_preset(preset, dataset=dataset)
    studies = [find_study(name) for name in dict.fromkeys(names)]
    more = {"controls": controls, "only_paper": only_paper}
    chosen = {each.name: each.choose(size, read_only(only or []), **more) for each in studies}
    return studies, size, chosen, out_folder(out, Path("runs") / "studies")


def _print_plan(
    studies: list[Study],
    size: Preset,
    chosen: dict[str, list[Point]],
    folder: Path,
    executor: Executor,
    keep_checkpoints: bool,
) -> None:
    from tempbalance.lab.progress import Times, time_text
    from tempbalance.lab.study import jobs_of_all, known_jobs, plan_table, totals_text
    from tempbalance.lab.sweep import disk_text

    num_slots, where = executor.num_slots, executor.place_text
    executor.close()
    console = wide_output()
    for each in studies:
        console.print(plan_table(each, size, chosen[each.name], folder))
    jobs = jobs_of_all(chosen, studies, size, folder)
    left = [job for job in jobs if not job.is_done]
    tell(totals_text(jobs))
    tell(f"{len(jobs) - len(left)} complete in {folder}, {len(left)} to run: ", end="")
    tell(time_text(Times(known_jobs(folder)), left, num_slots))
    tell(where)
    if left:
        tell(disk_text(left, folder, num_slots, keep_checkpoints=keep_checkpoints))


def _study_command(
    verb: str,
    name: str,
    preset: str,
    only: list[str] | None,
    controls: bool,
    dataset: str | None,
    out: str | None,
) -> str:
    """Return the command line of a study."""
    given: dict[str, Any] = {"--preset": preset, "--dataset": dataset, "--out": out}
    more = [part for flag, value in given.items() if value is not None for part in (flag, value)]
    more += [part for each in only or [] for part in ("--only", each)] + ["--controls"] * controls
    return shlex.join(["tempbalance", "study", verb, name, *more])


@study.command()
def status(
    names: _Names,
    preset: _Preset = "laptop",
    only: _Only = None,
    controls: _Controls = False,
    dataset: _Dataset = None,
    out: _Out = None,
) -> None:
    """Show how many runs are done, running, failed and left, the pace and the expected end, from any terminal.

    Runs that wait in the queue of a Ray cluster are counted as waiting.
    Only folders are read, so that the sweep may run on other machines that share them.
    """
    with answered("lab"):
        from tempbalance.lab.progress import Times, count_text, running_table, time_text
        from tempbalance.lab.study import jobs_of_all, known_jobs
        from tempbalance.lab.sweep import log_of, pace_text

        studies, size, chosen, folder = _chosen(names, preset, only, dataset, out, controls=controls)
        jobs = jobs_of_all(chosen, studies, size, folder)
        states = {job: job.state for job in jobs}
        console = wide_output()
        tell(f"{', '.join(chosen)}, preset {size.name}, in {folder}: {count_text(Counter(states.values()))}")
        running = [job for job, state in states.items() if state == "running"]
        left = [job for job, state in states.items() if state in ("running", "waiting", "left")]
        if begun := [job for job in left if states[job] == "left" and job.num_finished]:
            tell(f"{len(begun)} of those left {'is' if len(begun) == 1 else 'are'} begun and will resume")
        done = [job for job, state in states.items() if state == "done"]
        if pace := pace_text(done, len(left), now=time.time()) if running or not left else "":
            tell(pace)
        if left:
            tell(time_text(Times(known_jobs(folder)), left, max(1, len(running))))
        if running:
            console.print(running_table(running, jobs))
        for job in (job for job, state in states.items() if state == "failed"):
            tell(f"{job.folder.name} failed: {job.failure} (log: {log_of(job)})")


@study.command()
def claims(
    preset: _Preset = "laptop",
    dataset: _Dataset = None,
    out: _Out = None,
    html: Annotated[_File, typer.Option(help="Write an HTML page.")] = None,
    form: Annotated[str, typer.Option("--format", help="table, csv or latex.")] = "table",
) -> None:
    """Show for each claim of the paper whether it holds, from the runs of all studies so far."""
    with answered("lab"):
        from tempbalance.lab.points import find_preset
        from tempbalance.lab.study import claims_report

        _check_output(form, html, None)
        folder = out_folder(out, Path("runs") / "studies")
        _write(claims_report(find_preset(preset, dataset=dataset), folder), form, html, None)


def _check_output(form: str, html: Path | None, figures: Path | None) -> None:
    from tempbalance.errors import unknown
    from tempbalance.report.page import check_places
    from tempbalance.report.tables import FORMS

    if form not in FORMS:
        raise ValueError(unknown("format", form, FORMS))
    check_places(html, figures)


def _write(found: Report, form: str, html: Path | None, figures: Path | None) -> None:
    from tempbalance.report.page import write_report
    from tempbalance.report.tables import print_report

    print_report(found, form, wide_output())
    for path in write_report(found, html=html, figures=figures):
        say(path)


@study.command()
def report(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A study; see study list.")],
    preset: _Preset = "laptop",
    only: _Only = None,
    controls: _Controls = False,
    dataset: _Dataset = None,
    out: _Out = None,
    html: Annotated[_File, typer.Option(help="Write an HTML page.")] = None,
    figures: Annotated[_File, typer.Option(help="Write charts as SVG, PDF and PNG into a folder.")] = None,
    form: Annotated[str, typer.Option("--format", help="table, csv or latex.")] = "table",
    raw: Annotated[
        _File, typer.Option("--json", help="Write each run's setting, method, base rate, seed and measure.")
    ] = None,
) -> None:
    """Show the results of a study so far with the paper's numbers, and draw its figure."""
    with answered("lab"):
        _check_output(form, html, figures)
        (chosen_study,), size, chosen, folder = _chosen([name], preset, only, dataset, out, controls=controls)
        findings = chosen_study.find(size, chosen[name], folder)
        _write(chosen_study.report(findings), form, html, figures)
        if raw is not None:
            given = dataset and Path(dataset).name  # a place on this machine is of no use to others
            write_whole(raw, findings.raw(_study_command("run", name, preset, only, controls, given, None)).encode())
            say(raw)
