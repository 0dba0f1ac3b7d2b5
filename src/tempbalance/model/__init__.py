"""nn.Module in, layers out: the weights that are scored and the parameters that train at their rate.

Nothing here computes a spectrum. Read `layers`, then `adapters` (LoRA and others) and `sharded` (wrappers and shards).
"""
