"""Models by name."""

import pytest
import torch

from antiphase.torch.models import build_model


def test_the_convolutional_network_takes_images_of_every_size():
    assert sum(p.numel() for p in build_model("cnn", (3, 32, 32), 10).parameters()) == 550_570
    for shape in [(1, 28, 28), (1, 8, 8), (3, 5, 9), (1, 1, 1), (2, 64, 48)]:
        assert build_model("cnn", shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)
    for name in ("logistic", "mlp"):
        assert build_model(name, (12,), 3)(torch.zeros(2, 12)).shape == (2, 3)
    with pytest.raises(ValueError, match=r"images .* shape \(12,\)"):
        build_model("cnn", (12,), 3)
