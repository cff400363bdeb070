r"""The convergence theorems, with their constants: what gradient descent under the noise ``BZ`` can be promised.

Throughout ``x_{t+1} = x_t − γ(∇f(x_t) + (b_{t+1} − b_t)ᵀZ)`` for ``t = 0 … T−1`` (paper, §3), f is L-smooth, the rows
of ``Z`` are independent with mean 0, and averages are over ``t = 0 … T``.

| | about | holds |
|---|---|---|
| `nonconvex_bound` | Theorem 4.6, restarts every τ steps | yes |
| `published_convex_bound` | Theorem 4.7, restarts every τ steps | **no**: as published, with a counter-example |
| `convex_bound`, `fresh_nonconvex_bound` | not in the paper: the virtual sequence keeps what is fresh | yes |
| `plain_convex_bound` | appendix D for any B: the plain virtual sequence | yes |
| `pgd_bound`, `anti_pgd_bound`, `chess_bound` | Propositions 4.4 and 4.5, Example A.1 | yes |
| `anti_pgd_by_iterates_bound`, `pgd_by_virtual_bound` | appendix F: the same by the other's analysis, and loose | yes |
| `frobenius_rate` | Eq. 5, of earlier work: a rate without constants | no |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase.factorizations.base import Factorization
from antiphase.factorizations.dense import Dense
from antiphase.factorizations.identity import Identity
from antiphase.factorizations.toeplitz import Toeplitz
from antiphase.objective import Average, Restarts
from antiphase.solvers.closed_form import chess_coefficients
from antiphase.theory.decoder_norms import Rows

ROUNDING = 1 + 1e-12  # a limit that is met but for rounding is met
GRADIENT = "mean over t = 0 … T of E‖∇f(x_t)‖²"
VALUE = "mean over t = 0 … T of E f(x_t) − f*"


@dataclass(frozen=True)
class Constants:
    """What the theorems know of a problem; each needs some of it, and says what is missing.

    ``smoothness`` is L and ``learning_rate`` γ. ``noise_length`` is ζ, the root of ``E‖z_t‖²``: √dimension times the
    standard deviation of a coordinate, before it is scaled by the sensitivity, so that mechanisms are compared at
    equal privacy. The paper's σ is ``sens(C)·ζ``; for a fixed σ give ``σ / factorization.sensitivity``. ``distance``
    is ``‖x₀ − x*‖``, ``gap`` is ``f(x₀) − f*``, and ``lipschitz`` the ``L̃`` of earlier work.
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
            if getattr(self, name) is not None or name == "noise_length":
                object.__setattr__(
                    self, name, check.real_number(name, getattr(self, name), minimum=0.0)
                )

    @property
    def step(self) -> float:
        """``γL``."""
        return self.learning_rate * self.smoothness

    def needed(self, name: str, source: str) -> float:
        value = getattr(self, name)
        if value is None:
            raise TypeError(f"{name} = None: {source} needs it; give it to Constants")
        return float(value)


