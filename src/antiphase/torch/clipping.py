"""Norms of per-example gradients and their weighted sums, with bounds for every rounding.

docs/clipping.md has the proofs. In short: norms are good to 1e-5, examples are multiplied by a little less than
``clip_norm / norm``, and sums are formed in small groups in float32 that are added up in float64, so that an example
moves the sum by at most the clip norm whatever the others are.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch

Tensor = torch.Tensor
_MATMUL: list[Any] = [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul]  # type: ignore[attr-defined]
_FULL = ("none", "ieee")
UNIT = 2.0**-24  # relative rounding error of one float32 operation
BLOCK = 256  # numbers whose squares are added up in float32
NORM_ERROR = 1e-5  # relative, of `row_norms` in float32, for every order of summation: BLOCK·UNIT/2 and the root's
SMALLEST = 1e-30  # factors below are not for float32, which has few digits there
CANCELLATION = 64.0  # largest S/‖G‖ (docs/clipping.md) at which an example keeps its full share
COHERENT = 512  # examples whose inputs' rounding may change in the same direction at one time
MOST_TOGETHER = 64  # examples in one float32 product
GROUPED_TERMS = (
    10240  # (examples of a batch) × (examples of a group), which the rounding of groups grows with
)


def group_size(batch_size: int) -> int:
    """How many examples may share a float32 product: fewer in larger batches, so that the rounding stays the same."""
    return max(1, min(MOST_TOGETHER, GROUPED_TERMS // max(batch_size, 1)))


def clip_margin(batch_size: int) -> float:
    """By how much, relatively, clipped examples are shorter than the clip norm: more than all rounding together.

    Args:
        batch_size: the most examples of one step, all processes together. Public.
    """
    inside_groups = 2 * (group_size(batch_size) + 3) * UNIT * batch_size
    of_sums = (
        4 * UNIT * batch_size
    )  # sums of processes are rounded to float32, and added up in float64
    of_inputs = (
        4 * UNIT * CANCELLATION * min(batch_size, COHERENT)
    )  # as of a mean over another number of examples
    # PRIVACY: what an example changes in the rounding of all others is taken off its own share.   [G16]
    return inside_groups + of_sums + of_inputs + 2 * NORM_ERROR


def size_of(rows: Tensor) -> Tensor | None:
    """S of the rows of a parameter's gradients (docs/clipping.md), where they are sums; None if it is not known."""
    found: Tensor | None = getattr(rows, "_size", None)
    return found


def pass_of(rows: Tensor) -> Any:
    """The forward pass that the rows are of; None if it is not known."""
    return getattr(rows, "_pass", None)


def limited(norms: Tensor, sizes: list[Tensor | None]) -> Tensor:
    """Norms to clip by: at least ``S / CANCELLATION`` of each parameter."""
    for size in sizes:
        if size is not None:
            # PRIVACY: where tokens cancel, the gradient is rounding, which may change with other examples.   [G16]
            norms = torch.maximum(norms, size.to(norms.device) / CANCELLATION)
    return norms


def clip_factors(norms: Tensor, clip_norm: float, margin: float) -> Tensor:
    """By what to multiply each example, so that none contributes more than the clip norm; float64."""
    # PRIVACY: a little less than the clip norm, by more than everything is rounded.   [G16]
    return norms.double().reciprocal().mul_(clip_norm * (1 - margin)).clamp_(max=1.0)


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Products of float32 matrices in float32, whatever the global flags for TF32 and bfloat16 are."""
    before = [backend.fp32_precision for backend in _MATMUL]
    autocast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    if not autocast and all(precision in _FULL for precision in before):
        yield
        return
    try:
        for backend in _MATMUL:
            # PRIVACY: TF32 has 10 bits; norms and sums of such products differ by more than the clip norm.   [G16]
            backend.fp32_precision = "ieee"
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield
    finally:
        for backend, precision in zip(_MATMUL, before, strict=True):
            backend.fp32_precision = precision


def working(rows: Tensor) -> Tensor:
    """In float32, or float64 where it is that already."""
    return rows if rows.dtype in (torch.float32, torch.float64) else rows.float()


def flat(rows: Tensor) -> Tensor:
    """One row an example; also of none, and of numbers."""
    return rows if rows.ndim == 2 else rows.reshape(rows.shape[0], math.prod(rows.shape[1:]))


def row_norms(rows: Tensor) -> Tensor:
    """The norm of each row in float64, good to `NORM_ERROR`: squares of blocks in float32, blocks in float64.

    Rows whose squares overflow or vanish in float32 are added up in float64. Not finite where the row is not.
    """
    rows = flat(rows)
    norms = _block_norms(rows)
    doubtful = _is_doubtful(norms)
    return _repaired(norms, rows, doubtful) if bool(doubtful.any()) else norms


def _block_norms(rows: Tensor) -> Tensor:
    """The norm of each row in float64, from squares in float32 that may have overflowed or vanished."""
    length = rows.shape[1]
    # PRIVACY: the dtype is decided for each tensor; a norm in low precision would be too small.   [G16]
    dtype = torch.float64 if rows.dtype is torch.float64 else torch.float32
    if length <= BLOCK or dtype is torch.float64:
        short: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=dtype)
        return short.double()
    whole = length - length % BLOCK
    blocks = torch.linalg.vector_norm(
        rows[:, :whole].view(len(rows), whole // BLOCK, BLOCK), dim=2, dtype=dtype
    )
    norms: Tensor = torch.linalg.vector_norm(blocks, dim=1, dtype=torch.float64)
    if whole < length:
        norms = torch.hypot(
            norms, torch.linalg.vector_norm(rows[:, whole:], dim=1, dtype=dtype).double()
        )
    return norms


def _is_doubtful(norms: Tensor) -> Tensor:
    """Norms near the ends of float32's range, where squares are outside of it."""
    return ~((norms > 1e-12) & (norms < 1e18))


