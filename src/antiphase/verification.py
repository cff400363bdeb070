"""`verify`: check a mechanism by other methods than those that made it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase.errors import FileFormatError
from antiphase.factorizations.base import Factorization, refuse_if_too_large
from antiphase.mechanism import Mechanism
from antiphase.noise import Key
from antiphase.problem import Problem
from antiphase.sampling import CyclicPoisson
from antiphase.solvers.dispatch import best_bound

MAX_ENCODER_STEPS = 8192  # up to which the T × T encoder and the noise are checked
NOISE_DIMENSION = 2048  # numbers in each row of the noise that is checked
MAX_DEVIATIONS = 6.5  # standard deviations that pass as chance; more happen once in 10^10
MAX_SHARP_STEPS = 4096  # up to which the optimum is known to a gap of 1e-6; beyond, to 1e-4
INDEPENDENT_FIELDS = ("versions", "noise_source", "insecure", "caveats", "not_private")


@dataclass(frozen=True)
class Check:
    """One checked claim.

    Attributes:
        name: what was checked.
        claimed: what the mechanism or the statement says.
        computed: what another method gives.
        holds: whether the two agree.
    """

    name: str
    claimed: str
    computed: str
    holds: bool


def verify(
    target: Mechanism | Factorization,
    claims: Mapping[str, Any] | None = None,
    *,
    delta: float | None = None,
    full: bool = False,
) -> list[Check]:
    """Check encoder, sensitivity, noise and ε of a mechanism, and optionally a statement of it.

    The sensitivity is computed from every pattern, where patterns can be listed; ε by another
    accountant; noise is drawn with a new key and multiplied by the encoder. Noise that is too small
    is detected if it is so by a fifth in some row, or by 7/√(2,048 × rows) overall. Mechanisms of
    this library pass, except with a probability of about 1e-9 a row.

    Args:
        target: a mechanism, or a design that is not calibrated.
        claims: a statement as a dictionary; see `read_statement`.
        delta: the δ at which ε is checked; by default that of the claims or of the mechanism.
        full: whether to solve for the bound on the optimum again, which takes a search.

    Returns:
        At least one check. Encoder and noise are left out beyond `MAX_ENCODER_STEPS` steps.

    Raises:
        ValueError: there are claims without a mechanism, or there is nothing to check.

    Example:
        >>> from antiphase import design
        >>> checks = verify(design("dp-mf", steps=16))
        >>> [(check.name, check.holds) for check in checks[:2]]
        [('no noise of future steps', True), ('sensitivity of the encoder', True)]
    """
    if not isinstance(target, Mechanism | Factorization):
        raise TypeError(
            f"target = {target!r} must be a Mechanism or a Factorization, not "
            f"{type(target).__name__}"
        )
    if claims is not None:
        check.instance("claims", claims, Mapping)
        if not isinstance(target, Mechanism):
            raise ValueError(
                "a design that is not calibrated has no guarantee; there is no statement to match"
            )
    f = target.factorization if isinstance(target, Mechanism) else target
    checks: list[Check] = []
    if f.steps <= MAX_ENCODER_STEPS:
        refuse_if_too_large(f.steps)
        C = np.array(f.encoder())
        checks += [_triangular(C), _sensitivity(f, C), _error(f, C)]
        checks += [_noise(target, C), *_groups(target, C)] if isinstance(target, Mechanism) else []
    if f.bound is not None:
        checks.append(_bound(f, full))
    if isinstance(target, Mechanism):
        checks += _epsilon(target, delta if claims is None else claims.get("delta", delta))
        checks += _statement(target, claims) if claims is not None else []
    if not checks:
        raise ValueError(
            f"steps = {f.steps}: encoders of more than {MAX_ENCODER_STEPS} steps are not checked, "
            "and this one makes no other claim; nothing was checked"
        )
    return checks


def read_statement(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a statement that `PrivacyStatement.to_json` wrote.

    Raises:
        FileFormatError: it is not a statement.
    """
    try:
        claims = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(
            f"{path}: not a statement in JSON ({error}); antiphase statement --json writes one"
        ) from error
    if (
        not isinstance(claims, dict)
        or "digest" not in claims
        or not isinstance(claims.get("delta"), int | float)
    ):
        raise FileFormatError(f"{path}: not a statement: digest and delta are missing")
    return claims


