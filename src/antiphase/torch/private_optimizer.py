"""The private step: clip and sum, add noise, divide by a public constant, step the optimizer."""

from __future__ import annotations

from typing import Any, cast

import torch
from opacus.optimizers import DPOptimizer, DPPerLayerOptimizer
from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed

from antiphase.errors import BypassError, PerExampleGradientError, SettingsError
from antiphase.torch.clipping import (
    clip_factors,
    clip_margin,
    example_norms,
    finite_mask,
    forward_pass_of,
    group_size,
    norms_to_clip_by,
    uncancelled_of,
    weighted_sum,
    weighted_sums,
)
from antiphase.torch.gradient_terms import Rows
from antiphase.torch.release import Release

Tensor = torch.Tensor
SCALED_LOSS = (
    "GradScaler scales the loss, so gradients would be clipped to another norm. Nothing was "
    "released. Use autocast without a GradScaler; in bfloat16 gradients do not underflow"
)


class PerExampleClipping:
    """Clipping of one of Opacus' optimizers, with norms that are upper bounds and float64 sums."""

    clip_and_accumulate: Any
    examples = 0  # whose gradients are in the current sum
    nonfinite_examples = 0  # left out because their gradients are not finite; private
    _open = False  # whether the inner optimizer may step

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Read by ``torch.amp.GradScaler`` before it steps an optimizer, and by nothing else."""
        raise SettingsError(SCALED_LOSS)

    def _refuse_bypass(self, *_: Any) -> None:
        # PRIVACY: only `step` changes the model.   [G16]
        if not self._open:
            raise BypassError(
                "the inner optimizer was stepped directly, without clipping and noise; step the "
                "optimizer that make_private returned"
            )

    @property
    def max_batch_size(self) -> int:
        """The most examples of one step for which the rounding of sums is bounded. Public."""
        return 2 * int(cast(DPOptimizer, self).expected_batch_size or 0) + 100

    @property
    def clip_margin(self) -> float:
        """Relative amount by which examples are clipped below the clip norm."""
        return clip_margin(self.max_batch_size)

    def count(self, examples: int, mask: Tensor | None) -> None:
        """Count examples that are to be added to the sum."""
        self.examples += examples
        if mask is not None:
            self.nonfinite_examples += int((~mask).sum())

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Forget the gradients of the current step."""
        super().zero_grad(set_to_none)  # type: ignore[misc]
        if not cast(DPOptimizer, self)._is_last_step_skipped:
            self.examples = 0  # of a step that was refused

    @property
    def grad_samples(self) -> list[Tensor]:
        """Per-example gradients of every parameter; zeros where the backward pass reached none."""
        return [rows.rows for rows in self._rows()]

    def _rows(self) -> list[Rows]:
        """The per-example gradients of every parameter, over all forward passes."""
        gradients = []
        for parts in self._rows_by_pass():
            uncancelled = parts[0].uncancelled
            if len(parts) > 1 and any(part.uncancelled is not None for part in parts):
                uncancelled = torch.cat([
                    part.rows.new_zeros(len(part), dtype=torch.float64)
                    if part.uncancelled is None else part.uncancelled
                    for part in parts
                ])  # fmt: skip
            rows = parts[0].rows if len(parts) == 1 else torch.cat([part.rows for part in parts])
            gradients.append(Rows(rows, uncancelled))
        return gradients

    def _rows_by_pass(self) -> list[list[Rows]]:
        """For every parameter the per-example gradients of each forward pass."""
        params = cast(DPOptimizer, self).params
        recorded = [
            p.grad_sample if isinstance(p.grad_sample, list) else [p.grad_sample] for p in params
        ]
        by_pass: list[dict[Any, Tensor]] = []
        sizes: dict[Any, int] = {}  # of the passes, which are numbered if rows were not recorded
        for parts in recorded:
            by_pass.append({})
            for i, rows in enumerate(rows for rows in parts if rows is not None):
                forward_pass = forward_pass_of(rows) or i
                # PRIVACY: all tensors have the same examples of a pass, one row for each.   [G16]
                if sizes.setdefault(forward_pass, len(rows)) != len(rows):
                    raise PerExampleGradientError(
                        f"one forward pass has gradients of {len(rows)} and of "
                        f"{sizes[forward_pass]} examples. Nothing was released"
                    )
                by_pass[-1][forward_pass] = rows
        if not sizes:
            raise ValueError(
                "Per sample gradient is not initialized. Not updated in backward pass? Call the "
                "module that make_private returned, in training mode, before backward()"
            )
        # PRIVACY: replaced rows would count as other examples, and be clipped apart.   [G16]
        if len({isinstance(forward_pass, int) for forward_pass in sizes}) > 1:
            raise PerExampleGradientError(
                "grad_sample was replaced for some of the parameters. Nothing was released. "
                "Do not change it"
            )
        return [
            [_rows_or_zeros(p, own.get(forward_pass), n) for forward_pass, n in sizes.items()]
            for p, own in zip(params, by_pass, strict=True)
        ]

    def has_gradients(self) -> bool:
        """Whether there are gradients that were not released yet."""
        params, names = cast(DPOptimizer, self).params, ("grad_sample", "summed_grad")
        return any(getattr(p, name, None) is not None for p in params for name in names)


