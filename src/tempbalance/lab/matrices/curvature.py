"""Largest eigenvalues of a network's Hessian and neural tangent kernel, and the covariance of its outputs.

Definitions are those of the paper's appendix "Connections between different matrices". Matrices of parameters x
parameters are never formed: Lanczos iterations need only their products with vectors, which come from two passes
backwards through the network, batch by batch. The network must be the same function in every pass: no dropout, and
BatchNorm in evaluation mode. Its parameters and gradients do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd import grad

from tempbalance.errors import TailError, TempBalanceError

Array = npt.NDArray[np.float64]
Data = Sequence[tuple[Tensor, Tensor]]  # batches of inputs and targets
Loss = Callable[[Tensor, Tensor], Tensor]  # from outputs and targets of a batch to their mean loss
_SMALL = 64  # sides of matrices up to which forming them costs less than iterating


def hessian_eigenvalues(network: nn.Module, loss: Loss, data: Data, *, k: int, **options: Any) -> Tensor:
    """Return the k largest eigenvalues, or all, of the Hessian of the mean loss over all samples (Eq. 8).

    They are in float64, the largest first. Options are ``seed``, of the first vector, which is drawn without touching
    the global random state, and ``tolerance``, the relative error at which the iterations end (1e-6). In float32 an
    error of about 1e-6 times the largest eigenvalue remains.

    Example:
        >>> data = [(torch.eye(2), torch.zeros(2, 1))]
        >>> hessian_eigenvalues(nn.Linear(2, 1, bias=False), nn.functional.mse_loss, data, k=1)
        tensor([1.], dtype=torch.float64)
    """
    parameters = list(network.parameters())
    num_samples = sum(len(inputs) for inputs, _ in data)
    for number, (inputs, targets) in enumerate(data):
        if not (value := loss(network(inputs), targets)).isfinite():
            raise TempBalanceError(f"loss must be finite, got {value.item()} for batch {number}")

    def product(vector: Array) -> Array:
        total, parts = np.zeros(len(vector)), _split(vector, parameters)
        for inputs, targets in data:
            gradients = grad(loss(network(inputs), targets), parameters, create_graph=True, materialize_grads=True)
            seconds = grad(_inner(gradients, parts), parameters, materialize_grads=True)
            total += len(inputs) / num_samples * _flat(seconds)
        return total

    return _largest(product, sum(each.numel() for each in parameters), k=k, **options)


def ntk_eigenvalues(network: nn.Module, data: Data, *, k: int, **options: Any) -> Tensor:
    """Return the k largest eigenvalues of the neural tangent kernel, J J' with a row of J for each sample and output.

    Divided by the number of samples they are those of the Fisher matrix (Eqs. 6, 7), but for zeros; the kernel's
    vectors are shorter where a network has more parameters than the data have outputs. Options are those of
    `hessian_eigenvalues`.
    """
    parameters = list(network.parameters())

    def push(outputs: Tensor, parts: Sequence[Tensor]) -> Tensor:
        """Return the Jacobian of outputs times a vector: the derivative, by w, of w'J times the vector."""
        weights = torch.zeros_like(outputs, requires_grad=True)
        rows = grad(outputs, parameters, weights, create_graph=True, materialize_grads=True)
        return grad(_inner(rows, parts), weights)[0]

    def product(vector: Array) -> Array:
        total, start = np.zeros(sum(each.numel() for each in parameters)), 0
        for outputs in _outputs(network, data):
            weights = torch.from_numpy(vector[start : start + outputs.numel()]).to(outputs).view_as(outputs)
            total += _flat(grad(outputs, parameters, weights, materialize_grads=True))
            start += outputs.numel()
        parts = _split(total, parameters)
        return np.concatenate([_flat([push(outputs, parts)]) for outputs in _outputs(network, data)])

    with torch.no_grad():
        size = sum(outputs.numel() for outputs in _outputs(network, data))
    return _largest(product, size, k=k, **options)


@torch.no_grad()
def output_covariance(network: nn.Module, data: Data) -> Tensor:
    """Return the covariance of the outputs about zero, the mean of f f' over all samples (Eq. cov), in float64.

    A part of a network, such as all layers but the last, gives the covariance of its hidden outputs.
    """
    products = [outputs.double().T @ outputs.double() for outputs in _outputs(network, data)]
    return sum(products, start=torch.zeros_like(products[0])).cpu() / sum(len(inputs) for inputs, _ in data)


