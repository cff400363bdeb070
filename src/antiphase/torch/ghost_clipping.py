"""Ghost clipping: clip and sum per-example gradients without forming them, in one backward pass.

One backward pass records the inputs and output gradients of every layer (`recorder`). The norm of
each example is bounded from these, and the weighted sum is formed by products of each layer.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from opacus.optimizers import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import (
    DPLossFastGradientClipping,
    DPTensorFastGradientClipping,
)

from antiphase.errors import PerExampleGradientError, SettingsError
from antiphase.torch.clipping import clip_factors, finite_mask, group_size
from antiphase.torch.gradient_terms import Rows, Term, bound_of, merged
from antiphase.torch.private_optimizer import (
    SCALED_LOSS,
    IndependentNoise,
    PerExampleClipping,
    PrivateStep,
    add_to_sum,
)
from antiphase.torch.recorder import Recorder
from antiphase.torch.sharding import as_shard, is_shard, rows_of
from antiphase.torch.user_warnings import warn

Tensor = torch.Tensor


def record_losses(wrapped: Any, losses: Tensor) -> tuple[dict[str, list[Term]], int]:
    """Run the backward pass of the losses and record it.

    Args:
        wrapped: what `recorded` returned for the model.
        losses: one for each example, or several, of which the mean is taken.

    Returns:
        The terms of each parameter's gradient, and the number of examples.

    Raises:
        PerExampleGradientError: if not every example has one row of gradients.
    """
    losses = losses.flatten(1).mean(dim=1) if losses.ndim > 1 else losses
    recorder: Recorder = wrapped.recorder
    with recorder.collecting():
        losses.sum().backward()  # type: ignore[no-untyped-call]
    terms, count = recorder.terms, len(losses)
    recorder.forget()
    if count and not terms:
        raise PerExampleGradientError(
            "the backward pass reached no recorded parameter. Nothing was released. Call the "
            "module that make_private returned, in training mode, as a whole"
        )
    parameters = dict(wrapped._module.named_parameters())
    for name, found in terms.items():
        rows = next((len(term) for term in found if len(term) != count), count)
        # PRIVACY: each example has one row of gradients, or clipping acts on other things.   [G16]
        if rows != count:
            raise PerExampleGradientError(
                f"{name}: gradients of {rows} examples for {count} losses. Nothing was released. "
                "The criterion must return one loss for each example of the batch"
            )
        terms[name] = merged(found, parameters[name].shape)
    return terms, count


def gradients_and_bounds(wrapped: Any, losses: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """What ghost clipping records of single examples, and the norms that it divides them by.

    Args:
        wrapped: what `recorded` returned for the model.
        losses: one for each example.

    Returns:
        Gradients (n, *shape) for each parameter, and an upper bound of each example's norm.
    """
    shapes = {name: p.shape for name, p in wrapped._module.named_parameters()}
    terms, count = record_losses(wrapped, losses)
    bounds, gradients = _norm_bounds(terms, count, losses.device), dict[str, Tensor]()
    for name, found in terms.items():
        shape = shapes[name]
        rows = [term.to_rows(shape).rows.view(-1, *shape).double() for term in found]
        gradients[name] = rows[0] if len(rows) == 1 else torch.stack(rows).sum(dim=0)
    return gradients, bounds


def _norm_bounds(terms: dict[str, list[Term]], count: int, device: Any) -> Tensor:
    """The norm over all parameters that each example is divided by."""
    squares = torch.zeros(count, dtype=torch.float64, device=device)
    floor = torch.zeros_like(squares)
    for found in terms.values():
        bound = bound_of(found)
        squares += bound.norm.to(device).square()
        if bound.floor is not None:
            # PRIVACY: an example's rounding is in proportion to what cancels in it.   [G16]
            floor = torch.maximum(floor, bound.floor.to(device))
    return torch.maximum(squares.sqrt(), floor)


class GhostClipping(PerExampleClipping):
    """Clipping that `GhostLoss` does in the backward pass, into ``p.summed_grad``."""

    params: Any
    max_grad_norm: float
    _unused: tuple[str, ...] = ()

    @property
    def clipped_to(self) -> set[float]:
        """The clip norms of the examples in the current sum."""
        norms: set[float] = vars(self).setdefault("_clipped_to", set())
        return norms

    def unused_parameters(self) -> list[str]:
        """Names of the parameters that the last backward pass did not reach."""
        return list(self._unused)

    def gather(self) -> None:
        """Check that every parameter has a sum."""
        if any(p.summed_grad is None for p in self.params):
            raise ValueError("no example has a gradient: call backward() on the loss before step()")

    def add(self, wrapped: Any, terms: dict[str, list[Term]], count: int, losses: Tensor) -> None:
        """Clip the examples and add them to the sums."""
        norms = _norm_bounds(terms, count, losses.device)
        mask = finite_mask(norms)
        self.count(count, mask)
        self.clipped_to.add(float(self.max_grad_norm))
        factors = clip_factors(norms, self.max_grad_norm, self.clip_margin)
        group, buffers = group_size(self.max_batch_size), wrapped.recorder.buffers
        # A parameter without a name was added later, which the checks of a release refuse.
        names = {id(p): name for name, p in wrapped._module.named_parameters()}
        named = [(names.get(id(p)), p) for p in self.params]
        self._unused = tuple(name for name, _ in named if name and name not in terms)
        for name, p in named:
            total = torch.zeros(p.shape, dtype=torch.float64, device=p.device)
            for term in terms.pop(name or "", []):
                term.add(total, factors, mask, group)
                if isinstance(term, Rows) and term.is_own and buffers is not None:
                    buffers.give_back(term.rows)
            if is_shard(p):
                dist.all_reduce(total)
                start, end = rows_of(p.shape[0], dist.get_rank(), dist.get_world_size())
                total = as_shard(total[start:end], p)
            add_to_sum(p, total)


class PrivateGhostOptimizer(GhostClipping, PrivateStep, DPOptimizerFastGradientClipping):
    """Ghost clipping with the noise of a `Release`."""


class PoissonGhostOptimizer(GhostClipping, IndependentNoise, DPOptimizerFastGradientClipping):
    """Ghost clipping for DP-SGD on Poisson samples, with Opacus' independent noise."""

    def accumulate(self) -> None:
        """Check the clip norm of the current sum."""
        used = set(self.clipped_to)
        self.clipped_to.clear()
        # PRIVACY: the noise is for the clip norm of the step; examples were clipped before.   [G16]
        if used - {float(self.max_grad_norm)}:
            raise SettingsError(
                f"max_grad_norm = {self.max_grad_norm:g}, but examples of this step were clipped "
                f"to {sorted(used)}. Nothing was released. Change it between steps"
            )
        self.gather()


