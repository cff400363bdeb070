"""`Mechanism`: a factorization with noise; `calibrate` makes it from (ε, δ)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from antiphase import sampling as schemes
from antiphase._util import checks as check
from antiphase._util import files
from antiphase._util.display import Displayed
from antiphase._util.values import digest
from antiphase.accounting.accountant import Accountant, adjacency_factor
from antiphase.accounting.gaussian import checked_delta, gdp, required_delta, zcdp
from antiphase.errors import FileFormatError
from antiphase.factorizations.base import MALFORMED, Factorization
from antiphase.factorizations.base import restore as restore_factorization
from antiphase.noise import Key
from antiphase.sampling import FIXED_ORDER, Sampling
from antiphase.statement import (
    CAVEATS,
    INSECURE_NOISE,
    SECURE_NOISE,
    PrivacyStatement,
    rounded_up,
    versions,
)

if TYPE_CHECKING:
    from antiphase.noise.stream import NoiseStream

UNITS = ("example", "user")


@dataclass(frozen=True, eq=False, repr=False)
class Mechanism(Displayed):
    """A calibrated mechanism: what is added to gradients, and the guarantee of it.

    To the sum of the clipped gradients of step t it adds row t of ``noise_scale·C⁻¹Z``. Build one
    with `calibrate`. The number of records, the number of steps and the batch size are public.

    Attributes:
        factorization: the encoder C, with its workload and participation.
        noise_multiplier: standard deviation of Z over clip norm and sensitivity.
        clip_norm: maximum L2 norm of a record's gradient in a step.
        target_delta: the default δ, or None.
        adjacency: how neighbouring datasets differ. ``zero-out``: one record's gradients become 0.
            ``replace-one``: they become any others, at twice the distance. ``add-remove``: a record
            is added or removed; not with batches in a fixed order, which would all shift.
        sampling: how batches are formed; see `antiphase.sampling`. Amplification is claimed for
            ``Poisson``, ``CyclicPoisson`` and ``BallsInBins``.
        unit: what a record is, ``example`` or ``user``.

    Raises:
        ValueError: the guarantee of this combination is not known. [G9]

    Example:
        >>> from antiphase import design
        >>> mechanism = calibrate(design("dp-mf", steps=16), epsilon=8.0, delta=1e-6)
        >>> round(mechanism.epsilon(1e-5), 4)
        7.2294
    """

    factorization: Factorization
    noise_multiplier: float
    clip_norm: float = 1.0
    target_delta: float | None = None
    adjacency: str = "zero-out"
    sampling: Sampling = FIXED_ORDER
    unit: str = "example"

    def __post_init__(self) -> None:
        check.instance("factorization", self.factorization, Factorization)
        clean = {
            "noise_multiplier": check.positive_number("noise_multiplier", self.noise_multiplier),
            "clip_norm": check.positive_number("clip_norm", self.clip_norm),
        }
        if self.target_delta is not None:
            clean["target_delta"] = checked_delta("delta", self.target_delta)
        check.set_fields(self, **clean)
        check.instance("sampling", self.sampling, Sampling)
        _ = self.accountant  # refuses what would promise too much
        # PRIVACY: float32 rows must neither vanish nor overflow.   [G8]
        if not 1e-30 < self.noise_scale < 1e30:
            raise ValueError(
                f"noise_multiplier × clip_norm × sensitivity = {self.noise_scale:g} must be "
                "between 1e-30 and 1e30, the range of float32 noise"
            )
        check.choice("unit", self.unit, UNITS)

    @property
    def steps(self) -> int:
        """Number of steps of the plan."""
        return self.factorization.steps

    @cached_property
    def accountant(self) -> Accountant:
        """The accountant of the sampling scheme."""
        return self.sampling.accountant(self.factorization, self.adjacency)

    @property
    def amplified(self) -> bool:
        """Whether the guarantee includes amplification by sampling."""
        return self.sampling.amplifies

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of ``C·G`` for zeroing out a record, at clip norm 1.

        With Poisson sampling it is that of a single step.
        """
        return self.accountant.sensitivity

    @property
    def adjacency_factor(self) -> float:
        """Distance between neighbours, relative to zeroing out a record."""
        return adjacency_factor(self.adjacency)

    @property
    def noise_scale(self) -> float:
        """Standard deviation of Z: noise multiplier × clip norm × sensitivity."""
        # PRIVACY: scaled by the sensitivity of the encoder in use.   [G8]
        return self.noise_multiplier * self.clip_norm * self.sensitivity

    def epsilon(self, delta: float | None = None, *, rows: int | None = None) -> float:
        """ε of the plan or of its first rows, rounded up [G7].

        Args:
            delta: the δ; by default `target_delta`.
            rows: number of first rows; by default all.
        """
        delta, rows = self._delta(delta), self._rows(rows)
        if rows == 0:
            return 0.0
        return self.accountant.epsilon(self.noise_multiplier, delta, rows)

    def epsilon_of_runs(self, runs: Sequence[int], delta: float | None = None) -> float:
        """ε of several runs over the same data, each with independent noise; rounded up [G7].

        Args:
            runs: how many first rows each run has released.
            delta: the δ of the composition; by default `target_delta`.
        """
        delta = self._delta(delta)
        try:
            rows_of_runs = list(runs)
        except TypeError:
            raise TypeError(
                f"runs = {runs!r} must be a list of numbers of rows, not {type(runs).__name__}"
            ) from None
        runs = [rows for rows in map(self._rows, rows_of_runs) if rows]
        if len(runs) < 2:
            return self.epsilon(delta, rows=sum(runs))
        return self.accountant.epsilon_of_runs(self.noise_multiplier, delta, runs)

    def delta(self, epsilon: float, *, rows: int | None = None) -> float:
        """δ at ε of the plan or of its first rows, rounded up [G7]."""
        rows = self._rows(rows)
        if rows == 0:
            return 0.0
        return self.accountant.delta(self.noise_multiplier, epsilon, rows)

    def mu(self) -> float | None:
        """μ of Gaussian DP of the whole plan, rounded up; None with amplification."""
        s = self._gaussian_noise_multiplier()
        return None if s is None else gdp(s)

    def rho(self) -> float | None:
        """ρ of zero-concentrated DP of the whole plan, rounded up; None with amplification."""
        s = self._gaussian_noise_multiplier()
        return None if s is None else zcdp(s)

    def _gaussian_noise_multiplier(self) -> float | None:
        return self.accountant.gaussian_noise_multiplier(self.noise_multiplier, self.steps)

    def _delta(self, delta: float | None) -> float:
        return required_delta(self.target_delta if delta is None else delta)

    def _rows(self, rows: int | None) -> int:
        if rows is None:
            return self.steps
        rows = check.whole_number("rows", rows, minimum=0)
        if rows > self.steps:
            raise ValueError(f"rows = {rows} is more than the {self.steps} steps of the plan")
        return rows

    def statement(
        self, delta: float | None = None, *, released: int | None = None, insecure: bool = False
    ) -> PrivacyStatement:
        """The guarantee in words and as data.

        Args:
            delta: the δ; by default `target_delta`.
            released: number of rows released so far; by default all.
            insecure: whether the noise came from a seed that can be guessed.
        """
        delta, released, f = self._delta(delta), self._rows(released), self.factorization
        caveat = self.accountant.caveat()
        return PrivacyStatement(
            mechanism=f.name,
            steps=self.steps,
            participation=f.participation.describe(),
            unit=self.unit,
            adjacency=self.adjacency,
            adjacency_factor=self.adjacency_factor,
            sampler=self.sampling.name,
            sampling_rate=self.sampling.rate,
            clip_norm=self.clip_norm,
            noise_multiplier=self.noise_multiplier,
            sensitivity=self.sensitivity,
            sensitivity_is_exact=self.accountant.is_exact,
            noise_scale=self.noise_scale,
            delta=delta,
            epsilon=self.epsilon(delta),
            mu=self.mu(),
            rho=self.rho(),
            released_rows=released,
            released_sensitivity=self.sensitivity if self.amplified else f.sensitivity_of(released),
            released_epsilon=self.epsilon(delta, rows=released),
            # PRIVACY: a key that can be guessed protects nobody; the statement says so.   [G10]
            noise_source=INSECURE_NOISE if insecure else SECURE_NOISE,
            insecure=insecure,
            digest=self.digest,
            versions=versions(),
            caveats=(*CAVEATS, *([caveat] if caveat else [])),
        )

    def noise(
        self,
        dimension: int | None = None,
        *,
        key: Key,
        shapes: Any = None,
        run: str | None = None,
        memory: str | int = "512MB",
        threads: int | None = None,
    ) -> NoiseStream:
        """A stream of noise rows to add to sums of gradients; see `NoiseStream`."""
        from antiphase.noise.stream import NoiseStream  # slow to import: see antiphase.noise

        return NoiseStream(
            self, dimension, key=key, shapes=shapes, run=run, memory=memory, threads=threads
        )

    def resume(
        self, state: Any, *, key: Key, memory: str | int = "512MB", threads: int | None = None
    ) -> NoiseStream:
        """The stream continued from a saved state; see `NoiseStream.restore`."""
        from antiphase.noise.stream import NoiseStream

        return NoiseStream.restore(self, state, key=key, memory=memory, threads=threads)

    def _content(self) -> dict[str, Any]:
        return {
            "what": "mechanism",
            "factorization": self.factorization.content(),
            "noise_multiplier": self.noise_multiplier,
            "clip_norm": self.clip_norm,
            "target_delta": self.target_delta,
            "adjacency": self.adjacency,
            "sampler": self.sampling.name,
            "sampling_rate": self.sampling.rate,
            "unit": self.unit,
        }

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything that the noise and its guarantee depend on."""
        return digest(self._content())

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the mechanism to a file atomically, and return its digest."""
        files.write(path, self._content())
        return self.digest

    def __repr__(self) -> str:
        if self.target_delta is not None:
            guarantee = f"ε = {rounded_up(self.epsilon())} at δ = {self.target_delta:g}"
        else:
            mu = self.mu()
            guarantee = self.sampling.name if mu is None else f"μ = {rounded_up(mu)}"
        if self.sampling.rate is not None:
            guarantee += f", sampling rate {self.sampling.rate:g}"
        f = self.factorization
        return (
            f"<Mechanism {f.name}, {self.steps} steps, {f.participation.describe()}: "
            f"noise multiplier {self.noise_multiplier:.6g}, clip norm {self.clip_norm:g}, "
            f"{guarantee}, {self.adjacency}>"
        )


