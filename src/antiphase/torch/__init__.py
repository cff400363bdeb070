"""Training in PyTorch: ``from antiphase.torch import PrivacyEngine`` where Opacus' stood before."""

from antiphase.torch.engine import PrivacyEngine
from antiphase.torch.sampling import FixedOrder

__all__ = ["FixedOrder", "PrivacyEngine"]
