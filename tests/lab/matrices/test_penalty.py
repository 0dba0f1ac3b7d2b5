"""The penalty that asks for a decay of 1 / n."""

import pytest
import torch

from tempbalance.lab.matrices.training import covariance_eigenvalues, decay_penalty


def literal(eigenvalues: list[float], tau: int) -> float:
    """The published formula, term by term."""
    total = 0.0
    for n in range(tau, len(eigenvalues) + 1):
        ratio = eigenvalues[n - 1] / (eigenvalues[tau - 1] * tau / n)
        total += (ratio - 1) ** 2 + max(0.0, ratio - 1)
    return total / len(eigenvalues)


@pytest.mark.parametrize("tau", [1, 3, 6])
def test_the_penalty_is_the_published_formula(tau):
    values = [9.0, 5.0, 4.0, 3.5, 0.7, 0.2]
    assert float(decay_penalty(torch.tensor(values), tau=tau)) == pytest.approx(literal(values, tau), rel=1e-6)


@pytest.mark.parametrize("tau", [1, 4])
def test_a_decay_of_one_over_n_from_tau_on_costs_nothing(tau):
    values = torch.tensor([10.0, 9.0, 8.0] if tau == 4 else [5 / n for n in (1, 2, 3)], dtype=torch.float64)
    tail = torch.tensor([5 / n for n in range(4, 30)], dtype=torch.float64)
    assert float(decay_penalty(torch.cat([values, tail]), tau=tau)) == pytest.approx(0, abs=1e-15)


def test_too_large_costs_more_than_too_small():
    fitting = torch.tensor([6 / n for n in range(1, 7)], dtype=torch.float64)
    larger, smaller = fitting.clone(), fitting.clone()
    larger[3], smaller[3] = fitting[3] * 1.2, fitting[3] * 0.8
    assert decay_penalty(larger, tau=1) > decay_penalty(smaller, tau=1) > 0


def test_eigenvalue_tau_is_taken_as_it_is():
    values = torch.tensor([4.0, 3.0, 2.0, 0.1], requires_grad=True)
    (gradient,) = torch.autograd.grad(decay_penalty(values, tau=2), values)
    assert torch.equal(gradient[:2], torch.zeros(2))
    assert gradient[3] < 0  # which is too small


def test_eigenvalues_are_those_of_the_covariance_about_the_mean():
    torch.manual_seed(0)
    hidden = torch.randn(50, 8, dtype=torch.float64) @ torch.randn(8, 8, dtype=torch.float64) + 3
    expected = torch.linalg.eigvalsh(torch.cov(hidden.T, correction=0)).flip(0)
    torch.testing.assert_close(covariance_eigenvalues(hidden), expected)


def test_the_penalty_can_be_differentiated_by_the_samples():
    torch.manual_seed(0)
    hidden = torch.randn(20, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda each: covariance_eigenvalues(each)[2:], hidden)


def test_descent_on_the_penalty_brings_the_decay():
    logs = torch.linspace(0, -5, 12, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logs], lr=0.05)
    for _ in range(400):
        optimizer.zero_grad()
        decay_penalty(logs.exp(), tau=3).backward()
        optimizer.step()
    found = logs.detach().exp()
    torch.testing.assert_close(found[2:], found[2] * 3 / torch.arange(3, 13), rtol=0.1, atol=0)
