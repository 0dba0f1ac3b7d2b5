"""Claims of the paper in five forms, each tested over the runs of a study with different seeds."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from statistics import StatisticsError, correlation, fmean
from typing import Any, ClassVar

from tempbalance.lab.findings import Cell, Findings
from tempbalance.lab.paper import paper_statements
from tempbalance.report.statistics import LEVEL, Paired, holm
from tempbalance.report.tables import Entry, Number, ResultTable
from tempbalance.runlog import RunFolder

Runs = frozenset[tuple[str, int]]  # a cell and a seed
Values = dict[int, float]  # by seed
Pairs = Sequence[tuple[float, float]]

_COLUMNS = ("verdict", "claim of the paper", "test", "in favour", "corrected p", "runs")
_CAPTION = (
    "The paper's claims. The p-values are corrected by Holm for the number of tests in the study. A claim holds if "
    f"every test is in favour with p < {LEVEL:g}, does not hold if one is against it with p < {LEVEL:g}, and is "
    "undecided otherwise; p is the one that decides."
)
_SMALL = "These runs have other data, sizes and durations than the paper's."
_LARGEST_R = 1 - 1e-12  # its Fisher transform is finite


@dataclass(frozen=True)
class Test:
    """Test of a claim.

    Attributes:
        p_value: ``None`` with too few runs, or without any spread.
        is_for: Whether the runs are on the claim's side.
        runs: The runs tested.
    """

    p_value: float | None
    is_for: bool
    runs: Runs


@dataclass(frozen=True)
class Claim(ABC):
    """Statement of the paper about the runs of a study; its subclasses are the forms.

    Attributes:
        statement: Name of the statement in ``paper/text.yaml``.
        part: The tested part of the statement, if it is not all of it.
        where: Labels of the cells that are tested; empty for all.
        skip: Labels of cells that the paper excludes, with the paper's dataset.
        value: Number of a run; ``None`` for the measure of the study.
        minus: Labels of the cell whose value with the same seed is subtracted.
    """

    statement: str
    _: KW_ONLY
    part: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)
    skip: tuple[Mapping[str, Any], ...] = ()
    value: Callable[[RunFolder], float | None] | None = None
    minus: Mapping[str, Any] = field(default_factory=dict)
    test_name: ClassVar[str]

    @property
    def text(self) -> str:
        """The statement, and the part of it that is tested."""
        says = paper_statements()[self.statement].says
        return f"{says} Tested: {self.part}." if self.part else says

    @abstractmethod
    def tests(self, findings: Findings) -> list[Test]:
        """Test the claim on all runs so far."""

    def cells(self, findings: Findings) -> Iterator[Cell]:
        """Return the cells that the claim is about."""
        for cell in findings.cells:
            labels = {**cell.labels, "dataset": cell.tried[0].point.stands_for or cell.labels["dataset"]}
            if self.where.items() <= labels.items() and not any(each.items() <= labels.items() for each in self.skip):
                yield cell

    def values(self, cell: Cell, findings: Findings) -> Values:
        """Return the number of each run of a cell by seed."""
        found = self._plain_values(cell, findings)
        if not self.minus:
            return found
        labels = {**cell.labels, **self.minus}
        other = next((each for each in findings.cells if each.labels == labels), None)
        less = self._plain_values(other, findings) if other is not None else {}
        return {seed: value - less[seed] for seed, value in found.items() if seed in less}

    def _plain_values(self, cell: Cell, findings: Findings) -> Values:
        if self.value is None:
            return findings.outcomes(cell)
        runs = cell.best.runs if cell.best is not None else {}
        return {seed: value for seed, run in runs.items() if (value := self.value(run)) is not None}

    def runs(self, findings: Findings) -> list[tuple[tuple[str, int], RunFolder]]:
        """Return the complete runs of all cells that the claim is about."""
        cells = [each for each in self.cells(findings) if each.best is not None]
        return [((_key(cell), seed), run) for cell in cells if cell.best for seed, run in cell.best.runs.items()]


@dataclass(frozen=True)
class _Comparison(Claim):
    """Cells with one value of a label against cells with others, in every place of the study.

    Attributes:
        label: The label.
        best: Its value that the claim is about.
        than: Values that it is compared with; empty for all others.
    """

    label: str
    best: Any
    than: tuple[Any, ...] = ()

    def pairs(self, findings: Findings) -> Iterator[tuple[Cell, Cell]]:
        """Return each cell that the claim is about with each that it is compared with."""
        for ours in self.cells(findings):
            if ours.labels[self.label] != self.best:
                continue
            for theirs in findings.cells:
                other = theirs.labels[self.label]
                is_meant = other in self.than if self.than else other != self.best
                if is_meant and {**theirs.labels, self.label: self.best} == ours.labels:
                    yield ours, theirs

    def tests(self, findings: Findings) -> list[Test]:
        """Test each pair of cells, seed by seed."""
        found = []
        for ours, theirs in self.pairs(findings):
            left, right = self.values(ours, findings), self.values(theirs, findings)
            runs = frozenset([*((_key(ours), seed) for seed in left), *((_key(theirs), seed) for seed in right)])
            differences = [value - right[seed] for seed, value in left.items() if seed in right]
            found.append(Test(*self._tested(differences, findings), runs))
        return found

    @abstractmethod
    def _tested(self, differences: list[float], findings: Findings) -> tuple[float | None, bool]:
        """Return the p-value, and whether the differences are on the claim's side."""