def _triangular(C: Array) -> Check:
    above = float(np.abs(np.triu(C, 1)).max(initial=0.0))
    smallest = float(np.diagonal(C).min())
    return Check(
        "no noise of future steps",
        "lower triangular",
        f"above: {above:g}, diagonal ≥ {smallest:.3g}",
        above == 0 and smallest > 0 and bool(np.isfinite(C).all()),
    )


def _sensitivity(f: Factorization, C: Array) -> Check:
    """By brute force: all entries of CᵀC that a record touches, with their signs aligned."""
    if f.participation.fixed_order:
        patterns = f.participation.patterns(f.steps)
        worst = max(math.sqrt(float(np.abs(C[:, p].T @ C[:, p]).sum())) for p in patterns)
        method = "every pattern"
    else:
        worst = math.sqrt(max(float(np.einsum("ij,ij->j", C, C).max()), 0.0))
        method = "one participation; more are bounded"
    # PRIVACY: a claim below what some record can do is wrong; so little above is rounding.   [G1]
    exact = f.participation.fixed_order and f.sensitivity_is_exact
    holds = worst <= f.sensitivity * (1 + 1e-9) and (
        not exact or worst >= f.sensitivity * (1 - 1e-6)
    )
    return Check(
        "sensitivity of the encoder", f"{f.sensitivity:.9g}", f"{worst:.9g} ({method})", holds
    )


def _error(f: Factorization, C: Array) -> Check:
    rows = scipy.linalg.solve_triangular(C, f.objective.root(f.workload).T, lower=True, trans="T")
    error = f.sensitivity**2 * f.objective.total(np.square(rows).sum(axis=0))
    agrees = math.isclose(error, f.error, rel_tol=1e-6)
    return Check("error", f"{f.error:.8g}", f"{error:.8g}", agrees)


def _noise(m: Mechanism, C: Array) -> Check:
    """C times rows of noise must be independent standard normals."""
    stream = m.noise(NOISE_DIMENSION, key=Key.generate())
    rows = np.array([stream.next() for _ in range(m.steps)], dtype=np.float64)
    Z = C @ rows / m.noise_scale
    total = (np.square(Z).sum() - Z.size) / math.sqrt(2 * Z.size)
    by_row = (np.square(Z).sum(axis=1) - NOISE_DIMENSION) / math.sqrt(2 * NOISE_DIMENSION)
    pairs = np.einsum("ij,ij->i", Z[1:], Z[:-1]) / math.sqrt(NOISE_DIMENSION)
    worst = max(abs(total), float(np.abs(by_row).max()), float(np.abs(pairs).max(initial=0.0)))
    deviation = math.sqrt(float(np.square(Z).mean()))
    return Check(
        "noise rows",
        f"standard deviation {m.noise_scale:.6g}, then correlated",
        f"{deviation:.5f} of it, at most {worst:.1f} deviations off",
        worst < MAX_DEVIATIONS,
    )


def _groups(m: Mechanism, C: Array) -> list[Check]:
    """With cyclic Poisson sampling, columns of one group must share no row."""
    if not isinstance(m.sampling, CyclicPoisson):
        return []
    groups, (rows, columns) = m.factorization.bands, np.nonzero(C)
    # PRIVACY: by the matrix itself; steps of one group are ``groups`` apart.   [G9]
    diagonals = int((rows - columns).max()) + 1
    name = "groups, at least as many as diagonals"
    return [Check(name, f"{groups}", f"{diagonals} diagonals", diagonals <= groups)]


def _bound(f: Factorization, full: bool) -> Check:
    assert f.bound is not None
    claimed, is_below = f"≥ {f.bound:.8g}", f.error >= f.bound * (1 - 1e-9)
    if not full:
        return Check("error is above the bound", claimed, f"{f.error:.8g}", is_below)
    again = best_bound(Problem(f.workload, f.objective, f.participation))
    # A bound may be lower than necessary, but not higher than a new one by more than its gap.
    margin = 1e-5 if f.steps <= MAX_SHARP_STEPS else 2e-4
    holds = f.bound <= again * (1 + margin) and is_below
    return Check("bound, solved again", claimed, f"{again:.8g}", holds)


