"""`compare`: design, calibrate and measure each candidate for a setting."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from antiphase._util.progress import Progress, ProgressReport, shown
from antiphase.accounting.accountant import adjacency_factor
from antiphase.accounting.gaussian import gaussian_noise_multiplier
from antiphase.comparison import noise_cost
from antiphase.comparison.candidates import (
    DESIGN_ERRORS,
    CalibratedCandidate,
    Candidate,
    Setting,
    calibrate_candidate,
    default_candidates,
    design_for,
    dp_sgd_candidates,
    require_setting,
)
from antiphase.comparison.result import Comparison, Entry
from antiphase.objective import Average


def compare(
    setting: Setting,
    candidates: Sequence[Candidate | str] | None = None,
    *,
    tolerance: float = 1e-3,
    measure: bool = True,
    progress: Progress | bool = True,
) -> Comparison:
    """Design and calibrate mechanisms for a setting, and compare their noise and its cost.

    Ctrl-C keeps what is finished. Equal candidates appear once.

    Args:
        setting: training run and privacy budget.
        candidates: what to compare, as names of designs or `Candidate`; by default
            `default_candidates`. The name ``"dp-sgd"`` stands for `dp_sgd_candidates`.
        tolerance: certified gap at which optimal designs stop.
        measure: whether to measure the time of a row of noise.
        progress: whether to show a bar in terminals and notebooks if it takes more than two
            seconds; or a function, called with the number of finished candidates and the gap of the
            current search.

    Returns:
        A comparison, which notebooks show as tables; ``plot()`` draws it. Candidates that cannot be
        designed are listed with the reason.

    Raises:
        ValueError: there is no candidate, or none can be designed.
        TypeError: ``setting`` is not a `Setting`, or ``candidates`` not a list.

    Example:
        >>> import antiphase as ap
        >>> setting = ap.Setting.of(steps=64, epochs=4, epsilon=8.0, delta=1e-5)
        >>> comparison = ap.compare(setting, ["dp-sgd", "dp-mf"], measure=False)
        >>> for entry in comparison.entries:
        ...     print(f"{entry.label}: {entry.final:.2f}")
        DP-SGD, Poisson batches: 5.60
        DP-SGD, fixed order: 9.60
        DP-MF: 3.47
    """
    require_setting(setting)
    if isinstance(candidates, str | Candidate):
        raise TypeError(f"candidates = {candidates!r} must be a list, as in [{candidates!r}]")
    given = default_candidates(setting) if candidates is None else candidates
    settled = [c for candidate in given for c in _settled(candidate, setting)]
    distinct = list({(c.design_label, c.sampling or setting.sampling): c for c in settled}.values())
    if not distinct:
        raise ValueError("candidates = []: there is nothing to compare")
    with shown(progress, "comparing") as report:
        return _compare(setting, distinct, tolerance, measure, report)


def _compare(
    setting: Setting,
    candidates: list[Candidate],
    tolerance: float,
    measure: bool,
    progress: Progress,
) -> Comparison:
    calibrated, refused, stopped = _calibrate_all(setting, candidates, tolerance, progress)
    _reporter(progress, "", len(candidates), len(candidates))(ProgressReport(0))
    designs = [one.made.mechanism.factorization for one in calibrated]
    bounds = [f.bound for f in designs if f.bound is not None and f.objective == Average()]
    optimum = max(bounds, default=None)  # the certified least squared noise over the iterates
    if optimum is None and not stopped:
        try:
            optimum = design_for(setting, "dp-mf", tolerance=tolerance).lower_bound
        except KeyboardInterrupt:
            stopped = True
    entries = []
    for one in calibrated:
        row_seconds = math.nan
        if measure and not stopped:
            try:
                row_seconds = noise_cost.row_seconds(
                    one.made.mechanism, setting.parameters, one.noise_bytes
                )
            except KeyboardInterrupt:
                stopped = True
        entries.append(_entry(setting, one, optimum, row_seconds))
    return Comparison(setting, tuple(entries), refused, optimum, stopped)


def _settled(candidate: Candidate | str, setting: Setting) -> list[Candidate]:
    if isinstance(candidate, Candidate):
        return [candidate]
    return dp_sgd_candidates(setting) if candidate == "dp-sgd" else [Candidate(candidate)]


@dataclass(frozen=True)
class _Timed:
    made: CalibratedCandidate
    design_seconds: float
    noise_bytes: int


def _calibrate_all(
    setting: Setting, candidates: list[Candidate], tolerance: float, progress: Progress
) -> tuple[list[_Timed], dict[str, str], bool]:
    """Calibrated candidates; reasons of those refused; whether Ctrl-C came."""
    calibrated: list[_Timed] = []
    refused: dict[str, str] = {}
    for i, candidate in enumerate(candidates):
        report = _reporter(progress, candidate.label, i, len(candidates))
        report(ProgressReport(0))
        began = time.perf_counter()
        try:
            made = calibrate_candidate(setting, candidate, tolerance, report)
            seconds = time.perf_counter() - began
            noise_bytes = noise_cost.kept_bytes(made.mechanism.factorization, setting.parameters)
            calibrated.append(_Timed(made, seconds, noise_bytes))
        except DESIGN_ERRORS as error:
            refused[candidate.label] = str(error) or type(error).__name__
        except KeyboardInterrupt:
            if not calibrated:
                raise
            return calibrated, refused | {c.label: "stopped" for c in candidates[i:]}, True
    if not calibrated:
        reasons = "; ".join(f"{label}: {reason}" for label, reason in refused.items())
        raise ValueError(f"no candidate can be compared: {reasons}")
    return calibrated, refused, False


def _reporter(progress: Progress, label: str, done: int, total: int) -> Progress:
    def report(search: ProgressReport) -> None:
        progress(ProgressReport(done, total, search.gap, label))

    return report


def _entry(setting: Setting, one: _Timed, optimum: float | None, row_seconds: float) -> Entry:
    mechanism, f = one.made.mechanism, one.made.mechanism.factorization
    deviation = mechanism.noise_scale / f.sensitivity * np.sqrt(f.noise_per_iterate)
    over_optimum = None
    if optimum is not None:
        # The optimum is that of unamplified mechanisms, with their noise multiplier.
        multiplier = mechanism.noise_multiplier
        if mechanism.amplified:
            assert setting.epsilon is not None
            assert setting.delta is not None
            multiplier = gaussian_noise_multiplier(setting.epsilon, setting.delta)
            multiplier *= adjacency_factor(setting.adjacency)
        over_optimum = float(np.sum(deviation**2) / (multiplier**2 * optimum))
    return Entry(
        candidate=one.made.candidate,
        mechanism=mechanism,
        deviation=deviation,
        over_optimum=over_optimum,
        design_seconds=one.design_seconds,
        noise_bytes=one.noise_bytes,
        step_seconds=row_seconds,
        unamplified=one.made.unamplified,
        vector_bytes=4 * noise_cost.padded(setting.parameters),
    )
