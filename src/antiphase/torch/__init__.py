"""Training in PyTorch: ``from antiphase.torch import PrivacyEngine`` where Opacus' stood before."""

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
