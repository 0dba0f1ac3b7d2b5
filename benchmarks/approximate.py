"""Approximate spectra against exact ones: rank correlation of the alphas, change of the scales, and speed.

    python benchmarks/approximate.py                     # trains ResNet18 and VGG16 on digits first, a few minutes
    python benchmarks/approximate.py run/last.ckpt ...   # what `tempbalance diagnose` reads
    python benchmarks/approximate.py --made-up           # matrices of a language model's size, not trained

On one thread, in seconds of this process, every way once a round with other random numbers; "exact" is what the library
does first, Gram matrices and eigenvalues in float32. Told are the median Spearman correlation over the rounds, the
largest change of a scale after the linear assignment, by how much (alpha - 1) / exact spreads over the layers, and the
median ratio of times.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import fmean, median

import numpy as np
import torch
from scipy.linalg.lapack import ssytrd
from scipy.stats import spearmanr
from torch import Tensor, nn

import tempbalance
from tempbalance.lab.images.data import load_data
from tempbalance.lab.images.network import build_network
from tempbalance.ranking.assign import assign
from tempbalance.ranking.scoring import ends
from tempbalance.spectral.eigenvalues import gram_matrices
from tempbalance.spectral.tail import fit_tail

Network = dict[str, list[Tensor]]  # the parts of each layer, each a stack of slices
Way = Callable[[Tensor], float]  # slices to alpha


def exact(slices: Tensor) -> float:
    gram, _ = gram_matrices(slices)
    return fit_tail(torch.linalg.eigvalsh(gram).flatten().double().clamp(min=0).sort().values).alpha


def gram_alone(slices: Tensor) -> float:
    """No alpha: what every way that needs the Gram matrix costs at least."""
    gram_matrices(slices)
    return float("nan")


def tridiagonal_alone(slices: Tensor) -> float:
    """No alpha: what bisection for single eigenvalues starts from."""
    for gram in gram_matrices(slices)[0].numpy():
        ssytrd(gram, lwork=64 * len(gram))
    return float("nan")


def some_slices(slices: Tensor, *, num_slices: int) -> float:
    return exact(slices[torch.randperm(len(slices))[:num_slices]])


def some_of_longer(slices: Tensor, *, fraction: float) -> float:
    """Keeps a part of the longer dimension, never less than the shorter: only the Gram matrix gets cheaper."""
    wide = slices.mT if slices.shape[1] > slices.shape[2] else slices
    return exact(wide[:, :, torch.randperm(wide.shape[2])[: max(wide.shape[1], round(wide.shape[2] * fraction))]])


def crop(slices: Tensor, fraction: float) -> Tensor:
    """A part of the rows and the same part of the columns, at random."""
    rows, columns = (torch.randperm(size)[: round(size * fraction)] for size in slices.shape[1:])
    return slices[:, rows][:, :, columns]


def submatrix(slices: Tensor, *, fraction: float) -> float:
    return exact(crop(slices, fraction))


def three_kinds(slices: Tensor, *, fraction: float = 1.0) -> float:
    """Of a 3 x 3 kernel the centre, an edge and a corner stand for the one, four and four slices of their kind."""
    chosen, counts = (slices[[4, 1, 0]], [1.0, 4.0, 4.0]) if len(slices) == 9 else (slices, [1.0] * len(slices))
    values = torch.linalg.eigvalsh(gram_matrices(crop(chosen, fraction) if fraction < 1 else chosen)[0])
    logs = values.double().clamp(min=1e-30).log().numpy()
    order = logs.ravel().argsort()
    weights = np.repeat(counts, logs.shape[1])[order]
    return alpha_of_nodes(logs.ravel()[order][None], weights[None] / weights.sum(), len(slices) * logs.shape[1])


def start(slices: Tensor, num_vectors: int) -> tuple[Tensor, Tensor]:
    """The slices with no fewer columns than rows, and random unit vectors, as rows."""
    wide = slices.mT if slices.shape[1] > slices.shape[2] else slices
    return wide, nn.functional.normalize(torch.randn(len(wide), num_vectors, wide.shape[1]), dim=2)


def lanczos(slices: Tensor, *, num_vectors: int, num_steps: int) -> float:
    """Stochastic Lanczos quadrature, all vectors of all slices at once, without reorthogonalisation."""
    slices, vectors = start(slices, num_vectors)
    num_steps = min(num_steps, slices.shape[1])
    before, off_diagonal = torch.zeros_like(vectors), torch.zeros(*vectors.shape[:2], 1)
    diagonals, off_diagonals = [], []
    for _ in range(num_steps):
        product = torch.bmm(torch.bmm(vectors, slices), slices.mT)
        diagonal = (product * vectors).sum(2, keepdim=True)
        product.addcmul_(diagonal, vectors, value=-1).addcmul_(off_diagonal, before, value=-1)
        off_diagonal = product.norm(dim=2, keepdim=True).clamp(min=1e-30)
        before, vectors = vectors, product / off_diagonal
        diagonals.append(diagonal)
        off_diagonals.append(off_diagonal)
    main, beside = (torch.cat(each, 2).flatten(0, 1).double() for each in (diagonals, off_diagonals))
    beside = beside[:, :-1]
    nodes, rotations = torch.linalg.eigh(torch.diag_embed(main) + beside.diag_embed(1) + beside.diag_embed(-1))
    logs, weights = nodes.clamp(min=1e-30).log().numpy(), rotations[:, 0].square().numpy()
    return alpha_of_nodes(logs, weights, len(slices) * slices.shape[1])


def alpha_of_nodes(logs: np.ndarray, weights: np.ndarray, num_eigenvalues: int) -> float:
    """Alpha of the mean of several measures, each given by nodes (their logarithms) and weights."""
    level = 0.5 - 0.5 / num_eigenvalues  # xmin is the eigenvalue right below the upper half
    below = weights.cumsum(1) - weights / 2
    medians = [np.interp(level, *each) for each in zip(below, logs, strict=True)]
    grid = np.linspace(min(medians), max(medians), 200)
    xmin = np.interp(level, np.mean([np.interp(grid, *each) for each in zip(logs, below, strict=True)], 0), grid)
    return float(1 + 0.5 * len(logs) / (weights * (logs - xmin).clip(min=0)).sum())


def chebyshev(slices: Tensor, *, num_vectors: int, num_steps: int) -> float:
    """Chebyshev moments with Jackson's damping; every step gives two."""
    slices, vectors = start(slices, num_vectors)
    largest, probe = torch.ones(()), vectors[:, :1]
    for _ in range(12):
        probe = torch.bmm(torch.bmm(nn.functional.normalize(probe, dim=2), slices), slices.mT)
        largest = 1.3 * probe.norm(dim=2).max()

    def mapped(x: Tensor) -> Tensor:
        return torch.bmm(torch.bmm(x, slices), slices.mT) * (2 / largest) - x

    moments = [1.0]
    before, now = vectors, mapped(vectors)
    first = float((before * now).sum(2).mean())
    for _ in range(num_steps):
        moments += [2 * float((before * now).sum(2).mean()) - first, 2 * float((now * now).sum(2).mean()) - 1]
        before, now = now, 2 * mapped(now) - before
    orders = np.arange(len(moments))
    turn = np.pi / (len(moments) + 1)
    damping = (len(moments) - orders + 1) * np.cos(orders * turn) + np.sin(orders * turn) / np.tan(turn)
    angles = (np.arange(4000) + 0.5) * np.pi / 4000  # eigenvalue = largest x cos^2(angle / 2)
    terms = np.array(moments) * damping / damping[0] * np.where(orders > 0, 2, 1)
    density = (np.cos(np.outer(angles, orders)) @ terms).clip(min=0)[::-1]
    logs = 2 * np.log(np.cos(angles / 2))[None, ::-1]
    return alpha_of_nodes(logs, density[None] / density.sum(), len(slices) * slices.shape[1])