class GhostLoss(DPLossFastGradientClipping):
    """A criterion whose result clips and sums per-example gradients in its ``backward()``."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The losses of the examples, as a `GhostTensor`."""
        loss = super().__call__(*args, **kwargs)
        return GhostTensor(self.module, self.optimizer, loss.loss_per_sample, self.loss_reduction)


class GhostTensor(DPTensorFastGradientClipping):
    """One loss for each example; ``backward()`` adds clipped gradients to the optimizer's sums."""

    def backward(self) -> None:
        """Record the backward pass, clip and sum. Other gradients are not released."""
        before = {id(p): p.grad for p in self.optimizer.params}
        losses = self.loss_per_sample
        terms, count = record_losses(self.module, losses)
        if any(p.grad is not before[id(p)] for p in self.optimizer.params):
            warn(
                "the loss depends on parameters outside of the model's forward pass (a penalty on "
                "weights?). Such gradients belong to no example and are left out; use weight_decay "
                "of the optimizer instead of a penalty"
            )
            for p in self.optimizer.params:
                p.grad = None
        self.optimizer.add(self.module, terms, count, losses)

    def __iter__(self) -> Any:
        """Refuse ``torch.amp.GradScaler.scale``, which iterates over what is not a tensor."""
        raise SettingsError(SCALED_LOSS)

    def _like(self, other: DPTensorFastGradientClipping) -> GhostTensor:
        return GhostTensor(self.module, self.optimizer, other.loss_per_sample, self.loss_reduction)

    def __truediv__(self, other: Any) -> GhostTensor:
        return self._like(super().__truediv__(other))

    def __mul__(self, other: Any) -> GhostTensor:
        return self._like(super().__mul__(other))

    def __rmul__(self, other: Any) -> GhostTensor:
        return self.__mul__(other)

    def __add__(self, other: Any) -> GhostTensor:
        return self._like(super().__add__(other))

    def __radd__(self, other: Any) -> GhostTensor:
        return self.__add__(other)

    def __sub__(self, other: Any) -> GhostTensor:
        return self.__add__(-1 * other)

    def __neg__(self) -> GhostTensor:
        return self.__mul__(-1)

    def __rsub__(self, other: Any) -> GhostTensor:
        return self.__neg__().__add__(other)
