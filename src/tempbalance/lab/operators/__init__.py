"""A Fourier neural operator that learns the solutions of differential equations from few of them."""
