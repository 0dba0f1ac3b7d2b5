"""Rate and alpha of every layer over training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tempbalance.lab.findings import Cell, Findings
from tempbalance.lab.names import pretty
from tempbalance.lab.paper.statements import paper_statements
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.points import best_points, reduced
from tempbalance.lab.study import Presentation, Study
from tempbalance.lab.tables import Number, ResultTable
from tempbalance.runlog import Line

if TYPE_CHECKING:
    from tempbalance.report.study_data import LayerTrack


def points(preset: Preset) -> list[Point]:
    """TB on ResNet18 and ResNet34 with CIFAR-100, and CAL beside it."""
    found = best_points("optimizers", methods=("cal", "tb"))
    return reduced(found, preset, {"cifar100": "digits"}, models=("resnet18",))


def present(findings: Findings) -> Presentation:
    """Heat maps of all layers, lines of the two that the paper shows."""
    from tempbalance.report.study_layers import layer_maps, two_layers

    tracks = {track.panel: track for cell in findings.cells if (track := _track(cell)) is not None}
    rows = []
    for track in tracks.values():
        for layer, alphas, rates in zip(track.layers, track.alpha, track.rate, strict=True):
            ends = [value for value in alphas if value is not None]
            numbers = [Number(ends[0], digits=3), Number(ends[-1], digits=3)] if ends else [None, None]
            largest = max((rate for rate in rates if rate is not None), default=None)
            rows.append([track.panel, layer, *numbers, None if largest is None else Number(largest, digits=4)])
    table = ResultTable(
        "Each scored layer of the run with the first seed.",
        ["network", "layer", "first alpha", "last alpha", "largest rate"],
        rows,
    )
    if not tracks:
        return Presentation([table], {}, {})
    shown = tuple(paper_statements()["layers_shown"].value)
    resnet18 = [track for track in tracks.values() if track.panel.startswith("ResNet18,")]
    texts = {"subtitle": findings.subtitle}
    charts = {"layers": layer_maps(list(tracks.values()), title="Rate and alpha of every layer", **texts)}
    if resnet18:
        charts["two_layers"] = two_layers(resnet18, (shown[0], shown[1]), title="Rate and alpha of two layers", **texts)
    captions = {
        "layers": "Rate and alpha of every scored layer, epoch by epoch.",
        "two_layers": "Rate and alpha of an early and a late layer, epoch by epoch.",
    }
    return Presentation([table], charts, captions)


def _track(cell: Cell) -> LayerTrack | None:
    """What a run's log says of its layers, of the first seed that is complete."""
    from tempbalance.report.study_data import LayerTrack

    if cell.best is None:
        return None
    lines = next(iter(cell.best.runs.values())).layers
    names = tuple(dict.fromkeys(line["layer"] for line in lines))
    epochs = tuple(sorted({line["epoch"] for line in lines}))
    by_place: dict[tuple[str, int], Line] = {(line["layer"], line["epoch"]): line for line in lines}

    def values(quantity: str) -> tuple[tuple[float | None, ...], ...]:
        return tuple(tuple(by_place.get((name, epoch), {}).get(quantity) for epoch in epochs) for name in names)

    panel = f"{cell.panel}, {pretty(cell.labels['method'])}"
    return LayerTrack(panel, epochs, names, alpha=values("alpha"), rate=values("rate"))


STUDY = Study(
    name="layers",
    title="What does balancing do to each layer over training?",
    figures=("layerwise-vis-every", "layerwise-vis-two"),
    varies="rate and alpha per layer over training, TB and CAL",
    points=points,
    present=present,
)
