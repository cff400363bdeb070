"""Models whose per-example gradients are recorded: wrapped, or by hooks."""

from __future__ import annotations

from typing import Any

import torch
from opacus.grad_sample.gsm_base import AbstractGradSampleHooks, AbstractGradSampleModule
from torch import nn

from antiphase.torch.batched_products import RowBuffers
from antiphase.torch.clipping import forward_pass_of, uncancelled_of
from antiphase.torch.compilation import check_compiled, refuse_compiled_call, uncompiled
from antiphase.torch.derived_parameters import ParameterTerm
from antiphase.torch.gradient_terms import Rows, merged
from antiphase.torch.recorder import ForwardPass, Recorder

Tensor = torch.Tensor
GHOST_MODES = ("ghost", "ghost_fsdp")


class GradSampleRecorder(Recorder):
    """Puts per-example gradients into ``p.grad_sample`` in every backward pass, as Opacus does."""

    def __init__(
        self, module: nn.Module, batch_first: bool = True, loss_reduction: str = "mean"
    ) -> None:
        super().__init__(module, batch_first)
        self._reduction = loss_reduction
        self.is_collecting = True

    def __reduce__(self) -> Any:
        return type(self), (self._module, self._batch_dim == 0, self._reduction)

    def collect(self, parameter_terms: list[ParameterTerm], forward_pass: ForwardPass) -> None:
        """Add terms to the gradients of the examples of this forward pass."""
        self.terms, self._collected = {}, None
        super().collect(parameter_terms, forward_pass)
        scale = forward_pass.examples if self._reduction == "mean" else 1
        for name, terms in self.terms.items():
            p: Any = self._module.get_parameter(name)
            for term in merged(terms, p.shape):
                _add_rows(p, term.to_rows(p.shape), scale, forward_pass)
        self.terms = {}


def _add_rows(p: Any, term: Rows, scale: float, forward_pass: ForwardPass) -> None:
    """Add to ``p.grad_sample``: a tensor, or a list of one tensor for each forward pass.

    Each tensor has its S and its forward pass as attributes.
    """
    rows: Any = term.rows.reshape(len(term), *p.shape)
    rows = rows.mul_(scale) if term.is_own else rows * scale
    keeps_float64 = rows.dtype is torch.float64 and p.dtype is torch.float64
    rows = rows if keeps_float64 else rows.float()
    uncancelled = None if term.uncancelled is None else term.uncancelled * scale
    kept = getattr(p, "grad_sample", None)
    kept = kept if isinstance(kept, list) else [] if kept is None else [kept]
    place = next((i for i, r in enumerate(kept) if forward_pass_of(r) == forward_pass), len(kept))
    if place < len(kept):
        before = Rows(kept[place], uncancelled_of(kept[place]))
        total = Rows.merge([before, Rows(rows, uncancelled)])
        rows, uncancelled = total.rows.view(rows.shape), total.uncancelled
    rows._uncancelled, rows._forward_pass = uncancelled, forward_pass
    kept[place : place + 1] = [rows]
    p.grad_sample = kept[0] if len(kept) == 1 else kept


class _Recorded:
    """What `RecordedModule` and `RecordedHooks` have in common."""

    recorder: Recorder
    is_ghost: bool
    hooks_enabled = True

    def _record(self, module: nn.Module, mode: str, batch_first: bool, loss_reduction: str) -> None:
        self.is_ghost = mode in GHOST_MODES
        if self.is_ghost:
            self.recorder = Recorder(module, batch_first)
            self.recorder.buffers = RowBuffers()
        else:
            self.recorder = GradSampleRecorder(module, batch_first, loss_reduction)

    def disable_hooks(self) -> None:
        """Record nothing."""
        self.hooks_enabled, self.recorder.is_paused = False, True

    def enable_hooks(self) -> None:
        """Record again."""
        self.hooks_enabled, self.recorder.is_paused = True, False

    def remove_hooks(self) -> None:
        """Record nothing any more."""
        self.disable_hooks()


class RecordedModule(_Recorded, AbstractGradSampleModule):
    """A wrapped model, whose forward and backward passes are recorded."""

    def __init__(
        self, module: nn.Module, mode: str, batch_first: bool = True, loss_reduction: str = "mean"
    ) -> None:
        AbstractGradSampleModule.__init__(
            self, module, batch_first=batch_first, loss_reduction=loss_reduction
        )
        self._record(module, mode, batch_first, loss_reduction)

    @uncompiled
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model, and record the call."""
        with self.recorder.following((args, kwargs)):
            return self._module(*args, **kwargs)


class RecordedHooks(_Recorded, AbstractGradSampleHooks):
    """The same for a model that is not wrapped, by forward hooks."""

    def __init__(
        self, module: nn.Module, mode: str, batch_first: bool = True, loss_reduction: str = "mean"
    ) -> None:
        AbstractGradSampleHooks.__init__(
            self, module, batch_first=batch_first, loss_reduction=loss_reduction
        )
        self._record(module, mode, batch_first, loss_reduction)
        self._passes: list[Any] = []  # forward passes that have begun
        self._handles = [
            module.register_forward_pre_hook(_BeforeForward(self), with_kwargs=True),
            module.register_forward_hook(_AfterForward(self), always_call=True),
        ]

    def remove_hooks(self) -> None:
        """Remove the hooks from the model."""
        super().remove_hooks()
        for handle in self._handles:
            handle.remove()


class _BeforeForward:
    """Begins to follow a forward pass."""

    def __init__(self, hooks: Any = None) -> None:
        self._hooks = hooks

    def __reduce__(self) -> Any:
        return type(self), ()  # a copy of the model is not recorded

    @uncompiled
    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._hooks is not None:
            if module.training and torch.is_grad_enabled():
                refuse_compiled_call()
            following = self._hooks.recorder.following((args, kwargs))
            following.__enter__()
            self._hooks._passes.append(following)


class _AfterForward(_BeforeForward):
    """Ends to follow a forward pass."""

    @uncompiled
    def __call__(self, *_: Any) -> None:
        if self._hooks is not None and self._hooks._passes:
            self._hooks._passes.pop().__exit__(None, None, None)


def recorded(
    module: nn.Module, mode: str, *, batch_first: bool, loss_reduction: str, wrap_model: bool
) -> Any:
    """The model, recorded for ``mode`` "hooks", "functorch" (the same), "ghost" or "ghost_fsdp"."""
    if isinstance(module, RecordedModule):
        same_mode = module.is_ghost == (mode in GHOST_MODES)
        same_layout = module.batch_first == batch_first
        if not same_mode or not same_layout or module.loss_reduction != loss_reduction:
            raise ValueError(
                "the model is already wrapped for another mode, layout or loss reduction; "
                "pass the plain model"
            )
        return module
    check_compiled(module, wrap_model)
    kind = RecordedModule if wrap_model else RecordedHooks
    return kind(module, mode, batch_first, loss_reduction)
