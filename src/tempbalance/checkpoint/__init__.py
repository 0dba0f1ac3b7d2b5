"""A file or folder -> named weights, while nothing that a file contains is run."""

from tempbalance.checkpoint.read import read_checkpoint
from tempbalance.checkpoint.tensors import Checkpoint, StoredTensor

__all__ = ["Checkpoint", "StoredTensor", "read_checkpoint"]
