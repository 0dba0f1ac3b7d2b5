"""Claims of the paper in five forms, each tested over the runs of a study with different seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from statistics import StatisticsError, correlation, fmean
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from tempbalance.errors import unknown
from tempbalance.lab.findings import Cell, Findings
from tempbalance.lab.paper import paper_statements
from tempbalance.lab.points import FileEntry
from tempbalance.report.statistics import LEVEL, Paired, holm
from tempbalance.report.tables import Entry, Number, ResultTable
from tempbalance.runlog import RunFolder

Run = tuple[str, int]  # a cell and a seed
Samples = Iterator[tuple[list[float], Iterable[Run]]]
Values = dict[int, float]  # by seed
Pairs = Sequence[tuple[float, float]]
Outcome = tuple[float | None, bool]  # a p-value, if there is one, and whether the runs are on the claim's side

_COLUMNS = ("verdict", "claim of the paper", "test", "in favour", "corrected p", "runs")
_CAPTION = (
    "The paper's claims. The p-values are corrected by Holm for the number of tests in the study. A claim holds if "
    f"every test is in favour with p < {LEVEL:g}, does not hold if one is against it with p < {LEVEL:g}, and is "
    "undecided otherwise; p is the one that decides."
)
_SMALL = "These runs have other data, sizes and durations than the paper's."
_LARGEST_R = 1 - 1e-12  # its Fisher transform is finite


def find_function(name: Any) -> Any:
    """Return a function that an entry names as ``module.function`` of `tempbalance.lab.studies`."""
    if not isinstance(name, str):
        return name
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(import_module(f"tempbalance.lab.studies.{module}"), attribute)
    except (ImportError, AttributeError, ValueError):
        raise ValueError(f"must name a function of a module in lab/studies, got {name!r}") from None


def _known_statement(name: str) -> str:
    if name not in paper_statements():
        raise ValueError(unknown("statement", name, paper_statements()))
    return name


Function = BeforeValidator(find_function)
RunNumber = Annotated[Callable[[RunFolder], float | None], Function]


@dataclass(frozen=True)
class Test:
    """Test of a claim: its p-value, ``None`` with too few runs or without any spread, its side and its runs."""

    p_value: float | None
    is_for: bool
    runs: frozenset[Run]


class Claim(FileEntry):
    """Statement of the paper about the runs of a study; its subclasses are the forms.

    Attributes:
        says: Name of the statement in ``paper/text.yaml``.
        part: The tested part of the statement, if it is not all of it.
        where: Labels of the cells that are tested; empty for all.
        skip: Labels of cells that the paper excludes, with the paper's dataset.
        value: Number of a run; ``None`` for the measure of the study.
        minus: Labels of the cell whose value with the same seed is subtracted.
    """

    says: Annotated[str, AfterValidator(_known_statement)]
    part: str = ""
    where: Mapping[str, Any] = {}
    skip: tuple[Mapping[str, Any], ...] = ()
    value: RunNumber | None = None
    minus: Mapping[str, Any] = {}
    test_name: ClassVar[str]

    @property
    def text(self) -> str:
        """The statement, and the part of it that is tested."""
        says = paper_statements()[self.says].says
        return f"{says} Tested: {self.part}." if self.part else says

    def tests(self, findings: Findings) -> list[Test]:
        """Test the claim on all runs so far."""
        return [Test(*self.tested(numbers), frozenset(runs)) for numbers, runs in self.samples(findings)]

    def samples(self, findings: Findings) -> Samples:
        """Return numbers that are positive where runs are on the claim's side, and the runs, for each test."""
        raise NotImplementedError

    def tested(self, numbers: list[float]) -> Outcome:
        """Test the numbers of a sample."""
        return _t_test(numbers)

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
        other = findings.find(cell, self.minus)
        less = self._plain_values(other, findings) if other is not None else {}
        return {seed: value - less[seed] for seed, value in found.items() if seed in less}

    def _plain_values(self, cell: Cell, findings: Findings) -> Values:
        if self.value is None:
            return findings.outcomes(cell)
        return {seed: value for seed, run in cell.best.runs.items() if (value := self.value(run)) is not None}


class Better(Claim):
    """Cells with one value of a label are better than cells with others; a ``value`` is better where it is smaller.

    Attributes:
        label: The label.
        best: Its value that the claim is about.
        than: Values that it is compared with; empty for all others.
    """

    form: Literal["better"] = "better"
    label: str
    best: Any
    than: tuple[Any, ...] = ()
    test_name: ClassVar[str] = "paired t-test, two-sided"

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

    def samples(self, findings: Findings) -> Samples:
        sign = findings.measure.sign if self.value is None else float.__neg__
        for ours, theirs in self.pairs(findings):
            left, right = self.values(ours, findings), self.values(theirs, findings)
            runs = [*((ours.key, seed) for seed in left), *((theirs.key, seed) for seed in right)]
            yield [sign(value - right[seed]) for seed, value in left.items() if seed in right], runs


class Equivalent(Better):
    """Cells with one value of a label differ from cells with others by less than a margin, in points."""

    form: Literal["equivalent"] = "equivalent"  # type: ignore[assignment]
    margin: float
    test_name: ClassVar[str] = "two one-sided paired t-tests"

    @property
    def text(self) -> str:
        return f"{super().text} Margin: {self.margin:g} points."

    def tested(self, numbers: list[float]) -> Outcome:
        """Test that the mean is above -margin and below +margin, and that it is not."""
        low, high = ([each + shift for each in numbers] for shift in (self.margin, -self.margin))
        above, below = _one_sided(low), 1 - _one_sided(high)
        if math.isnan(above):
            return None, False
        same, beyond = max(above, below), min(1.0, 2 * min(1 - above, 1 - below))
        return min(same, beyond), same <= beyond