@dataclass(frozen=True)
class Better(_Comparison):
    """Cells with one value of a label are better than cells with others; a ``value`` is better where it is smaller."""

    test_name: ClassVar[str] = "paired t-test, two-sided"

    def _tested(self, differences: list[float], findings: Findings) -> tuple[float | None, bool]:
        sign = findings.measure.sign if self.value is None else float.__neg__
        return _t_test([sign(each) for each in differences])


@dataclass(frozen=True)
class Equivalent(_Comparison):
    """Cells with one value of a label differ from cells with others by less than a margin.

    Attributes:
        margin: Largest difference of the means that counts as none.
    """

    margin: float = field(kw_only=True)
    test_name: ClassVar[str] = "two one-sided paired t-tests"

    @property
    def text(self) -> str:
        """The statement, with the margin."""
        return f"{super().text} Margin: {self.margin:g} points."

    def _tested(self, differences: list[float], findings: Findings) -> tuple[float | None, bool]:
        low, high = ([each + shift for each in differences] for shift in (self.margin, -self.margin))
        above, below = _one_sided(low), 1 - _one_sided(high)  # of a mean that is above -margin, below +margin
        if math.isnan(above):
            return None, False
        same, beyond = max(above, below), min(1.0, 2 * min(1 - above, 1 - below))
        return min(same, beyond), same <= beyond


@dataclass(frozen=True)
class Bounded(Claim):
    """The mean of a value over the seeds is below a limit, or above it.

    Attributes:
        limit: The limit.
        is_above: Whether the value is claimed to be above it.
    """

    limit: float
    is_above: bool = False
    test_name: ClassVar[str] = "t-test, two-sided"

    def tests(self, findings: Findings) -> list[Test]:
        """Test each cell."""
        found = []
        for cell in self.cells(findings):
            values = self.values(cell, findings)
            sign = 1 if self.is_above else -1
            tested = _t_test([sign * (value - self.limit) for value in values.values()])
            found.append(Test(*tested, frozenset((_key(cell), seed) for seed in values)))
        return found


@dataclass(frozen=True)
class Order(Claim):
    """In a run, one event comes before another; a run without the first event says nothing.

    Attributes:
        first: Step of the first event in a run; ``None`` if it did not happen.
        then: Step of the second event.
    """

    first: Callable[[RunFolder], float | None]
    then: Callable[[RunFolder], float | None]
    test_name: ClassVar[str] = "t-test of the steps between, or sign test"

    def tests(self, findings: Findings) -> list[Test]:
        """Test the runs of all cells together."""
        found = {key: (self.first(run), self.then(run)) for key, run in self.runs(findings)}
        known = {key: (first, then) for key, (first, then) in found.items() if first is not None and then is not None}
        return [Test(*_t_or_sign_test([then - first for first, then in known.values()]), frozenset(known))]


@dataclass(frozen=True)
class Correlated(Claim):
    """Two numbers of a run correlate with a sign; or computed ones do, without runs.

    Attributes:
        pairs: The numbers of a run in pairs.
        is_positive: The claimed sign.
        computed: Pairs that need no run.
    """

    pairs: Callable[[RunFolder], Pairs] | None = None
    is_positive: bool = True
    computed: Callable[[], Pairs] | None = None

    @property
    def test_name(self) -> str:  # type: ignore[override]
        """Name of the test."""
        return "Spearman's rank correlation" if self.computed else "t-test of Fisher's z, or sign test"

    def tests(self, findings: Findings) -> list[Test]:
        """Test the correlations of all runs together."""
        sign = 1 if self.is_positive else -1
        if self.computed is not None:
            from scipy.stats import spearmanr  # type: ignore[import-untyped]

            result = spearmanr(*zip(*self.computed(), strict=True))
            return [Test(float(result.pvalue), float(result.statistic) * sign > 0, frozenset())]
        assert self.pairs is not None
        found = {key: each for key, run in self.runs(findings) if (each := pearson(self.pairs(run))) is not None}
        z = [sign * math.atanh(max(-_LARGEST_R, min(_LARGEST_R, each))) for each in found.values()]
        return [Test(*_t_or_sign_test(z), frozenset(found))]


