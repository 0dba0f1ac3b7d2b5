"""Claims of the paper that some cells of a study are better than others, tested over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tempbalance.lab.findings import Cell, Findings
from tempbalance.lab.paper.statements import paper_statements
from tempbalance.report.statistics import LEVEL, Paired, holm, paired
from tempbalance.report.tables import Entry, Number, ResultTable
from tempbalance.runlog import RunFolder

_COLUMNS = ("verdict", "claim of the paper", "tests in favour", "against", "corrected p", "runs")
_CAPTION = (
    "The paper's claims: paired t-tests over seeds in every cell, p-values corrected by Holm for the number of tests "
    f"in the study. A claim holds if every test is in favour with p < {LEVEL:g}, does not hold if one is against it "
    f"with p < {LEVEL:g}, and is undecided otherwise; p is the one that decides."
)
_SMALL = "These runs have other data, sizes and durations than the paper's."


@dataclass(frozen=True)
class Claim:
    """A statement of the paper that cells with one value of a label are better than cells with others.

    Attributes:
        statement: Name of the statement in ``paper/text.yaml``.
        label: The label.
        best: Its value that is claimed to be better.
        than: Values that it is compared with; empty for all others.
        skip: Labels of cells that the paper excludes, with the paper's dataset.
        part: The tested part of the statement, if it is not all of it.
        value: Number of a run that is claimed to be smaller; ``None`` for the measure of the study.
    """

    statement: str
    label: str
    best: Any
    than: tuple[Any, ...] = ()
    skip: tuple[Mapping[str, Any], ...] = ()
    part: str = ""
    value: Callable[[RunFolder], float | None] | None = None

    @property
    def text(self) -> str:
        """The statement, and the part of it that is tested."""
        says = paper_statements()[self.statement].says
        return f"{says} Tested: {self.part}." if self.part else says

    def pairs(self, findings: Findings) -> Iterator[tuple[Cell, Cell]]:
        """Return each cell that is claimed to be better with each that it is compared with."""
        for ours in findings.cells:
            labels = {**ours.labels, "dataset": ours.tried[0].point.stands_for or ours.labels["dataset"]}
            if ours.labels[self.label] != self.best or any(each.items() <= labels.items() for each in self.skip):
                continue
            for theirs in findings.cells:
                other = theirs.labels[self.label]
                is_meant = other in self.than if self.than else other != self.best
                if is_meant and {**theirs.labels, self.label: self.best} == ours.labels:
                    yield ours, theirs

    def outcomes(self, cell: Cell, findings: Findings) -> dict[int, float]:
        """Return a number for each seed, of which more is better."""
        if self.value is None:
            return {seed: findings.measure.sign(value) for seed, value in cell.outcomes.items()}
        runs = cell.best.runs if cell.best is not None else {}
        return {seed: -value for seed, run in runs.items() if (value := self.value(run)) is not None}


@dataclass(frozen=True)
class Tested:
    """A claim with its tests.

    Attributes:
        claim: The claim.
        tests: A test for each pair of cells; ``None`` without a common seed. Positive differences are in favour.
        p_values: Corrected p-value of each test; ``None`` where there is no test.
        num_runs: Number of runs in the tests.
    """

    claim: Claim
    tests: tuple[Paired | None, ...]
    p_values: tuple[float | None, ...]
    num_runs: int

    def decided(self, sign: int) -> list[float]:
        """Return the p-values below the level of tests with a mean of this sign."""
        there = zip(self.tests, self.p_values, strict=True)
        return [p for test, p in there if test is not None and p is not None and p < LEVEL and test.mean * sign > 0]

    @property
    def verdict(self) -> str:
        """``holds``, ``does not hold`` or ``undecided``."""
        if self.decided(-1):
            return "does not hold"
        return "holds" if self.tests and len(self.decided(1)) == len(self.tests) else "undecided"

    @property
    def row(self) -> list[Entry]:
        """Row of a table."""
        known = [p for p in self.p_values if p is not None]
        p_value = min(self.decided(-1), default=max(known, default=None))
        return [
            self.verdict,
            self.claim.text,
            f"{len(self.decided(1))} of {len(self.tests)}",
            str(len(self.decided(-1))),
            None if p_value is None else Number(p_value, digits=3, least=0.001),
            str(self.num_runs),
        ]


def judge_claims(claims: Sequence[Claim], findings: Findings) -> list[Tested]:
    """Test the claims of a study, with p-values corrected for all tests of the study."""
    pairs = [list(claim.pairs(findings)) for claim in claims]
    tests = [
        tuple(paired(claim.outcomes(ours, findings), claim.outcomes(theirs, findings)) for ours, theirs in each)
        for claim, each in zip(claims, pairs, strict=True)
    ]
    corrected = iter(holm([None if test is None else test.p_value for each in tests for test in each]))
    found = []
    for claim, each, of_claim in zip(claims, pairs, tests, strict=True):
        cells = {id(cell): len(claim.outcomes(cell, findings)) for pair in each for cell in pair}
        p_values = tuple(next(corrected) for _ in of_claim)
        found.append(Tested(claim, of_claim, p_values, sum(cells.values())))
    return found


def claims_table(rows: Sequence[Sequence[Entry]], *, is_paper: bool, first: Sequence[str] = ()) -> ResultTable:
    """Return a table of tested claims, with more columns before the others."""
    caption = _CAPTION if is_paper else f"{_CAPTION} {_SMALL}"
    return ResultTable(caption, (*first, *_COLUMNS), rows, prose=_COLUMNS[1:2], heading="Claims")
