import copy
import io

import pytest
import torch
from torch import Tensor, nn

from tempbalance.lab.images.optimizers import SpectralNormRegularizer


def small_network(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """For images of 3 x 6 x 6; its weights are `0.weight`, of four dimensions, `4.weight` and `6.weight`.

    Each has one singular value that stands out, so that a few steps with the penalty do not bring it down to the next.
    """
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(80, 7), nn.Tanh(), nn.Linear(7, 4)
    )
    for weight in weights_of(model):
        left, right = torch.randn(len(weight)), torch.randn(weight[0].numel())
        spike = 2 * torch.outer(left / left.norm(), right / right.norm())
        weight.data.add_(spike.view_as(weight))
    return model.to(dtype)


WEIGHTS = ["0.weight", "4.weight", "6.weight"]


def images(seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def exact_penalty(weights: list[nn.Parameter], strength: float) -> Tensor:
    """The objective to the letter, through an SVD."""
    return strength / 2 * sum(torch.linalg.matrix_norm(weight.flatten(1), 2) ** 2 for weight in weights)


def exact_gradient(weight: nn.Parameter, strength: float) -> Tensor:
    return torch.autograd.grad(exact_penalty([weight], strength), weight)[0]


def weights_of(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.dim() > 1]


def with_zero_gradients(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return model


def step(model: nn.Module, optimizer: torch.optim.Optimizer, regularizer: SpectralNormRegularizer, batch: Tensor):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    regularizer.add_gradients()
    optimizer.step()


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(12, 20),
        nn.Linear(20, 12),
        nn.Linear(9, 1),
        nn.Conv2d(6, 10, 3),
        nn.Conv2d(6, 10, 3).to(memory_format=torch.channels_last),
        nn.Conv2d(6, 6, 3, groups=6),
        nn.Conv1d(4, 5, 3),
        nn.Conv3d(2, 5, 2),
    ],
    ids=lambda module: f"{type(module).__name__}{tuple(module.weight.shape)}-{module.weight.is_contiguous()}",
)
def test_the_converged_gradient_is_that_of_the_exact_objective(module):
    torch.manual_seed(0)
    module.reset_parameters()
    module.double()
    before = torch.randn_like(module.weight)
    module.weight.grad, module.bias.grad = before.clone(), torch.zeros_like(module.bias)
    SpectralNormRegularizer(module, strength=0.3, num_iterations=1000).add_gradients()
    added = module.weight.grad - before
    assert added.abs().max() > 1e-3
    assert torch.allclose(added, exact_gradient(module.weight, 0.3), rtol=0, atol=1e-8)
    assert not module.bias.grad.any()


def test_only_weights_of_two_or_more_dimensions_are_regularised_and_all_of_them():
    model = with_zero_gradients(small_network())
    SpectralNormRegularizer(model, strength=0.1).add_gradients()
    assert [name for name, each in model.named_parameters() if each.grad.any()] == WEIGHTS


@pytest.mark.parametrize("weight_decay", [0, 5e-4])
def test_sgd_with_it_is_sgd_on_the_explicit_objective(weight_decay):
    model, explicit = small_network(), small_network()
    options = {"lr": 0.05, "momentum": 0.9, "weight_decay": weight_decay}
    optimizer, explicit_optimizer = (torch.optim.SGD(each.parameters(), **options) for each in (model, explicit))
    regularizer = SpectralNormRegularizer(model, strength=0.2, num_iterations=50)
    for seed in range(10):
        step(model, optimizer, regularizer, images(seed))
        explicit_optimizer.zero_grad()
        (explicit(images(seed)).square().mean() + exact_penalty(weights_of(explicit), 0.2)).backward()
        explicit_optimizer.step()
    for (name, one), other in zip(model.named_parameters(), explicit.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-8), name
    start = small_network()
    assert all(
        (one - other).abs().max() > 0.01 for one, other in zip(weights_of(model), weights_of(start), strict=True)
    )


def test_one_iteration_a_step_is_enough_while_a_weight_moves_slowly():
    torch.manual_seed(0)
    model = nn.Linear(60, 40, bias=False).double()
    drift = torch.randn_like(model.weight) * 1e-5
    regularizer = SpectralNormRegularizer(model, strength=1.0)
    errors = {}
    for moment in range(400):
        with torch.no_grad():
            model.weight += drift
        model.weight.grad = torch.zeros_like(model.weight)
        regularizer.add_gradients()
        if moment % 50 in (0, 49):
            exact = exact_gradient(model.weight, 1.0)
            errors[moment] = ((model.weight.grad - exact).norm() / exact.norm()).item()
    assert errors[0] > 0.5
    assert max(errors[moment] for moment in (299, 300, 349, 350, 399)) < 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_vectors_have_the_weights_dtype_and_no_graph(dtype):
    model = with_zero_gradients(small_network(dtype=dtype))
    regularizer = SpectralNormRegularizer(model, strength=0.1)
    assert {each.dtype for each in regularizer.state_dict().values()} == {dtype}
    regularizer.add_gradients()
    for vector in [*regularizer.state_dict().values(), *(weight.grad for weight in weights_of(model))]:
        assert vector.dtype == dtype
        assert not vector.requires_grad
        assert vector.isfinite().all()
    assert all(vector.float().norm() == pytest.approx(1, abs=0.02) for vector in regularizer.state_dict().values())


