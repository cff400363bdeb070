"""Is this noise ``σ·C⁻¹Z``?

Whiten it and look: all statistics should be standard normal, so none beyond 6.5.

χ²-type statistics of the second moments: a Kolmogorov–Smirnov test of 1,500 samples does not see
noise that is a tenth too small.
"""

import numpy as np


def statistics(rows, encoder, scale):
    """{kind: z-values} of the total, the rows, pairs of rows, and halves of the coordinates."""
    Z = encoder @ np.asarray(rows, dtype=np.float64) / scale
    steps, d = Z.shape
    halves = d // 2
    products = Z @ Z.T / np.sqrt(d)
    upper = np.triu_indices(steps, 1)
    across = Z[:, :halves] @ Z[:, halves : 2 * halves].T / np.sqrt(halves)
    return {
        "total": [(np.square(Z).sum() - steps * d) / np.sqrt(2 * steps * d)],
        "rows": ((np.square(Z).sum(axis=1) - d) / np.sqrt(2 * d)).tolist(),
        "mean": (Z.sum(axis=1) / np.sqrt(d)).tolist(),
        "pairs": products[upper].tolist(),
        "halves": across.ravel().tolist(),
    }


def worst(rows, encoder, scale):
    """The largest absolute z value, and which statistic has it."""
    found = statistics(rows, encoder, scale)
    values = {name: float(np.abs(values).max()) for name, values in found.items()}
    name = max(values, key=values.get)
    return values[name], name


LIMIT = 6.5
