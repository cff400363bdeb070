"""What one user may add to a round: an update of the right shape, finite, and clipped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from antiphase._util.checks import Array

A_LITTLE_LESS = (
    1 - 1e-9
)  # float64 norms are good to 1e-13: what is clipped so is never longer than the clip norm
SQUARES_OVERFLOW = 1e150

Shapes = Mapping[str, tuple[int, ...]]


class MisshapenError(ValueError):
    """An update has other tensors than the model, or none that are numbers."""


class NotFiniteError(ValueError):
    """An update has a NaN or an infinity."""


def clipped(update: Any, shapes: Shapes, clip_norm: float) -> tuple[dict[str, Array], bool]:
    """``update`` in float64, no longer than ``clip_norm``, and whether it had to be shortened for that.

    Guarantee: the norm over all tensors together is at most ``clip_norm``, however large the numbers were; what is
    not finite or has another shape is refused.   [G19]
    """
    arrays = _read(update, shapes)
    # PRIVACY: 0 · NaN is NaN: what is not finite contributes nothing at all.   [G19]
    if not all(np.isfinite(a).all() for a in arrays.values()):
        raise NotFiniteError("an update that is not finite")
    peak = max(float(np.abs(a).max()) for a in arrays.values())
    unit = peak if peak > SQUARES_OVERFLOW else 1.0
    # PRIVACY: one norm for all tensors of a user together, since the sensitivity is that of the whole row.   [G19]
    norm = unit * math.sqrt(
        sum(float(np.dot(flat, flat)) for flat in (a.ravel() / unit for a in arrays.values()))
    )
    limit = clip_norm * A_LITTLE_LESS
    if norm <= limit:
        return arrays, False
    return {name: array * (limit / norm) for name, array in arrays.items()}, True


def _read(update: Any, shapes: Shapes) -> dict[str, Array]:
    if not isinstance(update, Mapping) or update.keys() != shapes.keys():
        raise MisshapenError("an update has one array for each tensor of the model, and no other")
    arrays: dict[str, Array] = {}
    for name, shape in shapes.items():
        try:
            given = np.asarray(update[name])
            if given.dtype.kind not in "fiu" or given.shape != shape:
                raise MisshapenError(
                    f"{name}: {given.dtype} of shape {given.shape}, and not of {shape}"
                )
            with np.errstate(
                over="ignore"
            ):  # a longdouble may become an infinity, and is refused as one
                arrays[name] = given.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise MisshapenError(f"{name}: no array of numbers of shape {shape}") from error
    return arrays
