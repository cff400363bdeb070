"""`Spectrum`: the curvatures of a loss with their multiplicities."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from antiphase._util import checks as check

FLATNESS = 1e-12  # share of the largest curvature below which a direction is flat


@dataclass(frozen=True, eq=False, repr=False)
class Spectrum:
    """Curvatures ``values ≥ 0`` and their ``weights``.

    Attributes:
        values: the curvatures.
        weights: how many directions each has; one unless given.
        least: the lowest eigenvalue that was seen. Below 0 the loss is not convex there, and
            ``values`` has such directions as flat.

    Example:
        >>> spectrum = Spectrum([4.0, 1.0], [1, 9])
        >>> spectrum.top, spectrum.dimension, spectrum.mean
        (4.0, 10.0, 1.3)
    """

    values: Any
    weights: Any = None
    least: float = 0.0

    def __post_init__(self) -> None:
        values = check.real_array("values", self.values, ndim=1)
        if not len(values) or (values < 0).any() or not values.any():
            raise ValueError("values of a spectrum must be at least 0, and one above 0")
        weights = np.ones(len(values)) if self.weights is None else self.weights
        weights = check.real_array("weights", weights, ndim=1)
        if len(weights) != len(values):
            raise ValueError(
                f"weights has {len(weights)} entries for {len(values)} values; give one for each"
            )
        if (weights < 0).any() or not (weights * values).any():
            raise ValueError(
                "weights of a spectrum must be at least 0, and above 0 for some positive value"
            )
        least = check.real_number("least", self.least)
        check.set_fields(self, values=values, weights=weights, least=least)

    @property
    def top(self) -> float:
        """``L``: the largest curvature."""
        return float(self.values[self.weights > 0].max())

    @property
    def dimension(self) -> float:
        """Number of directions."""
        return float(self.weights.sum())

    @property
    def mean(self) -> float:
        """The mean curvature over all directions."""
        return float(self.weights @ self.values / self.weights.sum())

    def condensed(self, count: int) -> Spectrum:
        """Return a spectrum of at most ``count`` curvatures, for faster exact expectations.

        Neighbours on a logarithmic scale are replaced by the mean that keeps ``Σ weight·value``,
        and flat directions are dropped. The largest curvature stays by itself.
        """
        count = check.whole_number("count", count, minimum=2)
        kept = (self.weights > 0) & (self.values > FLATNESS * self.top)
        order = np.argsort(self.values[kept])
        values, weights = self.values[kept][order], self.weights[kept][order]
        if len(values) <= count:
            return Spectrum(values, weights, self.least)
        edges = np.geomspace(values[0], values[-2], count)
        place = np.minimum(np.searchsorted(edges[1:-1], values, side="right"), count - 2)
        place[-1] = count - 1
        mass = np.bincount(place, weights, count)
        total = np.bincount(place, weights * values, count)
        used = mass > 0
        return Spectrum(total[used] / mass[used], mass[used], self.least)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as lists and numbers."""
        return {
            "values": self.values.tolist(),
            "weights": self.weights.tolist(),
            "least": self.least,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON, which `load` and ``antiphase recommend --spectrum`` read."""
        Path(path).write_text(json.dumps(self.to_dict()) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Spectrum:
        """Read JSON: a list of curvatures, or ``{"values": […], "weights": […]}``.

        Raises:
            ValueError: the file does not contain a spectrum.
        """
        try:
            content = json.loads(Path(path).read_text())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not JSON: {error}") from error
        fields = {"values": content} if isinstance(content, list) else content
        if (
            not isinstance(fields, dict)
            or "values" not in fields
            or set(fields) - {"values", "weights", "least"}
        ):
            raise ValueError(
                f'{path} must have a list of curvatures, or {{"values": […], "weights": […]}}'
            )
        try:
            return cls(**fields)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} does not contain a spectrum: {error}") from error

    def __repr__(self) -> str:
        return (
            f"<Spectrum, {len(self.values)} curvatures up to {self.top:g}, "
            f"{self.dimension:g} directions>"
        )