def decay_exponent(eigenvalues: Tensor | Array | Sequence[float], *, floor: float = 1e-7) -> float:
    """Return the decay exponent s of eigenvalues, lambda_k = lambda_1 k^-s.

    It is minus the slope of the least-squares line of log lambda_k over log k, k being 1 for the largest; the line's
    height is free. A spectrum that is a power law has s = 1 / (alpha - 1) with alpha of its tail's density. Values
    below the ``floor``, a share of the largest, are skipped: in float32 they are rounding noise.

    Example:
        >>> round(decay_exponent([8.0, 4.0, 8 / 3, 2.0]), 6)
        1.0
    """
    plain = eigenvalues.detach().cpu().double().numpy() if isinstance(eigenvalues, Tensor) else eigenvalues
    values = np.sort(np.asarray(plain, dtype=np.float64))[::-1]
    if not np.isfinite(values).all():
        raise TailError("eigenvalues must be finite, got NaN or infinity")
    positive = values[(values > 0) & (values > floor * values[:1])]
    if len(positive) < 2:
        raise TailError(f"decay needs at least 2 positive eigenvalues, got {len(positive)} of {len(values)}")
    ranks = np.log(np.arange(1, len(positive) + 1))
    ranks -= ranks.mean()
    return float(-(ranks @ np.log(positive)) / (ranks @ ranks))


def _outputs(network: nn.Module, data: Data) -> Iterator[Tensor]:
    """Yield the network's outputs for each batch, if they are finite."""
    for number, (inputs, _) in enumerate(data):
        outputs: Tensor = network(inputs)
        if not outputs.isfinite().all():
            raise TempBalanceError(f"outputs of the model must be finite, got NaN or infinity for batch {number}")
        yield outputs


def _split(vector: Array, parameters: Sequence[Tensor]) -> list[Tensor]:
    parts = torch.split(torch.from_numpy(vector), [each.numel() for each in parameters])
    return [part.to(each).view_as(each) for part, each in zip(parts, parameters, strict=True)]


def _inner(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    return torch.stack([(one * other).sum() for one, other in zip(left, right, strict=True)]).sum()


def _flat(parts: Sequence[Tensor]) -> Array:
    flat: Array = torch.cat([part.detach().flatten().double() for part in parts]).cpu().numpy()
    return flat


def _largest(product: Callable[[Array], Array], size: int, *, k: int, seed: int = 0, tolerance: float = 1e-6) -> Tensor:
    """Return the k largest eigenvalues of a symmetric matrix, the largest first."""
    if size <= max(_SMALL, 2 * k):  # Lanczos would keep as many vectors as the matrix has
        matrix = np.stack([product(row) for row in np.eye(size)])
        values = np.linalg.eigvalsh((matrix + matrix.T) / 2)[-k:]
    else:
        values = _iterate(product, size, k=k, seed=seed, tolerance=tolerance)
    return torch.from_numpy(np.sort(values)[::-1].copy())


def _iterate(product: Callable[[Array], Array], size: int, *, k: int, seed: int, tolerance: float) -> Array:
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh  # type: ignore[import-untyped]

    generator = np.random.default_rng(seed)
    if not product(generator.standard_normal(size)).any():  # only of a matrix of zeros, which Lanczos does not take
        return np.zeros(k)
    # Lanczos finds one vector of an eigenvalue, and others of a repeated one only by rounding. So it looks again, from
    # elsewhere and without those found, until nothing is left that is larger than the smallest of the k.
    values, vectors = np.zeros(0), np.zeros((size, 0))

    def without_found(vector: Array) -> Array:
        vector = vector.ravel()
        parts = vectors.T @ vector
        rest = product(vector - vectors @ parts)
        return np.asarray(rest - vectors @ (vectors.T @ rest + parts * 2 * np.abs(values).max(initial=0)))

    def look(number: int) -> tuple[Array, Array]:
        operator = LinearOperator((size, size), matvec=without_found, dtype=np.float64)
        start = generator.standard_normal(size)
        found: tuple[Array, Array] = eigsh(operator, number, which="LA", v0=start, tol=tolerance)
        return found

    try:
        values, vectors = look(k)
        while len(values) < size - k:
            slack = 10 * tolerance * np.abs(values).max()
            if look(1)[0] <= np.sort(values)[-k] + slack:
                break
            more, found = look(k)
            values, vectors = np.append(values, more), np.linalg.qr(np.hstack([vectors, found]))[0]
    except ArpackNoConvergence as err:
        raise TempBalanceError(
            f"{k} eigenvalues must be found to a relative error of {tolerance:g}, got {len(err.eigenvalues)} of them: "
            "a larger tolerance or a model in float64 may do"
        ) from err
    return np.sort(values)[-k:]
