"""The spectrum of one layer within the first epoch, and after it."""

from __future__ import annotations

from dataclasses import replace

from tempbalance.lab.findings import Findings
from tempbalance.lab.paper.statements import paper_statements
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.points import best_points, reduced, steps_like
from tempbalance.lab.study import Presentation, Study
from tempbalance.lab.tables import Entry, Number, ResultTable

_LAYER = "layer4.0.conv2"  # one of the two layers that the paper follows elsewhere; it does not say which it shows here
_NUM_EPOCHS = 2


def points(preset: Preset) -> list[Point]:
    """CAL on ResNet18 and CIFAR-100, its spectra noted every 30 iterations of two epochs."""
    found = reduced(best_points("optimizers", models=("resnet18",), methods=("cal",)), preset, {"cifar100": "digits"})
    iterations = paper_statements()["gradient_iterations"].value
    return [
        replace(
            point,
            options={
                **point.options,
                "stop_after": _NUM_EPOCHS,
                "log_steps": steps_like(iterations, point.options),
                "log_eigenvalues": True,
            },
            paper=None,
        )
        for point in found
    ]


def present(findings: Findings) -> Presentation:
    """How far the largest eigenvalue is from the others, step by step, and some of the spectra."""
    from tempbalance.report.study_data import StepSpectrum
    from tempbalance.report.study_steps import spectra_chart

    (cell,) = findings.cells
    runs = list(cell.best.runs.values()) if cell.best is not None else []
    spectra = [
        StepSpectrum(line["epoch"], line["step"], line["layer"], tuple(line["eigenvalues"]))
        for run in runs
        for line in run.steps
        if line["layer"] == _LAYER
    ]
    rows: list[list[Entry]] = [
        [str(each.epoch), str(each.step), Number(each.eigenvalues[-1], digits=4), _beyond(each.eigenvalues)]
        for each in spectra
    ]
    table = ResultTable(
        f"Spectrum of {_LAYER} before steps of the first two epochs; {cell.panel}, CAL.",
        ["epoch", "step", "largest eigenvalue", "largest / 99th percentile"],
        rows,
    )
    if not spectra:
        return Presentation([table], {}, {})
    title = f"Spectrum of {_LAYER} in the first epoch and after it"
    captions = {"rank_one": "Large updates of rank one show as a spike to the right of the bulk."}
    return Presentation(
        [table], {"rank_one": spectra_chart(spectra, title=title, subtitle=findings.subtitle)}, captions
    )


def _beyond(eigenvalues: tuple[float, ...]) -> Number:
    bulk = sorted(eigenvalues)[int(0.99 * (len(eigenvalues) - 1))]
    return Number(eigenvalues[-1] / bulk)


STUDY = Study(
    name="rank_one",
    title="Do large updates of rank one disturb the spectrum?",
    figures=("rank-1",),
    varies="the spectrum of one layer within the first epoch and the second",
    points=points,
    present=present,
    num_seeds=1,
)
