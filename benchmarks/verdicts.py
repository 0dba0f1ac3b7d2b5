"""How often each verdict is right: on random weights, through training, and on layers frozen at their initialisation.

    python benchmarks/verdicts.py                                        # scikit-learn's digits and Python's help texts
    python benchmarks/verdicts.py --images cifar10_subset.npz --text tinyshakespeare.txt
    python benchmarks/verdicts.py --part random --seeds 20               # random weights alone
    python benchmarks/verdicts.py --checkpoints runs/verdicts --figures docs

Random weights: twenty shapes, linear and convolutional, in every initialisation that torch has for them, and each tail.
Training: the lab's networks at epoch 0, 1, 5 and the end, one layer of each frozen. Trained networks are kept in
``--checkpoints`` and not trained again. Told are shares of layers.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from statistics import fmean

import altair as alt
import torch
from torch import Tensor, nn
from torch.nn import init
from torch.nn.functional import cross_entropy

import tempbalance
from tempbalance.lab.images.data import augment, load_data
from tempbalance.lab.images.network import build_network
from tempbalance.lab.language.data import load_text
from tempbalance.lab.language.network import Size, build_language_model
from tempbalance.lab.language.training import TrainingBatches
from tempbalance.ranking.table import DiagnosisRow
from tempbalance.report.chart import COLOURS, DATA, FAINT, INK, finish, save_figures
from tempbalance.report.text import VERDICT_LOOKS
from tempbalance.spectral.random_matrix import random_alpha

SHAPES = {
    "linear, square": [(50, 50), (128, 128), (384, 384), (1024, 1024)],
    "linear, 1:4": [(64, 256), (256, 64), (384, 1536), (2048, 512)],
    "linear, 1:16": [(50, 800), (1024, 64), (128, 2048)],
    "conv 1x1": [(64, 64, 1, 1), (256, 64, 1, 1), (128, 512, 1, 1)],
    "conv 3x3": [(64, 64, 3, 3), (128, 64, 3, 3), (256, 256, 3, 3), (512, 256, 3, 3)],
    "conv 7x7": [(64, 64, 7, 7), (96, 192, 7, 7)],
}
INITIALISATIONS: dict[str, Callable[[Tensor], object]] = {
    "normal": init.normal_,
    "uniform": lambda weight: init.uniform_(weight, -0.05, 0.05),
    "orthogonal": init.orthogonal_,
    "Kaiming normal": init.kaiming_normal_,
    "Kaiming uniform": lambda weight: init.kaiming_uniform_(weight, a=5**0.5),
    "Xavier normal": init.xavier_normal_,
    "Xavier uniform": init.xavier_uniform_,
    "truncated normal": lambda weight: init.trunc_normal_(weight, std=0.02, a=-0.04, b=0.04),
}
TAILS = ("median", "goodness_of_fit", "peak")
EPOCHS = (0, 1, 5)


def random_weights(initialise: Callable[[Tensor], object], shapes: list[tuple[int, ...]]) -> dict[str, Tensor]:
    weights = {f"layer{place}.weight": torch.empty(shape) for place, shape in enumerate(shapes)}
    for weight in weights.values():
        initialise(weight)
    return weights


def judge_random(seeds: int) -> dict[str, Counter[str]]:
    """Count the verdicts on random weights by initialisation, kind of shape and tail; searches judge the first seed."""
    found: dict[str, Counter[str]] = {}
    for name, initialise in INITIALISATIONS.items():
        for kind, shapes in SHAPES.items():
            for seed in range(seeds):
                torch.manual_seed(seed)
                weights = random_weights(initialise, shapes)
                for tail in TAILS if seed == 0 else TAILS[:1]:
                    table = tempbalance.diagnose(weights, tail=tail, shuffle=False)
                    verdicts = [row.verdict or row.reason for row in table.diagnoses]
                    for key in (name, kind) if tail == TAILS[0] else ():
                        found.setdefault(key, Counter()).update(verdicts)
                    found.setdefault(f"tail {tail}", Counter()).update(verdicts)
    return found


def print_random(found: dict[str, Counter[str]]) -> None:
    print("| random weights | layers | random-like |\n| --- | --- | --- |")
    for name in (*INITIALISATIONS, *SHAPES, *(f"tail {tail}" for tail in TAILS)):
        counts = found[name]
        print(f"| {name} | {counts.total()} | {counts['random-like'] / counts.total():.1%} |")


State = dict[str, Tensor]


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Callable[[int], Iterator[Tensor]], epochs: int
) -> Iterator[State]:
    """Yield the state dict before training and after every epoch."""
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    yield {name: value.clone() for name, value in model.state_dict().items()}
    for epoch in range(epochs):
        model.train()
        for loss in batches(epoch):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
        print(f"  epoch {epoch + 1}: loss {loss.item():.3f}", flush=True)
        yield {name: value.clone() for name, value in model.state_dict().items()}


def train_images(
    dataset: str, model_name: str, *, width: float, limit: int | None, epochs: int, frozen: str
) -> Iterator[State]:
    data = load_data(dataset, limit=limit)
    torch.manual_seed(0)
    channels, side = data.train_images.shape[1:3]
    model = build_network(model_name, num_classes=data.num_classes, channels=channels, side=side, width=width)
    model.get_submodule(frozen).weight.requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rate = 0.05 if model_name == "mlp" else 0.1
    optimizer = torch.optim.SGD(trained, lr=rate, momentum=0.9, weight_decay=5e-4)
    mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (data.mean, data.std))

    def batches(epoch: int) -> Iterator[Tensor]:
        order = torch.randperm(len(data.train_images), generator=torch.Generator().manual_seed(epoch))
        for places in order.split(128):
            if len(places) > 1:  # of one image BatchNorm has no variance
                generator = torch.Generator().manual_seed(int(places[0]))
                images = augment(data.train_images[places], crop=data.crop, flip=data.flip, generator=generator)
                yield cross_entropy(model((images / 255 - mean) / std), data.train_labels[places].long())

    yield from train(model, optimizer, batches, epochs)


def train_text(dataset: str, *, epochs: int, frozen: str) -> Iterator[State]:
    text = load_text(dataset, tokens="characters")
    size = Size(layers=3, width=128, head=64, inner=512, sequence=64, dropout=0.1)
    torch.manual_seed(0)
    model = build_language_model("gpt", num_tokens=len(text.vocabulary), size=size)
    model.get_submodule(frozen).weight.requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.1)
    tokens = TrainingBatches(torch.from_numpy(text.train), batch_size=16, sequence=64, seed=0, name=text.name)
    steps = 100  # that are called an epoch

    def batches(epoch: int) -> Iterator[Tensor]:
        for step in range(steps):
            inputs, targets = tokens[epoch * steps + step]
            yield cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    yield from train(model, optimizer, batches, epochs)


@dataclass(frozen=True)
class Network:
    """A network to train: its name, how, until when, and the layer that stays as it was initialised."""

    name: str
    epochs: int
    frozen: str
    train: Callable[..., Iterator[State]]

    def states(self, folder: Path) -> dict[int, State]:
        """The weights at some epochs, trained unless they are in the folder."""
        wanted = [*EPOCHS, self.epochs]
        paths = {epoch: folder / f"{self.name}-{epoch}.pt" for epoch in wanted}
        if not all(path.exists() for path in paths.values()):
            print(self.name, flush=True)
            for epoch, state in enumerate(self.train(epochs=self.epochs, frozen=self.frozen)):
                if epoch in paths:
                    torch.save(state, paths[epoch])
        return {epoch: torch.load(path, weights_only=True) for epoch, path in paths.items()}


def networks(images: str | None, text: str) -> list[Network]:
    digits = partial(train_images, "digits", limit=None)
    found = [
        Network("mlp-digits", 20, "linear2", partial(digits, "mlp", width=0.5)),
        Network("resnet18-digits", 20, "layer3.1.conv1", partial(digits, "resnet18", width=0.5)),
        Network(f"gpt-{Path(text).stem}", 20, "blocks.1.feed_forward.outer", partial(train_text, text)),
    ]
    if images:
        more = partial(train_images, images, "resnet18", width=0.25, limit=3000)
        found.append(Network(f"resnet18-{Path(images).stem}", 10, "layer3.1.conv1", more))
    return found


Movement = dict[str, list[tuple[str, int, float, str]]]  # of each network: layer, epoch, alpha over random, verdict


def judge_trained(found: list[Network], folder: Path) -> Movement:
    """Print the verdicts at each epoch, on the frozen layer, and on each layer put back as it was initialised."""
    moved: Movement = {}
    print("| network | layers | epoch | random-like | mean alpha over random | frozen layer | put back: found |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for network in found:
        states = network.states(folder)
        moved[network.name] = []
        for epoch, state in states.items():
            rows = tempbalance.diagnose(state).scored
            trained = [row for row in rows if row.name != network.frozen]
            frozen = next(row for row in rows if row.name == network.frozen)
            ratio = fmean(row.alpha_over_random for row in trained)
            share = sum(row.verdict == "random-like" for row in trained) / len(trained)
            back = count_put_back(states[0], state, trained) if epoch == network.epochs else ""
            cells = (network.name, len(trained), epoch, f"{share:.0%}", f"{ratio:.2f}", frozen.verdict, back)
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
            moved[network.name] += [(row.name, epoch, row.alpha_over_random, row.verdict) for row in rows]
    return moved


def count_put_back(first: State, last: State, rows: list[DiagnosisRow]) -> str:
    """How many layers are found to be random-like when they alone have their initial weight again."""
    found = 0
    for row in rows:
        name = f"{row.name}.weight"
        table = tempbalance.diagnose({**last, name: first[name]}, include=[row.name])
        found += table[row.name].verdict == "random-like"
    return f"{found} of {len(rows)}"


def draw(moved: Movement, folder: Path) -> None:
    """Write the charts of docs/reading-alpha.md."""
    names = list(moved)
    data = [
        {"network": name, "layer": layer, "epoch": epoch, "ratio": round(ratio, 4), "verdict": verdict}
        for name in names
        for layer, epoch, ratio, verdict in moved[name]
    ]
    charts = {"training": training_chart(data), "shape": shape_chart(), "tails": tails_chart()}
    save_figures({f"verdicts-{name}": chart for name, chart in charts.items()}, folder, ["svg"])


def training_chart(data: list[dict[str, object]]) -> alt.TopLevelMixin:
    """Alpha over random of every layer through training, in a chart for each network."""
    verdicts, looks = list(VERDICT_LOOKS), VERDICT_LOOKS.values()
    base = alt.Chart(DATA).encode(
        x=alt.X("epoch:O", title="epoch", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("ratio:Q", title="alpha / alpha of a random matrix", scale=alt.Scale(zero=False)),
    )
    lines = base.mark_line(strokeWidth=1, opacity=0.5, color=FAINT).encode(detail="layer:N")
    colours = alt.Scale(domain=verdicts, range=[colour for colour, _ in looks])
    points = base.mark_circle(size=45, opacity=1).encode(color=alt.Color("verdict:N", scale=colours))
    rule = alt.Chart(DATA).mark_rule(strokeDash=[5, 4], color=INK).encode(y=alt.datum(1))
    panel = alt.layer(rule, lines, points).properties(width=260, height=200)
    chart = panel.facet(alt.Facet("network:N", title=None), columns=2)
    return finish(
        chart.resolve_scale(x="independent", y="independent"),
        data,
        title="Layers leave the random matrix as they learn",
        description="Alpha over that of a random matrix for each layer of the lab's networks at epoch 0, 1, 5 and the "
        "end, coloured by verdict. All begin at 1; trained ones move down, the frozen one stays.",
    )


def shape_chart() -> alt.TopLevelMixin:
    """Alpha of random matrices by their shape: what alpha says about a shape alone."""
    data = [
        {"ratio": ratio, "side": f"{side} rows", "alpha": random_alpha(rows=side, columns=side * ratio)}
        for side in (64, 512)
        for ratio in (1, 2, 3, 4, 6, 8, 12, 16)
    ]
    lines = (
        alt.Chart(DATA)
        .mark_line(point=True)
        .encode(
            x=alt.X("ratio:Q", title="columns / rows", scale=alt.Scale(type="log", base=2)),
            y=alt.Y("alpha:Q", title="alpha of a random matrix (tail: larger half)", scale=alt.Scale(zero=False)),
            color=alt.Color("side:N", scale=alt.Scale(range=list(COLOURS[:2]))),
            strokeDash="side:N",
        )
    )
    return finish(
        lines.properties(width=420, height=220),
        data,
        title="A longer matrix has a larger alpha, whatever it has learned",
        description="Alpha of random matrices of 64 and of 512 rows against the number of columns over rows: it rises "
        "from 2.1 for square ones to more than 5 at 1 : 16.",
    )


def tails_chart(size: int = 128, num: int = 40) -> alt.TopLevelMixin:
    """Alpha of random matrices of one shape by each fit: how far a tail that is searched for can be trusted."""
    torch.manual_seed(0)
    weights = {f"{index}.weight": torch.randn(size, size) for index in range(num)}
    data = [
        {"tail": tail, "alpha": round(row.alpha, 4), "num_tail": row.num_tail}
        for tail in TAILS
        for row in tempbalance.diagnose(weights, tail=tail, shuffle=False).scored
    ]
    points = alt.Chart(DATA).mark_circle(size=35, opacity=0.5, color=COLOURS[0])
    chart = points.encode(
        x=alt.X("alpha:Q", title="alpha (log)", scale=alt.Scale(type="log", nice=False, padding=12)),
        y=alt.Y("tail:N", title=None, sort=list(TAILS), axis=alt.Axis(labelLimit=200)),
    )
    return finish(
        chart.properties(width=420, height=120),
        data,
        title=f"{num} random matrices of {size} x {size}, by each fit",
        description=f"Alpha of {num} random {size} x {size} matrices: within a few percent with median, and over a "
        "range of several times with goodness_of_fit and peak, which may end up with a tail of a few eigenvalues.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["random", "training"], help="only this part")
    parser.add_argument("--seeds", type=int, default=5, help="random weights of each shape and initialisation")
    parser.add_argument("--images", help="an .npz file, as `tempbalance train --dataset` takes it")
    parser.add_argument("--text", default="pydoc", help="a text file")
    parser.add_argument("--only", default="*", help="pattern of the networks to train")
    parser.add_argument("--figures", type=Path, help="a folder for the charts of docs/reading-alpha.md")
    parser.add_argument("--checkpoints", type=Path, default=Path("runs/verdicts"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.part != "training":
        print_random(judge_random(options.seeds))
    if options.part != "random":
        options.checkpoints.mkdir(parents=True, exist_ok=True)
        found = [each for each in networks(options.images, options.text) if fnmatchcase(each.name, options.only)]
        moved = judge_trained(found, options.checkpoints)
        if options.figures is not None:
            draw(moved, options.figures)


if __name__ == "__main__":
    main()
