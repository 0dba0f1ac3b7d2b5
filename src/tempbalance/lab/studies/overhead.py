"""Seconds of one balancing beside those of one epoch, as networks grow deeper and wider."""

from __future__ import annotations

from tempbalance.lab.findings import Cell, Findings
from tempbalance.lab.names import pretty
from tempbalance.lab.paper.statements import paper_statements
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.points import common_settings, reduced
from tempbalance.lab.study import Presentation, Study
from tempbalance.lab.tables import Number, ResultTable

_USUAL = 512  # channels of the last stage at width 1


def points(preset: Preset) -> list[Point]:
    """TB on CIFAR-100, ten epochs of each network; in small presets two, which the widest takes minutes for."""
    said = paper_statements()
    num_epochs = said["overhead_runs"].value if preset.is_paper else 2
    deep = [(f"resnet{depth}", 1.0) for depth in said["overhead_depths"].value]
    wide = [("resnet18", channels / _USUAL) for channels in said["overhead_widths"].value]
    found = []
    for model, width in dict.fromkeys(deep + wide):
        names = {"dataset": "cifar100", "model": model, "method": "tb"}
        options = {**common_settings(), **names, "width": width, "stop_after": num_epochs}
        found.append(Point({**names, "width": width}, options))
    return reduced(found, preset, {"cifar100": "fashion_mnist"})


def present(findings: Findings) -> Presentation:
    """A table of seconds, and the paper's four panels."""
    from tempbalance.report.study_data import Timing
    from tempbalance.report.study_timing import timing_chart

    rows, timings = [], []
    for cell in findings.cells:
        epoch, balancing = _seconds(cell, "epoch"), _seconds(cell, "balancing")
        share = None if epoch is None or balancing is None else 100 * balancing[0] / epoch[0]
        rows.append(
            [
                pretty(cell.labels["dataset"]),
                pretty(cell.labels["model"]),
                str(round(_USUAL * cell.labels["width"])),
                None if epoch is None else Number(*epoch),
                None if balancing is None else Number(*balancing, digits=3),
                None if share is None else Number(share),
            ]
        )
        if epoch is not None and balancing is not None:
            timings += [Timing(panel, label, *epoch, *balancing) for panel, label in _places(cell, findings)]
    caption = "Mean ± standard deviation over the epochs of one run, of training alone and of balancing once."
    columns = ["data", "network", "channels", "seconds an epoch", "seconds a balancing", "increment, %"]
    limit = 100 * paper_statements()["overhead_limit"].value
    notes = [f"The paper's balancing takes less than {limit:.0f} % of an epoch at every depth and width, on a GPU."]
    title = "What balancing once an epoch costs"
    charts = {"overhead": timing_chart(timings, title=title, subtitle=findings.subtitle)} if timings else {}
    captions = {"overhead": "Seconds of an epoch and of one balancing, and the one as a share of the other."}
    return Presentation([ResultTable(caption, columns, rows)], charts, captions, notes)


def _seconds(cell: Cell, name: str) -> tuple[float, float | None] | None:
    return None if cell.best is None else cell.best.seconds(name)


def _places(cell: Cell, findings: Findings) -> list[tuple[str, str]]:
    """The panels that a cell stands in, and its label there."""
    usual = min(each.labels["width"] for each in findings.cells)
    model, width = cell.labels["model"], cell.labels["width"]
    found = [("depth", model.removeprefix("resnet"))] if width == usual else []
    return found + ([("channels", str(round(_USUAL * width)))] if model == "resnet18" else [])


STUDY = Study(
    name="overhead",
    title="What does balancing cost?",
    figures=("compute-overhead",),
    varies="depth 18 to 101, width 512 to 2048; seconds of one balancing and of one epoch",
    points=points,
    present=present,
    num_seeds=1,
    is_timed=True,
)