def calibrate(
    factorization: Factorization,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    clip_norm: float = 1.0,
    adjacency: str = "zero-out",
    sampling: Sampling = FIXED_ORDER,
    unit: str = "example",
) -> Mechanism:
    """Calibrate a factorization to (ε, δ), or give it a noise multiplier.

    Guarantee: ``calibrate(f, epsilon=ε, delta=δ).epsilon(δ) <= ε``. [G7]

    Args:
        factorization: what `antiphase.design` returned.
        epsilon: the ε; give it or ``noise_multiplier``.
        delta: the δ, well below one over the number of records.
        noise_multiplier: standard deviation of the noise over clip norm and sensitivity.
        clip_norm: maximum L2 norm of a record's gradient in a step.
        adjacency: how neighbouring datasets differ: ``zero-out``, ``replace-one`` or
            ``add-remove``.
        sampling: how batches are formed; see `antiphase.sampling`.
        unit: what a record is, ``example`` or ``user``.

    Returns:
        The mechanism with the smallest sufficient noise multiplier, or with the given one.

    Raises:
        ValueError: the guarantee of this combination is not known, or a number is out of range.
        TypeError: both or neither of ``epsilon`` and ``noise_multiplier`` are given.

    Example:
        >>> from antiphase import design
        >>> calibrate(design("dp-mf", steps=16), epsilon=8.0, delta=1e-6)
        <Mechanism dp-mf, 16 steps, once: noise multiplier 0.652935, clip norm 1, ...>
    """
    check.instance("factorization", factorization, Factorization)
    if (epsilon is None) == (noise_multiplier is None):
        raise TypeError(
            f"epsilon = {epsilon}, noise_multiplier = {noise_multiplier}: give one of the two; the "
            "other follows"
        )
    accountant = check.instance("sampling", sampling, Sampling).accountant(factorization, adjacency)
    if epsilon is not None:
        epsilon = check.positive_number("epsilon", epsilon)
        noise_multiplier = accountant.noise_multiplier(epsilon, required_delta(delta))
    assert noise_multiplier is not None
    return Mechanism(factorization, noise_multiplier, clip_norm, delta, adjacency, sampling, unit)


