"""What can go wrong, as types."""


class TempBalanceError(ValueError):
    """Base of every error that is about the values of a weight, a spectrum or a score."""


class WeightError(TempBalanceError):
    """A weight that has no spectrum: NaN, Inf, meta, lazy, complex, integer, sparse."""


class TailError(TempBalanceError):
    """A spectrum whose tail has no exponent: zero, flat, too short, or rounding noise."""


class ScoreError(TempBalanceError):
    """A score that cannot become a scale: not finite, or outside what the assignment takes."""


class CheckpointError(TempBalanceError):
    """A file or folder that holds no readable weights, or is refused."""
