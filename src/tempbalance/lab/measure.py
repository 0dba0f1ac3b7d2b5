"""What a kind of run is judged by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """A number that a complete run has.

    Attributes:
        name: In ``result.json``, and in a line of ``metrics.jsonl``.
        word: In a sentence.
        unit: What stands behind a value; empty for none.
        points: What a difference of values is counted in.
        is_lower_better: Whether small values are good.
    """

    name: str
    word: str
    unit: str = ""
    points: str = ""
    is_lower_better: bool = False

    @property
    def title(self) -> str:
        """Over a column: the word and the unit."""
        return self.with_unit(self.word)

    def with_unit(self, word: str) -> str:
        """A heading with the unit of its numbers."""
        return f"{word}, {self.unit}" if self.unit else word

    def text(self, value: float) -> str:
        """A value of a test set as a sentence has it."""
        return f"test {self.word} {value:.2f}{f' {self.unit}' if self.unit else ''}"

    def sign(self, value: float) -> float:
        """A value, or a difference, turned so that more is better."""
        return -value if self.is_lower_better else value


ACCURACY = Measure("test_accuracy", "accuracy", "%", "points")
