"""The audit passes a real training, and finds that one without clipping is not private."""

import importlib.util
from pathlib import Path

import pytest
import torch

from antiphase.auditing import GaussianClaim, audit_one_run
from antiphase.torch import private_optimizer

EXAMPLE = Path(__file__).parents[2] / "examples" / "audit.py"


@pytest.mark.slow
def test_the_example_raises_the_alarm_only_if_the_trainer_is_broken(monkeypatch):
    spec = importlib.util.spec_from_file_location("audit_example", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    right = audit_one_run(example.scores, GaussianClaim(1.0), canaries=2000)
    assert not right.alarm
    assert right.correct > 0.7 * right.guesses, "the canaries can be seen"
    monkeypatch.setattr(
        private_optimizer, "clip_factors", lambda norms, clip_norm, margin: torch.ones_like(norms)
    )
    broken = audit_one_run(example.scores, GaussianClaim(1.0), canaries=2000)
    assert broken.alarm
