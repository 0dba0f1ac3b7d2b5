"""Our alpha and KS distance with ``goodness_of_fit`` against WeightWatcher's on every layer that both score."""

import logging

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import tempbalance
from tempbalance.lab.images.network import build_network
from tests.cases import assert_carries

weightwatcher = pytest.importorskip("weightwatcher", reason="weightwatcher is in the dev extra")

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("quiet"),
]


@pytest.fixture
def quiet():
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    yield
    logging.disable(level)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(200, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 200)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens)))


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    return build_network(name, num_classes=10, channels=1, side=8, width=0.25)


def trained_on_digits(model: nn.Module, *, epochs: int) -> nn.Module:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)[:1024] / 16
    labels = torch.tensor(digits.target)[:1024]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for _ in range(epochs):
        for batch in torch.randperm(1024).split(128):
            optimizer.zero_grad()
            cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    return model


def trained_transformer() -> nn.Module:
    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(40):  # to tell the next token of sequences that count
        tokens = (torch.randint(0, 200, (32, 1)) + torch.arange(17)) % 200
        optimizer.zero_grad()
        cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
    return model


MODELS = {
    "resnet18 as initialised": lambda: network("resnet18"),
    "vgg16 as initialised": lambda: network("vgg16"),
    "resnet18 trained": lambda: trained_on_digits(network("resnet18"), epochs=4),
    "vgg16 trained": lambda: trained_on_digits(network("vgg16"), epochs=4),
    "transformer trained": trained_transformer,
}


def their_rows(model: nn.Module) -> dict[str, tuple[float, float, str]]:
    details = weightwatcher.WeightWatcher(model=model).analyze(pool=True)
    return {row.longname: (row.alpha, row.D, row.status) for row in details.itertuples()}


SLOW = ["vgg16 as initialised", "resnet18 trained", "vgg16 trained"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in MODELS]
)
def test_alpha_and_ks_are_weightwatchers(name):
    model = MODELS[name]()
    theirs = their_rows(model)
    ours = {row.name: row for row in tempbalance.diagnose(model, tail="goodness_of_fit", shuffle=False).scored}
    both = sorted(ours.keys() & theirs.keys())
    assert len(both) >= 7
    for layer in both:
        alpha, ks, _ = theirs[layer]
        assert ours[layer].alpha == pytest.approx(alpha, rel=1e-3), layer
        assert ours[layer].ks == pytest.approx(ks, rel=1e-3), layer


SPECIAL = {  # weight, what WeightWatcher answers, what our reason for skipping the layer carries
    "zero": (torch.zeros(64, 64), -1, ["zero"]),
    "constant": (torch.ones(64, 64), -1, ["rank", 64]),
    "rank one": (torch.randn(64, 1) @ torch.randn(1, 64), -1, ["rank", 64]),
    "identity": (torch.eye(64), float("inf"), ["alpha"]),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_where_weightwatcher_answers_with_minus_one_or_infinity_we_say_why_there_is_no_alpha(name):
    weight, answer, carried = SPECIAL[name]
    model = nn.Sequential(nn.Linear(64, 64, bias=False))
    model[0].weight = nn.Parameter(weight.clone())
    assert their_rows(model)["0"][0] == answer
    (row,) = tempbalance.diagnose(model, tail="goodness_of_fit")
    assert row.alpha is None
    assert_carries(row.reason, *carried)


def test_a_very_small_weight_keeps_its_alpha_where_weightwatcher_answers_minus_one():
    model = nn.Sequential(nn.Linear(64, 64, bias=False))
    (before,) = tempbalance.diagnose(model, tail="goodness_of_fit")
    with torch.no_grad():
        model[0].weight.mul_(2.0**-40)
    assert their_rows(model)["0"][0] == -1
    (after,) = tempbalance.diagnose(model, tail="goodness_of_fit")
    assert after.alpha == pytest.approx(before.alpha)
