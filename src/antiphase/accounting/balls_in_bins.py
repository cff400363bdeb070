r"""Balls in bins: what it is worth that nobody knows in which batch of the epoch a record is.

Each record is thrown into one of ``b`` bins at random, once; bin ``i`` is the batch of the steps ``i, i + b, …``. To an
adversary the output then is a mixture of ``b`` Gaussians, ``P = ⅟b Σ N(m_i, σ²I)`` with ``m_i`` the sum of the columns
of ``C`` at those steps, instead of ``Q = N(0, σ²I)`` without the record. For encoders without negative entries no
record does worse (Choquette-Choo et al., *Near exact privacy amplification for matrix mechanisms*). With
``L = log dP/dQ``,

    δ(ε) = max( E_P[(1 − e^{ε − L})₊],  E_Q[(1 − e^{ε + L})₊] ),

and ``L`` depends on the output only through its inner products with the ``m_i``, which are ``b`` Gaussians whatever the
number of steps. Both expectations are of numbers between 0 and 1, and are bounded from their means over many samples.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from antiphase._util import checks as check
from antiphase._util.checks import Array

FAILURE = 1e-6  # the chance that a bound is none, over the accountant's own samples
BLOCK = 1 << 14  # samples at a time
LEAST, MOST = 1 << 18, 1 << 27  # samples of one bound


@dataclass(frozen=True)
class Bound:
    """``value`` is not below the truth, but for a chance of ``failure`` over the accountant's own samples."""

    value: float
    samples: int
    failure: float


def delta_bound(
    gram: Array,
    noise_multiplier: float,
    epsilon: float,
    *,
    failure: float = FAILURE,
    samples: int = 1 << 22,
) -> Bound:
    r"""δ of the mechanism at ``epsilon``, from above.   [G7]

    ``gram`` is ``⟨m_i, m_j⟩`` for the bins; the noise multiplier is in units of the largest ``‖m_i‖``.
    """
    mixture = _Mixture(gram, noise_multiplier)
    epsilon = check.real_number("epsilon", epsilon, minimum=0.0)
    samples, failure = (
        check.whole_number("samples", samples),
        check.positive_number("failure", failure),
    )
    rng = mixture.generator("delta", epsilon, samples)
    # PRIVACY: both directions, each with half the chance to fail.   [G7]
    sums = [mixture.excess(epsilon, samples, rng, added).sum() for added in (False, True)]
    return Bound(
        max(above(float(total) / samples, samples, failure / 2) for total in sums), samples, failure
    )


def epsilon_bound(
    gram: Array, noise_multiplier: float, delta: float, *, failure: float = FAILURE
) -> Bound:
    """ε of the mechanism at ``delta``, from above.   [G7]

    Samples of a pilot say where to look. What is returned was certified with samples of its own, and the chances to
    fail of all attempts add up to ``failure``.
    """
    samples = samples_for(delta, failure)
    candidate = likely_epsilon(gram, noise_multiplier, delta, failure=failure)
    for attempt in range(1, 40):
        # PRIVACY: the candidate was settled before these samples were drawn.   [G7]
        found = delta_bound(
            gram, noise_multiplier, candidate, failure=failure / 2**attempt, samples=samples
        )
        if found.value <= delta:
            return Bound(candidate, samples, failure)
        candidate = candidate * (1 + 0.01 * attempt) + 1e-3
    raise ValueError(f"delta = {delta:g}: no ε could be certified with {samples:,} samples")


def samples_for(delta: float, failure: float = FAILURE) -> int:
    """So many that a mean of a fifth of ``delta`` is seen to be below it."""
    wanted = 2 * math.log(2 / failure) / check.positive_number("delta", delta)
    return min(MOST, max(LEAST, 1 << math.ceil(math.log2(wanted))))


def above(mean: float, samples: int, failure: float) -> float:
    """An upper bound on the expectation of numbers in [0, 1], of which so many independent ones have this mean.

    Hoeffding: with any larger expectation so small a mean has a chance of less than ``failure``.
    """
    room = math.log(1 / failure) / samples
    low, high = mean, 1.0
    while low < (middle := low + (high - low) / 2) < high:
        low, high = (low, middle) if _entropy(mean, middle) > room else (middle, high)
    # PRIVACY: the end of the bracket that is certainly above.   [G7]
    return high


def _entropy(p: float, q: float) -> float:
    """Relative, of a coin with chance p to one with chance q."""
    first = p * math.log(p / q) if p > 0 else 0.0
    return first + ((1 - p) * math.log((1 - p) / (1 - q)) if p < 1 else 0.0)


