"""Images with labels: data, networks, recipe and training."""
