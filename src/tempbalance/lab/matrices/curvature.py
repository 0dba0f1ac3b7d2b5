"""Largest eigenvalues of a network's Hessian, Fisher matrix and neural tangent kernel, and its outputs' covariance.

Matrices of parameters x parameters are never formed: Lanczos iterations need only their products with vectors, which
come from two passes backwards through the network, batch by batch. What is computed has the definitions of the
paper's appendix "Connections between different matrices".

The model is in evaluation mode meanwhile, so that BatchNorm and dropout are the same function in every product; its
modes, parameters and gradients are left as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn.attention import SDPBackend, sdpa_kernel

from tempbalance.errors import TailError, TempBalanceError

Array = npt.NDArray[np.float64]
Data = Iterable[Any]  # of pairs of inputs and targets
Loss = Callable[[Any, Any], Tensor]
_SMALL = 64  # sides of matrices up to which forming them costs less than iterating


def hessian_eigenvalues(
    model: nn.Module, loss: Loss, data: Data, *, k: int = 20, seed: int = 0, tolerance: float = 1e-6
) -> Tensor:
    """Return the largest eigenvalues of the Hessian of the mean loss over all samples (Eq. 8).

    Args:
        model: Any module; frozen parameters are skipped, tied ones count once.
        loss: Takes the model's outputs and the targets of a batch to their mean over it, a scalar tensor.
        data: Pairs of inputs, a tensor, and targets; the same batches each time it is gone through, as of a list or of
            a DataLoader that does not shuffle. Memory grows with the batches, not with their number.
        k: How many; all of them where the matrix has fewer.
        seed: Of the first vector, which is drawn without touching the global random state.
        tolerance: Relative error at which the iterations end. In float32 an error of about 1e-6 times the largest
            eigenvalue remains.

    Returns:
        The eigenvalues, the largest first, in float64; negative ones are the last.

    Raises:
        ValueError: If an option is out of range, there is no sample or no trainable parameter, or a loss is no scalar.
        TempBalanceError: If a loss is not finite, or the iterations do not end.

    Example:
        >>> data = [(torch.eye(2), torch.zeros(2, 1))]
        >>> hessian_eigenvalues(nn.Linear(2, 1, bias=False), nn.functional.mse_loss, data, k=1)
        tensor([1.], dtype=torch.float64)
    """
    with _Passes(model, data).running() as passes:
        num_samples = 0
        for number, (inputs, targets) in enumerate(passes.batches()):
            num_samples += len(inputs)
            _check_loss(loss(model(inputs), targets), number)
        _check_samples(num_samples)

        def product(vector: Array) -> Array:
            total, parts = np.zeros(len(vector)), passes.split(vector)
            for inputs, targets in passes.batches():
                gradients = grad(
                    loss(model(inputs), targets), passes.parameters, create_graph=True, materialize_grads=True
                )
                inner = _inner(gradients, parts)
                if inner.requires_grad:  # not where the loss is linear
                    seconds = grad(inner, passes.parameters, materialize_grads=True)
                    total += len(inputs) / num_samples * _flat(seconds)
            return total

        return _largest(product, passes.num_parameters, k=k, seed=seed, tolerance=tolerance)


def fisher_eigenvalues(model: nn.Module, data: Data, *, k: int = 20, seed: int = 0, tolerance: float = 1e-6) -> Tensor:
    """The largest eigenvalues of the Fisher matrix of the outputs, (1 / n) sum of J_i' J_i over n samples (Eqs. 6, 7).

    J_i is the Jacobian of a sample's outputs by the parameters; targets are not used.

    Args:
        model: As for `hessian_eigenvalues`; it gives a tensor with an entry for each sample.
        data: As there.
        k: As there.
        seed: As there.
        tolerance: As there.

    Returns:
        The eigenvalues, the largest first, in float64.

    Raises:
        ValueError: If an option is out of range, there is no sample or no trainable parameter.
        TempBalanceError: If an output is not finite, or the iterations do not end.
    """
    with _Passes(model, data).running() as passes:
        num_samples, _ = passes.count()

        def product(vector: Array) -> Array:
            total, parts = np.zeros(len(vector)), passes.split(vector)
            for outputs in passes.outputs():
                back = grad(outputs, passes.parameters, passes.push(outputs, parts), materialize_grads=True)
                total += _flat(back) / num_samples
            return total

        return _largest(product, passes.num_parameters, k=k, seed=seed, tolerance=tolerance)


def ntk_eigenvalues(model: nn.Module, data: Data, *, k: int = 20, seed: int = 0, tolerance: float = 1e-6) -> Tensor:
    """Return the largest eigenvalues of the neural tangent kernel, J J' with a row of J for each sample and output.

    They are those of the Fisher matrix times the number of samples, but for zeros; its vectors are shorter where a
    network has more parameters than the data have outputs.

    Args:
        model: As for `fisher_eigenvalues`.
        data: As there.
        k: As there.
        seed: As there.
        tolerance: As there.

    Returns:
        The eigenvalues, the largest first, in float64.

    Raises:
        ValueError: If an option is out of range, there is no sample or no trainable parameter.
        TempBalanceError: If an output is not finite, or the iterations do not end.
    """
    with _Passes(model, data).running() as passes:
        _, size = passes.count()

        def product(vector: Array) -> Array:
            total, start = np.zeros(passes.num_parameters), 0
            for outputs in passes.outputs():
                weights = torch.from_numpy(vector[start : start + outputs.numel()]).to(outputs).view_as(outputs)
                total += _flat(grad(outputs, passes.parameters, weights, materialize_grads=True))
                start += outputs.numel()
            parts = passes.split(total)
            return np.concatenate([_flat([passes.push(outputs, parts)]) for outputs in passes.outputs()])

        return _largest(product, size, k=k, seed=seed, tolerance=tolerance)


def output_covariance(model: nn.Module, data: Data) -> Tensor:
    """Return the covariance of the outputs about zero, the mean of f f' over all samples (Eq. cov).

    A part of a network, such as all layers but the last, gives that of its hidden outputs.

    Args:
        model: Gives a tensor with an entry for each sample; each entry is flattened.
        data: As for `hessian_eigenvalues`.

    Returns:
        A matrix of as many rows and columns as a sample has outputs, in float64.

    Raises:
        ValueError: If there is no sample.
        TempBalanceError: If an output is not finite.
    """
    with _Passes(model, data).running(is_trained=False) as passes, torch.no_grad():
        total, num_samples = torch.zeros(()), 0
        for outputs in passes.outputs():
            rows = outputs.flatten(1) if outputs.dim() > 1 else outputs[:, None]
            total = total.to(rows.device) + rows.double().T @ rows.double()
            num_samples += len(rows)
        _check_samples(num_samples)
        return total.cpu() / num_samples


def decay_exponent(eigenvalues: Tensor | Array | Sequence[float], *, floor: float = 1e-7) -> float:
    """Return the decay exponent s of eigenvalues, lambda_k = lambda_1 k^-s.

    It is minus the slope of the least-squares line of log lambda_k over log k, k being 1 for the largest; the line's
    height is free. A spectrum that is a power law has s = 1 / (alpha - 1) with alpha of its tail's density.

    Args:
        eigenvalues: In any order.
        floor: Skip values below this share of the largest: in float32 they are rounding noise.

    Raises:
        TailError: If fewer than two are positive, or one is not finite.

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


