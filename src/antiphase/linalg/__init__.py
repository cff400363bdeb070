"""Linear algebra and numerical methods that the solvers share."""
