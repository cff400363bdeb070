"""Fixtures of the studies of images."""

import numpy as np
import pytest

from antiphase import data
from experiments import linear_training, mnist


@pytest.fixture(autouse=True)
def margin_of_the_loop(monkeypatch):
    """Give the engine the clip margin of the studies' loop, so that results are comparable."""
    monkeypatch.setattr(
        "antiphase.torch.private_optimizer.clip_margin", lambda _: linear_training.CLIP_MARGIN
    )


@pytest.fixture
def images(monkeypatch):
    """Four hundred images of ten classes, and a hundred to test."""
    rng = np.random.default_rng(0)
    centres = rng.random((10, 784), dtype=np.float32)

    def split(count):
        targets = np.arange(count) % 10
        inputs = np.clip(
            centres[targets] + 0.3 * rng.standard_normal((count, 784), dtype=np.float32), 0, 1
        )
        return data.Split(inputs.reshape(-1, 1, 28, 28), targets)

    made = data.Dataset("images", split(400), split(100), tuple("0123456789"))
    monkeypatch.setattr(mnist.data, "load", lambda name: made)
    for cached in (mnist.examples, mnist.public_spectrum):
        cached.cache_clear()
    yield made
    for cached in (mnist.examples, mnist.public_spectrum):
        cached.cache_clear()
