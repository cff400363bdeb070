"""Is a mechanism what it claims to be? Computed again by other ways than those it was made by."""

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

LARGEST = 8192  # steps up to which the T × T encoder is looked at
NUMBERS = 2048  # in each row of the noise that is looked at
UNUSUAL = 6.5  # standard deviations; once in 10^10
DENSE = 4096  # steps up to which a search for the optimum ends at a gap of 1e-6 or less; beyond, at 1e-4


@dataclass(frozen=True)
class Check:
    """One claim, and what was found."""

    what: str
    claimed: str
    found: str
    holds: bool


def verify(
    made: Mechanism | Factorization,
    claims: Mapping[str, Any] | None = None,
    *,
    delta: float | None = None,
    full: bool = False,
) -> list[Check]:
    """Check the encoder, its sensitivity, the noise that is really made, and ε; and a statement, if one is given.

    The sensitivity is that of every pattern, where patterns can be listed; ε comes from another accountant; noise is
    made with a new key and undone with the encoder. Noise that is too small is noticed if it is so by a fifth in some
    row, or by 7/√(2,048 × rows) in all; a bound on the optimum that is too high, with ``full``. Checks hold for
    whatever this library designed, but for a chance of about 1e-9 a row.

    Of more than 8,192 steps, encoder and noise are not looked at. What was checked is what is listed: never nothing.
    """
    if not isinstance(made, Mechanism | Factorization):
        raise TypeError(
            f"made = {made!r} must be a Mechanism or a Factorization, not {type(made).__name__}"
        )
    if claims is not None:
        check.instance("claims", claims, Mapping)
    if claims is not None and not isinstance(made, Mechanism):
        raise ValueError(
            "a design that is not calibrated promises nothing; there is no statement to match"
        )
    f = made.factorization if isinstance(made, Mechanism) else made
    checks: list[Check] = []
    if f.steps <= LARGEST:
        refuse_if_too_large(f.steps)
        C = np.array(f.encoder())
        checks += [_triangular(C), _sensitivity(f, C), _error(f, C)]
        checks += [_noise(made, C), *_groups(made, C)] if isinstance(made, Mechanism) else []
    if f.bound is not None:
        checks.append(_bound(f, full))
    if isinstance(made, Mechanism):
        checks += _epsilon(made, delta if claims is None else claims.get("delta", delta))
        checks += _statement(made, claims) if claims is not None else []
    if not checks:
        raise ValueError(
            f"steps = {f.steps}: encoders of more than {LARGEST} steps are not looked at, and this one claims nothing "
            "else; nothing was checked"
        )
    return checks


