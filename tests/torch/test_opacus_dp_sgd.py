"""DP-SGD on Poisson samples is Opacus' own, and does not mix with a plan."""

import warnings

import numpy as np
import pytest
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer

import antiphase as ap
from antiphase.torch import PrivacyEngine
from tests.torch.setting import Training, epoch, make_private


def test_dp_sgd_without_a_plan_is_opacus_own():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = PrivacyEngine(mechanism="dp-sgd")
        module, optimizer, loader = make_private(engine, None)
        assert isinstance(optimizer, DPOptimizer)
        assert isinstance(loader, DPDataLoader)
        epoch(module, optimizer, loader)
        assert engine.get_epsilon(1e-5) > 0
        assert engine.mechanism is None
        unsampled = PrivacyEngine(mechanism="dp-sgd")
        epoch(*make_private(unsampled, None, poisson_sampling=False))
        with pytest.raises(ValueError, match="these batches are none"):
            unsampled.get_epsilon(1e-5)
        epoch(*make_private(unsampled, None, poisson_sampling=True))  # the steps before still count
        with pytest.raises(ValueError, match="these batches are none"):
            unsampled.get_epsilon(1e-5)
    fixed = Training("dp-sgd", poisson_sampling=False)
    assert fixed.engine.mechanism.sensitivity == pytest.approx(np.sqrt(3))


def test_an_unused_key_is_warned_about():
    with pytest.warns(UserWarning, match="key: it is not used"):
        make_private(PrivacyEngine(mechanism="dp-sgd", key=ap.Key.generate()), None)


def test_one_engine_does_not_mix_a_plan_with_the_accounting_of_opacus():
    """Each would report its own ε alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = PrivacyEngine(mechanism="dp-sgd")
        epoch(*make_private(first, None))
        with pytest.raises(ValueError, match="has released 5 steps"):
            make_private(first, None, poisson_sampling=False, epochs=2)
        second = PrivacyEngine(mechanism="dp-sgd")
        make_private(second, None, poisson_sampling=False, epochs=2)
        with pytest.raises(ValueError, match="this engine has a plan"):
            make_private(second, None)
