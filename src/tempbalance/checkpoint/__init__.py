"""Read named weights from a file, a folder or a mapping; nothing in a file is executed.

Read the modules in this order: ``tensors`` (untrusted files, stored tensors), ``pickles`` and ``formats`` (content of
one file), ``weights`` (choice of the mapping), ``derived`` (dequantised weights, LoRA products), ``read`` (files and
folders), ``layers`` (layers of the model).
"""

from tempbalance.checkpoint.read import Checkpoint, read_checkpoint
from tempbalance.checkpoint.tensors import StoredTensor

__all__ = ["Checkpoint", "StoredTensor", "read_checkpoint"]
