"""Draw the pictures of the README from the network that examples/plain_loop.py trains: `make pictures`.

The screenshot of a diagnosis needs Chromium.
"""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import altair as alt
import torch
from playwright.sync_api import sync_playwright
from torch import nn

import tempbalance
from tempbalance.report.chart import BLUE, FAINT, INK, RED, save_figures
from tempbalance.report.spectrum import spectrum_datum

HERE = Path(__file__).parent
IMAGES = HERE / "images"
WIDTH, HEIGHT = 340, 120
EPOCHS = "Alpha and learning rate of each layer over the epochs of a training."
SHOWN = 1e5  # smaller eigenvalues than the largest over this are not drawn


def screenshot(page: Path, picture: Path, *, width: int = 1000, height: int = 720, scheme: str = "light") -> Path:
    """Take a picture of the top of a page."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        tab = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        tab.goto(page.resolve().as_uri(), wait_until="networkidle")
        tab.screenshot(path=picture)
        chromium.close()
    return picture


def draw(model: nn.Module, scheduler: tempbalance.TempBalance) -> alt.TopLevelMixin:
    """Draw two spectra with their fits, and alpha and learning rate of every layer."""
    rows = [row for row in scheduler.table() if row.alpha is not None]
    low, high = min(rows, key=lambda row: row.alpha), max(rows, key=lambda row: row.alpha)
    colours = {low.name: BLUE, high.name: RED}
    left = alt.vconcat(*(_spectrum(model, row.name, colours[row.name]) for row in (low, high)), spacing=12)
    data = [
        {"layer": row.name, "alpha": row.alpha, "rate": row.scale, "colour": colours.get(row.name, FAINT)}
        for row in rows
    ]
    right = alt.vconcat(_alphas(data), _rates(data), spacing=12)
    chart = alt.hconcat(left, right, spacing=40).properties(
        description=(
            f"Left: the eigenvalues of two layers with their fitted power laws, alpha {low.alpha:.2f} and "
            f"{high.alpha:.2f}. Right: alpha of each layer, and the learning rate it gets."
        )
    )
    return (
        chart.configure(background="white", font="sans-serif", padding=14)
        .configure_view(stroke=None)
        .configure_title(anchor="start", fontSize=13, color=INK, fontWeight="bold", offset=8)
        .configure_axis(
            labelColor=INK, titleColor=INK, titleFontWeight="normal", domainColor=FAINT, tickColor=FAINT, grid=False
        )
    )


def _spectrum(model: Any, layer: str, colour: str) -> alt.LayerChart:
    eigenvalues = tempbalance.spectrum(getattr(model, layer).weight)
    fit = tempbalance.fit_tail(eigenvalues)
    datum = spectrum_datum(eigenvalues.tolist(), alpha=fit.alpha, xmin=fit.xmin, num_tail=fit.num_tail)
    assert datum is not None
    edges = [10 ** (datum["start"] + datum["step"] * place) for place in range(len(datum["counts"]) + 1)]
    bins = [
        {"left": left, "right": right, "density": count / (datum["size"] * (right - left)), "floor": datum["floor"]}
        for count, left, right in zip(datum["counts"], edges, edges[1:], strict=False)
        if count and right > edges[-1] / SHOWN
    ]
    x = alt.X("left:Q", title="eigenvalue", scale=alt.Scale(type="log", nice=False), axis=_ticks())
    y = alt.Y("density:Q", title="density", scale=alt.Scale(type="log", nice=False), axis=_ticks())
    bars = (
        alt.Chart(alt.Data(values=bins))
        .mark_rect(fill=colour)
        .encode(
            x,
            y,
            x2="right",
            y2="floor",
            fillOpacity=alt.condition(f"datum.right > {fit.xmin}", alt.value(0.6), alt.value(0.25)),
        )
    )
    ends = [{"left": x, "density": y} for x, y in zip(datum["tail_x"], datum["tail_y"], strict=True)]
    line = alt.Chart(alt.Data(values=ends)).mark_line(color=INK, strokeWidth=2, strokeDash=[5, 3]).encode(x, y)
    return alt.layer(bars, line).properties(width=WIDTH, height=HEIGHT, title=f"{layer}: alpha = {fit.alpha:.2f}")


def _ticks() -> alt.Axis:
    return alt.Axis(format="~g", labelOverlap="greedy", tickCount=5)


def _alphas(data: list[dict[str, Any]]) -> alt.Chart:
    base = alt.Chart(alt.Data(values=data)).mark_point(filled=True, size=110, opacity=1)
    return base.encode(
        x=alt.X("layer:N", title=None, axis=alt.Axis(labels=False, ticks=False), sort=None),
        y=alt.Y(
            "alpha:Q",
            scale=alt.Scale(zero=False, padding=8),
            axis=alt.Axis(tickCount=4, grid=True, gridColor="#e4e6e9"),
        ),
        color=alt.Color("colour:N", scale=None),
    ).properties(width=WIDTH, height=HEIGHT, title="alpha of each layer ...")


def _rates(data: list[dict[str, Any]]) -> alt.LayerChart:
    base = alt.Chart(alt.Data(values=data))
    bars = base.mark_bar(size=30, opacity=0.8).encode(
        x=alt.X("layer:N", title=None, axis=alt.Axis(labelAngle=0), sort=None),
        y=alt.Y("rate:Q", title="x base rate", axis=alt.Axis(tickCount=4)),
        color=alt.Color("colour:N", scale=None),
    )
    one = alt.Chart(alt.Data(values=[{"rate": 1}])).mark_rule(color=INK, strokeDash=[2, 2]).encode(y="rate:Q")
    words = bars.mark_text(dy=-7, color=INK, fontSize=11).encode(
        text=alt.Text("rate:Q", format=".2f"), color=alt.value(INK)
    )
    return alt.layer(bars, words, one).properties(width=WIDTH, height=HEIGHT, title="... and the learning rate it gets")


FLOW = (  # what each step holds, and the package that makes it
    ("train", ["nn.Module", "layers\nmodel", "matrices\nspectral", "eigenvalues\nspectral", "tail fit, score\nspectral"]
     + ["scale\nranking", "learning rate\noptim"]),
    ("diagnose", ["checkpoint", "named weights\ncheckpoint", "matrices\nspectral", "eigenvalues\nspectral"]
     + ["tail fit, score\nspectral", "verdicts\ndiagnosis", "page\nreport"]),
    ("reproduce", ["study", "recipes\nlab", "runs\nlab", "findings\nlab", "claims\nlab", "table, figure\nreport"]),
)  # fmt: skip


def flow() -> str:
    """Draw the three ways of data through the packages, as SVG."""
    step, width, height, gap = 122, 104, 46, 84
    parts = []
    for row, (name, boxes) in enumerate(FLOW):
        top = 26 + row * gap
        parts.append(f'<text x="10" y="{top - 8}" font-weight="bold">{name}</text>')
        for place, box in enumerate(boxes):
            left = 10 + place * step
            what, _, package = box.partition("\n")
            colour, opacity = (BLUE, 0.25) if package == "spectral" else (FAINT, 0.15)
            middle = f'x="{left + width / 2}" text-anchor="middle"'
            parts += [
                f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="6" stroke="{FAINT}"',
                f'fill="{colour}" fill-opacity="{opacity}"/>',
                f'<text {middle} y="{top + (20 if package else 28)}">{what}</text>',
                f'<text {middle} y="{top + 37}" font-size="11" fill="{FAINT}">{package}</text>',
            ]
            if place:
                y = top + height / 2
                parts.append(f'<path d="M{left - 16},{y}h11m-5,-4l5,4l-5,4" fill="none" stroke="{INK}"/>')
    size = f'width="{10 + 7 * step}" height="{len(FLOW) * gap + 10}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13" fill="{INK}">'
        f'<rect width="100%" height="100%" fill="white"/>{" ".join(parts)}</svg>\n'
    )


if __name__ == "__main__":
    (IMAGES / "design.svg").write_text(flow())
    example = runpy.run_path(str(HERE.parent / "examples" / "plain_loop.py"))
    model, scheduler, history = example["train"]()
    charts = {"balancing": draw(model, scheduler), "training": example["draw"](history).properties(description=EPOCHS)}
    for path in save_figures(charts, IMAGES, ["svg"]):
        print(path)
    with TemporaryDirectory() as folder:
        checkpoint, page = Path(folder, "digits.pt"), Path(folder, "page.html")
        torch.save(model.state_dict(), checkpoint)
        command = [sys.executable, "-m", "tempbalance.cli", "diagnose", str(checkpoint), "--html", str(page)]
        subprocess.run(command, check=True)
        print(screenshot(page, IMAGES / "diagnose.png", height=760))
