"""Why a run ends early."""

from __future__ import annotations


class TrainingError(Exception):
    """A run that cannot go on, and why."""


class InterruptedRunError(Exception):
    """A run that was asked to stop; what it has finished is kept."""
