"""Training in PyTorch: `PrivacyEngine` in place of that of Opacus."""

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