def pearson(pairs: Pairs) -> float | None:
    """Return Pearson's correlation; ``None`` for fewer than three pairs, or if all values of one side are equal."""
    if len(pairs) < 3:  # any two points lie on a line
        return None
    try:
        return correlation(*zip(*pairs, strict=True))
    except StatisticsError:
        return None


def _key(cell: Cell) -> str:
    return repr(sorted(cell.labels.items()))


def _t_test(values: list[float]) -> tuple[float | None, bool]:
    """Return the two-sided p-value of a mean of 0, and whether the mean is above."""
    return (Paired(tuple(values)).p_value, fmean(values) > 0) if values else (None, False)


def _one_sided(values: list[float]) -> float:
    """Return the p-value of a mean of 0 or below; NaN without a spread."""
    p_value, is_above = _t_test(values)
    if p_value is None:
        return math.nan
    return p_value / 2 if is_above else 1 - p_value / 2


def _t_or_sign_test(values: list[float]) -> tuple[float | None, bool]:
    """Return the t-test, or the sign test if all values are equal."""
    tested = _t_test(values)
    return _sign_test(values) if tested[0] is None else tested


def _sign_test(values: list[float]) -> tuple[float | None, bool]:
    """Return the exact one-sided p-value of the sign that most values have, and whether it is positive."""
    from scipy.stats import binomtest

    if not values:
        return None, False
    num_positive = sum(value > 0 for value in values)
    is_positive = 2 * num_positive > len(values)
    most = max(num_positive, len(values) - num_positive)
    return float(binomtest(most, len(values), alternative="greater").pvalue), is_positive


@dataclass(frozen=True)
class Tested:
    """A claim with its tests.

    Attributes:
        claim: The claim.
        tests: Its tests.
        p_values: Corrected p-value of each test; ``None`` where there is none.
    """

    claim: Claim
    tests: tuple[Test, ...]
    p_values: tuple[float | None, ...]

    @property
    def num_runs(self) -> int:
        """Number of different runs in the tests."""
        return len(frozenset[tuple[str, int]]().union(*(test.runs for test in self.tests)))

    def decided(self, is_for: bool) -> list[float]:
        """Return the p-values below the level of the tests for the claim, or of those against it."""
        there = zip(self.tests, self.p_values, strict=True)
        return [p for test, p in there if p is not None and p < LEVEL and test.is_for == is_for]

    @property
    def verdict(self) -> str:
        """``holds``, ``does not hold`` or ``undecided``."""
        if self.decided(False):
            return "does not hold"
        return "holds" if self.tests and len(self.decided(True)) == len(self.tests) else "undecided"

    @property
    def row(self) -> list[Entry]:
        """Row of a table."""
        known, against = [p for p in self.p_values if p is not None], len(self.decided(False))
        p_value = min(self.decided(False), default=max(known, default=None))
        return [
            self.verdict,
            self.claim.text,
            self.claim.test_name,
            f"{len(self.decided(True))} of {len(self.tests)}" + (f", {against} against" if against else ""),
            None if p_value is None else Number(p_value, digits=3, least=0.001),
            str(self.num_runs),
        ]


def judge_claims(claims: Sequence[Claim], findings: Findings) -> list[Tested]:
    """Test the claims of a study, with p-values corrected for all tests of the study."""
    tests = [claim.tests(findings) for claim in claims]
    corrected = iter(holm([test.p_value for each in tests for test in each]))
    return [
        Tested(claim, tuple(each), tuple(next(corrected) for _ in each))
        for claim, each in zip(claims, tests, strict=True)
    ]


def claims_table(rows: Sequence[Sequence[Entry]], *, is_paper: bool, first: Sequence[str] = ()) -> ResultTable:
    """Return a table of tested claims, with more columns before the others."""
    caption = _CAPTION if is_paper else f"{_CAPTION} {_SMALL}"
    return ResultTable(caption, (*first, *_COLUMNS), rows, prose=_COLUMNS[1:3], kept=_COLUMNS, heading="Claims")
