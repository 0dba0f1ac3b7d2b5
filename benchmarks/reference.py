"""The published procedure alone (src/tempbalance/bench/reference.py): its seconds and alphas on one network.

    python benchmarks/reference.py [--network resnet18] [--quick]

Side by side with the library: tempbalance bench.
"""

import argparse
import time

from tempbalance.bench.contestants import TAILS, make_subject, reference_alphas
from tempbalance.bench.networks import NETWORKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=list(NETWORKS), default="resnet18")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    weights = [layer.weight() for layer in make_subject(options.network, quick=options.quick).scored]
    for tail in TAILS:
        start = time.perf_counter()
        alphas = reference_alphas(weights, tail)
        seconds = time.perf_counter() - start
        print(f"{tail:16} {seconds:6.2f} s, alpha {min(alphas):.4f} to {max(alphas):.4f} over {len(alphas)} layers")


if __name__ == "__main__":
    main()