class Bounded(Claim):
    """The mean of a value over the seeds is below a limit, or above it."""

    form: Literal["bounded"] = "bounded"
    limit: float
    is_above: bool = False
    test_name: ClassVar[str] = "t-test, two-sided"

    def samples(self, findings: Findings) -> Samples:
        sign = 1 if self.is_above else -1
        for cell in self.cells(findings):
            values = self.values(cell, findings)
            yield [sign * (value - self.limit) for value in values.values()], [(cell.key, seed) for seed in values]


class _OfRuns(Claim):
    """A number of each run is positive; the runs of all cells are tested together."""

    def samples(self, findings: Findings) -> Samples:
        found = {}
        for cell in self.cells(findings):
            for seed, run in cell.best.runs.items():
                if (number := self.number(run)) is not None:
                    found[cell.key, seed] = number
        yield list(found.values()), found

    def number(self, run: RunFolder) -> float | None:
        raise NotImplementedError

    def tested(self, numbers: list[float]) -> Outcome:
        """Return the t-test; if all numbers are equal, the exact one-sided test of the sign that most of them have."""
        tested = _t_test(numbers)
        if tested[0] is not None or not numbers:
            return tested
        from scipy.stats import binomtest  # type: ignore[import-untyped]

        num_positive = sum(number > 0 for number in numbers)
        most = max(num_positive, len(numbers) - num_positive)
        p_value = binomtest(most, len(numbers), alternative="greater").pvalue
        return float(p_value), 2 * num_positive > len(numbers)


class Order(_OfRuns):
    """In a run, one event comes before another; a run without the first event says nothing.

    Attributes:
        first: Step of the first event in a run; ``None`` if it did not happen.
        then: Step of the second event.
    """

    form: Literal["order"] = "order"
    first: RunNumber
    then: RunNumber
    test_name: ClassVar[str] = "t-test of the steps between, or sign test"

    def number(self, run: RunFolder) -> float | None:
        first, then = self.first(run), self.then(run)
        return None if first is None or then is None else then - first


class Correlated(_OfRuns):
    """Two numbers of a run correlate with a sign; or computed ones do, without runs.

    Attributes:
        pairs: The numbers of a run in pairs.
        is_positive: The claimed sign.
        computed: Pairs that need no run.
    """

    form: Literal["correlated"] = "correlated"
    pairs: Annotated[Callable[[RunFolder], Pairs], Function] | None = None
    is_positive: bool = True
    computed: Annotated[Callable[[], Pairs], Function] | None = None

    @property
    def test_name(self) -> str:  # type: ignore[override]
        return "Spearman's rank correlation" if self.computed else "t-test of Fisher's z, or sign test"

    def tests(self, findings: Findings) -> list[Test]:
        if self.computed is None:
            return super().tests(findings)
        from scipy.stats import spearmanr

        result = spearmanr(*zip(*self.computed(), strict=True))
        sign = 1 if self.is_positive else -1
        return [Test(float(result.pvalue), float(result.statistic) * sign > 0, frozenset())]

    def number(self, run: RunFolder) -> float | None:
        assert self.pairs is not None
        r, sign = pearson(self.pairs(run)), 1 if self.is_positive else -1
        return None if r is None else sign * math.atanh(max(-_LARGEST_R, min(_LARGEST_R, r)))


AnyClaim = Annotated[Better | Equivalent | Bounded | Order | Correlated, Field(discriminator="form")]


def pearson(pairs: Pairs) -> float | None:
    """Return Pearson's correlation; ``None`` for fewer than three pairs, or if all values of one side are equal."""
    if len(pairs) < 3:  # any two points lie on a line
        return None
    try:
        return correlation(*zip(*pairs, strict=True))
    except StatisticsError:
        return None


def _t_test(values: list[float]) -> Outcome:
    """Return the two-sided p-value of a mean of 0, and whether the mean is above."""
    return (Paired(tuple(values)).p_value, fmean(values) > 0) if values else (None, False)


def _one_sided(values: list[float]) -> float:
    """Return the p-value of a mean of 0 or below; NaN without a spread."""
    p_value, is_above = _t_test(values)
    if p_value is None:
        return math.nan
    return p_value / 2 if is_above else 1 - p_value / 2


@dataclass(frozen=True)
class Judged:
    """A claim with its tests and the corrected p-value of each, ``None`` where there is none."""

    claim: Claim
    tests: tuple[Test, ...]
    p_values: tuple[float | None, ...]

    @property
    def num_runs(self) -> int:
        """Number of different runs in the tests."""
        return len(frozenset[Run]().union(*(test.runs for test in self.tests)))

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


def judge_claims(claims: Sequence[Claim], findings: Findings) -> list[Judged]:
    """Test the claims of a study, with p-values corrected for all tests of the study."""
    tests = [claim.tests(findings) for claim in claims]
    corrected = iter(holm([test.p_value for each in tests for test in each]))
    return [
        Judged(claim, tuple(each), tuple(next(corrected) for _ in each))
        for claim, each in zip(claims, tests, strict=True)
    ]


def claims_table(rows: Sequence[Sequence[Entry]], *, is_paper: bool, first: Sequence[str] = ()) -> ResultTable:
    """Return a table of tested claims, with more columns before the others."""
    caption = _CAPTION if is_paper else f"{_CAPTION} {_SMALL}"
    return ResultTable(caption, (*first, *_COLUMNS), rows, prose=_COLUMNS[1:3], kept=_COLUMNS, heading="Claims")
