"""Clip per-example gradients and add them up, with bounds on every rounding.

docs/clipping.md has the proofs. Norms are accurate to 1e-5, each example is scaled by slightly less
than ``clip_norm / norm``, and sums are formed in float32 over small groups and in float64 over the
groups. So one example moves the sum by at most the clip norm, whatever the other examples are.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch

Tensor = torch.Tensor
UNIT_ROUNDOFF = 2.0**-24  # relative rounding error of one float32 operation
NORM_BLOCK = 256  # numbers whose squares are added up in float32
# Relative error of `row_norms` in float32, for every order of summation: half of NORM_BLOCK units
# for the squares and a little for the roots.
NORM_ERROR = 1e-5
MIN_FLOAT32_FACTOR = 1e-30  # float32 has few digits for smaller factors
MAX_CANCELLATION = 64.0  # κ: largest S/‖G‖ (docs/clipping.md) that scales nothing down
MAX_COHERENT = 512  # examples whose inputs may all be rounded in the same direction
MAX_GROUP_SIZE = 64  # examples in one float32 product
MAX_BATCH_TIMES_GROUP = 10240  # batch size × group size, which rounding in groups grows with
_MATMUL_BACKENDS: list[Any] = [
    torch.backends.cuda.matmul,
    torch.backends.mkldnn.matmul,  # type: ignore[attr-defined]
]


def group_size(batch_size: int) -> int:
    """Number of examples in one float32 product: smaller for larger batches, to bound the error."""
    return max(1, min(MAX_GROUP_SIZE, MAX_BATCH_TIMES_GROUP // max(batch_size, 1)))


def clip_margin(batch_size: int) -> float:
    """Relative amount by which examples are clipped below the clip norm, to cover all rounding.

    Args:
        batch_size: the largest number of examples in one step, over all processes. Public.
    """
    inside_groups = 2 * (group_size(batch_size) + 3) * UNIT_ROUNDOFF * batch_size
    # Sums of processes are rounded to float32 and added up in float64.
    of_sums = 4 * UNIT_ROUNDOFF * batch_size
    # Inputs may be rounded otherwise in another batch, as by a mean over the batch.
    of_inputs = 4 * UNIT_ROUNDOFF * MAX_CANCELLATION * min(batch_size, MAX_COHERENT)
    # PRIVACY: an example's share is less by what it can change in others' rounding.   [G16]
    return inside_groups + of_sums + of_inputs + 2 * NORM_ERROR


def uncancelled_of(rows: Tensor) -> Tensor | None:
    """S of each row of a ``grad_sample`` (docs/clipping.md); None if rows are not sums."""
    uncancelled: Tensor | None = getattr(rows, "_uncancelled", None)
    return uncancelled


def forward_pass_of(rows: Tensor) -> Any:
    """The forward pass that a ``grad_sample`` belongs to; None if it is unknown."""
    return getattr(rows, "_forward_pass", None)


def norms_to_clip_by(norms: Tensor, uncancelled: list[Tensor | None]) -> Tensor:
    """The norms, raised to at least ``S / MAX_CANCELLATION`` of each parameter."""
    for norm in uncancelled:
        if norm is not None:
            # PRIVACY: what cancels leaves rounding error, which other examples can change.   [G16]
            norms = torch.maximum(norms, norm.to(norms.device) / MAX_CANCELLATION)
    return norms


def clip_factors(norms: Tensor, clip_norm: float, margin: float) -> Tensor:
    """The float64 factor of each example, so that none contributes more than the clip norm."""
    # PRIVACY: the margin below the clip norm is larger than all rounding errors together.   [G16]
    return norms.double().reciprocal().mul_(clip_norm * (1 - margin)).clamp_(max=1.0)


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Multiply float32 matrices in float32, whatever autocast and the flags for TF32 ask for."""
    before = [backend.fp32_precision for backend in _MATMUL_BACKENDS]
    autocast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    if not autocast and all(precision in ("none", "ieee") for precision in before):
        yield
        return
    try:
        for backend in _MATMUL_BACKENDS:
            # PRIVACY: rounding of norms and sums in TF32 would exceed the clip norm.   [G16]
            backend.fp32_precision = "ieee"
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield
    finally:
        for backend, precision in zip(_MATMUL_BACKENDS, before, strict=True):
            backend.fp32_precision = precision


def at_least_float32(rows: Tensor) -> Tensor:
    """The tensor in float32, or in float64 if it is that already."""
    return rows if rows.dtype in (torch.float32, torch.float64) else rows.float()


def flatten_rows(rows: Tensor) -> Tensor:
    """The tensor with one flat row per example; works for zero examples and for scalars."""
    return rows if rows.ndim == 2 else rows.reshape(rows.shape[0], math.prod(rows.shape[1:]))


