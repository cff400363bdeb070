"""Per-example gradients of convolutions: their uncancelled norms."""

import pytest
import torch

from antiphase.torch.convolution_rules import Geometry, _uncancelled_norms


def test_the_uncancelled_norm_is_an_upper_bound_close_to_the_sum_over_positions():
    """Of three positions, two channels and ones throughout: S = 3·√2·√2, exact in float32."""
    geometry = Geometry(torch.Size([1]), [1], [0, 0], [1], 1)
    found = float(_uncancelled_norms(torch.ones(1, 2, 3), torch.ones(1, 2, 3), geometry))
    assert 6 <= found == pytest.approx(6, rel=1e-4)
