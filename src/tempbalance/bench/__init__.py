"""Benchmark of one balancing against the published procedure, WeightWatcher and a training step."""
