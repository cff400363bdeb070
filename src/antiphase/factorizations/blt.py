r"""`Blt`: buffered linear Toeplitz encoders.

``c_0 = 1`` and ``c_n = Σ_k α_k θ_k^{n−1}`` with scales α and decays θ.

The noise of such an encoder keeps one vector for each buffer: ``y = z − αᵀS``, ``S ← θS + y``. If
``Σα`` is at most 1, the coefficients do not increase, and the sensitivity is exact for every
participation. Due to McMahan, Xu and Zhang (2024).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphase._util import checks as check
from antiphase._util import files
from antiphase._util.checks import Array
from antiphase.factorizations.segments import MAX_BUFFERS, Segment, Stream
from antiphase.factorizations.toeplitz import ToeplitzEncoder


@dataclass(frozen=True, eq=False, repr=False)
class Blt(ToeplitzEncoder):
    """The encoder with ``decays`` θ and ``scales`` α, one of each for every buffer."""

    decays: Array
    scales: Array

    def __post_init__(self) -> None:
        decays, scales = (
            check.real_array(name, getattr(self, name), ndim=1) for name in ("decays", "scales")
        )
        if len(decays) != len(scales) or not len(decays):
            raise ValueError(
                f"{len(decays)} decays and {len(scales)} scales: every buffer needs one of each"
            )
        if len(decays) > MAX_BUFFERS:
            raise ValueError(f"{len(decays)} buffers; at most {MAX_BUFFERS} are allowed")
        if not ((decays > 0) & (decays < 1)).all() or not (scales >= 0).all():
            raise ValueError(
                "decays of buffers must lie between 0 and 1, and scales must not be negative"
            )
        check.set_fields(self, decays=decays, scales=scales)

    @cached_property
    def coefficients(self) -> Array:
        """``c_0, …, c_{T−1}``."""
        return coefficients(self.decays, self.scales, self.steps)

    @property
    def bands(self) -> int:
        """Number of diagonals: all of them."""
        return self.steps

    @property
    def buffers(self) -> int:
        """Number of vectors that the noise keeps."""
        return len(self.decays)

    @cached_property
    def _stream(self) -> Stream:
        shape = (self.steps, len(self.decays), 1)
        move, r = (np.broadcast_to(values[:, None], shape) for values in (self.decays, self.scales))
        live, delta = np.arange(self.steps), np.ones(self.steps)
        return Stream((Segment(self.steps, live, delta, r, np.ones(shape), move),), (0,))

    def as_stream(self) -> Stream:
        """Return the buffers, with the same coefficients at every step."""
        return self._stream

    def noise_form(self) -> Stream:
        """Noise is made from the buffers."""
        return self._stream

    def _build_encoder(self) -> Array:
        return self._stream.dense()

    def _iterate_variances(self, P: Array, N: Array) -> Array:
        return self._stream.variances(P, N, self.workload.delay)


def coefficients(decays: Array, scales: Array, steps: int) -> Array:
    """Return ``c_0, …, c_{T−1}``.

    Example:
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
