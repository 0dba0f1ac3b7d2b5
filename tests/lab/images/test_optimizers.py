"""The optimizers of the paper's methods against literal formulas."""

import numpy as np
import pytest
import torch

from tempbalance.lab.images.optimizers import build_optimizer
from tempbalance.lab.images.recipe import ImageRecipe
from tests.lab.images import reference

SHAPES = ((6, 4, 3, 3), (5, 40), (8,), (8,), (30, 50))
STEPS, DECAY = 20, 5e-4


def initial_weights():
    random = np.random.default_rng(0)
    weights = [random.normal(size=shape) / 3 for shape in SHAPES]
    weights[3][:] = 0  # a bias
    weights[4] *= 3  # whose norm is above 10
    return weights


def gradient(step, index, weight, *, orthogonal=True, size=3.0):
    """Random; that of the first two weights is orthogonal to them, by channel and as a whole."""
    found = size * np.random.default_rng((1, step, index)).normal(size=weight.shape)
    if orthogonal and index < 2:
        rows = len(weight) if index == 0 else 1
        flat, along = found.reshape(rows, -1), weight.reshape(rows, -1)
        flat = flat - along * (flat * along).sum(1, keepdims=True) / (along**2).sum(1, keepdims=True)
        found = flat.reshape(weight.shape)
    return found


def trained(method, **options):
    """The weights after some steps of a recipe's optimizer."""
    recipe = ImageRecipe(method=method, weight_decay=DECAY, **options)
    weights = [torch.nn.Parameter(torch.tensor(each)) for each in initial_weights()]
    optimizer = build_optimizer([{"params": weights[:2]}, {"params": weights[2:]}], recipe)
    for step in range(STEPS):
        for index, weight in enumerate(weights):
            weight.grad = torch.tensor(gradient(step, index, weight.detach().numpy()))
        optimizer.step()
    return [each.detach().numpy() for each in weights]


@pytest.mark.parametrize(
    ("method", "lr", "more", "named"),
    [
        ("lars", 30.0, {}, {}),
        ("lamb", 0.01, {}, {}),
        ("sgdp", 0.1, {}, {}),
        ("adamp", 1e-3, {}, {}),
        ("lookahead", 0.1, {"lookahead_steps": 5, "lookahead_alpha": 0.8}, {"every": 5, "alpha": 0.8}),
    ],
)
def test_twenty_steps_are_those_of_the_published_formula(method, lr, more, named):
    expected = getattr(reference, method)(initial_weights(), gradient, STEPS, lr=lr, decay=DECAY, **named)
    found = trained(method, lr=lr, **more)
    for ours, theirs, before in zip(found, expected, initial_weights(), strict=True):
        assert np.abs(theirs - before).max() > 1e-3
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6 * max(1, np.abs(theirs).max()))


def test_the_references_project_the_first_two_weights_and_no_others():
    shares = [reference.project(w, gradient(0, i, w), w)[1] for i, w in enumerate(initial_weights())]
    assert shares == [0.1, 0.1, 1.0, 1.0, 1.0]