def _epsilon(m: Mechanism, delta: float | None) -> list[Check]:
    """By another accountant: for one Gaussian release, and with Poisson batches."""
    import dp_accounting  # slow to import

    delta = m.target_delta if delta is None else delta
    if delta is None:
        return []
    claimed = m.epsilon(delta)
    words = f"ε = {claimed:.8g} at δ = {delta:g}"
    if not m.amplified:
        s = m.noise_multiplier / m.adjacency_factor
        epsilon = float(dp_accounting.get_epsilon_gaussian(s, delta))
        holds = epsilon <= claimed * (1 + 1e-6) + 1e-9 and claimed <= epsilon * (1 + 1e-3) + 1e-6
        return [Check("ε, by another accountant", words, f"ε = {epsilon:.8g}", holds)]
    if m.sampling.rate is None:  # balls in bins: no other accountant, but an upper bound
        above = float(dp_accounting.get_epsilon_gaussian(m.noise_multiplier, delta))
        holds = claimed <= above * (1 + 1e-9)
        return [Check("ε, without amplification", words, f"ε ≤ {above:.8g}", holds)]
    # PRIVACY: as many groups as the sampler draws from, whatever the accountant says.   [G9]
    groups = m.factorization.bands if isinstance(m.sampling, CyclicPoisson) else 1
    rate, rounds = m.sampling.rate * groups, -(-m.steps // groups)
    below, above = _poisson_epsilon_bounds(m.noise_multiplier, delta, rate, rounds, claimed)
    holds = below <= claimed * (1 + 1e-6) + 1e-9 and claimed <= above * (1 + 1e-6) + 1e-9
    return [Check("ε, by another accountant", words, f"{below:.8g} ≤ ε ≤ {above:.8g}", holds)]


def _poisson_epsilon_bounds(
    s: float, delta: float, rate: float, rounds: int, claimed: float
) -> tuple[float, float]:
    """Lower bound by privacy losses that are rounded down, upper bound by Rényi divergences."""
    import dp_accounting
    from dp_accounting import rdp
    from dp_accounting.pld import privacy_loss_distribution

    accountant = rdp.RdpAccountant()
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(s))
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, rounds))
    losses = privacy_loss_distribution.from_gaussian_mechanism(
        s,
        sampling_prob=rate,
        pessimistic_estimate=False,
        # Every round loses a part of an interval.
        value_discretization_interval=min(1e-4, max(0.02 * claimed / rounds, 1e-6)),
        use_connect_dots=False,
    )
    below = losses.self_compose(rounds).get_epsilon_for_delta(delta)
    return float(below), float(accountant.get_epsilon(delta))


def _statement(m: Mechanism, claims: Mapping[str, Any]) -> list[Check]:
    """Every claim of the statement that follows from the mechanism."""
    try:
        again = asdict(m.statement(float(claims["delta"]), released=claims.get("released_rows")))
    except KeyError as error:
        return [Check("statement", "matches the mechanism", f"{error} is missing", False)]
    except (TypeError, ValueError) as error:
        return [Check("statement", "matches the mechanism", str(error), False)]
    again = json.loads(json.dumps(again))  # tuples as lists
    ours = {k: v for k, v in again.items() if k not in INDEPENDENT_FIELDS}
    wrong = [k for k, v in ours.items() if k not in claims or not _agree(v, claims[k])]
    differences = [f"{k} = {claims.get(k)!r}, not {ours[k]!r}" for k in wrong[:3]]
    return [
        Check(
            f"statement, {len(ours)} claims",
            "agree with the mechanism",
            "; ".join(differences) or "all agree",
            not wrong,
        )
    ]


def _agree(ours: Any, claimed: Any) -> bool:
    if isinstance(ours, float) and isinstance(claimed, int | float):
        return math.isclose(ours, claimed, rel_tol=1e-9, abs_tol=1e-12)
    return bool(ours == claimed)
