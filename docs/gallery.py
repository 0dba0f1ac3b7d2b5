"""Write the gallery of the site from runs of the lab: `make gallery`.

Runs that are complete in build/gallery are not trained again; from nothing it takes a few minutes on two idle cores.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import altair as alt
import torch
from pictures import IMAGES, screenshot

import tempbalance
from tempbalance.report.chart import DATA, INK, Datum, finish, save_figures

HERE = Path(__file__).parent
PAGES, WORK = HERE / "gallery", HERE.parent / "build" / "gallery"
STUDY = ["layers", "--preset", "laptop", "--only", "model=resnet18", "--out", "runs"]
TRAIN = ["train", "--dataset", "digits", "--model", "resnet18", "--width", "0.25", "--method", "cal", "--epochs", "12"]
TRAIN += ["--seed", "43", "--keep-checkpoints", "--checkpoint-every", "0", "--out", "healthy"]
EPOCHS = (1, 2, 4, 8, 12)


def command(*arguments: str) -> str:
    """Run a command of tempbalance in the work folder and return what it prints."""
    WORK.mkdir(parents=True, exist_ok=True)
    full = [sys.executable, "-m", "tempbalance.cli", *arguments]
    return subprocess.run(full, cwd=WORK, check=True, stdout=subprocess.PIPE, text=True).stdout


def typed(arguments: list[str]) -> str:
    """Return the command as somebody types it."""
    return " ".join(["tempbalance", *arguments])


def write_study() -> None:
    """Write the page of a study: its command, its figures and its page."""
    command("study", "run", *STUDY)
    command("study", "report", *STUDY, "--html", "study.html", "--figures", "figures")
    for name in ("layers", "two_layers"):
        (PAGES / f"study-{name}.svg").write_bytes((WORK / "figures" / f"{name}.svg").read_bytes())
    screenshot(WORK / "study.html", IMAGES / "study.png")
    (PAGES / "study.md").write_text(f"""# A study: alpha and learning rate of every layer

    {typed(["study", "run", *STUDY])}
    {typed(["study", "report", *STUDY, "--html", "study.html", "--figures", "figures"])}

A ResNet18 of a quarter's width on scikit-learn's digits, 12 epochs, three seeds, with
cosine annealing (CAL) and balanced (TB). The page opens offline:

![The page: claims and figures](../images/study.png)

Alpha and learning rate of each layer over the epochs. Balancing (TB) gives layers with a small alpha a
smaller learning rate:

![Alpha and learning rate of each layer over the epochs](study-layers.svg)

One early and one late layer, as in the paper:

![Alpha and learning rate of two layers](study-two_layers.svg)
""")


def write_diagnoses() -> None:
    """Write the page of three diagnoses: a trained network, the same untrained, and one with a damaged layer."""
    weights = torch.load(WORK / "healthy" / "best.ckpt", weights_only=True)
    torch.manual_seed(0)
    fresh = {name: torch.randn_like(value) * value.std() for name, value in weights.items() if value.dim() > 1}
    damaged = dict(weights)
    target = "layer4.1.conv1.weight"
    damaged[target] = torch.randn_like(damaged[target]) * damaged[target].std()
    cases = {
        "trained": ("Trained for 12 epochs", weights, "No layer stands out."),
        "untrained": (
            "The same shapes with random weights",
            fresh,
            "Every layer is near 1: it looks random, as it is.",
        ),
        "damaged": (
            "Trained, then one layer drawn again",
            damaged,
            f"`{target.removesuffix('.weight')}` holds random numbers of the same size. The diagnosis finds it. A "
            "verdict depends on the other layers too: one that is near a limit may get another verdict unchanged.",
        ),
    }
    parts = [
        "# Diagnoses",
        "",
        "A ResNet18 of a quarter's width on scikit-learn's digits, as it is and made worse on purpose.",
        "",
    ]
    for name, (title, state, words) in cases.items():
        torch.save(state, WORK / f"{name}.pt")
        text = command("diagnose", f"{name}.pt", "--figures", f"figures-{name}")
        figure = (WORK / f"figures-{name}" / "alpha_over_random.svg").read_bytes()
        (PAGES / f"diagnosis-{name}.svg").write_bytes(figure)
        table = "\n".join(line for line in text.splitlines() if not line.startswith(("skipped:", "figure:"))).strip()
        parts += [f"## {title}", "", words, "", f"![Alpha over random by depth](diagnosis-{name}.svg)", ""]
        parts += [f"    tempbalance diagnose {name}.pt", "", "```text", table, "```", ""]
    (PAGES / "diagnoses.md").write_text("\n".join(parts))


def healthy_chart(data: list[Datum]) -> alt.TopLevelMixin:
    """Draw a line for each layer over the epochs; the legend stands below, where its names have room."""
    one = alt.Chart(alt.InlineData(values=[{"ratio": 1}])).mark_rule(color=INK, strokeDash=[3, 3]).encode(y="ratio:Q")
    curves = alt.Chart(DATA).mark_line(point=True).encode(
        x=alt.X("epoch:Q", axis=alt.Axis(values=list(EPOCHS), grid=False)),
        y=alt.Y("ratio:Q", title="alpha / alpha of a random matrix", scale=alt.Scale(zero=False)),
        color=alt.Color("layer:N", sort=None),
    )  # fmt: skip
    words = "Alpha over that of a random matrix, by layer, over the epochs"
    return finish(alt.layer(curves, one).properties(width=560, height=300), data, title=words, description=f"{words}.")


def write_healthy() -> None:
    """Write the page of one network through its training."""
    command(*TRAIN)
    data, lines = [], []
    for epoch in EPOCHS:
        rows = tempbalance.diagnose(str(WORK / "healthy" / f"epoch-{epoch}.ckpt")).scored
        data += [{"epoch": epoch, "layer": row.name, "ratio": row.alpha_over_random} for row in rows]
        counts: dict[str, int] = {}
        for row in rows:
            counts[row.verdict] = counts.get(row.verdict, 0) + 1
        ratios = [row.alpha_over_random for row in rows]
        words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        lines.append(f"| {epoch} | {min(ratios):.2f} to {max(ratios):.2f} | {words} |")
    save_figures({"healthy": healthy_chart(data)}, PAGES, ["svg"])
    (PAGES / "healthy.md").write_text(f"""# What healthy layers look like

One network through its training: a ResNet18 of a quarter's width on scikit-learn's digits, 12 epochs with cosine
annealing. It ends near 99 % test accuracy.

    {typed(TRAIN)}
    tempbalance diagnose healthy/epoch-1.ckpt

![Alpha over random, by layer, over the epochs](healthy.svg)

A fresh layer has the alpha of a random matrix, 1 on this axis. Training moves the layers below 1
within the first epochs, and then they hardly move.

| epoch | alpha over random | verdicts |
| --- | --- | --- |
{chr(10).join(lines)}

Other networks end elsewhere.
Compare a layer with its neighbours and with earlier checkpoints of the same network.
[Reading alpha](../reading-alpha.md) says how often the verdicts are right.
""")


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    write_healthy()
    write_diagnoses()
    write_study()
    (PAGES / "index.md").write_text("""# Gallery

`make gallery` writes these pages from runs of the lab.

```{toctree}
:maxdepth: 1

healthy
diagnoses
study
```

[![Alpha over random, by layer, over the epochs](healthy.svg)](healthy.md)

[![The page of a study](../images/study.png)](study.md)
""")
