"""The private step: clip and sum, add a row of noise, divide by a public constant, hand over to the inner optimizer."""

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
    finite,
    group_size,
    limited,
    pass_of,
    size_of,
    weighted_sum,
    weighted_sums,
)
from antiphase.torch.gradient_terms import Rows
from antiphase.torch.release import Release

Tensor = torch.Tensor
SCALED_LOSS = (
    "GradScaler scales the loss, and gradients of a scaled loss are clipped to another norm than those of the loss. "
    "Nothing was released. Use autocast without a GradScaler; in bfloat16 gradients do not vanish"
)


class PerExampleClipping:
    """Clipping with norms that are upper bounds, and sums in float64, of an optimizer of Opacus'."""

    clip_and_accumulate: Any
    examples = 0  # whose gradients are in the sum at hand
    bad_examples = 0  # private: how many were left out because their gradients were not finite
    _open = False  # True while the inner optimizer may step

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Read by ``torch.amp.GradScaler`` before it steps an optimizer, and by nothing else."""
        raise SettingsError(SCALED_LOSS)

    def _refuse_bypass(self, *_: Any) -> None:
        # PRIVACY: nothing reaches the model but through `step`.   [G16]
        if not self._open:
            raise BypassError(
                "the inner optimizer was stepped directly, past clipping and noise; step the optimizer that "
                "make_private returned"
            )

    @property
    def most_examples(self) -> int:
        """The most examples of one step that the rounding of sums is covered for: a public number."""
        return 2 * int(cast(DPOptimizer, self).expected_batch_size or 0) + 100

    @property
    def clip_margin(self) -> float:
        """By how much clipped examples are shorter than the clip norm, relatively; see `clipping.clip_margin`."""
        return clip_margin(self.most_examples)

    def count(self, examples: int, kept: Tensor | None) -> None:
        """Count examples that are to be added to the sum."""
        self.examples += examples
        if kept is not None:
            self.bad_examples += int((~kept).sum())

    @property
    def grad_samples(self) -> list[Tensor]:
        """Rows of gradients, with zeros for parameters and forward passes that a backward pass did not reach."""
        return [rows.rows for rows in self._rows()]

    def _rows(self) -> list[Rows]:
        """The rows of every parameter, those of all forward passes one after the other."""
        found = []
        for parts in self._parts():
            if len(parts) == 1:
                found.append(parts[0])
                continue
            rows, size = torch.cat([part.rows for part in parts]), None
            if any(part.size is not None for part in parts):
                size = torch.cat([
                    part.rows.new_zeros(len(part.rows), dtype=torch.float64) if part.size is None else part.size
                    for part in parts
                ])  # fmt: skip
            found.append(Rows(rows, size))
        return found

    def _parts(self) -> list[list[Rows]]:
        """The rows of every parameter, of each forward pass."""
        params = cast(DPOptimizer, self).params
        kept = [
            p.grad_sample if isinstance(p.grad_sample, list) else [p.grad_sample] for p in params
        ]
        present = [[rows for rows in parts if rows is not None] for parts in kept]
        passes: dict[Any, int] = {}
        for parts in present:
            for place, rows in enumerate(parts):
                name = (
                    pass_of(rows) or place
                )  # rows that nobody recorded are in the order of the passes
                # PRIVACY: all tensors have a row for each example of a pass, or rows are no examples.   [G16]
                if passes.setdefault(name, len(rows)) != len(rows):
                    raise PerExampleGradientError(
                        f"gradients of {len(rows)} and of {passes[name]} examples for one forward pass. Nothing was "
                        "released"
                    )
        if not passes:
            raise ValueError(
                "Per sample gradient is not initialized. Not updated in backward pass? Call the module that "
                "make_private returned, in training mode, before backward()"
            )
        known = {pass_of(rows) is None for parts in present for rows in parts}
        # PRIVACY: rows that were replaced would count as those of other examples, and be clipped apart.   [G16]
        if len(known) > 1:
            raise PerExampleGradientError(
                "grad_sample was replaced for some of the parameters. Nothing was released. Leave it as it is"
            )
        found = []
        for p, parts in zip(params, present, strict=True):
            own = {pass_of(rows) or place: rows for place, rows in enumerate(parts)}
            missing = {
                name: p.new_zeros(()).expand(n, *p.shape)
                for name, n in passes.items()
                if name not in own
            }
            each = [own[name] if name in own else missing[name] for name in passes]
            found.append([Rows(rows, size_of(rows)) for rows in each])
        return found

    def has_gradients(self) -> bool:
        """Whether there are gradients that were not released yet."""
        params = cast(DPOptimizer, self).params
        return any(
            getattr(p, n, None) is not None for p in params for n in ("grad_sample", "summed_grad")
        )

    def add_flat(self) -> None:
        """Clip each example by its norm over all tensors, and add it to the sums."""
        optimizer, found = cast(DPOptimizer, self), self._rows()
        gradients, sizes = [rows.rows for rows in found], [rows.size for rows in found]
        norms = limited(example_norms(gradients)[0], sizes)
        kept = finite(norms)
        self.count(len(norms), kept)
        factors = clip_factors(norms, optimizer.max_grad_norm, self.clip_margin)
        totals = weighted_sums(factors, gradients, kept, group_size(self.most_examples))
        for p, total in zip(optimizer.params, totals, strict=True):
            _check_processed_flag(p.grad_sample)
            add_to_sum(p, total)
            _mark_as_processed(p.grad_sample)

    def add_per_layer(self, clip_norms: list[float]) -> None:
        """Clip each example by its norm in each tensor, and add it to the sums."""
        optimizer, found = cast(DPOptimizer, self), self._rows()
        gradients, sizes = [rows.rows for rows in found], [rows.size for rows in found]
        # One tensor that is not finite, and the example contributes nothing.
        kept = finite(limited(example_norms(gradients)[0], sizes))
        self.count(len(gradients[0]), kept)
        for p, g, size, clip_norm in zip(
            optimizer.params, gradients, sizes, clip_norms, strict=True
        ):
            _check_processed_flag(p.grad_sample)
            factors = clip_factors(
                limited(example_norms([g])[0], [size]), clip_norm, self.clip_margin
            )
            add_to_sum(p, weighted_sum(factors, g, kept, group_size(self.most_examples)))
            _mark_as_processed(p.grad_sample)


class PrivateStep(PerExampleClipping):
    """A step whose noise comes from a `Release`, which `attach` sets."""

    release: Release
    original_optimizer: Any

    def attach(self, release: Release) -> None:
        self.release = release
        self._names = list(release.shapes)
        guard = self.original_optimizer.register_step_pre_hook(self._refuse_bypass)
        self.detach = guard.remove

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
            # PRIVACY: a model that is saved after a step has neither the sum nor gradients of examples in it.   [G16]
            p.summed_grad = p.grad_sample = None
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

    def zero_grad(self, set_to_none: bool = False) -> None:
        super().zero_grad(set_to_none)  # type: ignore[misc]
        if not cast(DPOptimizer, self)._is_last_step_skipped:
            self.examples = 0  # of a step that was refused

    @property
    def most_examples(self) -> int:
        return self.release.most_examples

    def gather(self) -> None:
        """Add the examples at hand to ``p.summed_grad``."""
        self.clip_and_accumulate()

    def unused_parameters(self) -> list[str]:
        """Names of the parameters that the last backward pass did not reach."""
        params = cast(DPOptimizer, self).params
        return [
            n
            for n, p in zip(self._names, params, strict=True)
            if getattr(p, "grad_sample", 0) is None
        ]

    def add_noise(self) -> None:
        raise BypassError("noise is added once a step, together with the ledger: call step()")

    scale_grad = add_noise


def add_to_sum(p: Any, total: Tensor) -> None:
    p.summed_grad = total if p.summed_grad is None else p.summed_grad + total


class PrivateOptimizer(PrivateStep, DPOptimizer):
    """Flat clipping of materialised per-example gradients."""

    def clip_and_accumulate(self) -> None:
        self.add_flat()


class PrivatePerLayerOptimizer(PrivateStep, DPPerLayerOptimizer):
    """Each tensor clipped to a norm of its own; one record moves the sum by at most the norm of all these."""

    def clip_and_accumulate(self) -> None:
        self.add_per_layer(self.max_grad_norms)


class IndependentNoise(PerExampleClipping):
    """Opacus' independent noise on sums of ours: for DP-SGD on Poisson samples."""

    def guard_inner(self) -> None:
        """Refuse steps of the inner optimizer that are not part of a private step."""
        inner: Any = cast(DPOptimizer, self).original_optimizer
        inner.register_step_pre_hook(self._refuse_bypass)
        inner.register_step_post_hook(self._close)

    def _close(self, *_: Any) -> None:
        self._open = False

    def zero_grad(self, set_to_none: bool = False) -> None:
        super().zero_grad(set_to_none)  # type: ignore[misc]
        if not cast(DPOptimizer, self)._is_last_step_skipped:
            self.examples = 0  # of a step that was refused

    def add_noise(self) -> None:
        optimizer = cast(DPOptimizer, self)
        for p in optimizer.params:
            # PRIVACY: noise is float32; digits of a float64 sum below that would go out without noise.   [G16]
            p.summed_grad = p.summed_grad.float().to(torch.promote_types(p.dtype, torch.float32))
        super().add_noise()  # type: ignore[misc]
        self.examples = 0
        for p in optimizer.params:
            p.grad = p.grad.to(p.dtype, copy=True)

    def pre_step(self, closure: Any = None) -> Any:
        self._open = False
        made = super().pre_step(closure)  # type: ignore[misc]
        if made:
            params = cast(DPOptimizer, self).params
            for p in params:
                p.summed_grad = p.grad_sample = None  # so that a saved model has neither
            own = {id(p) for p in params}
            for group in cast(DPOptimizer, self).param_groups:
                for p in group["params"]:
                    # PRIVACY: a parameter that was frozen later may hold a raw gradient.   [G16]
                    p.grad = p.grad if id(p) in own else None
            self._open = True
        return made


class PoissonOptimizer(IndependentNoise, DPOptimizer):
    """DP-SGD with flat clipping."""

    def clip_and_accumulate(self) -> None:
        self.add_flat()


class PoissonPerLayerOptimizer(IndependentNoise, DPPerLayerOptimizer):
    """DP-SGD with a clip norm for each tensor."""

    def clip_and_accumulate(self) -> None:
        self.add_per_layer(self.max_grad_norms)
