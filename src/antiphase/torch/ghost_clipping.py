"""Per-example gradients of whole models by book-keeping: `RecordedModule`, and ghost clipping on top of it.

One backward pass records the inputs and output gradients of every layer (`recorder`). Ghost clipping bounds the norm
of each example from these, and forms the weighted sum by products of each layer, without a second backward pass.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from opacus.grad_sample.gsm_base import AbstractGradSampleHooks, AbstractGradSampleModule
from opacus.optimizers import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import (
    DPLossFastGradientClipping,
    DPTensorFastGradientClipping,
)
from torch import nn

from antiphase.errors import AntiphaseWarning, PerExampleGradientError, SettingsError
from antiphase.torch.clipping import clip_factors, group_size, pass_of, size_of
from antiphase.torch.gradient_terms import RowBuffers, Rows, Term, bound_of, formed_term, merged
from antiphase.torch.private_optimizer import (
    SCALED_LOSS,
    IndependentNoise,
    PerExampleClipping,
    PrivateStep,
)
from antiphase.torch.recorder import Contribution, ForwardPass, Recorder
from antiphase.torch.sharding import as_shard, is_shard, rows_of

Tensor = torch.Tensor


class GradSampleRecorder(Recorder):
    """Forms gradients at every backward pass, into ``p.grad_sample`` as Opacus' hooks do."""

    def __init__(
        self, module: nn.Module, batch_first: bool = True, loss_reduction: str = "mean"
    ) -> None:
        super().__init__(module, batch_first)
        self._reduction = loss_reduction
        self.is_collecting = True

    def __reduce__(self) -> Any:
        return type(self), (self._module, self._dim == 0, self._reduction)

    def collect(self, contributions: list[Contribution], forward_pass: ForwardPass) -> None:
        """Add rows to the gradients of the examples of this forward pass."""
        self.terms, self._collected = {}, None
        super().collect(contributions, forward_pass)
        scale = forward_pass.examples if self._reduction == "mean" else 1
        for name, terms in self.terms.items():
            p: Any = self._module.get_parameter(name)
            for term in merged(terms, p.shape):
                _add_rows(p, formed_term(term, p.shape), scale, forward_pass)
        self.terms = {}


def _add_rows(p: Any, term: Rows, scale: float, forward_pass: ForwardPass) -> None:
    """To ``p.grad_sample``: a tensor, or a list with one for each forward pass; each knows its pass and its S."""
    rows: Any = term.rows.reshape(len(term.rows), *p.shape)
    rows = rows.mul_(scale) if term.is_own else rows * scale
    rows = rows if rows.dtype is torch.float64 and p.dtype is torch.float64 else rows.float()
    size = None if term.size is None else term.size * scale
    kept = getattr(p, "grad_sample", None)
    kept = kept if isinstance(kept, list) else [] if kept is None else [kept]
    place = next((i for i, r in enumerate(kept) if pass_of(r) == forward_pass), None)
    if place is None:
        kept.append(rows)
    else:
        together = merged([Rows(kept[place], size_of(kept[place])), Rows(rows, size)], p.shape)[0]
        assert isinstance(together, Rows)
        kept[place], size = together.rows.view(rows.shape), together.size
    kept[-1 if place is None else place]._size = size
    kept[-1 if place is None else place]._pass = forward_pass
    p.grad_sample = kept[0] if len(kept) == 1 else kept


class _Recorded:
    """What wrapped and unwrapped models have in common."""

    recorder: Recorder
    is_ghost: bool
    hooks_enabled = True

    def _record(self, module: nn.Module, mode: str, batch_first: bool, loss_reduction: str) -> None:
        self.is_ghost = mode in ("ghost", "ghost_fsdp")
        made = Recorder(module, batch_first)
        made.buffers = RowBuffers()
        self.recorder = (
            made if self.is_ghost else GradSampleRecorder(module, batch_first, loss_reduction)
        )

    def disable_hooks(self) -> None:
        """Record nothing."""
        self.hooks_enabled, self.recorder._paused = False, True

    def enable_hooks(self) -> None:
        """Record again."""
        self.hooks_enabled, self.recorder._paused = True, False

    def remove_hooks(self) -> None:
        self.disable_hooks()


class RecordedModule(_Recorded, AbstractGradSampleModule):
    """A model whose uses of parameters are recorded in its forward and backward passes."""

    def __init__(
        self, module: nn.Module, mode: str, batch_first: bool = True, loss_reduction: str = "mean"
    ) -> None:
        AbstractGradSampleModule.__init__(
            self, module, batch_first=batch_first, loss_reduction=loss_reduction
        )
        self._record(module, mode, batch_first, loss_reduction)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with self.recorder.following((args, kwargs)):
            return self._module(*args, **kwargs)


