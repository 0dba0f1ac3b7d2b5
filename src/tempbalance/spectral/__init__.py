"""Tensors in, numbers out: weight -> matrices -> eigenvalues -> tail fit -> score.

Knows no module, no optimizer and no file. Read `matrices`, `eigenvalues`, `workers`, `tail`, `repair`, `score`.
"""
