r"""Buffered linear Toeplitz encoders (BLT; McMahan, Xu and Zhang 2024): ``c_0 = 1``, ``c_n = Σ_k α_k θ_k^{n−1}``.

The noise of such an encoder needs as many vectors as there are buffers: ``y = z − αᵀS``, ``S ← θS + y``. A few numbers
``0 < θ < 1`` and ``α > 0`` say all; they are found by descent from several starts, with the error of `steady`.
Coefficients of this form are positive and fall (``Σα`` is at most 1), so the sensitivity is exact for every
participation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from antiphase._util import checks as check
from antiphase._util import files
from antiphase._util.checks import Array
from antiphase.factorizations.base import Factorization
from antiphase.factorizations.streaming import MOST_BUFFERS, Segment, Streaming
from antiphase.factorizations.toeplitz import ToeplitzColumns
from antiphase.sensitivity import Columns


@dataclass(frozen=True, eq=False, repr=False)
class Blt(Factorization):
    """The encoder of these ``decays`` θ and ``scales`` α, one of each for every buffer."""

    decays: Array
    scales: Array

    def __post_init__(self) -> None:
        decays, scales = (
            check.real_array(name, getattr(self, name), ndim=1) for name in ("decays", "scales")
        )
        if len(decays) != len(scales) or not len(decays):
            raise ValueError(
                f"{len(decays)} decays and {len(scales)} scales: one of each is needed for every buffer"
            )
        if len(decays) > MOST_BUFFERS:
            raise ValueError(f"{len(decays)} buffers; {MOST_BUFFERS} are the most there can be")
        if not ((decays > 0) & (decays < 1)).all() or not (scales >= 0).all():
            raise ValueError(
                "decays of buffers must lie between 0 and 1, and scales must not be negative"
            )
        object.__setattr__(self, "decays", decays)
        object.__setattr__(self, "scales", scales)

    @cached_property
    def coefficients(self) -> Array:
        return coefficients(self.decays, self.scales, self.steps)

    @cached_property
    def stream(self) -> Streaming:
        """The same encoder as a stream: what makes the noise, and what is judged."""
        shape = (self.steps, len(self.decays), 1)
        move, r = (np.broadcast_to(values[:, None], shape) for values in (self.decays, self.scales))
        segment = Segment(
            self.steps, np.arange(self.steps), np.ones(self.steps), r, np.ones(shape), move
        )
        return Streaming(
            self.name, self.workload, self.objective, self.participation, (segment,), (0,)
        )

    @property
    def buffers(self) -> int:
        """How many vectors the noise keeps."""
        return len(self.decays)

    @property
    def bands(self) -> int:
        return self.steps

    def _build_encoder(self) -> Array:
        return np.array(self.stream.encoder())

    def _columns(self, rows: int | None = None) -> Columns:
        steps = self.steps if rows is None else rows
        return ToeplitzColumns(self.coefficients, np.ones(steps), steps)

    def _variances(self, P: Array, N: Array) -> Array:
        return self.stream._variances(P, N)

    def _stored(self) -> dict[str, Any]:
        return {"decays": self.decays, "scales": self.scales}

    @classmethod
    def _restored(cls, common: dict[str, Any], stored: dict[str, Any]) -> Factorization:
        return cls(**common, decays=stored["decays"], scales=stored["scales"])


def coefficients(decays: Array, scales: Array, steps: int) -> Array:
    """``c_0 … c_{T−1}``.

    >>> coefficients(np.array([0.5]), np.array([0.25]), 4)
    array([1.    , 0.25  , 0.125 , 0.0625])
    """
    entries = steps * len(decays)
    files.spend(
        f"steps = {steps}: {len(decays)} buffers", memory=16 * entries, operations=20 * entries
    )
    with np.errstate(under="ignore"):
        powers = decays ** np.arange(steps - 1)[:, None]
    return np.concatenate([[1.0], powers @ scales])
