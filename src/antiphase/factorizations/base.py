"""`Factorization`: a workload split as ``A = B C``, what it promises and how good it is."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import scipy

from antiphase._util import files
from antiphase._util.checks import Array
from antiphase.errors import FileFormatError, TooLargeError
from antiphase.objective import Objective
from antiphase.participation import Participation
from antiphase.sensitivity import Columns, DenseColumns, is_exact, sensitivity
from antiphase.workload import Workload

MALFORMED = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    IndexError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)


@dataclass(frozen=True, eq=False, repr=False)
class Factorization(ABC):
    """``A = B C`` with a lower-triangular encoder ``C``; training adds ``sens(C)·C⁻¹Z`` to the clipped gradients.

    Every figure is computed from the encoder itself when it is first asked for, never taken from whoever made or
    stored it.

    Guarantee: ``encoder()`` is lower triangular with a positive diagonal, ``decoder() @ encoder()`` is the workload.
    [G3]
    Guarantee: ``lower_bound <= error`` and no factorization of this workload, objective and participation has an
    error below ``lower_bound``.   [G5]
    """

    name: str
    workload: Workload
    objective: Objective
    participation: Participation
    options: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    bound: float | None = field(default=None, kw_only=True)

    form: ClassVar[str]  # the name of the class in files, which outlives its name in the code
    _forms: ClassVar[dict[str, type[Factorization]]] = {}

    def __init_subclass__(cls, form: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.form = form or cls.__name__
        Factorization._forms[cls.form] = cls

    # ---- what a way to factor says of itself ---------------------------------------------------------------

    @abstractmethod
    def _build_encoder(self) -> Array:
        """``C`` as a T × T array."""

    def _stored(self) -> dict[str, Any]:
        """What `_restored` needs beyond the fields above; nothing, for encoders that a formula gives."""
        return {}

    @classmethod
    def _restored(cls, common: dict[str, Any], stored: dict[str, Any]) -> Factorization:
        return cls(**common)

    def _columns(self, rows: int | None = None) -> Columns:
        """The columns of the encoder, or of its leading block: all that the first ``rows`` rows of noise protect."""
        return DenseColumns(self.encoder()[:rows, :rows])

    @property
    def bands(self) -> int:
        """How many diagonals of the encoder are not zero, from the main one down to the last."""
        rows, columns = np.nonzero(self.encoder())
        return int((rows - columns).max()) + 1

    def band_rows(self, start: int, stop: int) -> Array:
        """``C[t, t − i]`` for ``t`` in the range and ``i < bands``: the encoder by diagonals."""
        back = np.arange(start, stop)[:, None] - np.arange(self.bands)
        rows: Array = np.where(
            back >= 0, self.encoder()[np.arange(start, stop)[:, None], back], 0.0
        )
        return rows

    def restarts(self) -> list[int]:
        """The steps before which the noise forgets the past; the first, and no other unless the encoder restarts."""
        return [0]

    def diagonal_blocks(self) -> list[tuple[int, Array]]:
        """``(start, block)`` of the encoder's independent diagonal blocks; one, unless it restarts."""
        return [(0, self.encoder())]

    # ---- how good it is ------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        return self.workload.steps

    @cached_property
    def sensitivity(self) -> float:
        """``sens(C)`` under this participation; never too small."""
        # PRIVACY: computed from the encoder in use, whatever a design or a file claims.   [G1]
        return sensitivity(self._columns(), self.participation)

    def sensitivity_of(self, rows: int) -> float:
        """The sensitivity of what the first ``rows`` rows release: that of the encoder's leading block."""
        # PRIVACY: C is lower triangular, so the first rows of C·G + Z see only its leading block.   [G1]
        return sensitivity(self._columns(rows), self.participation) if rows else 0.0

    @cached_property
    def sensitivity_is_exact(self) -> bool:
        """Whether `sensitivity` is attained, or only an upper bound."""
        return is_exact(self._columns(), self.participation)

    @cached_property
    def error(self) -> float:
        """``sens(C)²·‖ΛB‖_F²``: the expected squared noise, summed over the weighted iterates, at noise multiplier
        1."""
        return self.error_under(self.objective)

    @cached_property
    def lower_bound(self) -> float:
        """A certified bound: the error of no factorization is below it. For those not designed to be optimal it is
        computed when first asked for, by solving for the optimum."""
        if self.bound is not None:
            return self.bound
        from antiphase.solvers.dispatch import best_bound

        return best_bound(self.workload, self.objective, self.participation)

    @property
    def gap(self) -> float:
        """``error / lower_bound − 1``: at most so much better could any factorization be."""
        return max(self.error / self.lower_bound - 1.0, 0.0)

    @cached_property
    def noise_per_iterate(self) -> Array:
        """``sens(C)²·‖b_t‖²``: the variance of the noise inside each iterate, at noise multiplier and clip norm 1."""
        variances = (
            None if self.workload.recurrence is None else self._variances(*self.workload.recurrence)
        )
        if variances is None:
            variances = self._noise_squared(self.workload.dense())
        noise: Array = self.sensitivity**2 * variances
        return noise

    def error_under(self, objective: Objective) -> float:
        """The error of this same encoder, judged by another objective."""
        return self.sensitivity**2 * self._total_noise(objective)

    def _total_noise(self, objective: Objective) -> float:
        """``‖ΛB‖_F² = ‖M C⁻¹‖_F²``."""
        followed = objective.recurrence(self.workload)
        variances = None if followed is None else self._variances(followed.P, followed.N)
        if followed is None or variances is None:
            return objective.total(self._noise_squared(objective.root(self.workload)))
        return objective.total(followed.weights**2 * variances)

    def _variances(self, P: Array, N: Array) -> Array | None:
        """The variance of every ``u_t``, ``P u = N Z^delay C⁻¹z``, without a matrix; None where there is no way."""
        return None

    def _noise_squared(self, root: Array) -> Array:
        """The squared norms of the rows of ``root·C⁻¹``."""
        rows = scipy.linalg.solve_triangular(self.encoder(), root.T, lower=True, trans="T")
        squared: Array = np.einsum("ij,ij->j", rows, rows)
        return squared

    # ---- the matrices --------------------------------------------------------------------------------------

    @cached_property
    def _encoder(self) -> Array:
        refuse_if_too_large(self.steps)
        encoder = self._build_encoder()
        encoder.setflags(write=False)
        return encoder

    def encoder(self) -> Array:
        """``C``, lower triangular, T × T."""
        return self._encoder

    def decoder(self) -> Array:
        """``B = A C⁻¹``: row t is the noise inside iterate t."""
        decoder: Array = scipy.linalg.solve_triangular(
            self.encoder(), self.workload.dense().T, lower=True, trans="T"
        ).T
        return np.tril(decoder)

    def noising(self) -> Array:
        """``C⁻¹``: row t of ``C⁻¹Z`` is what step t adds."""
        inverse: Array = scipy.linalg.solve_triangular(
            self.encoder(), np.eye(self.steps), lower=True
        )
        return inverse

    # ---- files, and words ----------------------------------------------------------------------------------

    def content(self) -> dict[str, Any]:
        """All that `restore` needs, as nested dictionaries of numbers, strings, values and arrays."""
        return {
            "what": "factorization",
            "form": self.form,
            "name": self.name,
            "workload": self.workload,
            "objective": self.objective,
            "participation": self.participation,
            "options": dict(self.options),
            "bound": self.bound,
            "stored": self._stored(),
        }

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the factorization to a file, whole or not at all, and return the file's digest."""
        return files.write(path, self.content())

    def __repr__(self) -> str:
        options = "".join(
            f" {name}={value!s}"
            for name, value in self.options.items()
            if isinstance(value, int | float | str)
        )
        words = [f"{self.name}{options}: {self.steps} steps, {self.participation.describe()}"]
        if self.workload.describe() != "sgd":
            words.append(self.workload.describe())
        words.append(f"error {self.error:.6g}")
        if "lower_bound" in self.__dict__ or self.bound is not None:
            words.append(
                f"gap {self.gap:.1e}"
                if self.gap < 0.1
                else f"{self.error / self.lower_bound:.3g} × the optimum"
            )
        words.append(f"sensitivity {self.sensitivity:.6g}")
        return f"<Factorization {', '.join(words)}>"