class _Passes:
    """Goes through data with a model, again and again."""

    def __init__(self, model: nn.Module, data: Data) -> None:
        if iter(data) is data:
            raise ValueError(
                f"data must be gone through more than once, as a list or a DataLoader can, got {type(data).__name__}"
            )
        self.model, self.data = model, data
        self.parameters = [each for each in model.parameters() if each.requires_grad]
        self.num_parameters = sum(each.numel() for each in self.parameters)
        self._seen: list[tuple[torch.Size, float]] | None = None

    @contextmanager
    def running(self, *, is_trained: bool = True) -> Iterator[_Passes]:
        """Prepare the model for the products."""
        if any(each.is_complex() for each in self.parameters):
            raise ValueError("model must have real parameters, got complex ones")
        if is_trained and not self.parameters:
            raise ValueError(f"model must have a trainable parameter, got none of {len([*self.model.parameters()])}")
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        try:
            # fused attention cannot be differentiated twice
            with torch.inference_mode(False), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
                yield self
        finally:
            for module, mode in modes.items():
                module.training = mode

    def batches(self) -> Iterator[tuple[Tensor, Any]]:
        """Inputs and targets where the model is; a product makes no sense of other ones than the first time."""
        seen: list[tuple[torch.Size, float]] = []
        device = next((each.device for each in self.model.parameters()), None)
        for batch in self.data:
            if not isinstance(batch, tuple | list) or len(batch) != 2 or not isinstance(batch[0], Tensor):
                got = type(batch).__name__ + (f" of {len(batch)}" if isinstance(batch, tuple | list) else "")
                raise ValueError(f"a batch of data must be a pair of inputs, a tensor, and targets, got {got}")
            inputs, targets = (each.to(device) if isinstance(each, Tensor) else each for each in batch)
            if len(inputs) > 0:
                seen.append((inputs.shape, _mark(inputs)))
                if self._seen is not None and self._seen[: len(seen)] != seen:
                    break
                yield inputs, targets
        if self._seen is not None and self._seen != seen:
            raise ValueError(
                f"data must give the same batches each time, unshuffled, got others from batch {len(seen) - 1} on"
            )
        self._seen = seen

    def outputs(self) -> Iterator[Tensor]:
        """Yield the model's outputs for each batch."""
        for number, (inputs, _) in enumerate(self.batches()):
            outputs = self.model(inputs)
            if not isinstance(outputs, Tensor) or outputs.dim() == 0 or len(outputs) != len(inputs):
                got = f"one of shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
                raise ValueError(
                    f"model must give a tensor with an entry for each sample, got {got} for batch {number} "
                    f"of {len(inputs)}"
                )
            if outputs.is_complex():
                raise ValueError(f"model must give real outputs, got {outputs.dtype} for batch {number}")
            if not outputs.isfinite().all():
                raise TempBalanceError(f"outputs of the model must be finite, got NaN or infinity for batch {number}")
            yield outputs

    def count(self) -> tuple[int, int]:
        """Return the number of samples and the total number of outputs."""
        with torch.no_grad():
            found = [(len(outputs), outputs.numel()) for outputs in self.outputs()]
        num_samples, num_outputs = (sum(each) for each in zip(*found, strict=True)) if found else (0, 0)
        _check_samples(num_samples)
        return num_samples, num_outputs

    def split(self, vector: Array) -> list[Tensor]:
        """Split a vector into the shapes of the parameters."""
        parts = torch.split(torch.from_numpy(vector), [each.numel() for each in self.parameters])
        return [part.to(each).view_as(each) for part, each in zip(parts, self.parameters, strict=True)]

    def push(self, outputs: Tensor, parts: Sequence[Tensor]) -> Tensor:
        """The Jacobian of outputs times a vector: the derivative, by w, of w'J times the vector."""
        weights = torch.zeros_like(outputs, requires_grad=True)
        rows = grad(outputs, self.parameters, weights, create_graph=True, materialize_grads=True)
        return grad(_inner(rows, parts), weights)[0]