def row_norms(rows: Tensor) -> Tensor:
    """The norm of each row in float64, with a relative error of at most `NORM_ERROR`.

    Squares are added up in float32 within blocks, and in float64 over blocks. Rows whose squares
    overflow or underflow in float32 are added up in float64. Not finite where the row is not.
    """
    rows = flatten_rows(rows)
    norms = _block_norms(rows)
    doubtful = _is_doubtful(norms)
    return _recomputed(norms, rows, doubtful) if bool(doubtful.any()) else norms


def _block_norms(rows: Tensor) -> Tensor:
    """The norm of each row in float64, from float32 squares that may have over- or underflowed."""
    length = rows.shape[1]
    # PRIVACY: each tensor has its dtype; a norm in low precision can be too small.   [G16]
    dtype = torch.float64 if rows.dtype is torch.float64 else torch.float32
    if length <= NORM_BLOCK or dtype is torch.float64:
        short: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=dtype)
        return short.double()
    whole = length - length % NORM_BLOCK
    in_blocks = rows[:, :whole].view(len(rows), whole // NORM_BLOCK, NORM_BLOCK)
    blocks = torch.linalg.vector_norm(in_blocks, dim=2, dtype=dtype)
    norms: Tensor = torch.linalg.vector_norm(blocks, dim=1, dtype=torch.float64)
    if whole < length:
        rest = torch.linalg.vector_norm(rows[:, whole:], dim=1, dtype=dtype)
        norms = torch.hypot(norms, rest.double())
    return norms


def _is_doubtful(norms: Tensor) -> Tensor:
    """Which norms are so small or large that squares may be outside of float32's range."""
    return ~((norms > 1e-12) & (norms < 1e18))


def _recomputed(norms: Tensor, rows: Tensor, doubtful: Tensor) -> Tensor:
    """The norms, with the doubtful ones computed in float64."""
    norms = norms.clone()
    norms[doubtful] = torch.linalg.vector_norm(rows[doubtful].double(), dim=1)
    return norms


def example_norms(gradients: list[Tensor]) -> tuple[Tensor, Tensor | None]:
    """The norm of each example over all tensors in float64, and its `finite_mask`."""
    rows = [flatten_rows(g) for g in gradients]
    norms = torch.stack([_block_norms(r).to(rows[0].device) for r in rows], dim=1)
    doubtful = _is_doubtful(norms)
    if bool(doubtful.any()):
        columns = [
            _recomputed(norms[:, i], r, doubtful[:, i].to(r.device)) for i, r in enumerate(rows)
        ]
        norms = torch.stack([column.to(norms.device) for column in columns], dim=1)
    total: Tensor = torch.linalg.vector_norm(norms, dim=1)
    return total, finite_mask(total)


def finite_mask(norms: Tensor) -> Tensor | None:
    """Which norms are finite; None if all are."""
    mask = torch.isfinite(norms)
    return None if bool(mask.all()) else mask


def weighted_sum(
    factors: Tensor, rows: Tensor, mask: Tensor | None = None, group: int = 1
) -> Tensor:
    """`weighted_sums` of one tensor."""
    return weighted_sums(factors, [rows], mask, group)[0]


def weighted_sums(
    factors: Tensor, gradients: list[Tensor], mask: Tensor | None = None, group: int = 1
) -> list[Tensor]:
    """``Σ factor·row`` of each tensor in float64: float32 within groups, float64 over groups.

    Args:
        factors: float64, one for each example.
        gradients: for each parameter a row for each example.
        mask: which examples count; the others may be NaN. None for all.
        group: how many examples are in a group; see `group_size`.
    """
    if mask is not None:
        # PRIVACY: non-finite examples add zero, and the others stay where they are.   [G16]
        factors = torch.where(mask.to(factors.device), factors, 0.0)
    # PRIVACY: tiny factors have few digits in float32; rounded up, they are too large.   [G16]
    exact = bool((factors < MIN_FLOAT32_FACTOR).any())
    factors = factors if exact else factors.float()
    with full_precision():
        return [_weighted_sum(factors, rows, mask, group) for rows in gradients]


def _weighted_sum(factors: Tensor, rows: Tensor, mask: Tensor | None, group: int) -> Tensor:
    shape, device = rows.shape[1:], rows.device
    rows, factors = flatten_rows(rows), factors.to(device)
    mask = None if mask is None else mask.to(device)
    dtype = torch.promote_types(torch.promote_types(rows.dtype, torch.float32), factors.dtype)
    factors = factors.to(dtype)
    total = None
    for start in range(0, len(rows), group):
        part = rows[start : start + group]
        if mask is not None:
            part = torch.where(mask[start : start + group, None], part, 0.0)
        # PRIVACY: a float32 sum over a large batch can move by more than the clip norm.   [G16]
        partial = factors[start : start + group] @ part.to(dtype)
        total = partial.double() if total is None else total.add_(partial)
    if total is None:
        total = torch.zeros(rows.shape[1], dtype=torch.float64, device=device)
    return total.view(shape)