def restore(content: Any, source: Any) -> Factorization:
    """The factorization that `Factorization.content` described; ``source`` is named in errors.

    Guarantee: nothing is executed; the sensitivity is that of the encoder described, not one that is claimed.   [G6]
    """
    try:
        if content.get("what") != "factorization":
            raise FileFormatError(f"{source}: holds a {content['what']!r}, not a factorization")
        kind = Factorization._forms[content["form"]]
        _require_backing(content["workload"])
        common: dict[str, Any] = {
            "name": str(content["name"]),
            "workload": Workload.restore(content["workload"]),
            "objective": Objective.restore(content["objective"]),
            "participation": Participation.restore(content["participation"]),
            "options": dict(content["options"]),
            "bound": None if content["bound"] is None else float(content["bound"]),
        }
        common["participation"].require_cover(common["workload"].steps)
        return kind._restored(common, content["stored"])
    except FileFormatError:
        raise
    except MALFORMED as error:
        raise FileFormatError(f"{source}: not a valid factorization ({error})") from error


def _require_backing(workload: Any) -> None:
    """Refuse a stored workload whose steps are a number alone: a few bytes could ask for 10⁷ steps."""
    stored = (
        workload.get("matrix") if workload["matrix"] is not None else workload["learning_rates"]
    )
    if (
        not isinstance(stored, np.ndarray)
        or stored.dtype != np.float64
        or len(stored) != workload["steps"]
    ):
        raise ValueError(
            f"steps = {workload['steps']!r}: the stored workload must have a float64 number, or row, for each step"
        )