def load(path: str | os.PathLike[str], *, trusted: bool = False) -> Mechanism | Factorization:
    """Load the mechanism or factorization that a file holds.

    Guarantee: nothing in the file is executed; the sensitivity is computed from the encoder. [G6]

    Args:
        path: a file that `Mechanism.save` or `Factorization.save` wrote.
        trusted: whether the file is your own. Otherwise memory and time are bounded in proportion
            to its size, before anything is allocated.

    Raises:
        FileFormatError: the file is damaged, is not one of ours, or costs more than its size
            allows.
    """
    check.flag("trusted", trusted)
    if trusted:
        return _load(path)
    files.checked_path(path)
    with files.bounded(path):
        loaded = _load(path)
        try:
            _ = (loaded.factorization if isinstance(loaded, Mechanism) else loaded).sensitivity
        except MALFORMED as error:
            raise FileFormatError(f"{path}: has no sensitivity ({error})") from error
        return loaded


def _load(path: str | os.PathLike[str]) -> Mechanism | Factorization:
    content = files.read(path)
    if content.get("what") == "factorization":
        return restore_factorization(content, path)
    if content.get("what") != "mechanism":
        raise FileFormatError(
            f"{path}: holds a {content.get('what')!r}, neither a mechanism nor a factorization"
        )
    names = ("noise_multiplier", "clip_norm", "target_delta", "adjacency", "unit")
    try:
        return Mechanism(
            restore_factorization(content["factorization"], path),
            sampling=schemes.parse(content["sampler"], content["sampling_rate"]),
            **{name: content[name] for name in names},
        )
    except FileFormatError:
        raise
    except MALFORMED as error:
        raise FileFormatError(f"{path}: not a valid mechanism ({error})") from error
