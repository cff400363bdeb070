r"""The private step: clip and sum, add a row of noise, divide by a public constant, hand over to the inner optimizer.

Opacus computes the gradients of single examples (or, with ghost clipping, their norms); everything after that is here.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping, DPPerLayerOptimizer
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping, DPTensorFastGradientClipping

from antiphase.errors import BypassError
from antiphase.torch import refusals
from antiphase.torch.release import Release

Tensor = torch.Tensor
BLOCK = 2048  # numbers that are added up at one time
LOST = 8e-9  # of a norm, for each float32 that is added up at one time: twice what was seen at worst with 8 at a time
SMALLEST = 1e-30  # factor that float32 has with all its digits, and more
ROUNDING = 1e-5  # by how much clipped examples are shorter than the clip norm, relatively: more than norms are off


class _Private:
    """What the three ways to clip have in common. ``release`` is set by `attach`."""

    release: Release
    original_optimizer: Any
    clip_and_accumulate: Any
    examples = 0  # whose gradients are in the sum at hand
    bad_examples = 0  # private: how many were left out because their gradients were not finite
    _open = False  # True while the inner optimizer may step

    def attach(self, release: Release) -> None:
        self.release = release
        guard = self.original_optimizer.register_step_pre_hook(self._refuse_bypass)
        self.detach = guard.remove

    def _refuse_bypass(self, *_: Any) -> None:
        # PRIVACY: nothing reaches the model but through `step`.   [G16]
        if not self._open:
            raise BypassError(
                "the inner optimizer was stepped directly, past clipping and noise; step the optimizer that "
                "make_private returned"
            )

    def pre_step(self, closure: Any = None) -> bool:
        self._open = False
        optimizer = cast(DPOptimizer, self)
        self.gather()
        if optimizer._check_skip_next_step():
            optimizer._is_last_step_skipped = True
            return False
        # PRIVACY: sum, noise, then one public divisor; the parameters' own type comes last.   [G16]
        noisy = self.release([p.summed_grad for p in optimizer.params], self.examples)
        self.examples = 0
        for p, total in zip(optimizer.params, noisy, strict=True):
            p.grad = total if total.dtype is p.dtype else total.to(p.dtype)
            _mark_as_processed(p.summed_grad)
        if optimizer.step_hook:
            optimizer.step_hook(self)
        optimizer._is_last_step_skipped = False
        self._open = True
        return True

    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            with torch.enable_grad():
                closure()
        try:
            if not self.pre_step():
                return None
            made = self.original_optimizer.step()
            self.release.prepare()
            return made
        finally:
            self._open = False

    def count(self, examples: int, kept: Tensor | None) -> None:
        self.examples += examples
        if kept is not None:
            self.bad_examples += int((~kept).sum())

    def gather(self) -> None:
        """Add the examples at hand to ``p.summed_grad``."""
        self.clip_and_accumulate()

    def add_noise(self) -> None:
        raise BypassError("noise is added once a step, together with the ledger: call step()")

    scale_grad = add_noise


def clip_factors(norms: Tensor, clip_norm: float) -> Tensor:
    """By what to multiply each example, so that none is longer than the clip norm."""
    # PRIVACY: a little less than the norm, by more than norms and products are rounded.   [G16]
    return norms.reciprocal().mul_(clip_norm * (1 - ROUNDING)).clamp_(max=1.0)


def example_norms(gradients: list[Tensor]) -> tuple[Tensor, Tensor | None]:
    """The norm of each example over all tensors, and which ones are finite: None if all are.

    In float64 where float32 would overflow.
    """

    def of(parts: list[Tensor], dtype: torch.dtype | None = None) -> Tensor:
        each = [row_norms(_flat(g), dtype).to(parts[0].device) for g in parts]
        together: Tensor = torch.linalg.vector_norm(torch.stack(each, dim=1), dim=1)
        return together

    low = gradients[0].dtype in (torch.float16, torch.bfloat16)
    norms = of(gradients, torch.float32 if low else None)
    if math.isfinite(float(norms.sum())):  # one number to look at; if it overflows, look closer
        return norms, None
    doubtful = ~torch.isfinite(norms)
    norms = norms.double()
    norms[doubtful] = of([g[doubtful.to(g.device)] for g in gradients], torch.float64)
    finite = torch.isfinite(norms)
    return norms, None if finite.all() else finite


def row_norms(rows: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The norm of each row, good to 1e-5 in float32 however long it is: of blocks first, then of their norms.

    torch adds a row up in a few accumulators: five million numbers come out 2 % too short.
    """
    while (length := rows.shape[1]) > BLOCK:
        # PRIVACY: a norm that is too small lets an example contribute more than the clip norm.   [G16]
        least = -(-length // BLOCK)
        count = next((k for k in range(least, 2 * least) if length % k == 0), length // BLOCK)
        size = min(length // count, BLOCK)
        whole = count * size  # all of it, where blocks of one size fit
        blocks = torch.linalg.vector_norm(rows[:, :whole].reshape(-1, count, size), dim=2, dtype=dtype)
        if whole < length:
            rest = torch.linalg.vector_norm(rows[:, whole:], dim=1, keepdim=True, dtype=dtype)
            blocks = torch.cat([blocks, rest], dim=1)
        rows = blocks
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=dtype)
    return norms


def weighted_sum(factors: Tensor, gradients: Tensor, kept: Tensor | None = None) -> Tensor:
    """``Σ factor·gradient`` in float32 or better, of those ``kept``: the others are left out, since 0 · NaN is NaN."""
    if kept is None and factors.dtype is gradients.dtype is torch.float32 and factors.device == gradients.device:
        return (factors @ _flat(gradients)).view(gradients.shape[1:])  # as below; each of its calls takes microseconds
    dtype = torch.promote_types(gradients.dtype, torch.float32)
    factors = factors.to(gradients.device)
    if kept is not None:
        # PRIVACY: what is not finite contributes nothing, whatever it is.   [G16]
        kept = kept.to(gradients.device)
        factors, gradients = factors[kept], gradients[kept]
    # PRIVACY: what is below float32's normal numbers has few digits; rounded up, an example would be too long.   [G16]
    small = factors < SMALLEST if factors.dtype is torch.float64 and dtype is torch.float32 else None
    if small is None or not small.any():
        total = factors.to(dtype) @ _flat(gradients.to(dtype))
    else:
        total = factors.masked_fill(small, 0.0).to(dtype) @ _flat(gradients.to(dtype))
        total += (factors[small] @ _flat(gradients[small].double())).to(dtype)
    return total.view(gradients.shape[1:])


def _flat(gradients: Tensor) -> Tensor:
    """One row an example; also of none, and of numbers."""
    if gradients.ndim == 2:
        return gradients
    return gradients.reshape(gradients.shape[0], math.prod(gradients.shape[1:]))


def _add(p: Any, total: Tensor) -> None:
    p.summed_grad = total if p.summed_grad is None else p.summed_grad + total


class PrivateOptimizer(_Private, DPOptimizer):
    """Flat clipping of materialised per-example gradients."""

    def clip_and_accumulate(self) -> None:
        gradients = self.grad_samples
        norms, kept = example_norms(gradients)
        self.count(len(norms), kept)
        factors = clip_factors(norms, self.max_grad_norm)
        for p, g in zip(self.params, gradients, strict=True):
            _check_processed_flag(p.grad_sample)
            _add(p, weighted_sum(factors, g, kept))
            _mark_as_processed(p.grad_sample)


class PrivatePerLayerOptimizer(_Private, DPPerLayerOptimizer):
    """Each tensor clipped to a norm of its own; one record moves the sum by at most the norm of all these."""

    def clip_and_accumulate(self) -> None:
        gradients = self.grad_samples
        norms, kept = example_norms(gradients)  # one tensor that is not finite, and the example contributes nothing
        self.count(len(norms), kept)
        for p, g, most in zip(self.params, gradients, self.max_grad_norms, strict=True):
            _check_processed_flag(p.grad_sample)
            _add(p, weighted_sum(clip_factors(example_norms([g])[0], most), g, kept))
            _mark_as_processed(p.grad_sample)


class PrivateGhostOptimizer(_Private, DPOptimizerFastGradientClipping):
    """Ghost clipping: the second backward pass has clipped and summed already, into ``p.grad``."""

    pending = False  # whether p.grad holds a sum that was not gathered yet

    def zero_grad(self, set_to_none: bool = False) -> None:
        super().zero_grad(set_to_none)
        if not self._is_last_step_skipped:
            self.pending, self.examples = False, 0

    def gather(self) -> None:
        for p in self.params:
            if p.grad is None:
                raise ValueError(
                    "a parameter has no gradient: call backward() on the loss that make_private's criterion returned, "
                    "and freeze what the loss does not depend on"
                )
        if not self.pending:
            raise ValueError("there is no gradient of any example: call backward() on the loss before step()")
        for p in self.params:
            _add(p, p.grad.to(torch.promote_types(p.grad.dtype, torch.float32)))
            p.grad = None  # it may be the sum itself now, and a backward pass would add to it
        self.pending = False


def ghost_rounding(module: torch.nn.Module, samplers: Any) -> float:
    """By how much, relatively, the norms that Opacus computes for ghost clipping may be too small, beyond `ROUNDING`.

    Layers without a rule of their own have their gradients added up at one time, as `row_norms` does not.
    """
    longest = 0
    for part in module.modules():
        for p in part.parameters(recurse=False):
            if p.requires_grad:
                longest = max(longest, *p.shape, 1) if type(part) in samplers else max(longest, p.numel())
    return max(LOST * longest - ROUNDING, 0.0)


class GhostLoss(DPLossFastGradientClipping):
    """The criterion with ghost clipping; what the model was given is kept until the backward pass, see `_again`."""

    def __init__(self, module: Any, optimizer: PrivateGhostOptimizer, criterion: Any, loss_reduction: str) -> None:
        super().__init__(module, optimizer, criterion, loss_reduction)
        self._inputs: tuple[Any, Any] = (), {}
        self._random: list[Tensor] = []  # of the generators, before the model was called
        target = getattr(module, "_module", module)
        target.register_forward_pre_hook(self._keep, with_kwargs=True)
        self._model = module if isinstance(module, torch.nn.Module) else target
        # PRIVACY: Opacus' norms may be too small, so that clipping must make up for it.   [G16]
        self.excess = 1 + ghost_rounding(target, getattr(module, "NORM_SAMPLERS", {}))

    def _keep(self, _: Any, args: Any, kwargs: Any) -> None:
        self._inputs = args, kwargs
        self._random = _random_state(self._model)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().__call__(*args, **kwargs)
        return _GhostTensor(self, args, kwargs, loss.loss_per_sample, self._inputs, self._random)


class _GhostTensor(DPTensorFastGradientClipping):
    """A loss whose ``backward()`` makes two passes: norms, then the clipped sum."""

    def __init__(
        self, loss: GhostLoss, args: Any, kwargs: Any, per_sample: Tensor, inputs: Any, random: list[Tensor]
    ) -> None:
        super().__init__(loss.module, loss.optimizer, per_sample, loss.loss_reduction)
        self._loss, self._call, self._inputs, self._random = loss, (args, kwargs), inputs, random

    def backward(self, kept: Tensor | None = None) -> None:
        """``kept`` says which examples count, where others stand in for those that do not; see `_again`."""
        optimizer = self.optimizer
        if optimizer.pending:
            optimizer.gather()  # several losses before a step: gradient accumulation
        losses = self.loss_per_sample
        losses = losses.reshape(len(losses), -1).mean(dim=1) if losses.ndim > 1 else losses
        reduced = losses.mean() if self.loss_reduction == "mean" else losses.sum()
        if not len(losses):
            reduced = losses.sum()  # the mean of nothing is NaN
        reduced.backward(retain_graph=True)
        for p in optimizer.params:
            p.grad = None
        norms = self.module.get_norm_sample() if len(losses) else losses.detach()
        refusals.low_precision(norms.dtype)
        good = torch.isfinite(norms) & torch.isfinite(losses.detach().to(norms.device))
        if optimizer.release.group.any(not bool(good.all())):
            self._again(good if kept is None else good & kept, alone=kept is not None)
            return
        optimizer.examples += len(losses)
        coefficients = clip_factors(norms * self._loss.excess, optimizer.max_grad_norm)
        if kept is not None:
            optimizer.bad_examples += int((~kept).sum())
            coefficients = coefficients * kept.to(coefficients.device)
        self.module.disable_hooks()
        (coefficients.to(losses.device) * losses).sum().backward()
        self.module.enable_hooks()
        optimizer.pending = True

    def _again(self, good: Tensor, alone: bool) -> None:
        """Both passes once more, with a good example in the place of each that is not finite: 0 · NaN would be NaN.

        The generators are set back first, so that the others meet the same dropout masks as without a bad example
        among them. Where a stand-in is not finite either, or there is none, the good ones are taken ``alone``.
        """
        # PRIVACY: bad examples contribute nothing, and change nothing for the others.   [G16]
        optimizer, size, count = self.optimizer, len(good), int(good.sum())
        if not count and not optimizer.release.group.sharded:  # shards: all processes make the same passes
            optimizer.bad_examples += size
            optimizer.examples += size
            for p in optimizer.params:
                p.grad = torch.zeros_like(p)
            optimizer.pending = True
            return
        alone = alone or not count
        places = torch.arange(size, device=good.device)
        chosen = places[good] if alone else torch.where(good, places, places[good][:1])

        def select(item: Any) -> Any:
            if isinstance(item, Tensor) and item.ndim and len(item) == size:
                return item.detach()[chosen.to(item.device)]
            if isinstance(item, list | tuple):
                return type(item)(select(part) for part in item)
            if isinstance(item, dict):
                return {name: select(part) for name, part in item.items()}
            return item

        (args, kwargs), (call, named) = self._inputs, self._call
        now = _random_state(self._loss._model)
        _set_random_state(self._loss._model, self._random)
        output = self._loss._model(*select(args), **select(kwargs))
        loss = self._loss(output, *select(call[1:]), **select(named))
        _set_random_state(self._loss._model, now)
        if alone:
            optimizer.bad_examples += size - count
            optimizer.examples += size - count
            loss.backward()
        else:
            loss.backward(kept=good)


def _random_state(module: torch.nn.Module) -> list[Tensor]:
    """Of the generators that a call of the module may draw from."""
    device = next(module.parameters()).device
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _set_random_state(module: torch.nn.Module, state: list[Tensor]) -> None:
    torch.set_rng_state(state[0])
    for other in state[1:]:
        torch.cuda.set_rng_state(other, next(module.parameters()).device)
