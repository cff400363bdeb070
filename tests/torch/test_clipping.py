"""Norms and weighted sums of per-example gradients: the clip margin covers all rounding."""

import numpy as np
import pytest
import torch

from antiphase.torch.clipping import (
    NORM_ERROR,
    UNIT_ROUNDOFF,
    clip_factors,
    clip_margin,
    example_norms,
    full_precision,
    group_size,
    row_norms,
    weighted_sum,
)

pytestmark = pytest.mark.issue(21)


def rows(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str
)
@pytest.mark.parametrize("length", [1, 255, 256, 1000])
def test_norms_are_accurate_to_their_stated_error_in_every_dtype(dtype, length):
    """A norm computed in bfloat16 would have an error of 0.4 %."""
    x = rows(7, length).to(dtype)
    expected = torch.linalg.vector_norm(x.double(), dim=1)
    assert float((row_norms(x) / expected - 1).abs().max()) <= NORM_ERROR


@pytest.mark.parametrize("first", [torch.float32, torch.bfloat16], ids=str)
def test_the_dtype_is_that_of_each_tensor_not_of_the_first(first):
    """Row 36: 1.004 C if the first tensor is float32 and another bfloat16."""
    gradients = [
        rows(5, 3).to(first),
        rows(5, 400, seed=1).to(torch.bfloat16),
        rows(5, 400, seed=2).double(),
    ]
    expected = torch.linalg.vector_norm(torch.cat([g.double() for g in gradients], dim=1), dim=1)
    assert float((example_norms(gradients)[0] / expected - 1).abs().max()) <= NORM_ERROR


def test_the_margin_covers_the_rounding_of_large_sums():
    """Sums are rounded to float32: one of 20,000 examples moves them by whole steps of 5e-4."""
    clip_norm, batch = 0.3, 20_000
    factor = clip_factors(torch.ones(1), clip_norm, clip_margin(batch))
    count = torch.arange(batch - 2000, batch + 1, dtype=torch.float64)
    moved = (count * factor).float().double() - ((count - 1) * factor).float().double()
    assert float(moved.max()) <= clip_norm


def test_groups_are_added_up_in_float64():
    """A float32 sum of 20,000 examples is wrong by 0.8; in groups the margin covers the error."""
    batch, value = 20_000, 0.3
    group = group_size(batch)
    total = weighted_sum(
        torch.full((batch,), value, dtype=torch.float64), torch.ones(batch, 1), group=group
    )
    assert abs(float(total) - batch * value) <= (group + 3) * UNIT_ROUNDOFF * batch * value


def test_products_are_float32_whatever_the_flags_are():
    """Row 36: TF32 and bfloat16, set by global flags or autocast. The flags are restored."""
    backends = [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul]
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend, low in zip(backends, ("tf32", "bf16"), strict=True):
            backend.fp32_precision = low
        with torch.autocast("cpu", torch.bfloat16), full_precision():
            assert [backend.fp32_precision for backend in backends] == ["ieee", "ieee"]
            assert (rows(3, 3) @ rows(3, 3)).dtype is torch.float32
        assert [backend.fp32_precision for backend in backends] == ["tf32", "bf16"]
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision


def test_examples_that_are_not_finite_are_masked_and_the_others_keep_their_place():
    x = rows(6, 4)
    x[2, 1] = torch.nan
    norms, mask = example_norms([x])
    assert mask.tolist() == [True, True, False, True, True, True]
    found = weighted_sum(clip_factors(norms, 1.0, 0.0), x, mask, group=3)
    others = x[mask].double()
    expected = (others * (1 / others.norm(dim=1)).clamp(max=1.0)[:, None]).sum(dim=0)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


def test_the_clip_margin_is_the_sum_of_all_roundings():
    """In units of 2⁻²⁴, from docs/clipping.md: groups 2(m + 3)B, sums 4B, inputs 4κ·min(B, 512)."""
    by_hand = {
        4: 2 * 67 * 4 + 4 * 4 + 4 * 64 * 4,  # m = 64
        512: 2 * 23 * 512 + 4 * 512 + 4 * 64 * 512,  # m = 20
        10_000: 2 * 4 * 10_000 + 4 * 10_000 + 4 * 64 * 512,  # m = 1
    }
    for batch_size, units in by_hand.items():
        assert clip_margin(batch_size) == pytest.approx(units * 2.0**-24 + 2e-5, rel=1e-9)


def test_norms_do_not_overflow():
    g = torch.full((2, 4), 1e38)
    g[1] = 1.0
    norms, kept = example_norms([g, g])
    assert kept is None, "large, and finite"
    assert norms[0] == pytest.approx(np.sqrt(8) * 1e38, rel=1e-6)
    factors = clip_factors(norms, 1.0, clip_margin(1))
    total = weighted_sum(factors, g)
    assert float(torch.linalg.vector_norm(total.double())) <= 2.0
    tiny = torch.full((1, 3), 1e-42)
    assert torch.isfinite(
        weighted_sum(clip_factors(example_norms([tiny])[0], 1.0, clip_margin(1)), tiny)
    ).all()
    g[0, 0] = float("nan")
    norms, kept = example_norms([g, g])
    assert kept.tolist() == [False, True]
    total = weighted_sum(clip_factors(norms, 1.0, clip_margin(1)), g, kept)
    assert torch.isfinite(total).all()


@pytest.mark.parametrize("kind", ["normal", "constant", "few large"])
def test_no_example_is_longer_than_the_clip_norm_however_many_coordinates(kind):
    """A float32 sum of five million squares is too small; the clipped gradient was too long."""
    g = torch.full((1, 5_000_000), 0.1)
    if kind == "normal":
        g.normal_(generator=torch.Generator().manual_seed(0))
    elif kind == "few large":
        g.fill_(2.4e-4)  # beside eight of 1.0 their squares vanish, one by one
        g[0, :8] = 1.0
    norms, kept = example_norms([g])
    length = float(
        torch.linalg.vector_norm(
            weighted_sum(clip_factors(norms, 0.7, clip_margin(1)), g, kept).double()
        )
    )
    assert length <= 0.7 * (1 + 1e-6)


def test_clipped_examples_are_shorter_than_the_clip_norm_however_they_are_rounded():
    g = torch.randn(1000, 40, generator=torch.Generator().manual_seed(0))
    norms, _ = example_norms([g])
    lengths = torch.linalg.vector_norm(
        (clip_factors(norms, 0.7, clip_margin(1))[:, None] * g).double(), dim=1
    )
    assert 0.7 * (1 - 1e-4) < float(lengths.max()) <= 0.7
