"""No random gradient contributes more than the clip norm, and noise is not rounded away."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from antiphase.torch.clipping import clip_factors, clip_margin, example_norms, weighted_sum
from tests.torch.setting import Training

NAN, INF = float("nan"), float("inf")
DENORMAL = [1e-45, -7e-42, 5e-39]  # of float32 and bfloat16
TINY = [5e-324, -1e-310, 1e-200]  # of float64; zero in the others
HUGE = [1e38, -3e38, -1e19]
SPECIAL = torch.tensor(
    [NAN, INF, -INF, *HUGE, *DENORMAL, *TINY, 1e-38, 1e-20, 0.0, 1.0], dtype=torch.float64
)
KINDS = {"ordinary": 0.0, "few odd": 0.05, "half odd": 0.5, "denormal": 1.0}
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def fuzzed(generator, shape, kind, scale):
    """Normals times ``scale``; some are NaN, too large or too small."""
    g = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
    odd = torch.rand(shape, generator=generator) < KINDS[kind]
    special = torch.tensor(DENORMAL + TINY, dtype=torch.float64) if kind == "denormal" else SPECIAL
    g[odd] = special[torch.randint(len(special), (int(odd.sum()),), generator=generator)]
    return g


def power(generator, low, high):
    return 10.0 ** float(torch.randint(low, high, (1,), generator=generator))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_no_gradient_contributes_more_than_the_clip_norm(dtype, kind):
    """Of every dtype, scale and clip norm, with NaN, ±∞, 1e38 and denormals among them."""
    generator = torch.Generator().manual_seed(10)
    for case in range(36):
        clip = power(generator, -3, 3)
        shapes = [(10, 7), (10, 3, 5), (10,)][: 1 + case % 3]
        parts = [
            fuzzed(generator, shape, kind, power(generator, -30, 30)).to(dtype) for shape in shapes
        ]
        norms, kept = example_norms(parts)
        factors = clip_factors(norms, clip, clip_margin(1))
        for i in range(10):
            alone = torch.arange(10) == i
            mask = alone if kept is None else alone & kept
            sums = [weighted_sum(factors, g, mask) for g in parts]
            length = float(np.sqrt(sum(float(s.double().square().sum()) for s in sums)))
            finite = all(bool(torch.isfinite(g[i]).all()) for g in parts)
            assert np.isfinite(length)
            assert length <= clip * (1 + 1e-6)
            assert finite or length == 0.0, "what is not finite contributes nothing"


CLIPPINGS = {
    "flat": {},
    "functorch": {"mode": "functorch"},
    "per layer": {"clipping": "per_layer"},
    "ghost": {"mode": "ghost"},
}


@pytest.mark.slow
@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_no_example_contributes_more_than_the_clip_norm_however_it_is_clipped(dtype, clipping):
    """Alone at most the clip norm; in a batch, examples that are not finite add nothing."""
    low = dtype in (torch.bfloat16, torch.float16)
    generator = torch.Generator().manual_seed(11)
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)
    dataset = TensorDataset(torch.randn(60, 5, dtype=dtype), torch.randn(60, 3, dtype=dtype))
    clip = 0.3
    norms = [clip / 2] * 4 if clipping == "per layer" else clip
    training = Training(
        model=model,
        dataset=dataset,
        criterion=nn.MSELoss(),
        max_grad_norm=norms,
        **CLIPPINGS[clipping],
    )

    def summed(x, y):
        training.optimizer.zero_grad()
        training.criterion(training.module(x), y).backward()
        training.optimizer.gather()
        total = torch.cat([p.summed_grad.flatten() for p in training.optimizer.params]).double()
        for p in training.optimizer.params:
            p.summed_grad = None
        training.optimizer.zero_grad()
        return total

    met = {True: 0, False: 0}
    for kind in KINDS:
        for _ in range(3):
            scales = [power(generator, -20, 20) for _ in range(2)]
            x, y = (
                fuzzed(generator, (8, n), kind, s).to(dtype)
                for n, s in zip((5, 3), scales, strict=True)
            )
            alone = [summed(x[i : i + 1], y[i : i + 1]) for i in range(8)]
            for i, one in enumerate(alone):
                finite = bool(torch.isfinite(x[i]).all() and torch.isfinite(y[i]).all())
                met[finite] += 1
                assert torch.isfinite(one).all()
                assert float(one.norm()) <= clip * (1 + 1e-6)
                assert finite or not one.any()
            together = summed(x, y)
            rounded = 0.1 if low else 1e-5  # per-example gradients are rounded too
            assert float((together - sum(alone)).norm()) <= rounded * clip
    assert min(met.values()) > 5, "both cases were tried"


def test_noise_survives_bfloat16():
    """Gradients of 1 and noise of 1e-4: its standard deviation is within 1 %."""
    training = Training(
        "dp-sgd",
        model=nn.Linear(5, 20_000),
        poisson_sampling=False,
        noise_multiplier=1e-4,
        epochs=1,
        probe=False,
    )
    release = training.release
    release.batches = release.ledger = None
    release.guards.clear()  # they refuse this
    sums = [torch.ones(shape, dtype=torch.bfloat16) for shape in release.shapes.values()]
    noisy = torch.cat([t.flatten() for t in release(sums, 1)]).double() * release.divisor - 1
    expected = training.engine.mechanism.noise_scale
    assert float(noisy.std()) / expected == np.clip(float(noisy.std()) / expected, 0.99, 1.01)
