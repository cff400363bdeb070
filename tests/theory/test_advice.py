"""Advice rests on numbers, and those are true."""

import math

import numpy as np
import pytest

import antiphase as ap
from antiphase import accounting
from antiphase.comparison import Setting
from antiphase.theory.advice import advise


def judged(C, sensitivity, fade=1.0):
    """The root of Σ_t ‖b_t‖² + T‖b_T‖² for B = M C⁻¹, where M has fade^(t−s) in step s of row t: from matrices."""
    T = len(C)
    t = np.arange(T)
    M = np.tril(fade ** np.maximum(t[:, None] - t, 0.0))
    rows = np.square(np.linalg.solve(C.T, M.T).T).sum(axis=1)
    rows[-1] *= T
    return sensitivity * math.sqrt(rows.sum())


def test_several_epochs_in_a_fixed_order():
    """DP-MF⁺ with τ = T, which minimises what is judged; the cheaper one restarts once an epoch."""
    found = advise(Setting.of(64, 4))
    assert found.best.label == "DP-MF⁺, τ = 64"
    plain = judged(np.eye(64), 2.0)
    for label, options in {"DP-MF⁺, τ = 64": {}, "DP-MF⁺, τ = 16": {"tau": 16}}.items():
        f = ap.design("dp-mf+", steps=64, epochs=4, **options)
        assert found.noise[label] == pytest.approx(judged(f.encoder(), f.sensitivity) / plain, rel=1e-3)
    assert found.noise["DP-SGD"] == 1
    assert found.noise["DP-MF⁺, τ = 64"] == min(found.noise.values())
    assert found.cheaper.label == "DP-MF⁺, τ = 16"
    assert found.cheaper.noise_bytes < found.best.noise_bytes / 2
    text = " ".join(found.reasons)
    assert f"leaves {found.noise['DP-MF⁺, τ = 64']:.1%} of DP-SGD's noise" in text
    assert f"{found.best.final / found.comparison.base.final:.1%} in the last one" in text
    assert "Certified" in text
    assert "Poisson" not in text


def test_errors_that_fade():
    """A damped design, judged by errors that fade as fast."""
    found = advise(Setting.of(64), damping=0.8)
    assert found.best.label == "damped, ρ = 0.8, final weight = 8"
    f = ap.design("damped", steps=64, rho=0.8, final_weight=8.0)
    expected = judged(f.encoder(), f.sensitivity, 0.8) / judged(np.eye(64), 1.0, 0.8)
    assert found.noise[found.best.label] == pytest.approx(expected, rel=2e-3)
    assert "ρ = 0.8" in found.rests_on[0]


def test_where_nothing_lasts_independent_noise_is_as_good_as_any():
    """Errors that are gone after a step, or a single step: nothing to cancel, so nothing is kept."""
    for found in (advise(Setting.of(16), damping=0.0), advise(Setting.of(1))):
        assert found.best.label == "DP-SGD"
        assert found.cheaper is None
        assert "as good as any" in found.reasons[0]
        assert "Poisson" not in " ".join(found.reasons)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "epochs", "epsilon", "wins"), [(64, 1, 0.5, True), (64, 4, 8.0, False)])
def test_poisson_batches_win_at_small_budgets_alone(steps, epochs, epsilon, wins):
    """Amplification is worth most where ε is small and records are seen seldom; ε = 8 in four epochs is neither."""
    found = advise(Setting.of(steps, epochs, epsilon=epsilon, delta=1e-6), poisson=True)
    assert found.best.candidate.poisson is wins
    amplified = accounting.poisson_noise_multiplier(epsilon, 1e-6, sampling_rate=epochs / steps, steps=steps)
    whole = accounting.gaussian_noise_multiplier(epsilon, 1e-6) * math.sqrt(epochs)
    assert found.noise["DP-SGD, Poisson batches"] == pytest.approx(amplified / whole, rel=1e-9)
    correlated = min(v for label, v in found.noise.items() if not label.startswith("DP-SGD"))
    assert (found.noise["DP-SGD, Poisson batches"] < correlated) is wins
    text = " ".join(found.reasons)
    assert ("needs true Poisson sampling" in text) is wins
    assert ("amplification brings less here" in text) is not wins


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="poisson needs epsilon"):
        advise(Setting.of(8), poisson=True)
    for damping in (-0.1, 1.1):
        with pytest.raises(ValueError, match="damping = "):
            advise(Setting.of(8), damping=damping)


def test_what_it_says_is_data_too():
    found = advise(Setting.of(16, 2)).to_dict()
    assert found["recommended"]["name"] == "dp-mf+"
    assert set(found["noise"]) == {row["label"] for row in found["comparison"]["mechanisms"]}