def _rows_or_zeros(p: Any, rows: Tensor | None, n: int) -> Rows:
    """The recorded gradients of a parameter, or n zeros."""
    if rows is None:
        return Rows(p.new_zeros(()).expand(n, *p.shape))
    return Rows(rows, uncancelled_of(rows))


def add_to_sum(p: Any, total: Tensor) -> None:
    """Add to the clipped sum of a parameter."""
    p.summed_grad = total if p.summed_grad is None else p.summed_grad + total


class FlatClipping(PerExampleClipping):
    """Clip each example by its norm over all tensors."""

    def clip_and_accumulate(self) -> None:
        """Clip the examples and add them to the sums."""
        optimizer, terms = cast(DPOptimizer, self), self._rows()
        gradients = [term.rows for term in terms]
        norms = example_norms(gradients)[0]
        norms = norms_to_clip_by(norms, [term.uncancelled for term in terms])
        mask = finite_mask(norms)
        self.count(len(norms), mask)
        factors = clip_factors(norms, optimizer.max_grad_norm, self.clip_margin)
        totals = weighted_sums(factors, gradients, mask, group_size(self.max_batch_size))
        for p, total in zip(optimizer.params, totals, strict=True):
            _check_processed_flag(p.grad_sample)
            add_to_sum(p, total)
            _mark_as_processed(p.grad_sample)


class PerLayerClipping(PerExampleClipping):
    """Clip each example in each tensor by its norm there."""

    max_grad_norms: list[float]

    def clip_and_accumulate(self) -> None:
        """Clip the examples and add them to the sums."""
        params, terms = cast(DPOptimizer, self).params, self._rows()
        norms = example_norms([term.rows for term in terms])[0]
        # An example that is not finite in one tensor contributes nothing to any.
        mask = finite_mask(norms_to_clip_by(norms, [term.uncancelled for term in terms]))
        self.count(len(norms), mask)
        for p, term, clip_norm in zip(params, terms, self.max_grad_norms, strict=True):
            _check_processed_flag(p.grad_sample)
            own = norms_to_clip_by(example_norms([term.rows])[0], [term.uncancelled])
            factors = clip_factors(own, clip_norm, self.clip_margin)
            group = group_size(self.max_batch_size)
            add_to_sum(p, weighted_sum(factors, term.rows, mask, group))
            _mark_as_processed(p.grad_sample)


