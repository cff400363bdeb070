"""`PrivacyStatement`: the privacy guarantee, in English and as JSON.

Everything in it can be derived again from the mechanism file and the JSON without trusting this
library; ``examples/recheck.py`` does so without importing it.
"""

from __future__ import annotations

import json
import platform
import textwrap
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, Context
from importlib import metadata

from antiphase._util.display import Displayed
from antiphase.sampling import KINDS

ADJACENCY_WORDS = {
    "zero-out": "one {unit}'s contributions are replaced by nothing, its place in the batches kept",
    "replace-one": "one {unit}'s contributions are replaced by any others",
    "add-remove": "one {unit} is added or removed",
}
SECURE_NOISE = "drawn with AES-128 in counter mode from a secret key, 128 bits of security"
INSECURE_NOISE = (
    "INSECURE, drawn from a seed that can be guessed; for tests and studies only, protects nobody"
)
CAVEATS = (
    "The analysis is of idealised real arithmetic; floating-point noise has gaps that an adversary "
    "with every last bit of every output might use.",
    "The number of records, the number of steps and the batch size are assumed to be public.",
)
NOT_PRIVATE = (
    "losses, accuracies and gradient norms on the training data, if anyone looks at them",
    "the choice of hyper-parameters, if it was made by training on the same data",
    "anything, once the noise key is known",
)
MAX_PARAMETER_NAMES = 10  # of frozen parameters, in words; all are in the JSON
LINE_WIDTH = 100


@dataclass(frozen=True)
class PrivacyStatement(Displayed):
    """The privacy guarantee of a training run, as data; ``print`` it for the words.

    `Mechanism.statement` and the engines return it.

    Example:
        >>> from antiphase import calibrate, design
        >>> statement = calibrate(design("dp-mf", steps=16), noise_multiplier=2.0).statement(1e-5)
        >>> statement.epsilon, statement.sampler, statement.insecure
        (1.9930..., 'fixed-order', False)

    Attributes:
        mechanism: name of the factorization.
        steps: number of steps of the plan.
        participation: which steps a record may take part in, in words.
        unit: what a record is: ``example`` or ``user``.
        adjacency: how neighbouring datasets differ.
        adjacency_factor: distance between neighbours, relative to zeroing out a record.
        sampler: name of the sampling scheme.
        sampling_rate: probability that a record is in a batch, if the scheme has one.
        clip_norm: maximum norm of a record's contribution to a step.
        noise_multiplier: noise scale over clip norm and sensitivity.
        sensitivity: of the encoder; with Poisson sampling, of one of its columns.
        sensitivity_is_exact: whether it is attained, rather than an upper bound.
        noise_scale: standard deviation of the noise before correlation.
        delta: the δ of the guarantee.
        epsilon: the ε of the whole plan.
        mu: μ of Gaussian DP; None with amplification.
        rho: ρ of zero-concentrated DP; None with amplification.
        released_rows: number of steps released so far.
        released_sensitivity: sensitivity of these steps.
        released_epsilon: ε of these steps.
        noise_source: where the noise comes from, in words.
        digest: SHA-256 of the mechanism.
        versions: of the software that computed the guarantee.
        insecure: whether the noise came from a seed that can be guessed.
        caveats: assumptions of the analysis.
        not_private: what the guarantee does not cover.
        covered_tensors: number of trained parameter tensors; None if no model is known.
        covered_numbers: number of trained parameters; None if no model is known.
        frozen_parameters: names of parameters that training does not change.
    """

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
    insecure: bool = False
    caveats: tuple[str, ...] = CAVEATS
    not_private: tuple[str, ...] = NOT_PRIVATE
    covered_tensors: int | None = None
    covered_numbers: int | None = None
    frozen_parameters: tuple[str, ...] = ()

    def to_json(self) -> str:
        """All fields, as JSON."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False)

    def __repr__(self) -> str:
        return (
            f"<PrivacyStatement ({rounded_up(self.epsilon)}, {self.delta:g})-DP for each "
            f"{self.unit}, {self.adjacency}: {self.mechanism}, {self.released_rows} of "
            f"{self.steps} steps released{', INSECURE' if self.insecure else ''}>"
        )

    def __str__(self) -> str:
        return "\n".join(textwrap.fill(paragraph, LINE_WIDTH) for paragraph in self.paragraphs())

    def paragraphs(self, *, short: bool = False) -> list[str]:
        """The words of the statement.

        Args:
            short: whether to leave out what the guarantee assumes and does not cover.
        """
        # PRIVACY: the shortest form too says that the noise can be guessed.   [G10]
        noise = [f"Noise: {self.noise_source}."] if self.insecure or not short else []
        if short:
            return [self._guarantee(), *noise]
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return [
            self._guarantee(),
            self._assumptions(),
            *([] if self.covered_tensors is None else [self._coverage()]),
            *noise,
            " ".join(self.caveats),
            "Not private: " + "; ".join(self.not_private) + ".",
            f"Mechanism {self.digest[:16]}…, {versions}.",
        ]

    def _guarantee(self) -> str:
        definition = ADJACENCY_WORDS[self.adjacency].format(unit=self.unit)
        text = (
            "Everything that this training releases together is "
            f"({rounded_up(self.epsilon)}, {self.delta:g})-differentially private for each "
            f"{self.unit}, in the sense that {definition} ({self.adjacency})."
        )
        if self.mu is not None and self.rho is not None:
            text += f" It is {rounded_up(self.mu)}-GDP and {rounded_up(self.rho)}-zCDP."
        if self.released_rows < self.steps:
            text += (
                f" Of the {self.steps} steps, {self.released_rows} have been released so far: "
                f"those alone are ({rounded_up(self.released_epsilon)}, {self.delta:g})-"
                "differentially private."
            )
        return text

    def _assumptions(self) -> str:
        rate = f" at rate {self.sampling_rate:g}" if self.sampling_rate is not None else ""
        bound = "" if self.sensitivity_is_exact else " (an upper bound)"
        return (
            f"This assumes that each {self.unit} takes part as planned ({self.participation}, in "
            f"{self.steps} steps); {KINDS[self.sampler].description}{rate}; the sum of one "
            f"{self.unit}'s gradients in a step is clipped to norm {self.clip_norm:g}; to the sum "
            f"over the batch is added the noise of {self.mechanism}, with noise multiplier "
            f"{self.noise_multiplier:.6g}, encoder sensitivity {self.sensitivity:.6g}{bound}, and "
            f"so a standard deviation of {self.noise_scale:.6g} before correlation."
        )

    def _coverage(self) -> str:
        names, count = self.frozen_parameters[:MAX_PARAMETER_NAMES], len(self.frozen_parameters)
        more = f" and {count - len(names)} more" if count > len(names) else ""
        frozen = f" Not trained, and so not changed: {', '.join(names)}{more}." if count else ""
        return (
            f"It covers all {self.covered_tensors} trained parameter tensors of the model "
            f"({self.covered_numbers:,} numbers).{frozen}"
        )


def rounded_up(value: float) -> str:
    """Four significant digits of a number, rounded up.

    Example:
        >>> rounded_up(8.0001), rounded_up(0.5), rounded_up(1234.5678)
        ('8.001', '0.5', '1235')
    """
    # PRIVACY: a promise that is shortened is rounded up.   [G7]
    return f"{Context(prec=4, rounding=ROUND_CEILING).create_decimal(value).normalize():f}"


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a guarantee is computed with."""
    names = ("antiphase", "numpy", "scipy", "numba", "randomgen", "dp-accounting")
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in names}