def from_side(slices: Tensor, *, side: int, way: Way) -> float:
    return way(slices) if min(slices.shape[1:]) >= side else exact(slices)


WAYS: dict[str, Way] = {
    "Gram matrix alone": gram_alone,
    "... and tridiagonal form": tridiagonal_alone,
    "half of the longer side": partial(some_of_longer, fraction=0.5),
    "3 kernel slices": partial(some_slices, num_slices=3),
    "1 kernel slice": partial(some_slices, num_slices=1),
    "submatrix of 1/2": partial(submatrix, fraction=0.5),
    "submatrix of 0.4": partial(submatrix, fraction=0.4),
    "centre, edge, corner": three_kinds,
    "... and submatrix of 0.7": partial(three_kinds, fraction=0.7),
    "... from side 128": partial(from_side, side=128, way=partial(three_kinds, fraction=0.7)),
    "Chebyshev 8 x 20": partial(chebyshev, num_vectors=8, num_steps=20),
    "Chebyshev 8 x 60": partial(chebyshev, num_vectors=8, num_steps=60),
    "Lanczos 8 x 10": partial(lanczos, num_vectors=8, num_steps=10),
    "Lanczos 8 x 20": partial(lanczos, num_vectors=8, num_steps=20),
    "... from side 256": partial(from_side, side=256, way=partial(lanczos, num_vectors=8, num_steps=20)),
    "Lanczos 8 x 40": partial(lanczos, num_vectors=8, num_steps=40),
    "Lanczos 32 x 40": partial(lanczos, num_vectors=32, num_steps=40),
}


