"""Training in PyTorch: ``from antiphase.torch import PrivacyEngine`` where Opacus' stood before."""

from antiphase.torch.batch_selection import BallsInBins, CyclicPoisson, FixedOrder, sampler_for
from antiphase.torch.privacy_engine import PrivacyEngine

__all__ = ["BallsInBins", "CyclicPoisson", "FixedOrder", "PrivacyEngine", "sampler_for"]
