"""Judge the rows of a diagnosis, and summarise the verdicts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any, Literal, get_args

from tempbalance.ranking.table import DiagnosisRow
from tempbalance.report.text import number, short
from tempbalance.spectral.tail import FIXED_TAILS

Verdict = Literal["random-like", "under-trained", "typical", "strongly correlated", "cannot tell"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

# docs/reading-alpha.md has the measurements that these were chosen by, `python benchmarks/verdicts.py` repeats them
_MIN_TAIL = 20  # eigenvalues that a fit has to rest on
_NEAR_RANDOM = 0.03  # how far below a random matrix's alpha that of the larger half counts as random,
_NUM_ERRORS = 3.0  # or this many standard deviations of random matrices, whichever is more
_MAX_EXCESS = 0.01  # share of the squared norm that may lie beyond the random edge
_FAR = 2.0  # robust standard deviations, and standard errors, from the layers' median
_LEAST_SPREAD = 0.02  # of alpha over random: layers that differ by less are not separated
_LEAST_LAYERS = 3  # to compare with each other
_LEAST_SEARCHED = 8  # the same where thresholds are searched for, and scatter
_SEARCH_SCATTER = 0.2  # relative error of alpha that a search for the threshold adds: another matrix, another threshold
_MEANS = ("alpha", "alpha_over_random", "log_norm", "alpha_weighted", "log_alpha_norm", "spectral_norm",
          "stable_rank", "entropy", "ks")  # fmt: skip


def judge(rows: Sequence[DiagnosisRow], *, tail: str = "median") -> list[DiagnosisRow]:
    """Give each layer that has a spectrum its verdict and the evidence for it.

    The rules are applied in this order:

    - ``cannot tell``: half of the spectrum has fewer than 20 eigenvalues, or the layer is a product of adapters.
    - ``random-like``: all eigenvalues are equal; or the alpha of the larger half of the spectrum is at least that of a
      random matrix of the shape, less 3 % or three standard deviations of random matrices, and at most 1 % of the
      squared norm lies beyond the random edge. Eigenvalues beyond it that shuffling the entries keeps do not count.
    - ``cannot tell``: the fitted tail has fewer than 20 eigenvalues.
    - ``under-trained``: the larger half is that of a random matrix, but more than 1 % lies beyond the edge; or alpha
      over random is more than two robust standard deviations and two standard errors above the median of the layers
      that none of the rules above applies to, of which there must be three. Where the threshold is searched for, there
      must be eight, and 20 % of alpha are added to its standard error, in quadrature.
    - ``strongly correlated``: it is as far below.
    - ``typical``: everything else.
    """
    first = [_judge_alone(row) for row in rows]
    ratios = [row.alpha_over_random for row in first if row.verdict in ("", "under-trained") and row.spectra]
    known = [ratio for ratio in ratios if ratio is not None]
    others: tuple[float, float] | None = None  # the median of the layers, and its robust standard deviation
    if len(known) >= (_LEAST_LAYERS if tail in FIXED_TAILS else _LEAST_SEARCHED):
        middle = median(known)
        others = (middle, max(_LEAST_SPREAD, 1.4826 * median(abs(ratio - middle) for ratio in known)))
    scatter = 0.0 if tail in FIXED_TAILS else _SEARCH_SCATTER
    return [_judge_beside(row, others, scatter) if row.spectra and not row.verdict else row for row in first]


def _judge_alone(row: DiagnosisRow) -> DiagnosisRow:
    """Apply the rules that look at one layer."""
    if not row.spectra:
        return row
    num_upper = min(len(values) for values in row.spectra.values()) // 2
    if row.alpha is None:
        return replace(row, verdict="random-like", evidence=_FLAT)
    if row.upper_over_random is None or row.excess is None or row.upper_stderr is None:
        return replace(row, verdict="cannot tell", evidence=_ADAPTER)
    if num_upper < _MIN_TAIL:
        return replace(row, verdict="cannot tell", evidence=_SHORT.format("larger half", num_upper, _MIN_TAIL))
    lowest = 1 - max(_NEAR_RANDOM, _NUM_ERRORS * row.upper_stderr)
    is_random = row.upper_over_random >= lowest
    num_beyond, num_shuffled = row.num_beyond or 0, row.num_beyond_shuffled or 0
    # single large entries stay as they are; a large row or column, which is learned, falls apart into many
    is_by_entries = 0 < num_beyond <= num_shuffled <= 2 * num_beyond + 2
    upper = f"The larger half of its spectrum has {row.upper_over_random:.2f} of a random matrix's alpha"
    if is_random and (row.excess <= _MAX_EXCESS or is_by_entries):
        beyond = (
            f"{row.excess:.1%} of its squared norm lies beyond the random edge (random is {_MAX_EXCESS:.0%} or less)"
        )
        if is_by_entries:
            beyond = "as many eigenvalues lie beyond the random edge once its entries are shuffled"
        return replace(row, verdict="random-like", evidence=f"{upper} (random is {lowest:.2f} or more), and {beyond}.")
    if (row.num_tail or 0) < _MIN_TAIL:
        return replace(row, verdict="cannot tell", evidence=_SHORT.format("fitted tail", row.num_tail, _MIN_TAIL))
    if is_random:
        evidence = f"{upper}, as if it were random, but {row.excess:.1%} of its squared norm lies beyond the edge."
        return replace(row, verdict="under-trained", evidence=evidence)
    return row


_FLAT = "All its eigenvalues are equal but for rounding, as those of an orthogonal initialisation."
_ADAPTER = "There is no random matrix to compare a product of adapters with."
_TOO_FEW = "; there are too few layers to compare with."
_SHORT = "Its {} has {} eigenvalues, and a verdict needs {}."


def _judge_beside(row: DiagnosisRow, others: tuple[float, float] | None, scatter: float) -> DiagnosisRow:
    """Apply the rules that look at the other layers."""
    assert row.alpha is not None
    assert row.alpha_over_random is not None
    error = row.alpha_over_random * math.hypot((row.alpha_stderr or 0.0) / row.alpha, scatter)
    evidence = f"Its alpha is {row.alpha_over_random:.2f} ± {error:.2f} of a random matrix's"
    if others is None:
        return replace(row, verdict="typical", evidence=f"{evidence}{_TOO_FEW}")
    middle, spread = others
    distance = (row.alpha_over_random - middle) / spread
    side = "above" if distance > 0 else "below"
    evidence += f", {abs(distance):.1f} robust standard deviations {side} the layers' median of {middle:.2f}"
    if abs(distance) <= _FAR:
        return replace(row, verdict="typical", evidence=f"{evidence}.")
    if abs(row.alpha_over_random - middle) <= _FAR * error:
        return replace(row, verdict="typical", evidence=f"{evidence}, but within two standard errors.")
    verdict: Verdict = "under-trained" if distance > 0 else "strongly correlated"
    return replace(row, verdict=verdict, evidence=f"{evidence}.")


def summarize(rows: Sequence[DiagnosisRow]) -> dict[str, Any]:
    """Return advice, the number of each verdict, and means over the layers.

    Args:
        rows: The layers that have a verdict.
    """
    counts = Counter(row.verdict for row in rows)
    verdicts = {verdict: counts[verdict] for verdict in VERDICTS if verdict in counts}
    summary: dict[str, Any] = {"advice": advise(rows), "num_layers": len(rows), "verdicts": verdicts}
    for name in _MEANS:
        values = [value for row in rows if (value := getattr(row, name)) is not None]
        summary[name] = fmean(values) if values else None
    return summary


def advise(rows: Sequence[DiagnosisRow]) -> str:
    """Say in one sentence what to do about the verdicts."""
    names = {verdict: [row.name for row in rows if row.verdict == verdict] for verdict in VERDICTS}
    judged = [row for row in rows if row.verdict != "cannot tell"]
    if not judged:
        return "No layer can be judged: their tails are too short."
    if len(names["random-like"]) == len(judged):
        return "Check that this is the trained model: every scored layer looks like a random matrix, as initialised."
    random, under, strong = (_listed(names[each]) for each in ("random-like", "under-trained", "strongly correlated"))
    look = "looks" if len(names["random-like"]) == 1 else "look"
    if random and under:
        return f"Train {under} longer or at a larger learning rate; check all layers are used: {random} {look} random."
    if random:
        return f"Check that every layer is trained and used: {random} {look} random."
    if under:
        return f"Train {under} longer or at a larger learning rate: the other layers have learned more."
    if strong:
        return f"Nothing is under-trained; if the model overfits, regularise {strong} first."
    if all(row.evidence.endswith(_TOO_FEW) for row in rows if row.verdict == "typical"):
        return "No layer looks random; there are too few to compare with each other."
    return "Nothing to do: no layer stands out."


def _listed(names: Sequence[str], most: int = 3) -> str:
    more = f" and {number(len(names) - most)} more" if len(names) > most else ""
    return ", ".join(map(short, names[:most])) + more