class RecordedHooks(_Recorded, AbstractGradSampleHooks):
    """The same for a model that is not wrapped: it is followed by hooks of its own."""

    def __init__(
        self, module: nn.Module, mode: str, batch_first: bool = True, loss_reduction: str = "mean"
    ) -> None:
        AbstractGradSampleHooks.__init__(
            self, module, batch_first=batch_first, loss_reduction=loss_reduction
        )
        self._record(module, mode, batch_first, loss_reduction)
        self._passes: list[Any] = []
        self._handles = [
            module.register_forward_pre_hook(_Start(self), with_kwargs=True),
            module.register_forward_hook(_End(self), always_call=True),
        ]

    def remove_hooks(self) -> None:
        super().remove_hooks()
        for handle in self._handles:
            handle.remove()


class _Start:
    def __init__(self, hooks: Any = None) -> None:
        self._hooks = hooks

    def __reduce__(self) -> Any:
        return type(self), ()  # a copy of the model is not recorded

    def __call__(self, _: Any, args: Any, kwargs: Any) -> None:
        if self._hooks is not None:
            followed = self._hooks.recorder.following((args, kwargs))
            followed.__enter__()
            self._hooks._passes.append(followed)


class _End(_Start):
    def __call__(self, *_: Any) -> None:
        if self._hooks is not None and self._hooks._passes:
            self._hooks._passes.pop().__exit__(None, None, None)


def recorded(
    module: nn.Module, mode: str, *, batch_first: bool, loss_reduction: str, wrap_model: bool
) -> Any:
    """The model, recorded for ``mode`` "hooks", "functorch" (the same), "ghost" or "ghost_fsdp"."""
    if isinstance(module, RecordedModule):
        same = (
            module.is_ghost == (mode in ("ghost", "ghost_fsdp"))
            and module.batch_first == batch_first
        )
        if not same or module.loss_reduction != loss_reduction:
            raise ValueError(
                "the model is wrapped already, for another mode, layout or loss; pass the plain model"
            )
        return module
    return (RecordedModule if wrap_model else RecordedHooks)(
        module, mode, batch_first, loss_reduction
    )


# Ghost clipping


def record_losses(wrapped: Any, losses: Tensor) -> tuple[dict[str, list[Term]], int]:
    """The backward pass of the losses: what it contributes to each parameter, and of how many examples."""
    losses = losses.flatten(1).mean(dim=1) if losses.ndim > 1 else losses
    recorder: Recorder = wrapped.recorder
    with recorder.collecting():
        losses.sum().backward()  # type: ignore[no-untyped-call]
    terms, count = recorder.terms, len(losses)
    recorder.forget()
    if count and not terms:
        raise PerExampleGradientError(
            "the backward pass reached no parameter that was recorded. Nothing was released. Call the module that "
            "make_private returned, in training mode, as a whole"
        )
    parameters = dict(wrapped._module.named_parameters())
    for name, found in terms.items():
        for term in found:
            rows = len(
                term.rows
                if isinstance(term, Rows)
                else term.indices
                if hasattr(term, "indices")
                else term.outputs
            )
            # PRIVACY: a row of gradients for each example, or the wrong things were clipped.   [G16]
            if rows != count:
                raise PerExampleGradientError(
                    f"{name}: gradients of {rows} examples for {count} losses. Nothing was released. The criterion "
                    "must give one loss for each example of the batch"
                )
        terms[name] = merged(found, parameters[name].shape)
    return terms, count


def per_example_gradients(wrapped: Any, losses: Tensor) -> dict[str, Tensor]:
    """The gradients of single examples by what ghost clipping records: (n, *shape) for each name."""
    return gradients_and_bounds(wrapped, losses)[0]


def norm_bounds(wrapped: Any, losses: Tensor) -> Tensor:
    """Upper bounds of the norms of single examples that ghost clipping clips by."""
    terms, count = record_losses(wrapped, losses)
    return _bounds(terms, count, losses.device)


