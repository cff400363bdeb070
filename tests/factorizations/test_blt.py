"""BLT encoders: refusals."""

import numpy as np
import pytest

import antiphase as ap
from antiphase.factorizations.blt import Blt
from antiphase.objective import Average


def test_buffers_say_what_is_wrong_with_them():
    common = "b", ap.Workload.sgd(4), Average(), ap.once()
    for decays, scales, words in (
        ([0.5], [0.1, 0.2], "1 decays and 2 scales"),
        ([], [], "0 decays"),
        ([1.0], [0.1], "between 0 and 1"),
        ([0.5], [-0.1], "must not be negative"),
    ):
        with pytest.raises(ValueError, match=words):
            Blt(*common, np.array(decays), np.array(scales))
