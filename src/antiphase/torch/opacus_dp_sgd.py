"""DP-SGD on Poisson samples, with the noise and accountant of Opacus."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import opacus
from torch import nn

from antiphase.torch import coverage
from antiphase.torch.distributed import Group, plain
from antiphase.torch.ghost_clipping import GhostLoss, PoissonGhostOptimizer
from antiphase.torch.gradient_check import check_gradients
from antiphase.torch.model_state_check import UnchangedModel
from antiphase.torch.optimizers import POISSON_OPTIMIZERS
from antiphase.torch.poisson_sampling import PoissonLoader, refuse_other_examples
from antiphase.torch.private_optimizer import IndependentNoise
from antiphase.torch.recorded_module import recorded
from antiphase.torch.request import Request, unknown_argument
from antiphase.torch.user_warnings import warn
from antiphase.torch.validation import refuse_foreign_parameters, refuse_unsupported_layers


class OpacusEngine(opacus.PrivacyEngine):
    """Opacus' engine for DP-SGD with upper bounds of gradient norms and recorded Poisson samples.

    Opacus' `make_private` calls the methods ``_prepare_…``, which replace its clipping and loader.
    """

    _poisson_sampled = True  # whether all batches so far were Poisson samples

    def _make_dp_sgd_private(self, request: Request) -> Any:
        """Opacus' `make_private`, with the checks of ours."""
        if request.target_epsilon is not None:
            raise TypeError(
                f"target_epsilon = {request.target_epsilon}: DP-SGD on Poisson samples is Opacus' "
                "own, whose make_private takes a noise_multiplier; use make_private_with_epsilon"
            )
        if request.noise_multiplier is None:
            raise TypeError(
                "noise_multiplier = None: DP-SGD on Poisson samples needs one. Give it, or use "
                "make_private_with_epsilon"
            )
        if request.extra and request.clipping != "adaptive":
            raise unknown_argument(request.extra)
        refuse_foreign_parameters(request.module, request.optimizer)
        coverage.require_coverage(request.module, request.optimizer, request.uncovered)
        poisson = request.poisson_sampling is not False
        # PRIVACY: Opacus' ε is that of Poisson samples and of no other batches.   [G9]
        self._poisson_sampled = self._poisson_sampled and poisson
        private = super().make_private(poisson_sampling=poisson, **request.for_opacus)
        _guard(request, private)
        return private

    @property
    def _opacus_steps(self) -> int:
        """Steps in the accountant of Opacus."""
        return sum(steps for _, _, steps in getattr(self.accountant, "history", ()))

    def _dp_sgd_epsilon(self, delta: float) -> float:
        """ε at ``delta`` of the steps in the accountant of Opacus."""
        if not self._poisson_sampled:
            raise ValueError(
                "poisson_sampling = False: the ε of DP-SGD holds for Poisson samples, and these "
                "batches are none. For batches in a fixed order give make_private(…, epochs=…)"
            )
        if not len(self.accountant):
            raise ValueError(
                "nothing was released, and nothing is planned: call make_private first"
            )
        epsilon: float = super().get_epsilon(delta)
        return epsilon

    def _prepare_model(
        self, module: nn.Module, *, grad_sample_mode: str = "hooks", **options: Any
    ) -> Any:
        processes = Group.current().world
        if grad_sample_mode not in ("hooks", "functorch", "ghost") or processes > 1:
            warn(
                f"grad_sample_mode = {grad_sample_mode!r}, {processes} process(es): clipping is "
                "Opacus' own, whose norms are no upper bounds in floating point. Use one process "
                'and "hooks" or "ghost", or a plan (epochs=…, poisson_sampling=False)'
            )
            return super()._prepare_model(module, grad_sample_mode=grad_sample_mode, **options)
        refuse_unsupported_layers(module)
        return recorded(
            module,
            grad_sample_mode,
            batch_first=options.get("batch_first", True),
            loss_reduction=options.get("loss_reduction", "mean"),
            wrap_model=options.get("wrap_model", True),
        )

    def _prepare_optimizer(self, **options: Any) -> Any:
        optimizer: Any = super()._prepare_optimizer(**options)
        mode, clipping = options.get("grad_sample_mode", "hooks"), options.get("clipping", "flat")
        if options.get("distributed", False):
            return optimizer
        if (mode, clipping) in POISSON_OPTIMIZERS:
            # A subclass of the same optimizer of Opacus, with clipping of ours.
            optimizer.__class__ = POISSON_OPTIMIZERS[mode, clipping]
        else:
            warn(
                f"clipping = {clipping!r}: clipping is Opacus' own, whose norms are no upper "
                'bounds in floating point. Use "flat" or "per_layer"'
            )
        return optimizer

    def _prepare_criterion(self, **parts: Any) -> Any:
        if not isinstance(parts["optimizer"], PoissonGhostOptimizer):
            return super()._prepare_criterion(**parts)
        reduction = parts.get("loss_reduction", "mean")
        return GhostLoss(parts["module"], parts["optimizer"], parts["criterion"], reduction)

    def _prepare_data_loader(self, data_loader: Any, **options: Any) -> Any:
        loader: Any = super()._prepare_data_loader(data_loader, **options)
        # Of several processes there is no record: some of Opacus' optimizers for these add noise
        # in the backward pass.
        if options["poisson_sampling"] and not options["distributed"]:
            return PoissonLoader.recording(loader, options.get("rand_on_empty", False))
        return loader


def _guard(request: Request, private: tuple[Any, ...]) -> None:
    """Check the gradients, and refuse steps past the private path or on other examples."""
    wrapped, optimizer, loader = private[0], private[1], private[-1]
    guards: list[Callable[[], None]] = [
        partial(coverage.refuse_uncovered, request.module, optimizer)
    ]
    if isinstance(optimizer, IndependentNoise):
        if request.probe:
            mode, examples = request.grad_sample_mode, request.data_loader
            check_gradients(request.module, wrapped, mode, examples, request.probe_inputs)
        unchanged = UnchangedModel(plain(request.module), optimizer)
        unchanged.attach()
        optimizer.guard_inner()
        guards.append(unchanged)
    refuse_other_examples(optimizer, loader, guards)
