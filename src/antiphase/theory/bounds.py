r"""Convergence bounds of gradient descent with correlated noise.

Throughout ``x_{t+1} = x_t − γ(∇f(x_t) + (b_{t+1} − b_t)ᵀZ)`` for ``t = 0 … T−1`` (paper, §3), f is
L-smooth, the rows of ``Z`` are independent with mean 0, and averages are over ``t = 0 … T``.

| | source | holds |
|---|---|---|
| `nonconvex_bound` | Theorem 4.6, restarts every τ steps | yes |
| `published_convex_bound` | Theorem 4.7, restarts every τ steps | **no**: counter-example |
| `convex_bound`, `fresh_nonconvex_bound` | not in the paper: fresh noise in the sequence | yes |
| `plain_convex_bound` | appendix D for any B: the plain virtual sequence | yes |
| `pgd_bound`, `anti_pgd_bound`, `chess_bound` | Propositions 4.4, 4.5, Example A.1 | yes |
| `anti_pgd_by_iterates_bound`, `pgd_by_virtual_bound` | appendix F, loose | yes |
| `frobenius_rate` | Eq. 5, of earlier work: a rate without constants | no |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase.factorizations.base import Factorization
from antiphase.objective import Average, Restarts
from antiphase.solvers.closed_form import chess_coefficients
from antiphase.theory.decoder_norms import DecoderNorms

ROUNDING_MARGIN = 1 + 1e-12  # factor by which a condition may be exceeded through rounding
GRADIENT = "mean over t = 0 … T of E‖∇f(x_t)‖²"
VALUE = "mean over t = 0 … T of E f(x_t) − f*"


@dataclass(frozen=True)
class Constants:
    """The constants of a problem that the theorems use; each needs some of them.

    Attributes:
        smoothness: L.
        learning_rate: γ.
        noise_length: ζ, the root of ``E‖z_t‖²``: √dimension times the standard deviation of a
            coordinate, before it is scaled by the sensitivity, so that mechanisms are compared at
            equal privacy. The paper's σ is ``sens(C)·ζ``; for a fixed σ give
            ``σ / factorization.sensitivity``.
        distance: ``‖x₀ − x*‖``.
        gap: ``f(x₀) − f*``.
        lipschitz: the ``L̃`` of earlier work.
    """

    smoothness: float
    learning_rate: float
    noise_length: float
    distance: float | None = None
    gap: float | None = None
    lipschitz: float | None = None

    def __post_init__(self) -> None:
        for name in ("smoothness", "learning_rate"):
            object.__setattr__(self, name, check.positive_number(name, getattr(self, name)))
        for name in ("noise_length", "distance", "gap", "lipschitz"):
            value = getattr(self, name)
            if value is not None or name == "noise_length":
                object.__setattr__(self, name, check.real_number(name, value, minimum=0.0))

    @property
    def step(self) -> float:
        """``γL``."""
        return self.learning_rate * self.smoothness

    def needed(self, name: str, source: str) -> float:
        """Return a constant that ``source`` needs; raise TypeError if it was not given."""
        value = getattr(self, name)
        if value is None:
            raise TypeError(f"{name} = None: {source} needs it; give it to Constants")
        return float(value)


@dataclass(frozen=True)
class ConvergenceBound:
    """An upper bound on ``quantity``: ``total = optimization + bias + noise``.

    Attributes:
        source: the theorem.
        quantity: what is bounded.
        optimization: the error of gradient descent without noise.
        parts: the terms proportional to ζ², by name.
        conditions: the conditions that were checked.
        is_guarantee: whether the bound is proven; ``caveat`` says why if it is not.
        bias: the rest.
        tau: the number of steps between restarts, if there are any.
        caveat: why this is not a guarantee.
    """

    source: str
    quantity: str
    optimization: float
    parts: Mapping[str, float]
    conditions: tuple[str, ...]
    is_guarantee: bool = True
    bias: float = 0.0
    tau: int | None = None
    caveat: str = ""

    @property
    def noise(self) -> float:
        """The sum of ``parts``."""
        return sum(self.parts.values())

    @property
    def total(self) -> float:
        """``optimization + bias + noise``."""
        return self.optimization + self.bias + self.noise


@dataclass(frozen=True)
class NoiseTerms:
    """The sums over rows of ``B`` in Theorems 4.6 and 4.7, each times ``sens(C)²``.

    Attributes:
        tau: the number of steps between restarts.
        between: ``Σ_t‖b_t − b_{⌊t/τ⌋τ}‖²``.
        restarts: ``Σ_k‖b_{kτ} − b_{(k−1)τ}‖²``.
        final: ``‖b_{⌊T/τ⌋τ}‖²``.
    """

    tau: int
    between: float
    restarts: float
    final: float

    @property
    def weighted(self) -> float:
        """``‖Λ_τB‖_F² = between/τ + restarts``, which DP-MF⁺ minimises (§5)."""
        return self.between / self.tau + self.restarts


def noise_terms(factorization: Factorization, tau: int) -> NoiseTerms:
    """Return the noise terms of Theorems 4.6 and 4.7.

    Takes O(T) for streams, DP-SGD, Chess, encoders with few diagonals and the full tree.

    Example:
        >>> import antiphase as ap
        >>> noise_terms(ap.design("dp-sgd", steps=16), tau=4).weighted
        22.0
    """
    f = _plain(factorization)
    tau = check.whole_number("tau", tau)
    norms, last = DecoderNorms(f), f.steps // tau * tau
    squares = norms.squared_rows(Restarts(tau, weight=1.0))
    at_restart = np.arange(1, f.steps + 1) % tau == 0
    final = norms.squared_row(last) if last else 0.0
    return NoiseTerms(
        tau, float(squares[~at_restart].sum()), float(squares[at_restart].sum()), final
    )


# ---- the theorems -----------------------------------------------------------------------------


def nonconvex_bound(
    factorization: Factorization, constants: Constants, *, tau: int | None = None
) -> ConvergenceBound:
    r"""Theorem 4.6: the mean squared gradient norm of smooth functions; needs ``gap``.

    ``8(f(x₀) − f*)/(γ(T+1)) + 4γ²L²σ²/(T+1)·between + 40γLσ²/(T+1)·restarts``

    Guarantee: for every L-smooth f, if ``γL ≤ 1/4`` and ``1/4 ≤ γLτ ≤ 4``. The paper asks for
    ``τ = 1/(γL)``. Its proof needs ``1/(γLτ) ≤ 4``, so that the steps since the last restart pay
    for ``‖∇f(x̃)‖²`` there, and ``γLτ ≤ 4``, so that these have not moved too far. (For ``γLτ ≤ 2``
    half of every constant would do.)

    Args:
        factorization: the mechanism, for plain gradient descent.
        constants: the constants of the problem.
        tau: the number of steps between restarts, ``⌊1/(γL)⌋`` unless given.
    """
    source = "Theorem 4.6 (non-convex)"
    f, n = _plain(factorization, constants), factorization.steps + 1
    gap = constants.needed("gap", source)
    limit = _step_at_most(source, constants, 1 / 4)
    tau = _tau(source, tau, 1 / constants.step, "1/(γL)")
    if not 1 / 4 <= constants.step * tau <= 4:
        raise ValueError(
            f"tau = {tau}: {source} holds for 1/4 ≤ learning_rate × smoothness × tau ≤ 4, and here "
            f"that is {constants.step * tau:.3g}; take tau = {math.floor(1 / constants.step)}"
        )
    terms = noise_terms(f, tau)
    unit = constants.step * constants.noise_length**2 / n
    parts = {
        "between restarts": 4 * unit * constants.step * terms.between,
        "restarts": 40 * unit * terms.restarts,
    }
    conditions = (limit, f"1/4 ≤ γLτ = {constants.step * tau:.3g} ≤ 4")
    optimization = 8 * gap / (constants.learning_rate * n)
    return ConvergenceBound(source, GRADIENT, optimization, parts, conditions, tau=tau)


def published_convex_bound(
    factorization: Factorization, constants: Constants, *, tau: int | None = None
) -> ConvergenceBound:
    r"""Theorem 4.7 as published: the mean suboptimality of convex functions; needs ``distance``.

    ``4‖x₀ − x*‖²/(γ(T+1)) + 12γσ²/(T+1)·(γL·between + restarts + final)``

    ``γL ≤ 1/8`` as in the proof (the theorem says 1/4).

    **Not a guarantee.** From its second level on, the halving of the sum ``S₁`` (appendix C) drops
    the noise between restarts that the same z correlates. Let the first column of B rise by 1 a
    step to T/2 and fall back: on a curvature h ≪ L the iterates settle at ``∓z₁/h``, the error is
    ``σ²/(2h)``, and the bound ``1.5σ²/(L log₂T)``. Use `convex_bound`, which holds.

    Args:
        factorization: the mechanism, for plain gradient descent.
        constants: the constants of the problem.
        tau: the number of steps between restarts, ``⌊1/(8γL log₂T)⌋`` unless given.
    """
    source = "Theorem 4.7 (convex), as published"
    f, n = _plain(factorization, constants), factorization.steps + 1
    distance, gamma = constants.needed("distance", source), constants.learning_rate
    limit = _step_at_most(source, constants, 1 / 8)
    most = 1 / (8 * constants.step * max(math.log2(f.steps), 1.0))
    tau = _tau(source, tau, most, "1/(8γL log₂T)")
    if tau > most * ROUNDING_MARGIN:
        raise ValueError(f"tau = {tau}: {source} has it at most 1/(8γL log₂T) = {most:.3g}")
    terms = noise_terms(f, tau)
    unit = 12 * gamma * constants.noise_length**2 / n
    parts = {
        "between restarts": unit * constants.step * terms.between,
        "restarts": unit * terms.restarts,
        "final": unit * terms.final,
    }
    return ConvergenceBound(
        source,
        VALUE,
        4 * distance**2 / (gamma * n),
        parts,
        (limit, f"τ = {tau} ≤ 1/(8γL log₂T) = {most:.3g}"),
        is_guarantee=False,
        tau=tau,
        caveat="published, not a guarantee: its proof drops correlations between restarts; use "
        "convex_bound, which holds",
    )


# ---- bounds that hold for every B: fresh noise in the virtual sequence ------------------------


def convex_bound(factorization: Factorization, constants: Constants) -> ConvergenceBound:
    r"""A bound in place of Theorem 4.7: fresh noise in the virtual sequence; needs ``distance``.

    ``‖x₀ − x*‖²/(2γ(T+1)) + γσ²/(2(T+1))·min_m(κ‖B − S diag(m)‖² + ‖m‖²)`` with
    ``κ = γL/(1 − γL)``.

    Let ``w_t = Σ_{j≤t} m_j z_j`` and ``x̃_t = x_t + γ(b_tᵀZ − w_t)``, for any numbers m. Then
    ``x̃_{t+1} = x̃_t − γ∇f(x_t) − γ m_{t+1} z_{t+1}``: the new noise is independent of the past, so
    it adds ``γ²σ²m²`` to ``E‖x̃ − x*‖²`` and nothing else; there is no sum like ``S₁``. With
    ``⟨∇f(x), x − x*⟩ ≥ f(x) − f* + ‖∇f(x)‖²/(2L)`` and
    ``2⟨∇f(x), x − x̃⟩ ≤ (1/L − γ)‖∇f(x)‖² + κ/γ·‖x − x̃‖²`` the sum telescopes. The best m has a
    closed form, column by column. ``m = 0`` is Anti-PGD's analysis and ``m = 1`` PGD's: each is
    recovered, with smaller constants. For our designs the noise term was found to be 1 to 2 times
    that of the worst quadratic.

    Guarantee: for every convex L-smooth f with a minimiser, every B, and ``γL < 1``.
    """
    source = "fresh noise in the virtual sequence (convex)"
    f, n = _plain(factorization, constants), factorization.steps + 1
    distance, gamma = constants.needed("distance", source), constants.learning_rate
    conditions = (step_below_one(source, constants),)
    unit = gamma * constants.noise_length**2 / (2 * n)
    parts = _stale_and_fresh(f, constants.step / (1 - constants.step), unit)
    return ConvergenceBound(source, VALUE, distance**2 / (2 * gamma * n), parts, conditions)


def fresh_nonconvex_bound(factorization: Factorization, constants: Constants) -> ConvergenceBound:
    r"""`convex_bound` for gradients of smooth functions; needs ``gap``.

    ``[2(f(x₀) − f*)/(γ(T+1)) + γLσ²/(T+1)·min_m(γL‖B − S diag(m)‖² + ‖m‖²)]/(1 − γL)``

    With the same x̃ the new noise is orthogonal to ``∇f(x̃_t)``, so
    ``E f(x̃_{t+1}) ≤ E f(x̃_t) − γ/2·(1 − γL)E‖∇f(x_t)‖² + γL²/2·E‖x_t − x̃_t‖² + γ²L/2·m²σ²``.

    Guarantee: for every L-smooth f, every B, and ``γL < 1``.
    """
    source = "fresh noise in the virtual sequence (non-convex)"
    f, gap = _plain(factorization, constants), constants.needed("gap", source)
    conditions = (step_below_one(source, constants),)
    n = (f.steps + 1) * (1 - constants.step)
    parts = _stale_and_fresh(f, constants.step, constants.step * constants.noise_length**2 / n)
    optimization = 2 * gap / (constants.learning_rate * n)
    return ConvergenceBound(source, GRADIENT, optimization, parts, conditions)


def _stale_and_fresh(f: Factorization, kappa: float, unit: float) -> dict[str, float]:
    stale, fresh = DecoderNorms(f).stale_and_fresh(kappa)
    return {"stale": unit * stale, "fresh": unit * fresh}


def plain_convex_bound(factorization: Factorization, constants: Constants) -> ConvergenceBound:
    r"""The plain virtual sequence (§4.1, appendix D) for any B; needs ``distance``.

    ``2‖x₀ − x*‖²/(γ(T+1)) + 4γ²Lσ²/(T+1)·Σ‖b_t‖²``

    Guarantee: for every convex L-smooth f with a minimiser, every B, and ``γL ≤ 1/4``.
    `convex_bound` is below it.
    """
    f = _plain(factorization, constants)
    mean_square = float(DecoderNorms(f).squared_rows(Average()).sum()) / (f.steps + 1)
    per_variance = 4 * constants.learning_rate * constants.step * mean_square
    return _convex("plain virtual sequence (appendix D)", f, constants, 1 / 4, 2.0, per_variance)


# ---- single mechanisms ------------------------------------------------------------------------


def pgd_bound(factorization: Factorization, constants: Constants) -> ConvergenceBound:
    r"""Proposition 4.4, for independent noise: ``‖x₀ − x*‖²/(γ(T+1)) + γσ²``.

    Guarantee: for every convex L-smooth f with a minimiser, and ``γL ≤ 1/2``.
    """
    f = _must_be("PGD", factorization, constants)
    per_variance = constants.learning_rate * f.sensitivity**2
    return _convex("Proposition 4.4 (PGD)", f, constants, 1 / 2, 1.0, per_variance)


def anti_pgd_bound(factorization: Factorization, constants: Constants) -> ConvergenceBound:
    r"""Proposition 4.5, for noise that the next step cancels: ``2‖x₀ − x*‖²/(γ(T+1)) + 4γ²Lσ²``.

    The proposition says ``γL < 1/2``; its proof (appendix D) needs 1/4.

    Guarantee: for every convex L-smooth f with a minimiser, and ``γL ≤ 1/4``.
    """
    f = _must_be("Anti-PGD", factorization, constants)
    per_variance = 4 * constants.learning_rate * constants.step * f.sensitivity**2
    return _convex("Proposition 4.5 (Anti-PGD)", f, constants, 1 / 4, 2.0, per_variance)


def anti_pgd_by_iterates_bound(
    factorization: Factorization, constants: Constants
) -> ConvergenceBound:
    r"""Anti-PGD through its own iterates, as PGD is analysed (appendix F); loose.

    ``‖x₀ − x*‖²/(γ(T+1)) + γσ²``

    The paper knows of no way to a better rate through ``x_t``. There is one:
    ``E⟨z_t, x_t − x*⟩ = −γσ²`` cancels the variance that a step adds, and of the noise
    ``2γ²Lσ² + γσ²/(T+1)`` is left; with ``γL ≤ 1/2`` that is about the ``γσ²`` returned here, and
    with a small γL far less.

    Guarantee: for every convex L-smooth f with a minimiser, and ``γL ≤ 1/2``.
    """
    f = _must_be("Anti-PGD", factorization, constants)
    per_variance = constants.learning_rate * f.sensitivity**2
    return _convex("Anti-PGD by its iterates (appendix F)", f, constants, 1 / 2, 1.0, per_variance)


def pgd_by_virtual_bound(factorization: Factorization, constants: Constants) -> ConvergenceBound:
    r"""PGD through the plain virtual sequence, as Anti-PGD is analysed (appendix F); loose.

    ``2‖x₀ − x*‖²/(γ(T+1)) + 2γ²LTσ²``, which grows with T.

    Guarantee: for every convex L-smooth f with a minimiser, and ``γL ≤ 1/4``.
    """
    f = _must_be("PGD", factorization, constants)
    per_variance = 2 * constants.learning_rate * constants.step * f.steps * f.sensitivity**2
    source = "PGD by the virtual sequence (appendix F)"
    return _convex(source, f, constants, 1 / 4, 2.0, per_variance)


def chess_bound(factorization: Factorization, constants: Constants) -> ConvergenceBound:
    r"""Example A.1, noise that alternates: ``2‖x₀ − x*‖²/(γ(T+1)) + 2γ²L(T + 1)σ²``.

    The paper takes this rate from Theorem 4.7; here it is `plain_convex_bound` with
    ``Σ‖b_t‖² ≤ (T + 1)²/2``.

    Guarantee: for every convex L-smooth f with a minimiser, and ``γL ≤ 1/4``.
    """
    f = _must_be("Chess", factorization, constants)
    per_variance = 2 * constants.learning_rate * constants.step * (f.steps + 1) * f.sensitivity**2
    return _convex("Example A.1 (Chess)", f, constants, 1 / 4, 2.0, per_variance)


def frobenius_rate(factorization: Factorization, constants: Constants) -> ConvergenceBound:
    r"""Eq. 5, of earlier work, for convex ``L̃``-Lipschitz f; needs ``distance`` and ``lipschitz``.

    ``‖x₀ − x*‖²/(γT) + γL̃² + γζL̃·sens(C)‖B‖_F/√T``

    **Not a guarantee**: a rate, published without constants. Each term is given with the constant
    1.
    """
    source = "Eq. 5 (Denisov et al. 2022)"
    f, gamma = _plain(factorization, constants), constants.learning_rate
    distance, lipschitz = (constants.needed(name, source) for name in ("distance", "lipschitz"))
    mean_square = float(DecoderNorms(f).squared_rows(Average()).sum()) / f.steps
    return ConvergenceBound(
        source,
        VALUE,
        distance**2 / (gamma * f.steps),
        {"frobenius": gamma * constants.noise_length * lipschitz * math.sqrt(mean_square)},
        ("f is convex and Lipschitz",),
        is_guarantee=False,
        bias=gamma * lipschitz**2,
        caveat="a rate without constants: each term is given with the constant 1",
    )


def _convex(
    source: str, f: Factorization, c: Constants, most: float, factor: float, per_variance: float
) -> ConvergenceBound:
    """``factor·‖x₀ − x*‖²/(γ(T+1)) + per_variance·ζ²``, for ``γL ≤ most``."""
    conditions = (_step_at_most(source, c, most),)
    optimization = factor * c.needed("distance", source) ** 2 / (c.learning_rate * (f.steps + 1))
    parts = {"all": per_variance * c.noise_length**2}
    return ConvergenceBound(source, VALUE, optimization, parts, conditions)


# ---- conditions -------------------------------------------------------------------------------


def _plain(f: Factorization, constants: Constants | None = None) -> Factorization:
    """Refuse workloads that the theorems do not cover: they have ``A = S``."""
    check.instance("factorization", f, Factorization)
    if constants is not None:
        check.instance("constants", constants, Constants)
    w = f.workload
    if not (w.is_plain_sgd and w.delay == 0 and np.all(w.learning_rates == 1)):
        raise ValueError(
            f"the factorization is for {w.describe()}, and the theorems are about plain gradient "
            "descent: design with rates of 1 and no delay, and give learning_rate here"
        )
    return f


ENCODERS: dict[str, Callable[[int], Array]] = {  # their coefficients, all of them Toeplitz
    "PGD": lambda steps: np.ones(1),
    "Anti-PGD": np.ones,
    "Chess": lambda steps: chess_coefficients()[:steps],
}


def _must_be(name: str, f: Factorization, constants: Constants) -> Factorization:
    _plain(f, constants)
    coefficients = f.toeplitz_coefficients()
    if coefficients is None or not np.array_equal(coefficients, ENCODERS[name](f.steps)):
        raise ValueError(f"the factorization is {f.name!r}: this bound is about {name} alone")
    return f


def _step_at_most(source: str, c: Constants, most: float) -> str:
    if c.step > most * ROUNDING_MARGIN:
        raise ValueError(
            f"learning_rate × smoothness = {c.step:.4g}: {source} needs at most {most:g}, so a "
            f"learning_rate of at most {most / c.smoothness:.4g}"
        )
    return f"γL = {c.step:.3g} ≤ {most:g}"


def step_below_one(source: str, c: Constants) -> str:
    """Return the condition ``γL < 1`` in words; raise ValueError if it does not hold."""
    if c.step >= 1:
        raise ValueError(
            f"learning_rate × smoothness = {c.step:.4g}: {source} needs it below 1, so a "
            f"learning_rate below {1 / c.smoothness:.4g}"
        )
    return f"γL = {c.step:.3g} < 1"


def _tau(source: str, tau: int | None, natural: float, words: str) -> int:
    """``tau``, or the natural one rounded down."""
    if tau is not None:
        return check.whole_number("tau", tau)
    if natural * ROUNDING_MARGIN < 1:
        raise ValueError(
            f"{source} has τ = {words} = {natural:.3g}, below one step; lower learning_rate "
            f"{1 / natural:.3g} times"
        )
    return math.floor(natural * ROUNDING_MARGIN)