class _Mixture:
    """``P`` and ``Q`` in the inner products with the ``m_i``, over ``σ²``: Gaussians with covariance ``G``; under
    component ``i`` of ``P`` their means are row ``i`` of ``G``, and ``L = log ⅟b Σ exp(u_i − G_ii/2)``."""

    def __init__(self, gram: Array, noise_multiplier: float) -> None:
        gram = check.real_array("gram", gram, ndim=2)
        s = check.positive_number("noise_multiplier", noise_multiplier)
        if (
            gram.shape[0] != gram.shape[1]
            or not len(gram)
            or not np.allclose(gram, gram.T, rtol=1e-9, atol=0.0)
        ):
            raise ValueError(
                f"gram has shape {gram.shape}: a symmetric matrix with a row for every bin is needed"
            )
        # PRIVACY: with a negative entry the mixture is not known to be the worst case.   [G9]
        if (gram < 0).any():
            raise ValueError(
                "gram has negative entries: balls in bins is analysed for encoders without any"
            )
        self._G = gram / (gram.diagonal().max() * s * s)
        values, vectors = np.linalg.eigh(self._G)
        self._root = vectors * np.sqrt(np.maximum(values, 0.0))

    def generator(self, *context: Any) -> np.random.Generator:
        """The same for the same question, so that answers repeat; for another question, another."""
        said = hashlib.sha256(repr((self._G.tobytes(), *context)).encode()).digest()
        return np.random.default_rng(np.frombuffer(said, dtype=np.uint32))

    def losses(self, least: float, samples: int, rng: np.random.Generator, added: bool) -> Array:
        """Of the samples whose ``L`` under P is above ``least`` (or, if ``added``, whose ``−L`` under Q is), that."""
        found, half = [np.empty(0)], self._G.diagonal() / 2
        for first in range(0, samples, BLOCK):
            count = min(BLOCK, samples - first)
            u = rng.standard_normal((count, len(half))) @ self._root.T
            if not added:
                u += self._G[rng.integers(len(half), size=count)]
            u -= half
            # A mean of b exponentials is at most the largest of them, and at least that over b.
            most = u.max(axis=1)
            u = u[most < math.log(len(half)) - least] if added else u[most > least]
            L = scipy.special.logsumexp(u, axis=1) - math.log(len(half))
            loss = -L if added else L
            found.append(loss[loss > least])
        return np.concatenate(found)

    def far_losses(
        self, samples: int, rng: np.random.Generator, out: float = 4.0
    ) -> tuple[Array, Array]:
        """``L`` of samples of P that were moved ``out`` standard deviations further, and what they weigh."""
        i = rng.integers(len(self._G), size=samples)
        own = self._G[i, i]
        far = 1 + out / np.sqrt(own)
        u = rng.standard_normal((samples, len(self._G))) @ self._root.T + far[:, None] * self._G[i]
        weights = np.exp((1 - far) * u[np.arange(samples), i] + (far**2 - 1) * own / 2)
        losses: Array = scipy.special.logsumexp(u - self._G.diagonal() / 2, axis=1) - math.log(
            len(self._G)
        )
        return losses, weights

    def excess(self, epsilon: float, samples: int, rng: np.random.Generator, added: bool) -> Array:
        """``(1 − e^{ε − loss})₊`` of the samples for which it is not 0."""
        return -np.expm1(epsilon - self.losses(epsilon, samples, rng, added))


def likely_epsilon(
    gram: Array,
    noise_multiplier: float,
    delta: float,
    samples: int = 1 << 15,
    failure: float = FAILURE,
) -> float:
    """About the ε that `epsilon_bound` will come to: an estimate that promises nothing, in a moment.

    Samples are drawn where the loss is large, four standard deviations out along the record's own bin, and weighted.
    """
    mixture = _Mixture(gram, noise_multiplier)
    certified = samples_for(delta, failure)
    losses, weights = mixture.far_losses(samples, mixture.generator("likely", delta, samples))

    def enough(epsilon: float) -> bool:
        mean = float(
            np.mean(weights * np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0))
        )
        return mean < 1 and above(mean, certified, failure / 4) <= 0.95 * delta

    if above(0.0, certified, failure / 4) > 0.95 * delta:
        raise ValueError(
            f"delta = {delta:g} is too small for {certified:,} samples, the most that are drawn"
        )
    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
