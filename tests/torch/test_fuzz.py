"""Gradients of every kind: none contributes more than the clip norm, and noise stays what it is."""

import numpy as np
import torch
from torch import nn

from antiphase.torch.optimizer import clip_factors, example_norms, weighted_sum
from tests.torch.setting import Training

SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e38, -3e38, 1e-45, 1e-38, 0.0, 1.0, -1e19, 1e-20])


def test_no_gradient_contributes_more_than_the_clip_norm():
    """2,000 examples of NaN, ±∞, 1e38, denormals and ordinary numbers: at most clip·(1 + 1e-6), finite, or nothing."""
    generator = torch.Generator().manual_seed(10)
    for case in range(200):
        dtype = (torch.float32, torch.float64, torch.bfloat16)[case % 3]
        clip = 10.0 ** float(torch.randint(-3, 3, (1,), generator=generator))
        shapes = [(10, 7), (10, 3, 5), (10,)][: 1 + case % 3]
        parts = []
        for shape in shapes:
            scale = 10.0 ** float(torch.randint(-30, 30, (1,), generator=generator))
            g = torch.randn(shape, generator=generator) * scale
            odd = torch.rand(shape, generator=generator) < (0.0, 0.05, 0.5)[case % 3]
            g[odd] = SPECIAL[torch.randint(len(SPECIAL), (int(odd.sum()),), generator=generator)]
            parts.append(g.to(dtype))
        norms, kept = example_norms(parts)
        factors = clip_factors(norms, clip)
        for i in range(10):
            alone = torch.arange(10) == i
            mask = alone if kept is None else alone & kept
            sums = [weighted_sum(factors, g, mask) for g in parts]
            length = float(np.sqrt(sum(float(s.double().square().sum()) for s in sums)))
            finite = all(bool(torch.isfinite(g[i]).all()) for g in parts)
            assert np.isfinite(length)
            assert length <= clip * (1 + 1e-6)
            assert finite or length == 0.0, "what is not finite contributes nothing"


def test_noise_survives_bfloat16():
    """|g| = 1, σ = 1e-4, model and sums in bfloat16: the standard deviation of the noise is within 1 %."""
    training = Training("dp-sgd", model=nn.Linear(5, 20_000), poisson_sampling=False, noise_multiplier=1e-4, epochs=1,
                        probe=False)  # fmt: skip
    release = training.release
    release.batches = release.ledger = None
    sums = [torch.ones(shape, dtype=torch.bfloat16) for shape in release._shapes.values()]
    noisy = torch.cat([t.flatten() for t in release(sums, 1)]).double() * release.divisor - 1
    expected = training.engine.mechanism.noise_scale
    assert float(noisy.std()) / expected == np.clip(float(noisy.std()) / expected, 0.99, 1.01)
