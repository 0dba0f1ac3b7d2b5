"""Tensors in, numbers out: no ``torch.nn``, no ``torch.optim``, no files."""
