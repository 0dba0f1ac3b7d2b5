"""The speed that was measured, as a picture."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from tempbalance.bench.contestants import TAILS, WEIGHTWATCHER, reference_name
from tempbalance.bench.present import REFERENCE, machine_text
from tempbalance.bench.results import Results
from tempbalance.report import save_figures
from tempbalance.report.bench_chart import Speed, speed_chart


def speeds(results: Results) -> list[Speed]:
    """How many times as fast as the others the library is, by network and tail."""
    found = []
    for times, tail in product(results.of_part("speed"), TAILS):
        for panel, other in ((REFERENCE, reference_name(tail)), (WEIGHTWATCHER, WEIGHTWATCHER)):
            if ratio := times.ratio(other, tail):
                found.append(Speed(panel, times.network, tail, ratio.median, ratio.low, ratio.high))
    return found


def draw_speed(results: Results, path: Path) -> Path:
    """Write the chart; the name's ending says in which format.

    Raises:
        ValueError: If no speed was measured.
    """
    chart = speed_chart(speeds(results), title="One balancing, how many times as fast", subtitle=machine_text(results))
    (written,) = save_figures({path.stem: chart}, path.parent, [path.suffix.removeprefix(".")])
    return written