def _repaired(norms: Tensor, rows: Tensor, doubtful: Tensor) -> Tensor:
    """Doubtful norms once more, in float64."""
    norms = norms.clone()
    norms[doubtful] = torch.linalg.vector_norm(rows[doubtful].double(), dim=1)
    return norms


def example_norms(gradients: list[Tensor]) -> tuple[Tensor, Tensor | None]:
    """The norm of each example over all tensors, in float64, and which ones are finite: None if all are."""
    rows = [flat(g) for g in gradients]
    each = torch.stack([_block_norms(r).to(rows[0].device) for r in rows], dim=1)
    doubtful = _is_doubtful(each)
    if bool(doubtful.any()):
        columns = [
            _repaired(each[:, i], r, doubtful[:, i].to(r.device)) for i, r in enumerate(rows)
        ]
        each = torch.stack([c.to(each.device) for c in columns], dim=1)
    norms: Tensor = torch.linalg.vector_norm(each, dim=1)
    return norms, finite(norms)


def finite(norms: Tensor) -> Tensor | None:
    """Which norms are finite: None if all are."""
    found = torch.isfinite(norms)
    return None if bool(found.all()) else found


def weighted_sum(
    factors: Tensor, rows: Tensor, kept: Tensor | None = None, together: int = 1
) -> Tensor:
    """`weighted_sums` of one tensor."""
    return weighted_sums(factors, [rows], kept, together)[0]


def weighted_sums(
    factors: Tensor, gradients: list[Tensor], kept: Tensor | None = None, together: int = 1
) -> list[Tensor]:
    """``Σ factor·row`` of each tensor in float64: groups of examples in float32, groups added up in float64.

    Args:
        factors: float64, one for each example.
        gradients: for each parameter a row for each example.
        kept: which examples count; the others may be NaN. None for all.
        together: how many examples are in a group; see `group_size`.
    """
    if kept is not None:
        # PRIVACY: what is not finite contributes nothing. Masked in place: the others stay where they are.   [G16]
        factors = torch.where(kept.to(factors.device), factors, 0.0)
    # PRIVACY: factors below float32's normal numbers have few digits; rounded up, an example would be too long.   [G16]
    exact = bool((factors < SMALLEST).any())
    single = factors.float()
    with full_precision():
        return [_weighted_sum(factors if exact else single, g, kept, together) for g in gradients]


def _weighted_sum(factors: Tensor, rows: Tensor, kept: Tensor | None, together: int) -> Tensor:
    shape, device = rows.shape[1:], rows.device
    rows, factors = flat(rows), factors.to(device)
    kept = None if kept is None else kept.to(device)
    dtype = torch.promote_types(torch.promote_types(rows.dtype, torch.float32), factors.dtype)
    factors = factors.to(dtype)
    total = None
    for start in range(0, len(rows), together):
        part = rows[start : start + together]
        if kept is not None:
            part = torch.where(kept[start : start + together, None], part, 0.0)
        # PRIVACY: one float32 sum over a large batch moves by more than the clip norm when one leaves.   [G16]
        group = factors[start : start + together] @ part.to(dtype)
        total = group.double() if total is None else total.add_(group)
    if total is None:
        total = torch.zeros(rows.shape[1], dtype=torch.float64, device=device)
    return total.view(shape)
