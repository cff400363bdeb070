"""Training in PyTorch: ``from antiphase.torch import PrivacyEngine`` where Opacus' stood before."""

from antiphase.torch.engine import PrivacyEngine
from antiphase.torch.sampling import BallsInBins, CyclicPoisson, FixedOrder, sampler_for

__all__ = ["BallsInBins", "CyclicPoisson", "FixedOrder", "PrivacyEngine", "sampler_for"]
