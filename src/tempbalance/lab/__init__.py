"""The paper: its data, networks, methods, training and studies."""