def _mark(inputs: Tensor) -> float:
    """Changes with the order of the samples too."""
    sums = inputs.detach().double().nan_to_num().flatten(1).sum(1) if inputs.dim() > 1 else inputs.double().nan_to_num()
    return float(sums @ torch.arange(1, len(sums) + 1, dtype=sums.dtype, device=sums.device))


def _inner(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    return torch.stack([(one * other).sum() for one, other in zip(left, right, strict=True)]).sum()


def _flat(parts: Sequence[Tensor]) -> Array:
    flat: Array = torch.cat([part.detach().flatten().double() for part in parts]).cpu().numpy()
    return flat


def _check_samples(num_samples: int) -> None:
    if num_samples == 0:
        raise ValueError("data must have at least one sample, got none")


def _check_loss(value: object, number: int) -> None:
    if not isinstance(value, Tensor) or value.dim() > 0:
        got = f"one of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"loss must be a scalar tensor, got {got} for batch {number}")
    if not value.isfinite():
        raise TempBalanceError(f"loss must be finite, got {value.item()} for batch {number}")
    if not value.requires_grad:
        raise ValueError(f"loss must depend on the trainable parameters, got one that does not for batch {number}")


def _largest(product: Callable[[Array], Array], size: int, *, k: int, seed: int, tolerance: float) -> Tensor:
    """Return the k largest eigenvalues of a symmetric matrix, the largest first."""
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"k must be a whole number of at least 1, got {k!r}")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be above 0 and below 1, got {tolerance!r}")
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
