"""`Mechanism`: a factorization with a clip norm and a noise multiplier, and so with a promise."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from antiphase import sampling as schemes
from antiphase._util import checks as check
from antiphase._util import files
from antiphase._util.values import digest
from antiphase.accounting.accountant import Accountant, adjacency_factor
from antiphase.accounting.gaussian import checked_delta, gdp, zcdp
from antiphase.errors import FileFormatError
from antiphase.factorizations.base import MALFORMED, Factorization
from antiphase.factorizations.base import restore as restore_factorization
from antiphase.noise import Key
from antiphase.sampling import FIXED_ORDER, Sampling
from antiphase.statement import PrivacyStatement, state

if TYPE_CHECKING:
    from antiphase.noise.stream import NoiseStream

UNITS = ("example", "user")


@dataclass(frozen=True, eq=False, repr=False)
class Mechanism:
    """What training adds, and what that promises.

    To the sum of the clipped gradients of step t goes row t of ``noise_scale·C⁻¹Z``. Build one with `calibrate`.

    - ``adjacency``: ``zero-out`` (one record's gradients become 0; the default), ``replace-one`` (they become any
      others;
      twice the distance), or ``add-remove``, which shifts every later batch of a fixed order and is therefore offered
      only with batches that are sampled, or slots assigned by a hash of the record.
    - ``sampling``: how batches are formed, one of `antiphase.sampling`. Amplification is claimed for ``Poisson``
      (independent noise), ``CyclicPoisson`` (banded encoders) and ``BallsInBins``.
    - ``unit``: what a record is, an example or a user.

    The number of records, steps and the batch size are public.
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
        for name, value in clean.items():
            object.__setattr__(self, name, value)
        check.instance("sampling", self.sampling, Sampling)
        _ = self.accountant  # refuses what would promise too much
        # PRIVACY: float32 rows must neither vanish nor overflow.   [G8]
        if not 1e-30 < self.noise_scale < 1e30:
            raise ValueError(
                f"noise_multiplier × clip_norm × sensitivity = {self.noise_scale:g} is no scale for float32 noise"
            )
        check.choice("unit", self.unit, UNITS)

    # ---- what it promises ----------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        return self.factorization.steps

    @cached_property
    def accountant(self) -> Accountant:
        """The accountant for this sampling scheme."""
        return self.sampling.accountant(self.factorization, self.adjacency)

    @property
    def amplified(self) -> bool:
        return self.sampling.amplifies

    @property
    def sensitivity(self) -> float:
        """By how much a zeroed-out record moves ``C·G`` at clip norm 1; with Poisson samples, in one step."""
        return self.accountant.sensitivity

    @property
    def adjacency_factor(self) -> float:
        """How much further than a zeroed-out record the output can move: 2 for one that is replaced."""
        return adjacency_factor(self.adjacency)

    @property
    def noise_scale(self) -> float:
        """The standard deviation of ``Z``: noise multiplier × clip norm × sensitivity."""
        # PRIVACY: scaled by the sensitivity of the encoder in use.   [G8]
        return self.noise_multiplier * self.clip_norm * self.sensitivity

    def epsilon(self, delta: float | None = None, *, rows: int | None = None) -> float:
        """ε at ``delta``, of the whole plan or of its first ``rows`` rows; rounded up.   [G7]"""
        delta, rows = self._delta(delta), self._rows(rows)
        if rows == 0:
            return 0.0
        return self.accountant.epsilon(self.noise_multiplier, delta, rows)

    def epsilon_of_runs(self, runs: Sequence[int], delta: float | None = None) -> float:
        """ε at ``delta`` of several runs over the same data, each with noise of its own: their first ``runs[i]`` rows
        together; rounded up.   [G7]"""
        delta = self._delta(delta)
        try:
            each = list(runs)
        except TypeError:
            raise TypeError(
                f"runs = {runs!r} must be a list of numbers of rows, not {type(runs).__name__}"
            ) from None
        runs = [rows for rows in map(self._rows, each) if rows]
        if len(runs) < 2:
            return self.epsilon(delta, rows=sum(runs))
        return self.accountant.epsilon_of_runs(self.noise_multiplier, delta, runs)

    def delta(self, epsilon: float, *, rows: int | None = None) -> float:
        """δ at ``epsilon``, of the whole plan or of its first ``rows`` rows; rounded up.   [G7]"""
        rows = self._rows(rows)
        if rows == 0:
            return 0.0
        return self.accountant.delta(self.noise_multiplier, epsilon, rows)

    def mu(self) -> float | None:
        """μ of Gaussian differential privacy, of the whole plan; None with amplification."""
        s = self._gaussian_noise_multiplier()
        return None if s is None else gdp(s)

    def rho(self) -> float | None:
        """ρ of zero-concentrated differential privacy, of the whole plan; None with amplification."""
        s = self._gaussian_noise_multiplier()
        return None if s is None else zcdp(s)

    def _gaussian_noise_multiplier(self) -> float | None:
        return self.accountant.gaussian_noise_multiplier(self.noise_multiplier, self.steps)

    def _delta(self, delta: float | None) -> float:
        delta = self.target_delta if delta is None else delta
        if delta is None:
            raise ValueError(
                "delta = None: δ is yours to choose, well below one over the number of records"
            )
        return checked_delta("delta", delta)

    def _rows(self, rows: int | None) -> int:
        if rows is None:
            return self.steps
        rows = check.whole_number("rows", rows, minimum=0)
        if rows > self.steps:
            raise ValueError(f"rows = {rows} is more than the {self.steps} steps of the plan")
        return rows

    # ---- what comes of it ----------------------------------------------------------------------------------

    def statement(
        self, delta: float | None = None, *, released: int | None = None, insecure: bool = False
    ) -> PrivacyStatement:
        """What is promised, in words and as data; of the first ``released`` rows too, if given."""
        return state(self, self._delta(delta), self._rows(released), insecure)

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
        """The noise to add, row by row: see `antiphase.noise.stream.NoiseStream`."""
        from antiphase.noise.stream import NoiseStream  # compiled: see antiphase.noise

        return NoiseStream(
            self, dimension, key=key, shapes=shapes, run=run, memory=memory, threads=threads
        )

    def resume(
        self, state: Any, *, key: Key, memory: str | int = "512MB", threads: int | None = None
    ) -> NoiseStream:
        """The stream that goes on where ``state`` was taken; see `NoiseStream.restore`."""
        from antiphase.noise.stream import NoiseStream

        return NoiseStream.restore(self, state, key=key, memory=memory, threads=threads)

    # ---- files and words -----------------------------------------------------------------------------------

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
        """SHA-256 of all that the noise depends on: encoder, scale, promise."""
        return digest(self._content())

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the mechanism to a file, whole or not at all, and return its digest."""
        files.write(path, self._content())
        return self.digest

    def __repr__(self) -> str:
        if self.target_delta is not None:
            promise = f"ε = {self.epsilon():.4g} at δ = {self.target_delta:g}"
        else:
            promise = self.sampling.name if self.amplified else f"μ = {self.mu():.4g}"
        if self.sampling.rate is not None:
            promise += f", sampling rate {self.sampling.rate:g}"
        return (
            f"<Mechanism {self.factorization.name}, {self.steps} steps, {self.factorization.participation.describe()}: "
            f"noise multiplier {self.noise_multiplier:.6g}, clip norm {self.clip_norm:g}, {promise}, {self.adjacency}>"
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
    """The mechanism with just enough noise for (ε, δ), or with a given noise multiplier.

    Guarantee: ``calibrate(f, epsilon=ε, delta=δ).epsilon(δ) <= ε``.   [G7]

    >>> from antiphase import design
    >>> calibrate(design("dp-mf", steps=16), epsilon=8.0, delta=1e-6)
    <Mechanism dp-mf, 16 steps, once: noise multiplier 0.652935, clip norm 1, ε = 8 at δ = 1e-06, zero-out>
    """
    check.instance("factorization", factorization, Factorization)
    if (epsilon is None) == (noise_multiplier is None):
        raise TypeError(
            f"epsilon = {epsilon}, noise_multiplier = {noise_multiplier}: give one of the two, the other follows"
        )
    accountant = check.instance("sampling", sampling, Sampling).accountant(factorization, adjacency)
    if epsilon is not None:
        epsilon = check.positive_number("epsilon", epsilon)
        if delta is None:
            raise ValueError(
                "delta = None: δ is yours to choose, well below one over the number of records"
            )
        noise_multiplier = accountant.noise_multiplier(epsilon, checked_delta("delta", delta))
    assert noise_multiplier is not None
    return Mechanism(factorization, noise_multiplier, clip_norm, delta, adjacency, sampling, unit)


def load(path: str | os.PathLike[str], *, trusted: bool = False) -> Mechanism | Factorization:
    """The mechanism or the factorization that a file holds.

    Guarantee: nothing in the file is executed; the sensitivity is computed from the encoder.   [G6]

    Args:
        path: a file that `Mechanism.save` or `Factorization.save` wrote.
        trusted: whether the file is your own. Otherwise memory and time are bounded in proportion to
            its size, before anything is allocated.

    Raises:
        FileFormatError: the file is damaged, is not one of ours, or costs more than its size allows.
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
    names = (
        "noise_multiplier",
        "clip_norm",
        "target_delta",
        "adjacency",
        "unit",
    )
    try:
        factorization = restore_factorization(content["factorization"], path)
        sampling = schemes.parse(content["sampler"], content["sampling_rate"])
        return Mechanism(
            factorization, sampling=sampling, **{name: content[name] for name in names}
        )
    except FileFormatError:
        raise
    except MALFORMED as error:
        raise FileFormatError(f"{path}: not a valid mechanism ({error})") from error
