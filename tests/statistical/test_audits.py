"""Audits of a correct trainer and of trainers with a fault."""

import time

import numpy as np
import pytest

import antiphase as ap
from antiphase.auditing import GaussianClaim, MechanismTrials, audit

pytestmark = pytest.mark.issue(11)

STEPS, WHEN = 16, 5


PLAN = ap.calibrate(
    ap.design("dp-mf", steps=STEPS), noise_multiplier=1.0, clip_norm=0.5
)  # 1-Gaussian privacy


THRESHOLDS = (0.5, 0.75, 1.0, 1.5)  # fixed here, before any trial


FAULTS = {
    "none": {},
    "noise × 0.8": {"noise": 0.8},
    "an extra participation": {"when": (WHEN, WHEN + 8)},
    "sensitivity × 2": {"copies": 2},
    "no clipping": {"clip": lambda g: g},
}


def clipped(g):
    return np.clip(g, -PLAN.clip_norm, PLAN.clip_norm)


def trainer(noise=1.0, when=(WHEN,), copies=1, clip=clipped):
    """Trainings of one-parameter models, all at once: each trial has a coordinate of the stream.

    Three examples pull each model to their own values; in steps ``when`` the canary has a gradient
    of three clip norms. The auditor knows everything but the canary's presence: the released sums,
    and so all models and gradients.
    """
    rng = np.random.default_rng(11)
    targets = rng.normal(size=(STEPS, 3))
    taking_part = np.isin(np.arange(STEPS), when).astype(float)
    trials_of = MechanismTrials(PLAN)

    def scores(canary, trials):
        model, seen = np.zeros(trials), []
        stream = PLAN.noise(trials, key=ap.Key.generate())
        for step in range(STEPS):
            known = clip(model[None] - targets[step][:, None]).sum(axis=0)
            own = canary * taking_part[step] * copies * clip(np.float64(3 * PLAN.clip_norm))
            released = known + own + noise * stream.next()
            seen.append(released - known)
            model = model - 0.1 * released
        return trials_of.score(np.array(seen), taking_part)

    return scores


@pytest.mark.long
def test_audits_of_a_right_trainer_and_of_four_broken_ones(shown):
    claim, began, alarms, bounds = GaussianClaim(1.0), time.perf_counter(), {}, {}
    for fault, options in FAULTS.items():
        found = [
            audit(trainer(**options), claim, trials=8000, thresholds=THRESHOLDS) for _ in range(40)
        ]
        alarms[fault] = sum(f.alarm for f in found)
        bounds[fault] = [f.lower_bound for f in found]
        assert all(f.confidence == 1 - 1e-6 for f in found)
    seconds = time.perf_counter() - began
    for fault, count in alarms.items():
        asked = "no alarm in 40" if fault == "none" else "40 of 40"
        low, high = min(bounds[fault]), max(bounds[fault])
        shown(
            f"claimed μ = 1, fault: {fault}",
            f"{count} alarms of 40, μ ≥ {low:.3f} to {high:.3f}",
            asked,
        )
    shown("all audits", f"{seconds:.0f} s", "under 300 s")
    assert alarms == {fault: 0 if fault == "none" else 40 for fault in FAULTS}
    assert seconds < 300
