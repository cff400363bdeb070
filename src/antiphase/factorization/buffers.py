"""The search for the best buffers: what each step feeds to each of them, and how fast they decay, all of it free.

``kept`` and ``fed`` say where a buffer is emptied and where nothing enters it. Error and gradient take O(T m²); the
columns are scaled so that the squares of a class of steps add up to 1.
"""

from __future__ import annotations

import numpy as np

from antiphase._checks import Array
from antiphase.factorization.streamed import Stretch
from antiphase.participation import Indices

STEEPEST = 50.0  # |ln ρ| is kept below this


class BufferSearch:
    """``ln error`` of the scaled encoder and its gradient, as a function of ``(ln δ, g, ln ρ)`` in one vector."""

    def __init__(self, P: Array, N: Array, squares: Array, owner: Indices, kept: Array, fed: Array) -> None:
        self._problem, self._owner, self._kept, self._fed = (P, N, squares), owner, kept, fed

    @property
    def buffers(self) -> int:
        return int(self._kept.shape[1])

    def alike(self, decays: Array, scales: Array) -> Array:
        """Parameters that are the same at every step: how fast each buffer decays, and how much it is fed."""
        steps = len(self._kept)
        return np.concatenate([np.zeros(steps), np.tile(scales, steps), np.tile(np.log(decays), steps)])

    def _split(self, x: Array) -> tuple[Array, Array, Array]:
        steps, shape = len(self._kept), self._kept.shape
        g, log_rho = x[steps:].reshape(2, *shape)
        return np.exp(x[:steps]), g * self._fed, np.exp(np.clip(log_rho, -STEEPEST, STEEPEST)) * self._kept

    def scaled(self, x: Array) -> tuple[Array, Array, Array]:
        """The coefficients with columns scaled so that the squares of a class add up to 1."""
        from antiphase.factorization import gradients

        delta, g, rho = self._split(x)
        norms = gradients.norms(delta, g, rho, np.zeros(len(delta)))[0]
        scale = np.bincount(self._owner, norms)[self._owner] ** -0.5
        return delta * scale, g * scale[:, None], rho

    def stretch(self, x: Array, size: int, live: Indices) -> Stretch:
        """What the noise is made with."""
        delta, g, rho = self.scaled(x)
        return Stretch(size, live, delta, np.ones((*rho.shape, 1)), g[..., None], rho[..., None])

    def loss(self, x: Array) -> tuple[float, Array]:
        from antiphase.factorization import gradients

        delta, g, rho = self.scaled(x)
        error, of_delta, of_g, of_rho = gradients.noise(delta, g, rho, *self._problem)
        # The scale of a class follows its sum of squares, which is 1 here: its own part of the gradient.
        by_class = np.bincount(self._owner, of_delta + (of_g * g).sum(axis=1))
        weights: Array = (-0.5 * by_class[self._owner]).astype(np.float64)
        _, *through = gradients.norms(delta, g, rho, weights)
        of_delta, of_g, of_rho = (part + more for part, more in zip((of_delta, of_g, of_rho), through, strict=True))
        raw = self._split(x)[0] / delta  # what the columns were divided by
        slopes = [of_delta, (of_g / raw[:, None] * self._fed).ravel(), of_rho.ravel()]
        return float(np.log(error)), np.concatenate(slopes) / error
