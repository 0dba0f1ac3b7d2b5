"""Balance a plain training loop on scikit-learn's digits and see what balancing does: about 20 seconds on a CPU.

Prints alpha and learning rate of each layer and writes a chart of both to plain_loop.svg. Needs the extra `lab`.
To see whether balancing helps you need several seeds: `tempbalance compare` trains and compares them.
"""

from collections import OrderedDict
from typing import Any

import altair as alt
import torch
from sklearn.datasets import load_digits
from torch import nn

import tempbalance

EPOCHS, BATCH, WIDTH, LR = 20, 64, 256, 0.3


def make_model() -> nn.Sequential:
    """Hidden layers of one shape, so that their alphas are comparable."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number in range(1, 8):
        layers[f"linear{number}"] = nn.Linear(64 if number == 1 else WIDTH, WIDTH)
        layers[f"norm{number}"], layers[f"relu{number}"] = nn.BatchNorm1d(WIDTH), nn.ReLU()
    layers["classifier"] = nn.Linear(WIDTH, 10)
    return nn.Sequential(layers)


def train() -> tuple[nn.Sequential, tempbalance.TempBalance, list[dict[str, Any]]]:
    """Return the trained model, its scheduler, and alpha and learning rate of each layer in each epoch."""
    torch.manual_seed(0)
    digits = load_digits()
    images, labels = torch.tensor(digits.data / 16).float(), torch.tensor(digits.target)
    model = make_model()
    optimizer = torch.optim.SGD(tempbalance.param_groups(model), lr=LR, momentum=0.9, weight_decay=5e-4)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
    scheduler = tempbalance.TempBalance(optimizer, model, cosine)
    history = []
    for epoch in range(EPOCHS):
        rates = {group.get("layer"): group["lr"] for group in optimizer.param_groups}
        scored = [row for row in scheduler.table() if row.alpha is not None]
        history += [{"epoch": epoch, "layer": row.name, "alpha": row.alpha, "lr": rates[row.name]} for row in scored]
        for batch in torch.randperm(len(images)).split(BATCH)[:-1]:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
        scheduler.step()  # steps the cosine too, scores the layers and sets their learning rates
        slow, fast = sorted(rates[row.name] for row in scored)[:: len(scored) - 1]
        print(f"epoch {epoch:2}: learning rates of the scored layers {slow:.4f} to {fast:.4f}")
    return model, scheduler, history


def draw(history: list[dict[str, Any]]) -> alt.HConcatChart:
    """Draw alpha and learning rate of each layer over the epochs."""
    lines = alt.Chart(alt.Data(values=history)).mark_line().encode(x="epoch:Q", color="layer:N")
    return lines.encode(alt.Y("alpha:Q").scale(zero=False)) | lines.encode(alt.Y("lr:Q").title("learning rate"))


if __name__ == "__main__":
    _, scheduler, history = train()
    print(f"\nalpha of the layers after training, and their scale:\n\n{scheduler.table()}")
    draw(history).save("plain_loop.svg")
    print("\nplain_loop.svg shows alpha and learning rate of each layer in every epoch")
