"""Training in PyTorch: `PrivacyEngine` in place of that of Opacus."""

from antiphase._util.extras import optional

with optional("torch", "antiphase.torch", "PyTorch and Opacus"):
    import opacus  # noqa: F401
    import torch  # noqa: F401

from antiphase.torch.batch_selection import (
    BallsInBinsBatches,
    FixedOrderBatches,
    PoissonBatches,
    batch_sampler_for,
)
from antiphase.torch.privacy_engine import PrivacyEngine

__all__ = [
    "BallsInBinsBatches",
    "FixedOrderBatches",
    "PoissonBatches",
    "PrivacyEngine",
    "batch_sampler_for",
]
