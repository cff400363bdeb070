"""ε of the plan, and of what was released."""

import pytest

from antiphase.torch import PrivacyEngine
from tests.torch.setting import Training


def test_epsilon_counts_the_plan_and_spent_epsilon_the_released_rows():
    training = Training()
    whole = training.engine.get_epsilon(1e-5)
    assert training.engine.get_epsilon(1e-5, spent=True) == 0
    training.run(5)
    part = training.engine.get_epsilon(1e-5, spent=True)
    assert 0 < part <= whole
    training.run()
    assert training.engine.get_epsilon(1e-5, spent=True) == pytest.approx(whole)
    assert training.engine.accountant.get_epsilon(delta=1e-5) == whole
    assert len(training.engine.accountant) == 15


def test_epsilon_before_make_private_is_refused():
    for mechanism in ("dp-sgd", "dp-mf"):
        with pytest.raises(ValueError, match="call make_private first"):
            PrivacyEngine(mechanism=mechanism).get_epsilon(1e-5)