def read_statement(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A statement as `PrivacyStatement.to_json` wrote it."""
    try:
        claims = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: not a statement in JSON ({error})") from error
    if (
        not isinstance(claims, dict)
        or "digest" not in claims
        or not isinstance(claims.get("delta"), int | float)
    ):
        raise FileFormatError(f"{path}: not a statement: digest and delta are missing")
    return claims


# ---- one function a claim ----------------------------------------------------------------------------------


def _triangular(C: Array) -> Check:
    ahead = float(np.abs(np.triu(C, 1)).max(initial=0.0))
    least = float(np.diagonal(C).min())
    holds = ahead == 0 and least > 0 and bool(np.isfinite(C).all())
    return Check(
        "no noise of steps to come",
        "lower triangular",
        f"above: {ahead:g}, diagonal ≥ {least:.3g}",
        holds,
    )


def _sensitivity(f: Factorization, C: Array) -> Check:
    """By brute force where patterns can be listed: all the entries of CᵀC that a record touches, signs aligned."""
    if f.participation.fixed_order:
        patterns = f.participation.patterns(f.steps)
        worst = max(math.sqrt(float(np.abs(C[:, p].T @ C[:, p]).sum())) for p in patterns)
        how = "every pattern"
    else:
        worst = math.sqrt(max(float(np.einsum("ij,ij->j", C, C).max()), 0.0))
        how = "one participation; more are bounded"
    # PRIVACY: a claim below what some record can do is wrong; so little above is rounding.   [G1]
    exact = f.participation.fixed_order and f.sensitivity_is_exact
    holds = worst <= f.sensitivity * (1 + 1e-9) and (
        not exact or worst >= f.sensitivity * (1 - 1e-6)
    )
    return Check(
        "sensitivity of the encoder", f"{f.sensitivity:.9g}", f"{worst:.9g} ({how})", holds
    )


def _error(f: Factorization, C: Array) -> Check:
    rows = scipy.linalg.solve_triangular(C, f.objective.root(f.workload).T, lower=True, trans="T")
    error = f.sensitivity**2 * f.objective.total(np.square(rows).sum(axis=0))
    return Check(
        "error", f"{f.error:.8g}", f"{error:.8g}", math.isclose(error, f.error, rel_tol=1e-6)
    )


def _noise(m: Mechanism, C: Array) -> Check:
    """``C`` times the rows that are really made must be independent standard normals."""
    stream = m.noise(NUMBERS, key=Key.generate())
    rows = np.array([stream.next() for _ in range(m.steps)], dtype=np.float64)
    Z = C @ rows / m.noise_scale
    count = Z.size
    total = (np.square(Z).sum() - count) / math.sqrt(2 * count)
    each = (np.square(Z).sum(axis=1) - NUMBERS) / math.sqrt(2 * NUMBERS)
    pairs = np.einsum("ij,ij->i", Z[1:], Z[:-1]) / math.sqrt(NUMBERS)
    worst = max(abs(total), float(np.abs(each).max()), float(np.abs(pairs).max(initial=0.0)))
    found = f"{math.sqrt(float(np.square(Z).mean())):.5f} of it, at most {worst:.1f} deviations off"
    return Check(
        "noise that is made",
        f"standard deviation {m.noise_scale:.6g}, then correlated",
        found,
        worst < UNUSUAL,
    )


def _groups(m: Mechanism, C: Array) -> list[Check]:
    """Columns of one group of cyclic Poisson samples share no row."""
    if not isinstance(m.sampling, CyclicPoisson):
        return []
    groups, (rows, columns) = m.factorization.bands, np.nonzero(C)
    # PRIVACY: by the matrix itself; steps of one group are ``groups`` apart.   [G9]
    diagonals = int((rows - columns).max()) + 1
    return [
        Check(
            "groups, at least as many as diagonals",
            f"{groups}",
            f"{diagonals} diagonals",
            diagonals <= groups,
        )
    ]


def _bound(f: Factorization, full: bool) -> Check:
    assert f.bound is not None
    if not full:
        return Check(
            "error is not below the bound",
            f"≥ {f.bound:.8g}",
            f"{f.error:.8g}",
            f.error >= f.bound * (1 - 1e-9),
        )
    again = best_bound(Problem(f.workload, f.objective, f.participation))
    # A bound may be lower than need be, not higher than one found now: but for where that search stops.
    holds = f.bound <= again * (1 + (1e-5 if f.steps <= DENSE else 2e-4)) and f.error >= f.bound * (
        1 - 1e-9
    )
    return Check("bound, solved again", f"≥ {f.bound:.8g}", f"{again:.8g}", holds)


def _epsilon(m: Mechanism, delta: float | None) -> list[Check]:
    """By dp-accounting's formula for one Gaussian release; with Poisson batches by Rényi divergences, from above, and
    by losses that are rounded down, from below."""
    import dp_accounting
    from dp_accounting import rdp
    from dp_accounting.pld import privacy_loss_distribution

    delta = m.target_delta if delta is None else delta
    if delta is None:
        return []
    claimed = m.epsilon(delta)
    words = f"ε = {claimed:.8g} at δ = {delta:g}"
    if not m.amplified:
        found = float(
            dp_accounting.get_epsilon_gaussian(m.noise_multiplier / m.adjacency_factor, delta)
        )
        holds = found <= claimed * (1 + 1e-6) + 1e-9 and claimed <= found * (1 + 1e-3) + 1e-6
        return [Check("ε, by another accountant", words, f"ε = {found:.8g}", holds)]
    rate = m.sampling.rate
    if rate is None:  # balls in bins: there is no other accountant, but a bound from above
        above = float(dp_accounting.get_epsilon_gaussian(m.noise_multiplier, delta))
        return [
            Check(
                "ε, without amplification", words, f"ε ≤ {above:.8g}", claimed <= above * (1 + 1e-9)
            )
        ]
    # PRIVACY: as many groups as the sampler draws from, whatever the account says.   [G9]
    groups = m.factorization.bands if isinstance(m.sampling, CyclicPoisson) else 1
    rounds = -(-m.steps // groups)
    accountant = rdp.RdpAccountant()
    event = dp_accounting.PoissonSampledDpEvent(
        rate * groups, dp_accounting.GaussianDpEvent(m.noise_multiplier)
    )
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, rounds))
    above = float(accountant.get_epsilon(delta))
    losses = privacy_loss_distribution.from_gaussian_mechanism(
        m.noise_multiplier,
        sampling_prob=rate * groups,
        pessimistic_estimate=False,
        value_discretization_interval=min(
            1e-4, max(0.02 * claimed / rounds, 1e-6)
        ),  # some of it is lost every round
        use_connect_dots=False,
    )
    below = float(losses.self_compose(rounds).get_epsilon_for_delta(delta))
    holds = below <= claimed * (1 + 1e-6) + 1e-9 and claimed <= above * (1 + 1e-6) + 1e-9
    return [Check("ε, by another accountant", words, f"{below:.8g} ≤ ε ≤ {above:.8g}", holds)]


def _statement(m: Mechanism, claims: Mapping[str, Any]) -> list[Check]:
    """Every claim of the statement that follows from the mechanism."""
    try:
        again = asdict(m.statement(float(claims["delta"]), released=claims.get("released_rows")))
    except KeyError as error:
        return [Check("statement", "matches the mechanism", f"{error} is missing", False)]
    except (TypeError, ValueError) as error:
        return [Check("statement", "matches the mechanism", str(error), False)]
    again = json.loads(json.dumps(again))  # tuples as JSON has them
    ours = {
        k: v
        for k, v in again.items()
        if k not in ("versions", "noise_source", "insecure", "caveats", "not_private")
    }
    wrong = [k for k, v in ours.items() if k not in claims or not _agree(v, claims[k])]
    found = (
        "all agree"
        if not wrong
        else "; ".join(f"{k} = {claims.get(k)!r}, not {ours[k]!r}" for k in wrong[:3])
    )
    return [Check(f"statement, {len(ours)} claims", "agree with the mechanism", found, not wrong)]


def _agree(ours: Any, claimed: Any) -> bool:
    if isinstance(ours, float) and isinstance(claimed, int | float):
        return math.isclose(ours, claimed, rel_tol=1e-9, abs_tol=1e-12)
    return bool(ours == claimed)
