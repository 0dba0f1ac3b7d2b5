"""Language models: texts, networks, recipe and training."""
