"""`PrivacyStatement`: what was promised, in English for people and as JSON for programs.

Everything in it can be derived again from the mechanism file and the JSON by someone who does not trust this library;
``examples/recheck.py`` does so without importing it.
"""

from __future__ import annotations

import json
import platform
import textwrap
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, Context
from importlib import metadata
from typing import Any

from antiphase.sampling import KINDS

ADJACENCY_WORDS = {
    "zero-out": "one {unit}'s contributions are replaced by nothing, its place in the batches kept",
    "replace-one": "one {unit}'s contributions are replaced by any others",
    "add-remove": "one {unit} is added or removed",
}
CAVEATS = (
    "The analysis is of idealised real arithmetic; floating-point noise has gaps that an adversary with every last "
    "bit of every output might use.",
    "The number of records, the number of steps and the batch size are taken to be public.",
)
NOT_PRIVATE = (
    "losses, accuracies and gradient norms on the training data, if anyone looks at them",
    "the choice of hyper-parameters, if it was made by training on the same data",
    "anything, once the noise key is known",
)
NAMES = 10  # of frozen parameters, in words; all are in the JSON


@dataclass(frozen=True)
class PrivacyStatement:
    """A promise, as data. ``print`` it for the words."""

    mechanism: str
    steps: int
    participation: str
    unit: str
    adjacency: str
    adjacency_factor: float
    sampler: str
    sampling_rate: float | None
    clip_norm: float
    noise_multiplier: float
    sensitivity: float
    sensitivity_is_exact: bool
    noise_scale: float
    delta: float
    epsilon: float
    mu: float | None
    rho: float | None
    released_rows: int
    released_sensitivity: float
    released_epsilon: float
    noise_source: str
    digest: str
    versions: dict[str, str]
    caveats: tuple[str, ...] = CAVEATS
    not_private: tuple[str, ...] = NOT_PRIVATE
    covered_tensors: int | None = (
        None  # parameters that are trained privately; None where no model is known
    )
    covered_numbers: int | None = None
    frozen_parameters: tuple[str, ...] = ()  # parameters of the model that training does not change

    def to_json(self) -> str:
        """All of it, as JSON."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False)

    def __str__(self) -> str:
        unit = self.unit
        whole = f"({rounded_up(self.epsilon)}, {self.delta:g})"
        spent = ""
        if self.released_rows < self.steps:
            spent = (
                f" Of the {self.steps} steps, {self.released_rows} have been released so far: those alone are "
                f"({rounded_up(self.released_epsilon)}, {self.delta:g})-differentially private."
            )
        bound = "" if self.sensitivity_is_exact else " (an upper bound)"
        also = (
            ""
            if self.mu is None or self.rho is None
            else f" It is {rounded_up(self.mu)}-GDP and {rounded_up(self.rho)}-zCDP."
        )
        rate = f" at rate {self.sampling_rate:g}" if self.sampling_rate is not None else ""
        paragraphs = [
            f"All that is released of this training together is {whole}-differentially private for each {unit}, in "
            f"the sense that {ADJACENCY_WORDS[self.adjacency].format(unit=unit)} ({self.adjacency}).{also}{spent}",
            f"It rests on: each {unit} takes part as planned ({self.participation}, in {self.steps} steps); "
            f"{KINDS[self.sampler].description}{rate}; the sum of one {unit}'s gradients in a step is clipped to "
            f"norm {self.clip_norm:g}; to the sum over the batch is added the noise of {self.mechanism}, with noise "
            f"multiplier {self.noise_multiplier:.6g}, encoder sensitivity {self.sensitivity:.6g}{bound}, and so a "
            f"standard deviation of {self.noise_scale:.6g} before correlation.",
            *([] if self.covered_tensors is None else [self._coverage()]),
            f"Noise: {self.noise_source}.",
            " ".join(self.caveats),
            "Not private: " + "; ".join(self.not_private) + ".",
            f"Mechanism {self.digest[:16]}…, "
            + ", ".join(f"{k} {v}" for k, v in self.versions.items())
            + ".",
        ]
        return "\n".join(textwrap.fill(paragraph, 100) for paragraph in paragraphs)

    def _coverage(self) -> str:
        shown, count = ", ".join(self.frozen_parameters[:NAMES]), len(self.frozen_parameters)
        more = f" and {count - NAMES} more" if count > NAMES else ""
        frozen = f" Not trained, and so not changed: {shown}{more}." if count else ""
        return (
            f"It covers all {self.covered_tensors} parameter tensors of the model that are trained "
            f"({self.covered_numbers:,} numbers).{frozen}"
        )


def rounded_up(value: float) -> str:
    """Four digits, and never less than the value.

    >>> rounded_up(8.0001), rounded_up(0.5), rounded_up(1234.5678)
    ('8.001', '0.5', '1235')
    """
    # PRIVACY: a promise that is shortened is rounded up.   [G7]
    return f"{Context(prec=4, rounding=ROUND_CEILING).create_decimal(value).normalize():f}"


def state(mechanism: Any, delta: float, released: int, insecure: bool) -> PrivacyStatement:
    """The statement of a `Mechanism`, at ``delta``, with ``released`` rows given out."""
    f = mechanism.factorization
    secure = "drawn with AES-128 in counter mode from a secret key, 128 bits of security"
    return PrivacyStatement(
        mechanism=f.name,
        steps=mechanism.steps,
        participation=f.participation.describe(),
        unit=mechanism.unit,
        adjacency=mechanism.adjacency,
        adjacency_factor=mechanism.adjacency_factor,
        sampler=mechanism.sampling.name,
        sampling_rate=mechanism.sampling.rate,
        clip_norm=mechanism.clip_norm,
        noise_multiplier=mechanism.noise_multiplier,
        sensitivity=mechanism.sensitivity,
        sensitivity_is_exact=mechanism.accountant.is_exact,
        noise_scale=mechanism.noise_scale,
        delta=delta,
        epsilon=mechanism.epsilon(delta),
        mu=mechanism.mu(),
        rho=mechanism.rho(),
        released_rows=released,
        released_sensitivity=mechanism.sensitivity
        if mechanism.amplified
        else f.sensitivity_of(released),
        released_epsilon=mechanism.epsilon(delta, rows=released),
        # PRIVACY: a key that anyone can guess protects nobody, and the statement must say so.   [G10]
        noise_source="INSECURE, from a seed that can be guessed; for tests and studies only, protects nobody"
        if insecure
        else secure,
        digest=mechanism.digest,
        versions=versions(),
        caveats=(*CAVEATS, *_resting_on(mechanism)),
    )


def _resting_on(mechanism: Any) -> list[str]:
    said = mechanism.accountant.caveat()
    return [said[0].upper() + said[1:] + "."] if said else []


def versions() -> dict[str, str]:
    """Of what the promise was computed with."""
    names = ("antiphase", "numpy", "scipy", "numba", "randomgen", "dp-accounting")
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in names}
