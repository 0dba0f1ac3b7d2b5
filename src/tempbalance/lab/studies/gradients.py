"""The gradient norms of the layers in the first epochs."""

from __future__ import annotations

from dataclasses import replace

from tempbalance.lab.findings import Findings
from tempbalance.lab.paper.statements import paper_statements
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.points import best_points, reduced, steps_like
from tempbalance.lab.study import Presentation, Study
from tempbalance.lab.tables import Entry, Number, ResultTable


def points(preset: Preset) -> list[Point]:
    """CAL on ResNet18 and CIFAR-100, its gradients noted every 30 iterations of ten epochs."""
    said = paper_statements()
    found = reduced(best_points("optimizers", models=("resnet18",), methods=("cal",)), preset, {"cifar100": "digits"})
    return [
        replace(
            point,
            options={
                **point.options,
                "stop_after": said["gradient_epochs"].value,
                "log_steps": steps_like(said["gradient_iterations"].value, point.options),
            },
            paper=None,
        )
        for point in found
    ]


def present(findings: Findings) -> Presentation:
    """Largest, smallest and mean norm over training, and how norms are distributed in the first epoch."""
    from tempbalance.report.study_data import StepNorm
    from tempbalance.report.study_steps import gradient_chart, gradient_histograms

    (cell,) = findings.cells
    runs = list(cell.best.runs.values()) if cell.best is not None else []
    norms = [
        StepNorm(line["epoch"], line["step"], line["layer"], line["gradient_norm"])
        for run in runs
        for line in run.steps
        if line["gradient_norm"] is not None
    ]
    rows: list[list[Entry]] = []
    for epoch in sorted({each.epoch for each in norms}):
        values = [each.norm for each in norms if each.epoch == epoch and each.norm is not None]
        numbers = (max(values), min(values), sum(values) / len(values))
        rows.append([str(epoch), *(Number(value, digits=4) for value in numbers)])
    table = ResultTable(
        f"Norms of the layers' gradients at the steps noted in each epoch; {cell.panel}, CAL.",
        ["epoch", "largest", "smallest", "mean"],
        rows,
    )
    if not norms:
        return Presentation([table], {}, {})
    texts = {"subtitle": findings.subtitle}
    charts = {
        "gradients": gradient_chart(norms, title="Gradient norms of the layers", **texts),
        "gradient_histograms": gradient_histograms(norms, title="Gradient norms in the first epoch", **texts),
    }
    captions = {
        "gradients": "The largest, the smallest and the mean gradient norm of all layers, step by step.",
        "gradient_histograms": "How the gradient norms of the layers are distributed at steps of the first epoch.",
    }
    return Presentation([table], charts, captions)


STUDY = Study(
    name="gradients",
    title="Do gradients explode or vanish?",
    figures=("gradient-norm-value", "gradient-norm-vis"),
    varies="layer gradient norms every 30 iterations of 10 epochs",
    points=points,
    present=present,
    num_seeds=1,
)