@dataclass(frozen=True)
class Bound:
    """An upper bound on ``quantity``, term by term: ``total = optimization + bias + noise``.

    ``optimization`` is what gradient descent without noise would leave, ``noise`` is proportional to ζ² (``parts``
    says what it is made of), and ``bias`` is the rest. Where ``is_guarantee`` is False ``caveat`` says why.
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
        return sum(self.parts.values())

    @property
    def total(self) -> float:
        return self.optimization + self.bias + self.noise


@dataclass(frozen=True)
class Bracket:
    """The sums over rows of ``B`` that the theorems weigh, each times ``sens(C)²``.

    ``between`` is ``Σ_t‖b_t − b_{⌊t/τ⌋τ}‖²``, ``restarts`` is ``Σ_k‖b_{kτ} − b_{(k−1)τ}‖²``, and ``final`` is
    ``‖b_{⌊T/τ⌋τ}‖²``.
    """

    tau: int
    between: float
    restarts: float
    final: float

    @property
    def weighted(self) -> float:
        """``‖Λ_τB‖_F² = between/τ + restarts``: what DP-MF⁺ minimises (§5)."""
        return self.between / self.tau + self.restarts


def noise_bracket(factorization: Factorization, tau: int) -> Bracket:
    """The bracket of Theorems 4.6 and 4.7, in O(T) for streams, DP-SGD, Chess, few bands and the full tree.

    >>> import antiphase as ap
    >>> noise_bracket(ap.design("dp-sgd", steps=16), tau=4).weighted
    22.0
    """
    f = _plain(factorization)
    tau = check.whole_number("tau", tau)
    rows, last = Rows(f), f.steps // tau * tau
    squares = rows.squares(Restarts(tau, weight=1.0))
    at_restart = np.arange(1, f.steps + 1) % tau == 0
    final = rows.square_of(last) if last else 0.0
    return Bracket(tau, float(squares[~at_restart].sum()), float(squares[at_restart].sum()), final)


# ---- the theorems ------------------------------------------------------------------------------------------


def nonconvex_bound(
    factorization: Factorization, constants: Constants, *, tau: int | None = None
) -> Bound:
    r"""Theorem 4.6: ``8(f(x₀) − f*)/(γ(T+1)) + 4γ²L²σ²/(T+1)·between + 40γLσ²/(T+1)·restarts``; needs ``gap``.

    ``τ = ⌊1/(γL)⌋`` unless given.

    Guarantee: for every L-smooth f, if ``γL ≤ 1/4`` and ``1/4 ≤ γLτ ≤ 4``. The paper asks for ``τ = 1/(γL)``. Its
    proof needs ``1/(γLτ) ≤ 4``, so that ``‖∇f(x̃)‖²`` at a restart is paid for by the steps since the last one, and
    ``γLτ ≤ 4``, so that these have not moved too far. (For ``γLτ ≤ 2`` half of every constant would do.)
    """
    source = "Theorem 4.6 (non-convex)"
    f, gap, gamma = (
        _plain(factorization, constants),
        constants.needed("gap", source),
        constants.learning_rate,
    )
    limit = _step_at_most(source, constants, 1 / 4)
    tau = _tau(source, tau, 1 / constants.step, "1/(γL)")
    if not 1 / 4 <= constants.step * tau <= 4:
        raise ValueError(
            f"tau = {tau}: {source} holds for 1/4 ≤ learning_rate × smoothness × tau ≤ 4, and here that is "
            f"{constants.step * tau:.3g}; take tau = {math.floor(1 / constants.step)}"
        )
    bracket, n = noise_bracket(f, tau), f.steps + 1
    unit = constants.step * constants.noise_length**2 / n
    parts = {
        "between restarts": 4 * unit * constants.step * bracket.between,
        "restarts": 40 * unit * bracket.restarts,
    }
    conditions = (limit, f"1/4 ≤ γLτ = {constants.step * tau:.3g} ≤ 4")
    return Bound(source, GRADIENT, 8 * gap / (gamma * n), parts, conditions, tau=tau)


def published_convex_bound(
    factorization: Factorization, constants: Constants, *, tau: int | None = None
) -> Bound:
    r"""Theorem 4.7 as published: ``4‖x₀ − x*‖²/(γ(T+1)) + 12γσ²/(T+1)·(γL·between + restarts + final)``; needs
    ``distance``.

    ``γL ≤ 1/8`` as in the proof (the theorem says 1/4); ``τ = ⌊1/(8γL log₂T)⌋`` unless given.

    **Not a guarantee.** From its second level on, the halving of the sum ``S₁`` (appendix C) drops the noise between
    restarts that the same z correlates. Let the first column of B rise by 1 a step to T/2 and fall back: on a
    curvature h ≪ L the iterates settle at ``∓z₁/h``, the error is ``σ²/(2h)``, and the bound ``1.5σ²/(L log₂T)``.
    `convex_bound` is what holds.
    """
    source = "Theorem 4.7 (convex), as published"
    f, distance, gamma = (
        _plain(factorization, constants),
        constants.needed("distance", source),
        constants.learning_rate,
    )
    limit = _step_at_most(source, constants, 1 / 8)
    most = 1 / (8 * constants.step * max(math.log2(f.steps), 1.0))
    tau = _tau(source, tau, most, "1/(8γL log₂T)")
    if tau > most * ROUNDING:
        raise ValueError(f"tau = {tau}: {source} has it at most 1/(8γL log₂T) = {most:.3g}")
    bracket, n = noise_bracket(f, tau), f.steps + 1
    unit = 12 * gamma * constants.noise_length**2 / n
    parts = {
        "between restarts": unit * constants.step * bracket.between,
        "restarts": unit * bracket.restarts,
        "final": unit * bracket.final,
    }
    conditions = (limit, f"τ = {tau} ≤ 1/(8γL log₂T) = {most:.3g}")
    caveat = "published, not a guarantee: its proof drops correlations between restarts; convex_bound is what holds"
    return Bound(
        source,
        VALUE,
        4 * distance**2 / (gamma * n),
        parts,
        conditions,
        False,
        tau=tau,
        caveat=caveat,
    )


# ---- what holds for every B: fresh noise in the virtual sequence -------------------------------------------


def convex_bound(factorization: Factorization, constants: Constants) -> Bound:
    r"""What holds in place of Theorem 4.7: ``‖x₀ − x*‖²/(2γ(T+1)) + γσ²/(2(T+1))·min_m(κ‖B − S diag(m)‖² + ‖m‖²)``
    with ``κ = γL/(1 − γL)``; needs ``distance``.

    Let ``w_t = Σ_{j≤t} m_j z_j`` and ``x̃_t = x_t + γ(b_tᵀZ − w_t)``, for any numbers m. Then ``x̃_{t+1} = x̃_t −
    γ∇f(x_t) − γ m_{t+1} z_{t+1}``: what enters is independent of all before it, so it adds ``γ²σ²m²`` to ``E‖x̃ −
    x*‖²`` and nothing else; there is no sum like ``S₁``. With ``⟨∇f(x), x − x*⟩ ≥ f(x) − f* + ‖∇f(x)‖²/(2L)`` and
    ``2⟨∇f(x), x − x̃⟩ ≤ (1/L − γ)‖∇f(x)‖² + κ/γ·‖x − x̃‖²`` the sum telescopes. The best m has a closed form, column
    by column. ``m = 0`` is Anti-PGD's analysis and ``m = 1`` PGD's: each is recovered, with smaller constants. For
    our designs the noise term was found to be 1 to 2 times that of the worst quadratic.

    Guarantee: for every convex L-smooth f with a minimiser, every B, and ``γL < 1``.
    """
    source = "fresh noise in the virtual sequence (convex)"
    f, distance, gamma = (
        _plain(factorization, constants),
        constants.needed("distance", source),
        constants.learning_rate,
    )
    conditions = (_step_below_one(source, constants),)
    stale, fresh = Rows(f).fresh(constants.step / (1 - constants.step))
    n = f.steps + 1
    unit = gamma * constants.noise_length**2 / (2 * n)
    parts = {"stale": unit * stale, "fresh": unit * fresh}
    return Bound(source, VALUE, distance**2 / (2 * gamma * n), parts, conditions)


def fresh_nonconvex_bound(factorization: Factorization, constants: Constants) -> Bound:
    r"""``[2(f(x₀) − f*)/(γ(T+1)) + γLσ²/(T+1)·min_m(γL‖B − S diag(m)‖² + ‖m‖²)]/(1 − γL)``: as `convex_bound`, for
    gradients; needs ``gap``.

    With the same x̃ the noise that enters is orthogonal to ``∇f(x̃_t)``, so ``E f(x̃_{t+1}) ≤ E f(x̃_t) − γ/2·(1 −
    γL)E‖∇f(x_t)‖² + γL²/2·E‖x_t − x̃_t‖² + γ²L/2·m²σ²``.

    Guarantee: for every L-smooth f, every B, and ``γL < 1``.
    """
    source = "fresh noise in the virtual sequence (non-convex)"
    f, gap, gamma = (
        _plain(factorization, constants),
        constants.needed("gap", source),
        constants.learning_rate,
    )
    conditions = (_step_below_one(source, constants),)
    stale, fresh = Rows(f).fresh(constants.step)
    n = (f.steps + 1) * (1 - constants.step)
    unit = constants.step * constants.noise_length**2 / n
    parts = {"stale": unit * stale, "fresh": unit * fresh}
    return Bound(source, GRADIENT, 2 * gap / (gamma * n), parts, conditions)


def plain_convex_bound(factorization: Factorization, constants: Constants) -> Bound:
    r"""The plain virtual sequence (§4.1) for any B: ``2‖x₀ − x*‖²/(γ(T+1)) + 4γ²Lσ²/(T+1)·Σ‖b_t‖²`` (appendix D).

    Guarantee: for every convex L-smooth f with a minimiser, every B, and ``γL ≤ 1/4``. `convex_bound` is below it.
    """
    f = _plain(factorization, constants)
    mean_square = float(Rows(f).squares(Average()).sum()) / (f.steps + 1)
    per_variance = 4 * constants.learning_rate * constants.step * mean_square
    return _convex("plain virtual sequence (appendix D)", f, constants, 1 / 4, 2.0, per_variance)


# ---- single mechanisms -------------------------------------------------------------------------------------


def pgd_bound(factorization: Factorization, constants: Constants) -> Bound:
    r"""Proposition 4.4, for independent noise: ``‖x₀ − x*‖²/(γ(T+1)) + γσ²``.

    Guarantee: for every convex L-smooth f with a minimiser, and ``γL ≤ 1/2``.
    """
    f = _must_be("PGD", factorization, isinstance(factorization, Identity), constants)
    per_variance = constants.learning_rate * f.sensitivity**2
    return _convex("Proposition 4.4 (PGD)", f, constants, 1 / 2, 1.0, per_variance)


def anti_pgd_bound(factorization: Factorization, constants: Constants) -> Bound:
    r"""Proposition 4.5, for noise that the next step takes back: ``2‖x₀ − x*‖²/(γ(T+1)) + 4γ²Lσ²``.

    The proposition says ``γL < 1/2``; its proof (appendix D) needs 1/4.

    Guarantee: for every convex L-smooth f with a minimiser, and ``γL ≤ 1/4``.
    """
    f = _must_be("Anti-PGD", factorization, _is_anti_pgd(factorization), constants)
    per_variance = 4 * constants.learning_rate * constants.step * f.sensitivity**2
    return _convex("Proposition 4.5 (Anti-PGD)", f, constants, 1 / 4, 2.0, per_variance)


def anti_pgd_by_iterates_bound(factorization: Factorization, constants: Constants) -> Bound:
    r"""Anti-PGD through its own iterates, as PGD is analysed (appendix F): ``‖x₀ − x*‖²/(γ(T+1)) + γσ²``, and loose.

    The paper knows of no way to a better rate through ``x_t``. There is one: ``E⟨z_t, x_t − x*⟩ = −γσ²`` cancels the
    variance that a step adds, and of the noise ``2γ²Lσ² + γσ²/(T+1)`` is left; with ``γL ≤ 1/2`` that is about the
    ``γσ²`` returned here, and with a small γL far less.

    Guarantee: for every convex L-smooth f with a minimiser, and ``γL ≤ 1/2``.
    """
    f = _must_be("Anti-PGD", factorization, _is_anti_pgd(factorization), constants)
    per_variance = constants.learning_rate * f.sensitivity**2
    return _convex("Anti-PGD by its iterates (appendix F)", f, constants, 1 / 2, 1.0, per_variance)


def pgd_by_virtual_bound(factorization: Factorization, constants: Constants) -> Bound:
    r"""PGD through the plain virtual sequence, as Anti-PGD is analysed (appendix F): ``2‖x₀ − x*‖²/(γ(T+1)) +
    2γ²LTσ²``, and loose: it grows with T.

    Guarantee: for every convex L-smooth f with a minimiser, and ``γL ≤ 1/4``.
    """
    f = _must_be("PGD", factorization, isinstance(factorization, Identity), constants)
    per_variance = 2 * constants.learning_rate * constants.step * f.steps * f.sensitivity**2
    return _convex(
        "PGD by the virtual sequence (appendix F)", f, constants, 1 / 4, 2.0, per_variance
    )


def chess_bound(factorization: Factorization, constants: Constants) -> Bound:
    r"""Example A.1, noise that alternates and never cancels: ``2‖x₀ − x*‖²/(γ(T+1)) + 2γ²L(T + 1)σ²``.

    The paper takes this rate from Theorem 4.7; here it is `plain_convex_bound` with ``Σ‖b_t‖² ≤ (T + 1)²/2``.

    Guarantee: for every convex L-smooth f with a minimiser, and ``γL ≤ 1/4``.
    """
    f = _must_be("Chess", factorization, _is_chess(factorization), constants)
    per_variance = 2 * constants.learning_rate * constants.step * (f.steps + 1) * f.sensitivity**2
    return _convex("Example A.1 (Chess)", f, constants, 1 / 4, 2.0, per_variance)


def frobenius_rate(factorization: Factorization, constants: Constants) -> Bound:
    r"""Eq. 5, of earlier work: ``‖x₀ − x*‖²/(γT) + γL̃² + γζL̃·sens(C)‖B‖_F/√T``, for convex ``L̃``-Lipschitz f; needs
    ``distance`` and ``lipschitz``.

    **Not a guarantee**: a rate, published without constants. These are its terms, each with the constant 1.
    """
    source = "Eq. 5 (Denisov et al. 2022)"
    f, gamma = _plain(factorization, constants), constants.learning_rate
    distance, lipschitz = (constants.needed(name, source) for name in ("distance", "lipschitz"))
    root_mean_square = math.sqrt(float(Rows(f).squares(Average()).sum()) / f.steps)
    return Bound(
        source,
        VALUE,
        distance**2 / (gamma * f.steps),
        {"frobenius": gamma * constants.noise_length * lipschitz * root_mean_square},
        ("f is convex and Lipschitz",),
        False,
        bias=gamma * lipschitz**2,
        caveat="a rate without constants: each term is given with the constant 1",
    )


def _convex(
    source: str, f: Factorization, c: Constants, most: float, factor: float, per_variance: float
) -> Bound:
    """``factor·‖x₀ − x*‖²/(γ(T+1)) + per_variance·ζ²``, for ``γL ≤ most``."""
    conditions = (_step_at_most(source, c, most),)
    optimization = factor * c.needed("distance", source) ** 2 / (c.learning_rate * (f.steps + 1))
    return Bound(source, VALUE, optimization, {"all": per_variance * c.noise_length**2}, conditions)


# ---- on f = (L/2)‖x‖², exactly: these bounds cannot be improved --------------------------------------------


def pgd_noise(steps: int, constants: Constants) -> float:
    """The noise in ``E f(x_T)`` under PGD on ``f = (L/2)‖x‖²``, exactly; ``noise_length`` is σ (appendix E)."""
    return anti_pgd_lower_bound(constants) * _geometric((1 - constants.step) ** 2, steps)


def anti_pgd_noise(steps: int, constants: Constants) -> float:
    """The noise in ``E f(x_T)`` under Anti-PGD on ``f = (L/2)‖x‖²``, exactly; ``noise_length`` is σ.

    The coefficient of ``z_j`` in ``x_T`` is ``γ²L(1 − γL)^{T−1−j}`` for j < T (appendix E has another for ``z₁``).
    """
    earlier = constants.step**2 * _geometric((1 - constants.step) ** 2, steps - 1)
    return anti_pgd_lower_bound(constants) * (1 + earlier)


def pgd_virtual_noise(steps: int, constants: Constants) -> float:
    """The noise in ``E f(x̃_T)`` for PGD's plain virtual sequence on ``f = (L/2)‖x‖²``, exactly (appendix E).

    At least ``γ²Lσ²T/8`` for ``T ≥ 2 log 4/(γL)``: it grows without limit, while that of ``x_T`` does not.
    """
    rho = 1 - constants.step
    total = (
        (steps - 1) - 2 * rho * _geometric(rho, steps - 1) + rho**2 * _geometric(rho**2, steps - 1)
    )
    return anti_pgd_lower_bound(constants) * total


def pgd_lower_bound(steps: int, constants: Constants) -> float:
    """``γσ²/8``: the noise in ``E f(x_T)`` under PGD on ``f = (L/2)‖x‖²`` is not below it, once ``T ≥ log 2/(γL)``."""
    source = "the lower bound for PGD (appendix E)"
    _step_below_one(source, constants)
    least = math.log(2) / constants.step
    if steps < least:
        raise ValueError(f"steps = {steps}: {source} needs at least log 2/(γL) = {least:.1f}")
    return constants.learning_rate * constants.noise_length**2 / 8


def anti_pgd_lower_bound(constants: Constants) -> float:
    """``γ²Lσ²/2``: the noise in ``E f(x_T)`` under Anti-PGD on ``f = (L/2)‖x‖²`` is not below it."""
    return constants.step * constants.learning_rate * constants.noise_length**2 / 2


def _geometric(ratio: float, terms: int) -> float:
    """``1 + ratio + … ``, so many terms."""
    return float(terms) if ratio == 1 else (1 - ratio**terms) / (1 - ratio)


# ---- the sequences themselves ------------------------------------------------------------------------------


def iterates(
    gradient: Callable[[Array], Any], start: Any, noise: Any, learning_rate: float
) -> Array:
    """``x_0 … x_T`` under the noise ``u = BZ`` (rows ``u_1 … u_T``): ``x_{t+1} = x_t − γ(∇f(x_t) + u_{t+1} − u_t)``."""
    u = _with_zero(noise)
    x = [np.asarray(start, dtype=np.float64)]
    for t in range(len(u) - 1):
        x.append(x[-1] - learning_rate * (gradient(x[-1]) + u[t + 1] - u[t]))
    return np.array(x)


def virtual_iterates(path: Any, noise: Any, learning_rate: float, tau: int | None = None) -> Array:
    """``x̃_t = x_t + γ(u_t − u_{⌊t/τ⌋τ})`` along a path: the restarting sequence (§4.2), or without ``tau`` the plain
    one (§4.1), which never restarts."""
    u = _with_zero(noise)
    t = np.arange(len(u))
    last = np.zeros_like(t) if tau is None else t // check.whole_number("tau", tau) * tau
    moved: Array = np.asarray(path, dtype=np.float64) + learning_rate * (u - u[last])
    return moved


def smoothed_iterates(
    gradient: Callable[[Array], Any], start: Any, noise: Any, learning_rate: float
) -> Array:
    """SGD with randomized smoothing, ``x̃_{t+1} = x̃_t − γ∇f(x̃_t − γz_t)``: Anti-PGD, seen from ``x̃ = x + γz`` (§3)."""
    z = _with_zero(noise)
    x = [np.asarray(start, dtype=np.float64)]
    for t in range(len(z) - 1):
        x.append(x[-1] - learning_rate * np.asarray(gradient(x[-1] - learning_rate * z[t])))
    return np.array(x)


def _with_zero(noise: Any) -> Array:
    """``b_0 = 0`` before the first row."""
    rows = np.asarray(noise, dtype=np.float64)
    return np.concatenate([np.zeros_like(rows[:1]), rows])


# ---- conditions --------------------------------------------------------------------------------------------


def _plain(f: Any, *constants: Any) -> Factorization:
    """Refuses what the theorems say nothing about: they have ``A = S``."""
    check.instance("factorization", f, Factorization)
    for each in constants:
        check.instance("constants", each, Constants)
    w = f.workload
    if not (w.is_plain_sgd and w.delay == 0 and (w.learning_rates == 1).all()):
        raise ValueError(
            f"the factorization is for {w.describe()}, and the theorems are about plain gradient descent: design with "
            "rates of 1 and no delay, and give learning_rate here"
        )
    factorization: Factorization = f
    return factorization


def _must_be(name: str, f: Factorization, it_is: bool, constants: Constants) -> Factorization:
    if not it_is:
        raise ValueError(
            f"the factorization is {getattr(f, 'name', f)!r}: this bound is about {name} alone"
        )
    return _plain(f, constants)


def _is_anti_pgd(f: Factorization) -> bool:
    return isinstance(f, Dense) and np.array_equal(
        f.encoder(), np.tril(np.ones((f.steps, f.steps)))
    )


def _is_chess(f: Factorization) -> bool:
    chess = chess_coefficients()[: f.steps]
    return isinstance(f, Toeplitz) and not f.normalized and np.array_equal(f.coefficients, chess)


def _step_at_most(source: str, c: Constants, most: float) -> str:
    if c.step > most * ROUNDING:
        raise ValueError(
            f"learning_rate × smoothness = {c.step:.4g}: {source} needs at most {most:g}, so a learning_rate of at "
            f"most {most / c.smoothness:.4g}"
        )
    return f"γL = {c.step:.3g} ≤ {most:g}"


def _step_below_one(source: str, c: Constants) -> str:
    if c.step >= 1:
        raise ValueError(
            f"learning_rate × smoothness = {c.step:.4g}: {source} needs it below 1, so a learning_rate below "
            f"{1 / c.smoothness:.4g}"
        )
    return f"γL = {c.step:.3g} < 1"


def _tau(source: str, tau: int | None, natural: float, words: str) -> int:
    """``tau``, or the natural one rounded down."""
    if tau is not None:
        return check.whole_number("tau", tau)
    if natural * ROUNDING < 1:
        raise ValueError(
            f"{source} has τ = {words} = {natural:.3g}, below one step; lower learning_rate {1 / natural:.3g} times"
        )
    return math.floor(natural * ROUNDING)