class PrivateStep(PerExampleClipping):
    """A step whose noise comes from a `Release`."""

    release: Release
    original_optimizer: Any

    def attach(self, release: Release) -> None:
        """Take noise from this release, and refuse steps of the inner optimizer alone."""
        self.release = release
        self._names = list(release.shapes)
        guard = self.original_optimizer.register_step_pre_hook(self._refuse_bypass)
        self.detach = guard.remove

    def pre_step(self, closure: Any = None) -> bool:
        """Clip and sum, add noise and divide, unless the step goes on with the next batch.

        Returns:
            Whether gradients are ready for the inner optimizer.
        """
        self._open = False
        optimizer = cast(DPOptimizer, self)
        self.gather()
        if optimizer._check_skip_next_step():
            optimizer._is_last_step_skipped = True
            return False
        # PRIVACY: sum, noise, then one public divisor; the parameter's dtype comes last.   [G16]
        noisy = self.release([p.summed_grad for p in optimizer.params], self.examples)
        self.examples = 0
        for p, total in zip(optimizer.params, noisy, strict=True):
            p.grad = total if total.dtype is p.dtype else total.to(p.dtype)
            # PRIVACY: a model saved after a step holds no sum and no per-example gradient.   [G16]
            p.summed_grad = p.grad_sample = None
        if optimizer.step_hook:
            optimizer.step_hook(self)
        optimizer._is_last_step_skipped = False
        self._open = True
        return True

    def step(self, closure: Any = None) -> Any:
        """Take one private step; returns what the inner optimizer returns."""
        if closure is not None:
            with torch.enable_grad():
                closure()
        try:
            if not self.pre_step():
                return None
            result = self.original_optimizer.step()
            self.release.prepare()
            return result
        finally:
            self._open = False

    @property
    def max_batch_size(self) -> int:
        """The most examples of one step for which the rounding of sums is bounded. Public."""
        return self.release.max_batch_size

    def gather(self) -> None:
        """Add the examples of the last backward pass to ``p.summed_grad``."""
        self.clip_and_accumulate()

    def unused_parameters(self) -> list[str]:
        """Names of the parameters that the last backward pass did not reach."""
        named = zip(self._names, cast(DPOptimizer, self).params, strict=True)
        return [name for name, p in named if getattr(p, "grad_sample", 0) is None]

    def add_noise(self) -> None:
        """Refused: `step` adds the noise."""
        raise BypassError("noise is added once per step, together with the ledger: call step()")

    scale_grad = add_noise


class IndependentNoise(PerExampleClipping):
    """A step with Opacus' independent noise on our sums: for DP-SGD on Poisson samples."""

    def guard_inner(self) -> None:
        """Refuse steps of the inner optimizer that are not part of a private step."""
        inner: Any = cast(DPOptimizer, self).original_optimizer
        inner.register_step_pre_hook(self._refuse_bypass)
        inner.register_step_post_hook(self._close)

    def _close(self, *_: Any) -> None:
        self._open = False

    def add_noise(self) -> None:
        """Round the sums to float32 and add noise."""
        optimizer = cast(DPOptimizer, self)
        for p in optimizer.params:
            # PRIVACY: noise is float32; lower digits of a float64 sum would have no noise.   [G16]
            p.summed_grad = p.summed_grad.float().to(torch.promote_types(p.dtype, torch.float32))
        super().add_noise()  # type: ignore[misc]
        self.examples = 0
        for p in optimizer.params:
            p.grad = p.grad.to(p.dtype, copy=True)

    def pre_step(self, closure: Any = None) -> Any:
        """Clip and sum, add noise and divide; whether gradients are ready."""
        self._open = False
        is_ready = super().pre_step(closure)  # type: ignore[misc]
        if is_ready:
            params = cast(DPOptimizer, self).params
            for p in params:
                p.summed_grad = p.grad_sample = None  # so that a saved model holds neither
            own = {id(p) for p in params}
            for group in cast(DPOptimizer, self).param_groups:
                for p in group["params"]:
                    # PRIVACY: a parameter that was frozen later may hold a raw gradient.   [G16]
                    p.grad = p.grad if id(p) in own else None
            self._open = True
        return is_ready


class PrivateOptimizer(FlatClipping, PrivateStep, DPOptimizer):
    """Flat clipping, with the noise of a `Release`."""


class PrivatePerLayerOptimizer(PerLayerClipping, PrivateStep, DPPerLayerOptimizer):
    """A clip norm for each tensor; a record moves the sum by at most the norm of all of these."""


class PoissonOptimizer(FlatClipping, IndependentNoise, DPOptimizer):
    """DP-SGD with flat clipping, with Opacus' independent noise."""


class PoissonPerLayerOptimizer(PerLayerClipping, IndependentNoise, DPPerLayerOptimizer):
    """DP-SGD with a clip norm for each tensor, with Opacus' independent noise."""
