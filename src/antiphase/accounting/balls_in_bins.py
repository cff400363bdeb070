r"""Balls-in-bins sampling: Monte Carlo bounds on ε and δ, and the accountant.

Each record is assigned to one of ``b`` bins uniformly at random, once; bin ``i`` is the batch of
steps ``i, i + b, …``. The dominating pair is the mixture ``P = ⅟b Σ N(m_i, σ²I)``, with ``m_i`` the
sum of the columns of C at those steps, and ``Q = N(0, σ²I)`` without the record; for encoders
without negative entries no record does worse (Choquette-Choo et al., *Near exact privacy
amplification for matrix mechanisms*). With ``L = log dP/dQ``,

    δ(ε) = max( E_P[(1 − e^{ε − L})₊],  E_Q[(1 − e^{ε + L})₊] ),

and L depends on the output only through its inner products with the ``m_i``, which are b Gaussian
variables whatever the number of steps. Both expectations are of variables in [0, 1]; each is
bounded from a sample mean by Hoeffding's inequality.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import scipy

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase.accounting.accountant import Accountant, refuse_replace_one
from antiphase.accounting.gaussian import GaussianAccountant
from antiphase.factorizations.base import Factorization

FAILURE_PROBABILITY = 1e-6  # that a bound fails, over the accountant's own samples
BLOCK_SAMPLES = 1 << 14  # held in memory at a time
MIN_SAMPLES, MAX_SAMPLES = 1 << 18, 1 << 27  # for one bound
MAX_CERTIFICATIONS = 16  # noise multipliers that one calibration may certify
MAX_EPSILON_CANDIDATES = 39  # that one certificate of ε may try
DELTA_SAMPLES = 1 << 22  # for a bound on δ


@dataclass(frozen=True)
class MonteCarloBound:
    """An upper bound that fails with a small probability.

    Attributes:
        value: the bound.
        samples: how many samples it was computed from.
        failure: probability, over these samples, that the true value is larger.
    """

    value: float
    samples: int
    failure: float


def delta_bound(
    gram: Array,
    noise_multiplier: float,
    epsilon: float,
    *,
    failure: float = FAILURE_PROBABILITY,
    samples: int = DELTA_SAMPLES,
) -> MonteCarloBound:
    r"""Upper bound on δ at ε [G7].

    Args:
        gram: inner products ``⟨m_i, m_j⟩`` of the bins' column sums.
        noise_multiplier: standard deviation of the noise, in units of the largest ``‖m_i‖``.
        epsilon: the ε, at least 0.
        failure: probability that the bound fails.
        samples: number of samples in each direction.
    """
    mixture = _Mixture(gram, noise_multiplier)
    epsilon = check.real_number("epsilon", epsilon, minimum=0.0)
    samples = check.whole_number("samples", samples)
    failure = check.positive_number("failure", failure)
    rng = mixture.generator("delta", epsilon, samples)
    # PRIVACY: both directions, each with half the chance to fail.   [G7]
    sums = [mixture.excess(epsilon, samples, rng, added).sum() for added in (False, True)]
    value = max(hoeffding_bound(float(total) / samples, samples, failure / 2) for total in sums)
    return MonteCarloBound(value, samples, failure)


def epsilon_bound(
    gram: Array, noise_multiplier: float, delta: float, *, failure: float = FAILURE_PROBABILITY
) -> MonteCarloBound:
    """Upper bound on ε at δ [G7].

    An estimate proposes a candidate; `delta_bound` certifies it with samples of its own. The
    failure probabilities of all attempts add up to at most ``failure``.

    Raises:
        ValueError: no candidate could be certified.
    """
    samples = required_samples(delta, failure)
    candidate = estimated_epsilon(gram, noise_multiplier, delta, failure=failure)
    for attempt in range(1, MAX_EPSILON_CANDIDATES + 1):
        # PRIVACY: the candidate was settled before these samples were drawn.   [G7]
        bound = delta_bound(
            gram, noise_multiplier, candidate, failure=failure / 2**attempt, samples=samples
        )
        if bound.value <= delta:
            return MonteCarloBound(candidate, samples, failure)
        candidate = candidate * (1 + 0.01 * attempt) + 1e-3
    raise ValueError(f"delta = {delta:g}: no ε could be certified with {samples:,} samples")


def required_samples(delta: float, failure: float = FAILURE_PROBABILITY) -> int:
    """Number of samples that show a mean of a fifth of ``delta`` to be below it."""
    wanted = 2 * math.log(2 / failure) / check.positive_number("delta", delta)
    return min(MAX_SAMPLES, max(MIN_SAMPLES, 1 << math.ceil(math.log2(wanted))))


def hoeffding_bound(mean: float, samples: int, failure: float) -> float:
    """Upper bound on the expectation of variables in [0, 1], from the mean of independent samples.

    Hoeffding's inequality in its form with relative entropy: for any larger expectation, a mean
    this small has a probability of less than ``failure``.
    """
    room = math.log(1 / failure) / samples
    low, high = mean, 1.0
    while low < (middle := low + (high - low) / 2) < high:
        low, high = (low, middle) if _relative_entropy(mean, middle) > room else (middle, high)
    # PRIVACY: the end of the bracket that is certainly above.   [G7]
    return high


def _relative_entropy(p: float, q: float) -> float:
    """Of a Bernoulli variable with mean p to one with mean q."""
    first = p * math.log(p / q) if p > 0 else 0.0
    return first + ((1 - p) * math.log((1 - p) / (1 - q)) if p < 1 else 0.0)


class _Mixture:
    """P and Q in terms of ``u_i = ⟨output, m_i⟩/σ²``.

    With ``G = gram/σ²``, u is Gaussian with covariance G; its mean is row i of G under component i
    of P, and 0 under Q. The loss is ``L = log ⅟b Σ exp(u_i − G_ii/2)``.
    """

    def __init__(self, gram: Array, noise_multiplier: float) -> None:
        gram = check.real_array("gram", gram, ndim=2)
        s = check.positive_number("noise_multiplier", noise_multiplier)
        square = gram.shape[0] == gram.shape[1] > 0
        if not square or not np.allclose(gram, gram.T, rtol=1e-9, atol=0.0):
            raise ValueError(
                f"gram has shape {gram.shape}: it must be symmetric, with a row for each bin"
            )
        # PRIVACY: with a negative entry the mixture is not known to be the worst case.   [G9]
        if (gram < 0).any():
            raise ValueError(
                "gram has negative entries: balls-in-bins sampling is analysed only for encoders "
                "without any"
            )
        self._G = gram / (gram.diagonal().max() * s * s)
        values, vectors = np.linalg.eigh(self._G)
        self._root = vectors * np.sqrt(np.maximum(values, 0.0))

    def generator(self, *context: Any) -> np.random.Generator:
        """Random numbers that are the same whenever the same question is asked."""
        digest = hashlib.sha256(repr((self._G.tobytes(), *context)).encode()).digest()
        return np.random.default_rng(np.frombuffer(digest, dtype=np.uint32))

    def losses(
        self, threshold: float, samples: int, rng: np.random.Generator, added: bool
    ) -> Array:
        """Privacy losses above a threshold, among so many samples.

        Losses are L under P or, if ``added``, −L under Q.
        """
        above, half = [np.empty(0)], self._G.diagonal() / 2
        for first in range(0, samples, BLOCK_SAMPLES):
            count = min(BLOCK_SAMPLES, samples - first)
            u = rng.standard_normal((count, len(half))) @ self._root.T
            if not added:
                u += self._G[rng.integers(len(half), size=count)]
            u -= half
            # A mean of b exponentials is at most the largest of them, and at least that over b.
            largest = u.max(axis=1)
            u = u[largest < math.log(len(half)) - threshold] if added else u[largest > threshold]
            L = scipy.special.logsumexp(u, axis=1) - math.log(len(half))
            loss = -L if added else L
            above.append(loss[loss > threshold])
        return np.concatenate(above)

    def importance_sampled_losses(
        self, samples: int, rng: np.random.Generator, deviations: float = 4.0
    ) -> tuple[Array, Array]:
        """L for samples of P that are moved by so many standard deviations, and their weights."""
        i = rng.integers(len(self._G), size=samples)
        own = self._G[i, i]
        far = 1 + deviations / np.sqrt(own)
        u = rng.standard_normal((samples, len(self._G))) @ self._root.T + far[:, None] * self._G[i]
        weights = np.exp((1 - far) * u[np.arange(samples), i] + (far**2 - 1) * own / 2)
        L: Array = scipy.special.logsumexp(u - self._G.diagonal() / 2, axis=1)
        return L - math.log(len(self._G)), weights

    def excess(self, epsilon: float, samples: int, rng: np.random.Generator, added: bool) -> Array:
        """``(1 − e^{ε − loss})₊`` of the samples for which it is not 0."""
        return -np.expm1(epsilon - self.losses(epsilon, samples, rng, added))


def estimated_epsilon(
    gram: Array,
    noise_multiplier: float,
    delta: float,
    samples: int = 1 << 15,
    failure: float = FAILURE_PROBABILITY,
) -> float:
    """Fast estimate of what `epsilon_bound` will return, without any guarantee.

    Samples are drawn where the loss is large, by importance sampling along the record's own bin.

    Raises:
        ValueError: ``delta`` is too small for `MAX_SAMPLES`.
    """
    mixture = _Mixture(gram, noise_multiplier)
    certified = required_samples(delta, failure)
    losses, weights = mixture.importance_sampled_losses(
        samples, mixture.generator("likely", delta, samples)
    )

    def is_enough(epsilon: float) -> bool:
        excess = np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0)
        mean = float(np.mean(weights * excess))
        return mean < 1 and hoeffding_bound(mean, certified, failure / 4) <= 0.95 * delta

    if hoeffding_bound(0.0, certified, failure / 4) > 0.95 * delta:
        raise ValueError(
            f"delta = {delta:g} is too small for {certified:,} samples, the most that are drawn"
        )
    low, high = 0.0, 1.0
    while not is_enough(high):
        low, high = high, 2 * high
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


class BallsInBinsAccountant(Accountant):
    """Random assignment of records to batches; never worse than no amplification."""

    def __init__(self, factorization: Factorization, adjacency: str = "zero-out") -> None:
        super().__init__(factorization, adjacency)
        refuse_replace_one(self._adjacency)
        self._unamplified = GaussianAccountant(factorization, adjacency)
        if not factorization.participation.fixed_order:
            raise ValueError(
                f"participation = {factorization.participation!r}: balls-in-bins sampling takes a "
                "record once in every epoch; design for epochs(…) or once()"
            )
        # PRIVACY: with negative entries the mixture is not known to be the worst case.   [G9]
        if factorization.encoder().min() < 0:
            raise ValueError(
                f"{factorization.name} has negative entries: balls-in-bins sampling is analysed "
                "only for encoders without any"
            )

    @cached_property
    def _gram(self) -> Array:
        f = self._factorization
        patterns = f.participation.patterns(f.steps)
        sums = np.array([f.encoder()[:, pattern].sum(axis=1) for pattern in patterns])
        gram: Array = sums @ sums.T
        return gram

    @property
    def sensitivity(self) -> float:
        """That of the encoder under its participation."""
        # PRIVACY: that of a record whose bin is known, rounded as everywhere else.   [G1]
        return self._factorization.sensitivity

    def epsilon(self, noise_multiplier: float, delta: float, rows: int) -> float:
        """Upper bound on ε of all rows, or that of the first rows without amplification."""
        # PRIVACY: fewer rows can only cost less than all of them, and hiding can only help.   [G7]
        return min(
            self._unamplified.epsilon(noise_multiplier, delta, rows),
            self._certified(noise_multiplier, delta),
        )

    def delta(self, noise_multiplier: float, epsilon: float, rows: int) -> float:
        """Upper bound on δ of all rows, or that of the first rows without amplification."""
        bound = delta_bound(self._gram, noise_multiplier, epsilon)
        return min(self._unamplified.delta(noise_multiplier, epsilon, rows), bound.value)

    def noise_multiplier(self, epsilon: float, delta: float) -> float:
        """A noise multiplier whose ε was certified.

        Estimates find where to look; `epsilon` returns the same certificate afterwards.
        """
        unamplified = self._unamplified.noise_multiplier(epsilon, delta)
        low, high = unamplified / 64, unamplified
        failure = FAILURE_PROBABILITY / MAX_CERTIFICATIONS
        while high / low > 1.002:
            middle = math.sqrt(low * high)
            estimate = estimated_epsilon(self._gram, middle, delta, failure=failure)
            low, high = (low, middle) if estimate <= epsilon else (middle, high)
        # PRIVACY: its ε was certified; the failure probabilities of all certificates add up.   [G7]
        for _ in range(MAX_CERTIFICATIONS):
            if high >= unamplified or self._certified(high, delta) <= epsilon:
                return min(high, unamplified)
            high *= 1.005
        return unamplified

    def epsilon_of_runs(self, noise_multiplier: float, delta: float, runs: Sequence[int]) -> float:
        """Upper bound on ε of several runs, without amplification."""
        return self._unamplified.epsilon_of_runs(noise_multiplier, delta, runs)

    def caveat(self) -> str:
        """The probability that the bound fails."""
        return (
            "The ε of balls-in-bins sampling was bounded by Monte Carlo sampling; the bound fails "
            f"with probability {FAILURE_PROBABILITY:g}."
        )

    def _certified(self, noise_multiplier: float, delta: float) -> float:
        return _certified_epsilon(self._gram.tobytes(), noise_multiplier, delta)


@lru_cache(maxsize=256)
def _certified_epsilon(gram: bytes, noise_multiplier: float, delta: float) -> float:
    """`epsilon_bound`, computed once for all accountants."""
    G = np.frombuffer(gram)
    failure = FAILURE_PROBABILITY / MAX_CERTIFICATIONS
    G = G.reshape(math.isqrt(G.size), -1)
    return epsilon_bound(G, noise_multiplier, delta, failure=failure).value
