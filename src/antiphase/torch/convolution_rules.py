"""Rule for the per-example gradients of convolutions, by products of unfolded inputs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from antiphase.torch.batched_products import batched_products
from antiphase.torch.clipping import NORM_ERROR, at_least_float32
from antiphase.torch.derived_parameters import ParameterTerm, Use
from antiphase.torch.gradient_terms import Products, Rows, Term, is_formed_cheaply, token_sums
from antiphase.torch.tensor_roles import TensorRoles

Tensor = torch.Tensor
# Numbers of unfolded inputs at one time: they fit into caches and into memory that is kept.
MAX_UNFOLDED = 2**21


class Geometry(NamedTuple):
    """How a convolution moves over its inputs; ``padding`` is in the order of ``F.pad``."""

    kernel: torch.Size
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int


def convolution(dims: int) -> Any:
    """Rule of the convolution in so many dimensions."""

    def rule(
        roles: TensorRoles, input: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1,
        padding: Any = 0, dilation: Any = 1, groups: int = 1,
    ) -> Use | None:  # fmt: skip
        if input not in roles.data or weight in roles.data:
            return None
        trains_weight = roles.is_parameter(weight)
        trains_bias = bias is not None and roles.is_parameter(bias)
        parameter = weight if trains_weight else bias
        batch_dim, batch_size = roles.data.get(input), roles.batch_size
        if batch_dim is None or batch_dim.dim != 0:
            raise roles.shape_refusal(parameter, input)
        if input.ndim != dims + 2:
            raise roles.refusal([parameter], f"used on one example of shape {tuple(input.shape)}")
        kernel, steps, holes = weight.shape[2:], _per_dim(stride, dims), _per_dim(dilation, dims)
        geometry = Geometry(kernel, steps, _sides(padding, kernel, holes), holes, groups)

        def terms(gradient: Tensor, *saved: Tensor) -> list[ParameterTerm]:
            g = at_least_float32(gradient).flatten(2)  # (rows, channels, positions)
            each = len(g) // batch_size if batch_size else 1  # consecutive rows of one example
            found = []
            if trains_weight:
                found.append(
                    ParameterTerm(weight, _weight_term(saved[0], g, weight, geometry, each))
                )
            if trains_bias:
                found.append(ParameterTerm(bias, token_sums(g, dim=2).summed(each)))
            return found

        return terms, [input] if trains_weight else []

    return rule


def _per_dim(value: Any, dims: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * dims if len(values) == 1 else values


def _sides(padding: Any, kernel: Any, holes: list[int]) -> list[int]:
    """Padding as ``F.pad`` takes it: the last dimension first."""
    if padding == "same":
        total = [h * (k - 1) for h, k in zip(holes, kernel, strict=True)]
        sides = [(t // 2, t - t // 2) for t in total]
    else:
        sides = [(p, p) for p in _per_dim(0 if padding == "valid" else padding, len(kernel))]
    return [side for pair in reversed(sides) for side in pair]


def _unfold(x: Tensor, geometry: Geometry) -> Tensor:
    """Windows of the padded input, (rows, channels·kernel, positions).

    A copy by strides, several times faster than ``F.unfold`` on a CPU.
    """
    kernel, stride, dilation = geometry.kernel, geometry.stride, geometry.dilation
    if all(k == 1 for k in kernel):
        places: Any = (..., *[slice(None, None, step) for step in stride])
        return x[places].flatten(2)
    for dim, (k, step, hole) in enumerate(zip(kernel, stride, dilation, strict=True)):
        x = x.unfold(2 + dim, hole * (k - 1) + 1, step)[..., ::hole]
    dims = len(kernel)
    windows = x.permute(0, 1, *range(2 + dims, 2 + 2 * dims), *range(2, 2 + dims))
    return windows.flatten(2 + dims).flatten(1, 1 + dims)


def _weight_term(x: Tensor, g: Tensor, weight: Tensor, geometry: Geometry, each: int) -> Term:
    """Gradients of the weight: as rows where they are small, else as factors.

    Args:
        x: the inputs.
        g: gradients of the outputs, (rows, channels, positions).
        weight: the weight.
        geometry: of the convolution.
        each: consecutive rows that belong to one example.
    """
    groups = geometry.groups
    (rows, _, positions), p, d = g.shape, weight.shape[0] // groups, weight[0].numel()
    if not rows:
        return Rows(g.new_zeros(0, weight.numel()))
    if groups == 1 and each == 1 and not is_formed_cheaply(positions, p, d):
        windows = _unfold(F.pad(at_least_float32(x), geometry.padding), geometry)
        return Products(g.transpose(1, 2), windows.transpose(1, 2))
    formed = g.new_empty(rows, groups, p, d)
    uncancelled = g.new_empty(rows, dtype=torch.float64)
    step = max(1, MAX_UNFOLDED // max(1, positions * d * groups))
    for start in range(0, rows, step):
        part = slice(start, start + step)
        padded = F.pad(at_least_float32(x[part]), geometry.padding)
        n = len(padded)
        left = g[part].reshape(n * groups, p, positions)
        right = _unfold(padded, geometry).reshape(n * groups, d, positions)
        batched_products(left, right, tokens_first=False, out=formed[part].view(n * groups, p, d))
        uncancelled[part] = _uncancelled_norms(padded, g[part], geometry)
    return Rows(formed.view(rows, -1), uncancelled, is_own=True).summed(each)


def _uncancelled_norms(x: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    """``S = Σ ‖g‖‖window‖`` over positions for each channel group, and the norm over the groups."""
    (rows, _, positions), groups = g.shape, geometry.groups
    squares = x.view(rows, groups, -1, *x.shape[2:]).square().sum(dim=2)
    windows = _unfold(squares.flatten(0, 1)[:, None], geometry).sum(dim=1)
    gradients = g.view(rows, groups, -1, positions).square().sum(dim=2)
    sizes = (windows.view(rows, groups, positions).double() * gradients).sqrt_().sum(dim=2)
    norms: Tensor = torch.linalg.vector_norm(sizes, dim=1) * (1 + NORM_ERROR)
    return norms
