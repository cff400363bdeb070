"""Iterates of gradient descent under given noise, and the virtual sequences of the proofs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from antiphase._util import checks as check
from antiphase._util.checks import Array


def iterates(
    gradient: Callable[[Array], Any], start: Any, noise: Any, learning_rate: float
) -> Array:
    """Return ``x_0 … x_T`` with ``x_{t+1} = x_t − γ(∇f(x_t) + u_{t+1} − u_t)``.

    Args:
        gradient: ``∇f``.
        start: ``x_0``.
        noise: ``u = BZ``, the rows ``u_1 … u_T``.
        learning_rate: γ.
    """
    u = _with_zero(noise)
    x = [np.asarray(start, dtype=np.float64)]
    for t in range(len(u) - 1):
        x.append(x[-1] - learning_rate * (gradient(x[-1]) + u[t + 1] - u[t]))
    return np.array(x)


def virtual_iterates(path: Any, noise: Any, learning_rate: float, tau: int | None = None) -> Array:
    """Return ``x̃_t = x_t + γ(u_t − u_{⌊t/τ⌋τ})`` along a path.

    With ``tau`` this is the restarting sequence (§4.2), without it the plain one (§4.1).
    """
    u = _with_zero(noise)
    t = np.arange(len(u))
    last = np.zeros_like(t) if tau is None else t // check.whole_number("tau", tau) * tau
    return np.asarray(path, dtype=np.float64) + learning_rate * (u - u[last])


def smoothed_iterates(
    gradient: Callable[[Array], Any], start: Any, noise: Any, learning_rate: float
) -> Array:
    """Return SGD with randomized smoothing, ``x̃_{t+1} = x̃_t − γ∇f(x̃_t − γz_t)``.

    These are the iterates of Anti-PGD seen from ``x̃ = x + γz`` (§3).
    """
    z = _with_zero(noise)
    x = [np.asarray(start, dtype=np.float64)]
    for t in range(len(z) - 1):
        x.append(x[-1] - learning_rate * np.asarray(gradient(x[-1] - learning_rate * z[t])))
    return np.array(x)


def _with_zero(noise: Any) -> Array:
    """The rows with ``b_0 = 0`` before the first one."""
    rows = np.asarray(noise, dtype=np.float64)
    return np.concatenate([np.zeros_like(rows[:1]), rows])
