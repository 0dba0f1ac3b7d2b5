"""The published forms of the paper's optimizers, one formula a line, slowly, in float64.

Facts are those of the paper's published code (LARS, LAMB) and of the packages it imports (``adamp``: SGDP, AdamP;
``torch_optimizer``: Lookahead). Each function takes the weights before the first step and ``gradient(step, index,
weight)``, and returns the weights after so many steps.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Gradient = Callable[[int, int, Array], Array]


def lars(weights, gradient, steps, *, lr, decay):
    weights = [each.copy() for each in weights]
    for step in range(steps):
        for index, w in enumerate(weights):
            g = gradient(step, index, w)
            w_norm, g_norm = np.linalg.norm(w), np.linalg.norm(g)
            trust = min(50.0, 0.001 * w_norm / (g_norm + decay * w_norm + 1e-5)) if w_norm > 0 and g_norm > 0 else 1.0
            weights[index] = w - lr * trust * np.clip(g + decay * w, -10, 10)
    return weights


def lamb(weights, gradient, steps, *, lr, decay):
    weights = [each.copy() for each in weights]
    m, v = [0 * each for each in weights], [0 * each for each in weights]
    for step in range(steps):
        gradients = [gradient(step, index, w) for index, w in enumerate(weights)]
        norm = np.sqrt(sum((g**2).sum() for g in gradients))
        for index, (w, g) in enumerate(zip(weights, gradients, strict=True)):
            g = g * min(1.0, 1.0 / (norm + 1e-6))
            m[index] = 0.9 * m[index] + 0.1 * g
            v[index] = 0.999 * v[index] + 0.001 * g**2
            update = m[index] / (np.sqrt(v[index]) + 1e-6) + decay * w
            w_norm, u_norm = np.linalg.norm(w), np.linalg.norm(update)
            trust = w_norm / u_norm if w_norm > 0 and u_norm > 0 else 1.0
            weights[index] = w - lr * trust * update
    return weights


def project(w: Array, g: Array, update: Array) -> tuple[Array, float]:
    """Remove the part of an update along the weight, by output channel or else as a whole, if both are orthogonal."""
    if w.ndim < 2:
        return update, 1.0
    for rows in (len(w), 1):
        x, y, z = (each.reshape(rows, -1) for each in (w, g, update))
        cosine = np.abs((x * y).sum(1)) / (np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1))
        if cosine.max() < 0.1 / np.sqrt(x.shape[1]):
            unit = x / (np.linalg.norm(x, axis=1, keepdims=True) + 1e-8)
            return (z - unit * (unit * z).sum(1, keepdims=True)).reshape(w.shape), 0.1
    return update, 1.0


def sgdp(weights, gradient, steps, *, lr, decay):
    weights = [each.copy() for each in weights]
    momentum = [0 * each for each in weights]
    for step in range(steps):
        for index, w in enumerate(weights):
            g = gradient(step, index, w)
            momentum[index], share = project(w, g, 0.9 * momentum[index] + g)
            weights[index] = w * (1 - lr * decay * share / (1 - 0.9)) - lr * momentum[index]
    return weights


def adamp(weights, gradient, steps, *, lr, decay):
    weights = [each.copy() for each in weights]
    m, v = [0 * each for each in weights], [0 * each for each in weights]
    for step in range(steps):
        for index, w in enumerate(weights):
            g = gradient(step, index, w)
            m[index] = 0.9 * m[index] + 0.1 * g
            v[index] = 0.999 * v[index] + 0.001 * g**2
            update = m[index] / (np.sqrt(v[index] / (1 - 0.999 ** (step + 1))) + 1e-8)
            update, share = project(w, g, update)
            weights[index] = w * (1 - lr * decay * share) - lr / (1 - 0.9 ** (step + 1)) * update
    return weights


def lookahead(weights, gradient, steps, *, lr, decay, every, alpha):
    weights = [each.copy() for each in weights]
    momentum, slow = [0 * each for each in weights], []
    for step in range(steps):
        for index, w in enumerate(weights):
            momentum[index] = 0.9 * momentum[index] + gradient(step, index, w) + decay * w
            weights[index] = w - lr * momentum[index]
        if step == 0:
            slow = [each.copy() for each in weights]
        elif step % every == 0:
            slow = [alpha * fast + (1 - alpha) * each for fast, each in zip(weights, slow, strict=True)]
            weights = [each.copy() for each in slow]
    return weights
