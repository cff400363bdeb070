"""Worst-case canary of a mechanism, and simulated trials with and without it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase.mechanism import Mechanism
from antiphase.noise import Key


@dataclass(frozen=True, eq=False)
class MechanismTrials:
    """Trials of a mechanism's noise, for `audit` and (by `one_run`) for `audit_one_run`.

    Each trial is a model with one parameter. The canary's gradient has the clip norm in all steps
    of the participation pattern with the highest sensitivity. The score is the log-likelihood
    ratio of the released rows, in standard deviations: the most powerful test if
    gradients in a single direction attain the sensitivity.

    Args:
        mechanism: a mechanism without amplification by sampling.
        key: the source of the noise, by default a new random key.

    Example:
        >>> import antiphase as ap
        >>> mechanism = ap.calibrate(ap.design("dp-mf", steps=8), noise_multiplier=1.0, delta=1e-5)
        >>> MechanismTrials(mechanism)(canary=True, trials=5).shape
        (5,)
    """

    mechanism: Mechanism
    key: Key = field(default_factory=Key.generate)

    def __post_init__(self) -> None:
        check.instance("mechanism", self.mechanism, Mechanism)
        if self.mechanism.amplified:
            raise ValueError(
                f"sampling = {self.mechanism.sampling}: whether a record is in a batch is decided "
                "in training, not by the mechanism; audit the training function"
            )

    @property
    def canary(self) -> Array:
        """Gradient of the canary in each step, in clip norms: 1, −1, or 0 where it is absent."""
        f = self.mechanism.factorization
        columns, best = f.encoder_columns(), (0.0, np.zeros(f.steps))
        for pattern in f.participation.patterns(f.steps):
            gram = columns.gram(pattern)
            if (gram < 0).any():
                signs = np.where(np.linalg.eigh(gram)[1][:, -1] < 0, -1.0, 1.0)
            else:
                signs = np.ones(len(gram))
            if (square := float(signs @ gram @ signs)) > best[0]:
                best = square, np.zeros(f.steps)
                best[1][pattern] = signs
        return best[1]

    def score(self, released: Array, canary: Array | None = None) -> Array:
        """Score of each column of ``released``.

        Standard normal without the canary, if the noise is the mechanism's.

        Args:
            released: a row for each step: what was released, minus what is known of it.
            canary: the gradient of another canary in each step, in any unit.
        """
        C = self.mechanism.factorization.encoder()
        shift = C @ (self.canary if canary is None else canary)
        weights = C.T @ shift / (np.linalg.norm(shift) * self.mechanism.noise_scale)
        return weights @ released

    def __call__(self, canary: bool, trials: int) -> Array:
        """Scores of independent trials with or without the canary."""
        return self.one_run(np.full(trials, canary))

    def one_run(self, included: NDArray[np.bool_]) -> Array:
        """Score of each canary of one run; each has a coordinate of its own."""
        m = self.mechanism
        rows = np.array(list(m.noise(len(included), key=self.key)), dtype=np.float64)
        absent = -1.0 if m.adjacency == "replace-one" else 0.0
        gradients = m.clip_norm * np.outer(self.canary, np.where(included, 1.0, absent))
        return self.score(rows + gradients)
