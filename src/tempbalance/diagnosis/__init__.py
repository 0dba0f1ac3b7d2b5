"""Checkpoints and models -> a table of their layers with verdicts, and differences between tables."""

from tempbalance.diagnosis.diagnose import Diagnosis as Diagnosis
from tempbalance.diagnosis.diagnose import diagnose as diagnose
