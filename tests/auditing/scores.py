"""Scores of a mechanism whose μ is known."""

import numpy as np

from antiphase.auditing import GaussianClaim

CLAIM = GaussianClaim(1.0)


def normal(mu, seed=0):
    """Scores for `audit` and for `audit_one_run`: N(0, 1) without the canary, N(μ, 1) with it."""
    rng = np.random.default_rng(seed)
    return (
        lambda canary, count: rng.normal(size=count) + mu * canary,
        lambda included: rng.normal(size=len(included)) + mu * included,
    )
