"""Anderson acceleration of fixed-point iterations."""

from __future__ import annotations

import numpy as np

from antiphase._util.checks import Array

RCOND = 1e-10  # singular values below this, relative to the largest, are ignored


class Anderson:
    """Extrapolation of a fixed-point iteration from its last few steps.

    The caller evaluates each extrapolated point. If it is not better than the current point, the
    caller calls `restart` and takes the plain step, which makes the iteration safe.

    Example:
        >>> anderson, x = Anderson(memory=3), np.array([1.0])
        >>> for _ in range(3):
        ...     step = np.cos(x)
        ...     proposed = anderson.extrapolate(step, step - x, np.ones(1))
        ...     x = step if proposed is None else proposed
        >>> print(x.round(3), np.cos(x).round(3))
        [0.739] [0.739]
    """

    def __init__(self, memory: int) -> None:
        """Remember ``memory`` steps before the current one."""
        self._memory = memory
        self._history: list[tuple[Array, Array]] = []

    def extrapolate(self, step: Array, residual: Array, weight: Array) -> Array | None:
        """Record a plain step, and combine it with earlier ones.

        Args:
            step: the point that the plain iteration goes to.
            residual: its difference from the current point.
            weight: the weight of each entry of the residual.

        Returns:
            The combination of steps whose weighted residual is least, if residuals combine like
            steps; None for the first step and the first after `restart`.
        """
        earlier = self._history[-self._memory :]
        self._history = [*earlier, (step, residual)]
        if not earlier:
            return None
        weighted = residual * weight
        differences = np.column_stack([weighted - other * weight for _, other in earlier])
        theta, *_ = np.linalg.lstsq(differences, weighted, rcond=RCOND)
        mixed = step.copy()
        for t, (other, _) in zip(theta, earlier, strict=True):
            mixed -= t * (step - other)
        return mixed

    def restart(self) -> None:
        """Forget all steps but the last."""
        self._history = self._history[-1:]
