"""A file, a folder or a mapping -> named weights, while nothing that a file contains is run.

`read_checkpoint` takes a path and returns a `Checkpoint` of `StoredTensor`s: names, shapes and dtypes, with the values
read when asked for. `layers.infer_layers` takes these and returns the layers of the model that they came from.

Read the modules in this order: ``tensors`` (files that nobody trusts, and tensors in them), ``pickles`` and ``formats``
(one file -> its content), ``weights`` (its content -> mappings of names to tensors, and which is taken), ``derived``
(dequantised weights, LoRA products), ``read`` (all of it, for files and folders), ``layers``.
"""

from tempbalance.checkpoint.read import Checkpoint, read_checkpoint
from tempbalance.checkpoint.tensors import StoredTensor

__all__ = ["Checkpoint", "StoredTensor", "read_checkpoint"]
