"""Clipping of user updates; other shapes and infinities are refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from antiphase._util.checks import Array

CLIP_MARGIN = 1 - 1e-9  # float64 norms are accurate to 1e-13, so no clipped norm is above the limit
MAX_SQUARABLE = 1e150  # entries up to which squares do not overflow

Shapes = Mapping[str, tuple[int, ...]]


class ShapeError(ValueError):
    """An update has other tensors than the model, or tensors that are not numbers."""


class NotFiniteError(ValueError):
    """An update has a NaN or an infinity."""


def clip(update: Any, shapes: Shapes, clip_norm: float) -> tuple[dict[str, Array], bool]:
    """Clip an update to ``clip_norm``, over all tensors together.

    Guarantee: the norm of the result is at most ``clip_norm``, however large the entries are.
    Updates that are not finite or have another shape are refused.   [G19]

    Args:
        update: arrays by name.
        shapes: the expected names and shapes.
        clip_norm: the limit.

    Returns:
        The update in float64, and whether it was shortened.

    Raises:
        ShapeError: other names, other shapes, or no numbers.
        NotFiniteError: a NaN or an infinity.
    """
    arrays = _float64(update, shapes)
    # PRIVACY: 0 · NaN is NaN: what is not finite contributes nothing at all.   [G19]
    if not all(np.isfinite(a).all() for a in arrays.values()):
        raise NotFiniteError("the update is not finite")
    largest = max(float(np.abs(a).max()) for a in arrays.values())
    unit = largest if largest > MAX_SQUARABLE else 1.0
    flat = (a.ravel() / unit for a in arrays.values())  # one copy at a time
    # PRIVACY: one norm for all tensors of a user together, since the sensitivity is that of the
    # whole row.   [G19]
    norm = unit * math.sqrt(sum(float(np.dot(a, a)) for a in flat))
    limit = clip_norm * CLIP_MARGIN
    if norm <= limit:
        return arrays, False
    return {name: array * (limit / norm) for name, array in arrays.items()}, True


def _float64(update: Any, shapes: Shapes) -> dict[str, Array]:
    if not isinstance(update, Mapping) or update.keys() != shapes.keys():
        raise ShapeError("an update must have one array for each tensor of the model, and no other")
    arrays: dict[str, Array] = {}
    for name, shape in shapes.items():
        try:
            array = np.asarray(update[name])
            if array.dtype.kind not in "fiu" or array.shape != shape:
                raise ShapeError(f"{name}: {array.dtype} of shape {array.shape}, not {shape}")
            with np.errstate(over="ignore"):  # a longdouble may become infinite, and is refused
                arrays[name] = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ShapeError(f"{name}: not an array of numbers of shape {shape}") from error
    return arrays