def packed_triangle(stored: dict[str, Any], steps: int) -> Array:
    """``stored["lower"]``, the lower triangle of a T × T encoder; refused if it has not all the entries."""
    lower = stored["lower"]
    if (
        not isinstance(lower, np.ndarray)
        or lower.dtype != np.float64
        or lower.shape != (steps * (steps + 1) // 2,)
    ):
        raise ValueError(
            f"steps = {steps}: the stored encoder must have {steps * (steps + 1) // 2} float64 numbers"
        )
    return lower


def refuse_if_too_large(steps: int, copies: int = 3) -> None:
    """Raise `TooLargeError` if a few T × T arrays would not fit in the memory that is free now."""
    needed, free = copies * 8 * steps**2, _free_memory()
    files.spend(f"steps = {steps}: a dense encoder", memory=needed)
    if needed > free:
        raise TooLargeError(
            f"steps = {steps}: a dense {steps} × {steps} array and its working copies need {needed / 2**30:.0f} GiB, "
            f"and {free / 2**30:.0f} GiB are free. Use fewer steps or a form that needs no dense matrix"
        )


def _free_memory() -> int:
    """Bytes that can be used now; 8 GiB where the system does not say."""
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return 8 << 30


def lower_triangular(encoder: Any, steps: int) -> Array:
    """``encoder`` as an array that may serve as ``C``; raises ValueError if it may not."""
    C = np.array(encoder, dtype=np.float64)
    if C.shape != (steps, steps):
        raise ValueError(f"encoder has shape {C.shape}; {(steps, steps)} is needed")
    if not np.isfinite(C).all():
        raise ValueError("encoder has entries that are not finite")
    if np.triu(C, 1).any():
        raise ValueError(
            "encoder has entries above the diagonal: it would need noise of steps to come"
        )
    if not (np.diagonal(C) > 0).all():
        raise ValueError("encoder has a diagonal that is not positive: its noise cannot be made")
    C.setflags(write=False)  # what is cached about it stays true
    return C
