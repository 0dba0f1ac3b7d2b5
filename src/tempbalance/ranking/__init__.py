"""Layers in, rows with scores and scales out.

Read `table` (the rows), `scoring` (layers to scores), `compare` (scores made comparable), `assign` (scores to scales).
"""
