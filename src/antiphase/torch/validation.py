"""Checks of model, optimizer and processes before a training becomes private."""

from __future__ import annotations

from itertools import chain
from typing import Any

from opacus.utils.module_utils import trainable_modules
from opacus.validators import ModuleValidator
from opacus.validators.errors import IllegalModuleConfigurationError, UnsupportedModuleError
from torch import nn
from torch.utils.data import RandomSampler, WeightedRandomSampler

from antiphase.mechanism import Mechanism
from antiphase.torch import coverage
from antiphase.torch.distributed import Group
from antiphase.torch.example_mixing import refuse_mixing
from antiphase.torch.plan import TrainingPlan
from antiphase.torch.request import Request


def validate(request: Request, plan: TrainingPlan, mechanism: Mechanism) -> Group:
    """Refuse what the guarantee would not hold for.

    Args:
        request: model, optimizer and loader.
        plan: steps and participation.
        mechanism: the calibrated mechanism, which must be the same in all processes.

    Returns:
        The processes that train together.

    Raises:
        ValueError: if processes, model or optimizer are not supported.
        StateError: if the processes disagree on the mechanism.
    """
    group = Group.of(request.module, request.grad_sample_mode)
    group.require_same("mechanism", mechanism.digest)
    if mechanism.amplified:
        _refuse_unsampled(request, plan, group)
    elif request.participation is None:
        _refuse_replacement(request.data_loader)
    refuse_foreign_parameters(request.module, request.optimizer)
    coverage.require_coverage(request.module, request.optimizer, request.uncovered)
    refuse_unsupported_layers(request.module)
    if request.probe:
        refuse_mixing(request.module, request.data_loader)
    return group


def _refuse_unsampled(request: Request, plan: TrainingPlan, group: Group) -> None:
    # PRIVACY: batches of several processes or passes are not the samples that were analysed.   [G9]
    if group.world > 1 or plan.accumulation > 1 or request.is_trusted:
        raise ValueError(
            f"{group.world} process(es), gradient_accumulation_steps = {plan.accumulation}, "
            f"trusted = {request.is_trusted}: batches that are sampled for amplification are drawn "
            "by one process, one batch for each step, and recorded by the participation ledger"
        )


def _refuse_replacement(loader: Any) -> None:
    sampler = getattr(loader.batch_sampler, "sampler", None)
    if isinstance(sampler, RandomSampler | WeightedRandomSampler) and sampler.replacement:
        raise ValueError(
            f"data_loader: {type(sampler).__name__}(replacement=True) may draw an example several "
            "times in an epoch, and one time is planned. Use replacement=False, or declare how "
            "often: participation=antiphase.min_separation(times, apart=1)"
        )


def refuse_unsupported_layers(module: nn.Module) -> None:
    """Refuse a model in eval mode, and layers that Opacus' validator refuses, by their names.

    Raises:
        UnsupportedModuleError: a ValueError of Opacus.
    """
    if not module.training:
        raise IllegalModuleConfigurationError(
            "module is in eval mode, in which per-example gradients are not recorded. Call "
            "module.train() before make_private"
        )
    reasons = [
        f"{name or 'module'} ({type(part).__name__}): {str(error).split('. ')[0]}"
        for name, part in trainable_modules(module)
        for error in ModuleValidator.VALIDATORS.get(type(part), _no_errors)(part)
    ]
    if reasons:
        raise UnsupportedModuleError(
            f"{coverage.shortened(reasons)}. Replace these layers, as "
            "opacus.validators.ModuleValidator.fix(module) does, and make the optimizer from the "
            "parameters of the new model"
        )


def _no_errors(_: nn.Module) -> list[Exception]:
    return []


def refuse_foreign_parameters(module: nn.Module, optimizer: Any) -> None:
    """Refuse an optimizer that has parameters of another module.

    Raises:
        ValueError: in the words of Opacus, with the number of such parameters.
    """
    known = set(module.parameters())
    own = list(chain.from_iterable(group["params"] for group in optimizer.param_groups))
    if foreign := sum(p not in known for p in own):
        raise ValueError(
            f"Module parameters are different than optimizer Parameters: {foreign} of its "
            f"{len(own)} tensors are not the module's. Make the optimizer from the parameters() of "
            "the model that is given to make_private, after layers were replaced"
        )
