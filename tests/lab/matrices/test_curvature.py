"""Eigenvalues of Hessian and neural tangent kernel against the matrices themselves."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn.functional import cross_entropy, mse_loss

from tempbalance.errors import TailError, TempBalanceError
from tempbalance.lab.matrices.curvature import (
    decay_exponent,
    hessian_eigenvalues,
    ntk_eigenvalues,
    output_covariance,
)
from tests.cases import raises

MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 3)), (5,)),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.GELU(), nn.Flatten(), nn.Linear(12, 3)),
        (1, 4, 4),
    ),
}


def case(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    """A model that has seen data, and batches of different sizes."""
    torch.manual_seed(3)
    make, shape = MODELS[name]
    model = make().to(dtype)
    inputs, targets = torch.randn(17, *shape, dtype=dtype), torch.randint(3, (17,))
    model(inputs)  # moves the statistics of BatchNorm
    model.eval()
    return model, [(inputs[:7], targets[:7]), (inputs[7:14], targets[7:14]), (inputs[14:], targets[14:])]


def dense(model: nn.Module, data: list) -> tuple[np.ndarray, np.ndarray]:
    """The Hessian of the mean cross entropy and the Jacobian, outputs x parameters, in float64 and in full."""
    model = copy.deepcopy(model).double().eval()
    inputs = torch.cat([batch[0] for batch in data]).double()
    targets = torch.cat([batch[1] for batch in data])
    names = [name for name, each in model.named_parameters() if each.requires_grad]
    shapes = [dict(model.named_parameters())[name].shape for name in names]

    def outputs(flat: torch.Tensor) -> torch.Tensor:
        parts = flat.split([shape.numel() for shape in shapes])
        by_name = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return functional_call(model, by_name, (inputs,))

    flat = torch.cat([dict(model.named_parameters())[name].detach().flatten() for name in names])
    matrix = jacrev(jacrev(lambda each: cross_entropy(outputs(each), targets)))(flat)
    return matrix.numpy(), jacrev(lambda each: outputs(each).flatten())(flat).numpy()


def largest(matrix: np.ndarray, k: int) -> np.ndarray:
    return np.linalg.eigvalsh(matrix)[::-1][:k]


def assert_near(found: torch.Tensor, expected: np.ndarray, tolerance: float = 1e-5) -> None:
    assert found.dtype == torch.float64
    assert found.shape == expected.shape
    assert np.abs(found.numpy() - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float64) for name in MODELS),
        ("mlp", torch.float32),
        pytest.param("conv", torch.float32, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_eigenvalues_are_those_of_the_dense_matrices(name, dtype):
    model, data = case(name, dtype)
    matrix, jacobian = dense(model, data)
    assert_near(hessian_eigenvalues(model, cross_entropy, data, k=4), largest(matrix, 4))
    assert_near(ntk_eigenvalues(model, data, k=4) / 17, largest(jacobian.T @ jacobian / 17, 4))  # the Fisher matrix
    assert_near(ntk_eigenvalues(model, data, k=4), largest(jacobian @ jacobian.T, 4))


@pytest.fixture(scope="module")
def dense_mlp() -> tuple[np.ndarray, np.ndarray]:
    return dense(*case("mlp"))


@pytest.mark.parametrize("k", [1, 41, 42, 84, 1000])  # of 84 parameters and 51 outputs
def test_any_number_of_eigenvalues_can_be_asked_for(k, dense_mlp):
    model, data = case("mlp")
    matrix, jacobian = dense_mlp
    assert_near(hessian_eigenvalues(model, cross_entropy, data, k=k), largest(matrix, k))
    assert_near(ntk_eigenvalues(model, data, k=k), largest(jacobian @ jacobian.T, k))


def test_the_hessian_of_least_squares_with_a_linear_network_is_known():
    torch.manual_seed(0)
    inputs, targets = torch.randn(40, 6, dtype=torch.float64), torch.randn(40, 1, dtype=torch.float64)
    model = nn.Linear(6, 1, bias=False).double()
    found = hessian_eigenvalues(model, mse_loss, [(inputs, targets)], k=6)
    assert_near(found, largest(2 * (inputs.T @ inputs / 40).numpy(), 6), 1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_output_covariance_is_the_mean_of_outer_products(dtype):
    model, data = case("conv", dtype)
    outputs = copy.deepcopy(model).double().eval()(torch.cat([batch[0] for batch in data]).double()).detach()
    expected = sum(torch.outer(row, row) for row in outputs) / 17
    torch.testing.assert_close(output_covariance(model, data), expected, rtol=1e-5, atol=1e-6)


def test_batches_count_by_their_size():
    model, data = case("mlp")
    whole = [tuple(torch.cat(parts) for parts in zip(*data, strict=True))]
    torch.testing.assert_close(
        hessian_eigenvalues(model, cross_entropy, data, k=4), hessian_eigenvalues(model, cross_entropy, whole, k=4)
    )


def test_the_same_seed_gives_the_same_bits():
    model, data = case("conv")
    first, again = (hessian_eigenvalues(model, cross_entropy, data, k=3, seed=5) for _ in range(2))
    assert torch.equal(first, again)


@pytest.mark.parametrize("s", [0.2, 1.0, 3.2])
def test_the_decay_exponent_of_an_exact_power_law_is_its_own(s):
    values = 7 * np.arange(1, 31.0) ** -s
    assert decay_exponent(values) == pytest.approx(s, rel=1e-12)
    assert decay_exponent(torch.from_numpy(values[::-1].copy())) == pytest.approx(s, rel=1e-12)
    assert decay_exponent([*values, 0.0, -1.0]) == pytest.approx(s, rel=1e-12)


def test_the_decay_exponent_is_the_slope_of_least_squares():
    values = np.array([5.0, 4.0, 1.5, 1.2, 0.1])
    expected = -np.polyfit(np.log(np.arange(1, 6)), np.log(values), 1)[0]
    assert decay_exponent(values) == pytest.approx(expected)


@pytest.mark.parametrize("values", [[], [1.0], [2.0, 0.0, -1.0]])
def test_the_decay_exponent_needs_two_positive_values(values):
    with raises(TailError, 2, len(values)):
        decay_exponent(values)


def test_the_decay_exponent_refuses_what_is_not_finite():
    with raises(TailError, "NaN"):
        decay_exponent([1.0, float("nan")])


@pytest.mark.parametrize(("dtype", "seed"), [(torch.float32, 0), (torch.float64, 1)], ids=str)
def test_eigenvalues_that_are_repeated_are_all_found(dtype, seed):
    # of a linear layer each eigenvalue of the inputs' Gram matrix comes once for every output
    torch.manual_seed(seed)
    model, inputs = nn.Linear(8, 12, bias=False).to(dtype), torch.randn(20, 8, dtype=dtype)
    data = [(inputs, torch.zeros(20, 12, dtype=dtype))]
    gram = torch.linalg.eigvalsh(inputs.double().T @ inputs.double()).flip(0)
    expected = gram.repeat_interleave(12)[:16]
    assert ntk_eigenvalues(model, data, k=16, seed=seed).tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_rounding_noise_is_no_decay():
    real = [k**-1.5 for k in range(1, 9)]
    assert decay_exponent([*real, 1e-9, 1e-12, 1e-15]) == pytest.approx(1.5)
    assert decay_exponent([*real, 1e-9], floor=0.0) > 2


def test_a_matrix_of_zeros_has_eigenvalues_of_zero():
    model = nn.Linear(80, 2)
    nn.init.zeros_(model.weight)
    model.bias.data = torch.tensor([1e4, 0.0])  # the loss is 0 to the bit
    data = [(torch.ones(4, 80), torch.zeros(4, dtype=torch.long))]
    found = hessian_eigenvalues(model, cross_entropy, data, k=3)
    assert torch.equal(found, torch.zeros(3, dtype=torch.float64))


def test_losses_and_outputs_must_be_finite():
    model, data = case("mlp")
    with torch.no_grad():
        model[-1].weight[0, 0] = float("inf")
    with raises(TempBalanceError, "loss", "batch 0"):
        hessian_eigenvalues(model, cross_entropy, data, k=2)
    for compute in (lambda: ntk_eigenvalues(model, data, k=2), lambda: output_covariance(model, data)):
        with raises(TempBalanceError, "outputs", "NaN", "batch 0"):
            compute()


def test_parameters_gradients_and_random_state_do_not_change():
    model, data = case("conv")
    cross_entropy(model(data[0][0]), data[0][1]).backward()
    state, gradients = copy.deepcopy(model.state_dict()), [each.grad.clone() for each in model.parameters()]
    random = torch.get_rng_state()
    hessian_eigenvalues(model, cross_entropy, data, k=2)
    ntk_eigenvalues(model, data, k=2)
    output_covariance(model, data)
    assert all(torch.equal(each, state[name]) for name, each in model.state_dict().items())
    assert all(torch.equal(each.grad, kept) for each, kept in zip(model.parameters(), gradients, strict=True))
    assert torch.equal(random, torch.get_rng_state())
