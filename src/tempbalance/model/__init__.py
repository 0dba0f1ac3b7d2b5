"""nn.Module in, layers out: the weights that are scored and the parameters that train at their rate.

Nothing here computes a spectrum. Read `layers`, then `lora` (adapters) and `sharded` (wrappers and shards).
"""
