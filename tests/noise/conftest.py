"""The mechanism of each engine, by the name of the engine."""

import pytest

import antiphase as ap
from antiphase.noise import generators
from tests.noise.engines import ENGINES


@pytest.fixture
def mechanism(name, monkeypatch):
    make, engine, longest = ENGINES[name]
    monkeypatch.setattr(generators, "MAX_RING_BANDS", longest)
    f = make()
    assert isinstance(generators.engine_for(f, 1.0, 1024, 10**8), engine)
    return ap.calibrate(f, noise_multiplier=1.3, clip_norm=0.7, delta=1e-6)