def gradients_and_bounds(wrapped: Any, losses: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """`per_example_gradients` and `norm_bounds` of one backward pass."""
    shapes = {name: p.shape for name, p in wrapped._module.named_parameters()}
    terms, count = record_losses(wrapped, losses)
    bounds, found = _bounds(terms, count, losses.device), dict[str, Tensor]()
    for name, each in terms.items():
        rows = [formed_term(t, shapes[name]).rows.view(-1, *shapes[name]).double() for t in each]
        found[name] = rows[0] if len(rows) == 1 else torch.stack(rows).sum(dim=0)
    return found, bounds


def _bounds(terms: dict[str, list[Term]], count: int, device: Any) -> Tensor:
    """Of the norm over all parameters, or what an example must be clipped by because its tokens cancel."""
    squares = torch.zeros(count, dtype=torch.float64, device=device)
    least = torch.zeros_like(squares)
    for found in terms.values():
        bound = bound_of(found)
        squares += bound.norm.to(device).square()
        if bound.least is not None:
            # PRIVACY: rounding of products is in proportion to what cancels, which is limited.   [G16]
            least = torch.maximum(least, bound.least.to(device))
    return torch.maximum(squares.sqrt(), least)


class GhostClipping(PerExampleClipping):
    """`GhostLoss` has clipped and summed already, into ``p.summed_grad``."""

    params: Any
    max_grad_norm: float

    @property
    def clipped_to(self) -> set[float]:
        """The clip norms of the examples in the sum at hand."""
        found: set[float] = vars(self).setdefault("_clipped_to", set())
        return found

    _unused: tuple[str, ...] = ()

    def unused_parameters(self) -> list[str]:
        return list(self._unused)

    def gather(self) -> None:
        """The sums are there already, of every parameter."""
        if any(p.summed_grad is None for p in self.params):
            raise ValueError(
                "there is no gradient of any example: call backward() on the loss before step()"
            )

    def add(self, wrapped: Any, terms: dict[str, list[Term]], count: int, losses: Tensor) -> None:
        """Clip the examples and add them to the sums."""
        norms = _bounds(terms, count, losses.device)
        kept = torch.isfinite(norms)
        mask = None if bool(kept.all()) else kept
        self.count(count, mask)
        self.clipped_to.add(float(self.max_grad_norm))
        factors = clip_factors(norms, self.max_grad_norm, self.clip_margin)
        names = {id(p): name for name, p in wrapped._module.named_parameters()}
        self._unused = tuple(
            name
            for p in self.params
            if (name := names.get(id(p))) is not None and name not in terms
        )
        for p in self.params:
            total = torch.zeros(p.shape, dtype=torch.float64, device=p.device)
            for term in terms.pop(
                names.get(id(p), ""), []
            ):  # guards refuse parameters that were added later
                term.add(total, factors, mask, group_size(self.most_examples))
                if isinstance(term, Rows) and term.is_own and wrapped.recorder.buffers is not None:
                    wrapped.recorder.buffers.give_back(term.rows)
            if is_shard(p):
                dist.all_reduce(total)
                start, end = rows_of(p.shape[0], dist.get_rank(), dist.get_world_size())
                total = as_shard(total[start:end], p)
            p.summed_grad = total if p.summed_grad is None else p.summed_grad + total


class PrivateGhostOptimizer(GhostClipping, PrivateStep, DPOptimizerFastGradientClipping):
    """Ghost clipping with the noise of a `Release`."""


class PoissonGhostOptimizer(GhostClipping, IndependentNoise, DPOptimizerFastGradientClipping):
    """Ghost clipping for DP-SGD on Poisson samples, with Opacus' independent noise."""

    def accumulate(self) -> None:
        used = set(self.clipped_to)
        self.clipped_to.clear()
        # PRIVACY: the noise is scaled for the clip norm of the step, and examples were clipped before.   [G16]
        if used - {float(self.max_grad_norm)}:
            raise SettingsError(
                f"max_grad_norm is {self.max_grad_norm:g}, and examples of this step were clipped to {sorted(used)}. "
                "Nothing was released. Change it between steps"
            )
        self.gather()


class GhostLoss(DPLossFastGradientClipping):
    """The criterion with ghost clipping: its results have a ``backward()`` that clips and sums."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().__call__(*args, **kwargs)
        return GhostTensor(self.module, self.optimizer, loss.loss_per_sample, self.loss_reduction)


class GhostTensor(DPTensorFastGradientClipping):
    """One loss for each example; ``backward()`` adds their clipped gradients to the optimizer's sums."""

    def backward(self) -> None:
        """Record the backward pass, clip and add up. Gradients that arise elsewhere are not released."""
        before = {id(p): p.grad for p in self.optimizer.params}
        losses = self.loss_per_sample
        terms, count = record_losses(self.module, losses)
        if any(p.grad is not before[id(p)] for p in self.optimizer.params):
            warnings.warn(
                "the loss depends on parameters past the model's forward pass (a penalty on weights?). Such gradients "
                "belong to no example and are left out; weight_decay of the optimizer does what a penalty does",
                AntiphaseWarning,
                stacklevel=2,
            )
            for p in self.optimizer.params:
                p.grad = None
        self.optimizer.add(self.module, terms, count, losses)

    def __iter__(self) -> Any:
        """Called by ``torch.amp.GradScaler.scale``, for what is not a tensor."""
        raise SettingsError(SCALED_LOSS)

    def _made(self, other: DPTensorFastGradientClipping) -> GhostTensor:
        return GhostTensor(self.module, self.optimizer, other.loss_per_sample, self.loss_reduction)

    def __truediv__(self, other: Any) -> GhostTensor:
        return self._made(super().__truediv__(other))

    def __mul__(self, other: Any) -> GhostTensor:
        return self._made(super().__mul__(other))

    def __rmul__(self, other: Any) -> GhostTensor:
        return self.__mul__(other)

    def __add__(self, other: Any) -> GhostTensor:
        return self._made(super().__add__(other))

    def __radd__(self, other: Any) -> GhostTensor:
        return self.__add__(other)

    def __sub__(self, other: Any) -> GhostTensor:
        return self.__add__(-1 * other)

    def __neg__(self) -> GhostTensor:
        return self.__mul__(-1)

    def __rsub__(self, other: Any) -> GhostTensor:
        return self.__neg__().__add__(other)
