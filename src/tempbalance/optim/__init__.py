"""Scales in, learning rates out: what a training loop sees.

Read `param_groups` (one group per layer), `rates` (base values and scaled ones), `scheduler` (TempBalance), `state`.
"""
