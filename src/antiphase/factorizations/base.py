"""`Factorization`: a workload as ``A = B C``, its sensitivity and certified gap."""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import scipy

from antiphase._util import checks as check
from antiphase._util import files
from antiphase._util.checks import Array
from antiphase._util.display import Plotted
from antiphase.errors import FileFormatError, TooLargeError
from antiphase.factorizations.noise_forms import NoiseForm
from antiphase.factorizations.segments import Segment, Stream
from antiphase.objective import Objective
from antiphase.participation import Participation
from antiphase.problem import Problem
from antiphase.sensitivity import Columns, DenseColumns, is_exact, sensitivity
from antiphase.workload import Workload

MAX_STREAM_BANDS = 64  # diagonals of an encoder up to which `as_stream` keeps its rows as buffers
MALFORMED = (  # what reading a damaged file may raise
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
class Factorization(Plotted, ABC):
    """``A = B C`` with a lower-triangular encoder ``C``.

    Training adds ``sens(C)·C⁻¹Z`` to the clipped gradients. Every figure is computed from the
    encoder when it is first asked for, never taken from a design or a file. Factorizations are made
    by `antiphase.design` and read with `antiphase.load`.

    Guarantee: ``encoder()`` is lower triangular with a positive diagonal, and
    ``decoder() @ encoder()`` is the workload.   [G3]
    Guarantee: ``lower_bound <= error``, and no factorization of this workload, objective and
    participation has an error below ``lower_bound``.   [G5]

    Attributes:
        name: the name of the mechanism in the literature.
        workload: the workload ``A``.
        objective: the weighting of iterates in the error.
        participation: the steps that one record may take part in.
        options: the options of the design.
        bound: the certified lower bound, if the design computed one.

    Example:
        >>> import antiphase as ap
        >>> f = ap.design("dp-sgd", steps=4)
        >>> f.sensitivity, round(f.error, 12)
        (1.0, 10.0)
    """

    name: str
    workload: Workload
    objective: Objective
    participation: Participation
    options: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    bound: float | None = field(default=None, kw_only=True)

    form: ClassVar[str]
    """The name of the class in files, which stays the same if the class is renamed."""
    _forms: ClassVar[dict[str, type[Factorization]]] = {}

    def __init_subclass__(cls, form: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.form = form or cls.__name__
        Factorization._forms[cls.form] = cls

    # ---- what each class defines or overrides -------------------------------------------------

    @abstractmethod
    def _build_encoder(self) -> Array:
        """``C`` as a T × T array."""

    @classmethod
    def _own_fields(cls) -> list[str]:
        inherited = {f.name for f in fields(Factorization)}
        return [f.name for f in fields(cls) if f.name not in inherited]

    def _stored(self) -> dict[str, Any]:
        """What `_restored` needs in addition to the fields above."""
        return {name: getattr(self, name) for name in self._own_fields()}

    @classmethod
    def _restored(cls, common: dict[str, Any], stored: dict[str, Any]) -> Factorization:
        return cls(**common, **{name: stored[name] for name in cls._own_fields()})

    def encoder_columns(self, rows: int | None = None) -> Columns:
        """Return the columns of the encoder, for the sensitivity.

        Args:
            rows: take only the leading block of the encoder with this many rows, which is what the
                first ``rows`` rows of noise protect.
        """
        return DenseColumns(self.encoder()[:rows, :rows])

    @property
    def bands(self) -> int:
        """Number of diagonals of the encoder, from the main one to the last non-zero one."""
        rows, columns = np.nonzero(self.encoder())
        return int((rows - columns).max()) + 1

    def band_rows(self, start: int, stop: int) -> Array:
        """Return ``C[t, t − i]`` for ``start <= t < stop`` and ``i < bands``."""
        t = np.arange(start, stop)[:, None]
        back = t - np.arange(self.bands)
        return np.where(back >= 0, self.encoder()[t, back], 0.0)

    is_identity: ClassVar[bool] = False
    """Whether ``C = I``, so that rows of noise are independent."""

    def toeplitz_coefficients(self) -> Array | None:
        """Return c if the encoder is known to be ``C[i, j] = c[i − j]``; else None."""
        return None

    def as_stream(self) -> Stream | None:
        """Return the encoder as a stream of buffers; None if it would need many.

        An encoder with few diagonals is a stream whose buffers are the last rows of noise.
        """
        if self.bands > MAX_STREAM_BANDS:
            return None
        rows, past = self.band_rows(0, self.steps), max(self.bands - 1, 1)
        r, g = np.zeros((self.steps, 1, past)), np.zeros((self.steps, 1, past))
        r[:, 0, : rows.shape[1] - 1] = rows[:, 1:]
        g[:, 0, 0] = 1.0
        live = np.arange(self.steps)
        return Stream((Segment(self.steps, live, rows[:, 0], r, g, np.zeros_like(r)),), (0,))

    def noise_form(self) -> NoiseForm | None:
        """Return the recurrence for rows of noise; None to use the encoder's diagonals."""
        return None

    def restarts(self) -> list[int]:
        """Return the steps before which the noise forgets the past; the first is always one."""
        return [0]

    def diagonal_blocks(self) -> list[tuple[int, Array]]:
        """Return ``(start, block)`` for each diagonal block of the encoder."""
        return [(0, self.encoder())]

    def _iterate_variances(self, P: Array, N: Array) -> Array | None:
        """The variance of every ``u_t``, ``P u = N Z^delay C⁻¹z``; None if that needs a matrix."""
        return None

    # ---- sensitivity and error ----------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.workload.steps

    @cached_property
    def sensitivity(self) -> float:
        """``sens(C)`` under the participation.

        Guarantee: never below the true value.   [G1]
        """
        # PRIVACY: computed from the encoder in use, whatever a design or a file claims.   [G1]
        return sensitivity(self.encoder_columns(), self.participation)

    def sensitivity_of(self, rows: int) -> float:
        """Return the sensitivity of the first ``rows`` rows, the encoder's leading block."""
        # PRIVACY: C is lower triangular: the first rows of C·G + Z see its leading block.   [G1]
        return sensitivity(self.encoder_columns(rows), self.participation) if rows else 0.0

    @cached_property
    def sensitivity_is_exact(self) -> bool:
        """Whether `sensitivity` is attained rather than an upper bound."""
        return is_exact(self.encoder_columns(), self.participation)

    @cached_property
    def error(self) -> float:
        """``sens(C)²·‖ΛB‖_F²``, the expected squared noise of all weighted iterates.

        At noise multiplier and clip norm 1.
        """
        return self.error_under(self.objective)

    @cached_property
    def lower_bound(self) -> float:
        """A certified lower bound on the error of every factorization.

        Guarantee: no factorization has an error below it.   [G5]

        If the design did not compute one, the optimum is solved for when this is first asked for.
        """
        if self.bound is not None:
            return self.bound
        from antiphase.solvers.dispatch import best_bound  # solvers import factorizations

        return best_bound(Problem(self.workload, self.objective, self.participation))

    @property
    def is_certified(self) -> bool:
        """Whether `lower_bound` is known: `gap` need not solve for it."""
        return self.bound is not None or "lower_bound" in self.__dict__

    @property
    def gap(self) -> float:
        """``error / lower_bound − 1``: a bound on how much better any factorization could be."""
        return max(self.error / self.lower_bound - 1.0, 0.0)

    @cached_property
    def noise_per_iterate(self) -> Array:
        """``sens(C)²·‖b_t‖²``, the variance of the noise in each iterate.

        At noise multiplier and clip norm 1.
        """
        recurrence = self.workload.recurrence
        variances = None if recurrence is None else self._iterate_variances(*recurrence)
        if variances is None:
            variances = self.squared_row_norms(self.workload.dense())
        return self.sensitivity**2 * variances

    def error_under(self, objective: Objective) -> float:
        """Return the error of this encoder under another objective.

        Example:
            >>> import antiphase as ap
            >>> from antiphase.objective import Maximum
            >>> ap.design("dp-sgd", steps=4).error_under(Maximum()) ** 0.5
            2.0
        """
        return self.sensitivity**2 * self._total_noise(objective)

    def _total_noise(self, objective: Objective) -> float:
        """``‖ΛB‖_F² = ‖M C⁻¹‖_F²``."""
        recurrence = objective.recurrence(self.workload)
        if recurrence is not None:
            variances = self._iterate_variances(recurrence.P, recurrence.N)
            if variances is not None:
                return objective.total(recurrence.weights**2 * variances)
        return objective.total(self.squared_row_norms(objective.root(self.workload)))

    def squared_row_norms(self, root: Array) -> Array:
        """Return the squared norm of each row of ``root·C⁻¹``."""
        rows = scipy.linalg.solve_triangular(self.encoder(), root.T, lower=True, trans="T")
        return np.asarray(np.einsum("ij,ij->j", rows, rows))

    # ---- matrices -----------------------------------------------------------------------------

    @cached_property
    def _encoder(self) -> Array:
        refuse_if_too_large(self.steps)
        encoder = self._build_encoder()
        encoder.setflags(write=False)
        return encoder

    def encoder(self) -> Array:
        """Return ``C``, lower triangular, T × T and read-only.

        Raises:
            TooLargeError: the array does not fit in memory.
        """
        return self._encoder

    def decoder(self) -> Array:
        """Return ``B = A C⁻¹``: row t times ``Z`` is the noise in iterate t."""
        decoder: Array = scipy.linalg.solve_triangular(
            self.encoder(), self.workload.dense().T, lower=True, trans="T"
        ).T
        return np.tril(decoder)

    def noising(self) -> Array:
        """Return ``C⁻¹``: row t times ``Z`` is the noise that step t adds."""
        return np.asarray(
            scipy.linalg.solve_triangular(self.encoder(), np.eye(self.steps), lower=True)
        )

    def labelled(self, name: str, options: Mapping[str, Any]) -> Self:
        """The same factorization under another name; figures that are known are kept."""
        labelled = copy.copy(self)
        check.set_fields(labelled, name=name, options=dict(options))
        return labelled

    # ---- files and words ----------------------------------------------------------------------

    def content(self) -> dict[str, Any]:
        """Return all that `restore` needs: nested dictionaries of numbers, strings and arrays."""
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
        """Write the factorization to a file, atomically, for `antiphase.load`.

        Returns:
            The digest of the file.
        """
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
        if self.is_certified:
            if self.gap < 0.1:
                words.append(f"gap {self.gap:.1e}")
            else:
                words.append(f"{self.error / self.lower_bound:.3g} × the optimum")
        words.append(f"sensitivity {self.sensitivity:.6g}")
        return f"<Factorization {', '.join(words)}>"


def restore(content: Any, source: Any) -> Factorization:
    """Return the factorization that `Factorization.content` described.

    Guarantee: nothing is executed; the sensitivity is that of the encoder described, not one that
    is claimed.   [G6]

    Args:
        content: the nested dictionaries.
        source: what errors call the file.

    Raises:
        FileFormatError: the content is not a valid factorization.
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
    """Refuse a stored workload without an entry per step: a few bytes could ask for 10⁷ steps."""
    backing = workload["learning_rates"] if workload["matrix"] is None else workload.get("matrix")
    steps = workload["steps"]
    if not isinstance(backing, np.ndarray) or backing.dtype != np.float64 or len(backing) != steps:
        raise ValueError(
            f"steps = {steps!r}: the stored workload must have a float64 number, or row, for each "
            "step"
        )


def packed_triangle(stored: dict[str, Any], steps: int) -> Array:
    """Return ``stored["lower"]``, the lower triangle of a T × T encoder, checked for its size."""
    lower, size = stored["lower"], steps * (steps + 1) // 2
    if not isinstance(lower, np.ndarray) or lower.dtype != np.float64 or lower.shape != (size,):
        raise ValueError(f"steps = {steps}: the stored encoder must have {size} float64 numbers")
    return lower


def refuse_if_too_large(steps: int, copies: int = 3) -> None:
    """Raise `TooLargeError` if ``copies`` T × T arrays would not fit in the free memory."""
    needed, free = copies * 8 * steps**2, _free_memory()
    files.spend(f"steps = {steps}: a dense encoder", memory=needed)
    if needed > free:
        raise TooLargeError(
            f"steps = {steps}: a dense {steps} × {steps} array and its working copies need "
            f"{needed / 2**30:.0f} GiB, and {free / 2**30:.0f} GiB are free. Use fewer steps or a "
            "form that needs no dense matrix"
        )


def _free_memory() -> int:
    """The bytes available now; 8 GiB if the system does not report them."""
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return 8 << 30


def lower_triangular(encoder: Any, steps: int) -> Array:
    """Return ``encoder`` as a read-only array.

    Raises:
        ValueError: it is not a lower-triangular T × T matrix with a positive diagonal.
    """
    C = np.array(encoder, dtype=np.float64)
    if C.shape != (steps, steps):
        raise ValueError(f"encoder has shape {C.shape}; {(steps, steps)} is needed")
    if not np.isfinite(C).all():
        raise ValueError("encoder has entries that are not finite")
    if np.triu(C, 1).any():
        raise ValueError(
            "encoder has entries above the diagonal: a row of noise would depend on later steps"
        )
    if not (np.diagonal(C) > 0).all():
        raise ValueError("encoder has a diagonal that is not positive: it must be invertible")
    C.setflags(write=False)  # cached figures stay valid
    return C
