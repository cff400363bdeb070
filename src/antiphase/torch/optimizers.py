"""The optimizer class for each way to compute and clip per-example gradients."""

from __future__ import annotations

from typing import Any

from antiphase.torch.ghost_clipping import PoissonGhostOptimizer, PrivateGhostOptimizer
from antiphase.torch.private_optimizer import (
    PoissonOptimizer,
    PoissonPerLayerOptimizer,
    PrivateOptimizer,
    PrivatePerLayerOptimizer,
)

# (grad_sample_mode, clipping) -> the optimizer for correlated noise
PRIVATE_OPTIMIZERS: dict[tuple[str, str], Any] = {
    ("hooks", "flat"): PrivateOptimizer,
    ("hooks", "per_layer"): PrivatePerLayerOptimizer,
    ("functorch", "flat"): PrivateOptimizer,
    ("functorch", "per_layer"): PrivatePerLayerOptimizer,
    ("ghost", "flat"): PrivateGhostOptimizer,
    ("ghost_fsdp", "flat"): PrivateGhostOptimizer,
}

# (grad_sample_mode, clipping) -> the optimizer for DP-SGD on Poisson samples
POISSON_OPTIMIZERS: dict[tuple[str, str], Any] = {
    ("hooks", "flat"): PoissonOptimizer,
    ("hooks", "per_layer"): PoissonPerLayerOptimizer,
    ("functorch", "flat"): PoissonOptimizer,
    ("functorch", "per_layer"): PoissonPerLayerOptimizer,
    ("ghost", "flat"): PoissonGhostOptimizer,
}