def trained(name: str, *, num_epochs: int) -> nn.Module:
    torch.manual_seed(0)
    data = load_data("digits")
    images, labels = (data.train_images / 255 - data.mean[0]) / data.std[0], data.train_labels
    model = build_network(name, num_classes=10, channels=1, side=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for _ in range(num_epochs):
        for batch in torch.randperm(len(images)).split(128):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    return model


def read(model: str | nn.Module) -> Network:
    """The layers that a balancing scores: those with an alpha but for the network's first and last layer."""
    diagnosis = tempbalance.diagnose(model, shuffle=False)
    outer = ends(list(diagnosis.layers.values()))
    layers = [layer for row in diagnosis.scored if (layer := diagnosis.layers[row.name]) not in outer]
    if len(layers) < 2:
        raise ValueError(
            f"a ranking takes two scored layers between the first and the last, got {len(layers)} of {model}"
        )
    return {
        layer.name: [
            part.slices.float().contiguous() for part in layer.cut(layer.weight()) if part.num_eigenvalues >= 50
        ]
        for layer in layers
    }


def made_up(side: int, *, num_layers: int = 4) -> Network:
    """Noise with strong directions, their strengths heavy-tailed and more so from matrix to matrix."""
    torch.manual_seed(0)
    network = {}
    for i in range(num_layers):
        left, right = torch.randn(side, side // 8), torch.randn(side // 8, side)
        strengths = torch.rand(side // 8) ** (-0.3 - 0.1 * i)
        network[f"matrix{i}"] = [(torch.randn(side, side) + left * strengths @ right * side**-0.5)[None]]
    return network


def alphas(network: Network, way: Way) -> tuple[dict[str, float], float]:
    begin = time.process_time()
    values = {name: fmean(map(way, parts)) for name, parts in network.items()}
    return values, time.process_time() - begin


def compare(title: str, network: Network, rounds: int) -> None:
    alphas(network, exact)
    results: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in WAYS}
    for seed in range(rounds):
        torch.manual_seed(seed)
        wanted, seconds = alphas(network, exact)
        for name, way in WAYS.items():
            found, taken = alphas(network, way)
            scales = [assign(each) if np.isfinite(fmean(each.values())) else each for each in (wanted, found)]
            change = max(abs(scales[0][layer] - scales[1][layer]) for layer in network)
            errors = [(found[layer] - 1) / (wanted[layer] - 1) for layer in network]
            correlation = spearmanr(list(wanted.values()), list(found.values())).statistic
            results[name].append((correlation, change, float(np.std(errors)), seconds / taken))
    spread = np.std(list(wanted.values())) / (fmean(wanted.values()) - 1)
    print(f"\n{title}: {len(network)} layers, exact {seconds:.2f} s, alpha - 1 spreads over layers by {spread:.0%}")
    print("| way | Spearman | change of scale | error | speed |\n| --- | --- | --- | --- | --- |")
    for name, rows in results.items():
        correlations, changes, errors, ratios = zip(*rows, strict=True)
        told = f"{median(correlations):.3f} | {max(changes):.2f} | {median(errors):.1%}"
        print(f"| {name} | {told if np.isfinite(changes).all() else '- | - | -'} | {median(ratios):.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="*")
    parser.add_argument("--made-up", action="store_true")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for path in options.checkpoints:
        compare(path, read(path), options.rounds)
    if options.made_up:
        for side in (768, 2048):
            compare(f"made up, {side} x {side}", made_up(side), options.rounds)
    elif not options.checkpoints:
        for name in ("resnet18", "vgg16"):
            compare(f"{name} on digits", read(trained(name, num_epochs=options.epochs)), options.rounds)


if __name__ == "__main__":
    main()