def test_a_model_that_is_cast_later_is_followed():
    model = small_network(dtype=torch.float32)
    regularizer = SpectralNormRegularizer(model, strength=0.1, num_iterations=500)
    with_zero_gradients(model.double())
    regularizer.add_gradients()
    for weight in weights_of(model):
        assert torch.allclose(weight.grad, exact_gradient(weight, 0.1), rtol=0, atol=1e-8)


def test_the_global_random_state_is_left_alone_and_the_seed_decides():
    model = small_network()
    before = torch.get_rng_state()
    first, again, other = (SpectralNormRegularizer(model, strength=0.1, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    for name in WEIGHTS:
        assert torch.equal(first.state_dict()[name], again.state_dict()[name])
        assert not torch.equal(first.state_dict()[name], other.state_dict()[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_zero_weight_gives_a_zero_gradient_and_is_regularised_once_it_is_not(dtype):
    model = nn.Linear(6, 5, bias=False).to(dtype)
    nn.init.zeros_(model.weight)
    with_zero_gradients(model)
    regularizer = SpectralNormRegularizer(model, strength=0.1, num_iterations=500)
    regularizer.add_gradients()
    assert torch.equal(model.weight.grad, torch.zeros_like(model.weight))
    nn.init.normal_(model.weight)
    regularizer.add_gradients()
    assert torch.allclose(model.weight.grad, exact_gradient(model.weight, 0.1), rtol=1e-4, atol=1e-5)


def test_a_strength_of_zero_changes_no_gradient():
    model = with_zero_gradients(small_network())
    regularizer = SpectralNormRegularizer(model, strength=0)
    regularizer.add_gradients()
    assert not any(parameter.grad.any() for parameter in model.parameters())


def test_a_tied_weight_counts_once():
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)).double()
    model[1].weight = model[0].weight
    with_zero_gradients(model)
    regularizer = SpectralNormRegularizer(model, strength=0.1, num_iterations=500)
    regularizer.add_gradients()
    assert list(regularizer.state_dict()) == ["0.weight"]
    assert torch.allclose(model[0].weight.grad, exact_gradient(model[0].weight, 0.1), rtol=0, atol=1e-8)


def test_resuming_through_a_file_equals_never_having_stopped():
    def build(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        return model, optimizer, SpectralNormRegularizer(model, strength=0.2)

    whole, optimizer, regularizer = build(small_network(dtype=torch.float32))
    for seed in range(5):
        step(whole, optimizer, regularizer, images(seed, torch.float32))
    file = io.BytesIO()
    torch.save([each.state_dict() for each in (whole, optimizer, regularizer)], file)
    for seed in range(5, 10):
        step(whole, optimizer, regularizer, images(seed, torch.float32))

    file.seek(0)
    resumed = build(small_network(seed=9, dtype=torch.float32))
    for each, state in zip(resumed, torch.load(file, weights_only=True), strict=True):
        each.load_state_dict(state)
    for seed in range(5, 10):
        step(*resumed, images(seed, torch.float32))
    for one, other in zip(whole.parameters(), resumed[0].parameters(), strict=True):
        assert torch.equal(one, other)
    state = regularizer.state_dict()
    assert list(state) == WEIGHTS
    for name, vector in resumed[2].state_dict().items():
        assert torch.equal(vector, state[name])


def test_a_state_is_a_snapshot():
    model = with_zero_gradients(small_network())
    regularizer = SpectralNormRegularizer(model, strength=0.2)
    state = regularizer.state_dict()
    kept = copy.deepcopy(state)
    regularizer.add_gradients()
    assert all(torch.equal(state[name], kept[name]) for name in WEIGHTS)
    regularizer.load_state_dict(state)
    for vector in state.values():
        vector.zero_()
    assert all(torch.equal(regularizer.state_dict()[name], kept[name]) for name in WEIGHTS)


def literal_update(weight: Tensor, start: Tensor, num_iterations: int) -> Tensor:
    """The published term of a weight: sigma u v' after some power iterations from a random vector."""
    matrix, u = weight.detach().flatten(1), start
    for _ in range(num_iterations):
        v = matrix.T @ u / (matrix.T @ u).norm()
        u = matrix @ v / (matrix @ v).norm()
    return ((u @ matrix @ v) * torch.outer(u, v)).view_as(weight)


def test_fresh_iterations_are_those_of_the_published_code_and_differ_from_call_to_call():
    model = nn.Sequential(nn.Linear(30, 20, bias=False)).double()
    regularizer = SpectralNormRegularizer(model, strength=0.1, seed=3, num_iterations=5, fresh=True)
    found = []
    for _ in range(2):
        generator = torch.Generator()
        generator.set_state(regularizer.state_dict()["random state"])
        start = torch.randn(20, generator=generator).double()
        model[0].weight.grad = torch.zeros_like(model[0].weight)
        regularizer.add_gradients()
        found.append(model[0].weight.grad)
        torch.testing.assert_close(found[-1], 0.1 * literal_update(model[0].weight, start, 5), rtol=1e-6, atol=1e-8)
    assert not torch.allclose(*found)


def test_a_state_of_fresh_iterations_continues_with_the_same_random_numbers():
    model = small_network()
    pair = [SpectralNormRegularizer(model, strength=0.1, seed=seed, num_iterations=5, fresh=True) for seed in (3, 4)]
    for weight in weights_of(model):
        weight.grad = torch.zeros_like(weight)
    pair[0].add_gradients()
    pair[1].load_state_dict(pair[0].state_dict())
    for each in pair:
        each.add_gradients()
    assert all(torch.equal(value, pair[1].state_dict()[name]) for name, value in pair[0].state_dict().items())
