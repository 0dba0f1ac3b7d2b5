"""Contestants on one network: the library, the published procedure, WeightWatcher, a training step."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tempbalance.bench.networks import NETWORKS, build_model
from tempbalance.model.layers import Layer, find_layers
from tempbalance.ranking.scoring import Scoring, plan_layers, score_layers
from tempbalance.spectral.tail import TailName

TAILS: tuple[TailName, ...] = ("median", "goodness_of_fit", "peak")  # the paper's
WEIGHTWATCHER, STEP = "WeightWatcher", "training step"
ON_DEVICE, ON_CPU = "on the device", "copied to the CPU"


def reference_name(tail: str) -> str:
    return f"reference {tail}"


@dataclass(frozen=True)
class Turn:
    """A contestant; ``run`` lets it work once and returns the seconds of each of its entries."""

    name: str
    run: Callable[[], dict[str, float]]

    def within(self, context: Callable[[], AbstractContextManager[object]]) -> Turn:
        """Return the same contestant in a context."""

        def run() -> dict[str, float]:
            with context():
                return self.run()

        return Turn(self.name, run)


def timed_turn(name: str, function: Callable[[], object]) -> Turn:
    """Return a contestant with one entry, the seconds of a function."""

    def run() -> dict[str, float]:
        start = time.perf_counter()
        function()
        return {name: time.perf_counter() - start}

    return Turn(name, run)


@dataclass(frozen=True)
class Subject:
    """A network with its layers, and the layers that are scored, which are the same for all contestants."""

    network: str
    quick: bool
    model: nn.Module
    layers: Sequence[Layer]
    scored: Sequence[Layer]

    def score(self, tail: TailName = "median", device: str | None = None) -> None:
        score_layers(self.layers, Scoring(tail=tail), device=device)


def make_subject(network: str, *, width: float = 1.0, quick: bool = False, device: str = "cpu") -> Subject:
    """Build a network on a device and find its scored layers; ``quick`` builds the small form."""
    model = build_model(network, width=width, quick=quick).to(device)
    layers = find_layers(model)
    jobs = plan_layers(layers, Scoring()).jobs
    scored = [layer for layer in layers if any(not job.reason for job in jobs.get(layer.name, []))]
    return Subject(network, quick, model, layers, scored)


def has_weightwatcher() -> bool:
    return find_spec("weightwatcher") is not None


def all_turns(subject: Subject) -> list[Turn]:
    """Return the library with each tail, the reference, WeightWatcher if installed, and a training step."""
    others = [weightwatcher_turn(subject)] if has_weightwatcher() else []
    return [*library_turns(subject), reference_turn(subject), *others, step_turn(subject)]


def library_turns(subject: Subject) -> list[Turn]:
    """Return one balancing with each tail."""
    return [timed_turn(tail, partial(subject.score, tail)) for tail in TAILS]


def device_turns(subject: Subject) -> list[Turn]:
    """Return one balancing with ``median`` where the weights are, and one that copies them to the CPU.

    The other tails are always solved on the CPU.
    """
    return [timed_turn(ON_DEVICE, subject.score), timed_turn(ON_CPU, partial(subject.score, device="cpu"))]


def reference_turn(subject: Subject, tails: Sequence[TailName] = TAILS) -> Turn:
    """Return the published procedure; it computes the spectra once and adds their time to each tail."""

    def run() -> dict[str, float]:
        start = time.perf_counter()
        spectra = [reference_spectrum(layer.weight()) for layer in subject.scored]
        seconds = time.perf_counter() - start
        found = {}
        for tail in tails:
            start = time.perf_counter()
            for values in spectra:
                reference_alpha(values, tail)
            found[reference_name(tail)] = seconds + time.perf_counter() - start
        return found

    return Turn("reference", run)


def weightwatcher_turn(subject: Subject) -> Turn:
    """Return WeightWatcher's ``analyze`` on the scored modules."""
    with _quiet():
        from weightwatcher import WeightWatcher  # type: ignore[import-untyped]

    modules = nn.ModuleList(subject.model.get_submodule(layer.name) for layer in subject.scored)
    return timed_turn(WEIGHTWATCHER, lambda: WeightWatcher(model=modules).analyze(pool=True)).within(_quiet)


def step_turn(subject: Subject) -> Turn:
    """Return one training step: forward, backward and optimizer on one batch."""
    network = NETWORKS[subject.network]
    inputs, labels = network.batch(subject.quick)
    optimizer = network.optimizer(subject.model)

    def step() -> None:
        optimizer.zero_grad()
        logits = subject.model(inputs)
        torch.autograd.backward(cross_entropy(logits.flatten(0, -2), labels.flatten()))
        optimizer.step()

    return timed_turn(STEP, step)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Set the number of torch threads within the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings and log messages."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def reference_spectrum(weight: Tensor) -> Tensor:
    """Return the squared singular values, ascending; those of a kernel's slices, times sqrt(1/2), are pooled."""
    slices = weight if weight.dim() == 2 else weight.flatten(2).permute(2, 0, 1) * math.sqrt(0.5)
    values: Tensor = torch.linalg.svdvals(slices).square().flatten()
    return values.sort().values


def reference_alpha(values: Tensor, tail: TailName) -> float:
    """Return the exponent of the tail of ascending eigenvalues above 0."""
    if tail == "median":
        num_tail = len(values) // 2
        # Eq. 3: alpha = 1 + k / sum_i log(x_i / xmin), x_i the k largest, xmin the next one down
        return float(1 + num_tail / (values[-num_tail:] / values[-num_tail - 1]).log().sum())
    if tail == "goodness_of_fit":
        return _search(values, 0.0, math.inf)
    counts, edges = np.histogram(values.log10().cpu().double().numpy(), 100)
    peak = 10 ** float(edges[counts.argmax()])
    return _search(values, 0.95 * peak, 1.5 * peak)


def _search(values: Tensor, low: float, high: float) -> float:
    """Return alpha at the threshold in [low, high] with the smallest KS distance."""
    logs = values.log()
    best, nearest = math.nan, math.inf
    for start, xmin in enumerate(values[:-1]):
        if xmin < low:
            continue
        if xmin > high:
            break
        num_tail = len(values) - start
        alpha = 1 + num_tail / (logs[start:].sum() - num_tail * logs[start])
        model = 1 - (values[start:] / xmin) ** (1 - alpha)
        before = torch.arange(num_tail, dtype=values.dtype, device=values.device) / num_tail
        distance = float((model - before).abs().max())
        if distance < nearest:
            best, nearest = float(alpha), distance
    return best


def reference_alphas(weights: Iterable[Tensor], tail: TailName) -> list[float]:
    return [reference_alpha(reference_spectrum(weight), tail) for weight in weights]
