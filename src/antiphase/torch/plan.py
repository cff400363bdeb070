"""Derive steps, participation and workload from the training script."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase.factorizations.base import Factorization
from antiphase.mechanism import Mechanism
from antiphase.participation import Epochs, Once, Participation
from antiphase.torch.argument_checks import length
from antiphase.torch.request import Request
from antiphase.torch.user_warnings import warn
from antiphase.workload import Workload

NONLINEAR_OPTIMIZER = (
    "{name} is not linear in the gradients, so the noise is designed for prefix sums: privacy is "
    "exact, and the design is a heuristic"
)
UNEQUAL_GROUPS = (
    "the parameter groups differ; the noise is designed for the first group's options. Privacy is "
    "exact"
)


@dataclass(frozen=True)
class TrainingPlan:
    """What a training computes and who takes part when.

    Attributes:
        workload: what the optimizer computes from the gradients.
        participation: in which steps one example may take part.
        steps_per_epoch: steps of one pass over the data.
        accumulation: batches of one step.
        notes: approximations that the design rests on; privacy does not.
        learning_rates: of each step, as designed for; None if the design does not depend on them.
    """

    workload: Workload
    participation: Participation
    steps_per_epoch: int
    accumulation: int
    notes: tuple[str, ...]
    learning_rates: Array | None = None

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.workload.steps


def plan_training(mechanism: str | Factorization | Mechanism, request: Request) -> TrainingPlan:
    """Derive the plan of a training, and warn of approximations.

    Args:
        mechanism: the name of a design, or a factorization or mechanism that exists already.
        request: the arguments of `make_private`.

    Raises:
        ValueError: if a given mechanism has another number of steps than the training.
    """
    given = mechanism.factorization if isinstance(mechanism, Mechanism) else mechanism
    factorization = given if isinstance(given, Factorization) else None
    steps, participation = request.steps, request.participation
    batches = length(request.data_loader)
    if batches is None:
        batches = _steps_without_length(request, factorization)
    if factorization is not None:
        participation = factorization.participation
        if not request.has_length:
            steps = factorization.steps
    plan = derive_plan(
        request.inner_optimizer,
        batches,
        epochs=request.epochs,
        steps=steps,
        scheduler=request.scheduler,
        scheduler_every=request.scheduler_every,
        accumulation=request.gradient_accumulation_steps,
        participation=participation if isinstance(participation, Participation) else None,
    )
    if factorization is not None:
        if plan.steps != factorization.steps:
            raise ValueError(
                f"the mechanism is for {factorization.steps} steps, and training has {plan.steps}. "
                f"Design it for steps={plan.steps}, or give the engine the name of a design"
            )
        plan = replace(plan, workload=factorization.workload)
        if factorization.workload.learning_rates is None:
            plan = replace(plan, learning_rates=None)
    for note in plan.notes:
        warn(note)
    return plan


def derive_plan(
    optimizer: Any,
    batches_per_epoch: int,
    *,
    epochs: int | None,
    steps: int | None,
    scheduler: Any = None,
    scheduler_every: str = "step",
    accumulation: int = 1,
    participation: Participation | None = None,
) -> TrainingPlan:
    """Derive the plan of ``epochs`` passes over a loader, or of ``steps`` steps.

    Args:
        optimizer: the user's optimizer.
        batches_per_epoch: length of the loader.
        epochs: passes over the loader; or give ``steps``.
        steps: optimizer steps; or give ``epochs``.
        scheduler: learning-rate scheduler, or None for constant rates.
        scheduler_every: "step" or "epoch".
        accumulation: batches of one optimizer step.
        participation: default: once, or once per epoch.

    Raises:
        TypeError: unless exactly one of ``epochs`` and ``steps`` is given.
        ValueError: if the schedule cannot be known in advance, or has no workload.
    """
    accumulation = check.whole_number("gradient_accumulation_steps", accumulation)
    steps_per_epoch = -(-batches_per_epoch // accumulation)
    if epochs is None and steps is None:
        raise TypeError(
            "epochs = None, steps = None: correlated noise is planned ahead, so give the length of "
            "the training: epochs=… (passes over the data) or steps=…"
        )
    if epochs is not None and steps is not None:
        raise TypeError(f"epochs = {epochs}, steps = {steps}: give one of the two")
    if epochs is not None:
        steps = check.whole_number("epochs", epochs) * steps_per_epoch
    steps = check.whole_number("steps", steps)
    if participation is None:
        passes = -(-steps // steps_per_epoch)
        participation = Once() if passes == 1 else Epochs(passes, steps_per_epoch)
    rates = planned_learning_rates(optimizer, scheduler, steps, scheduler_every, steps_per_epoch)
    workload, note = optimizer_workload(optimizer, rates, steps)
    return TrainingPlan(
        workload,
        participation,
        steps_per_epoch,
        accumulation,
        () if note is None else (note,),
        # The workload of other optimizers does not depend on the rates.
        rates if type(optimizer) is torch.optim.SGD else None,
    )


def optimizer_workload(optimizer: Any, rates: Array, steps: int) -> tuple[Workload, str | None]:
    """The workload of an optimizer, and a note if it is an approximation."""
    if type(optimizer) is not torch.optim.SGD:
        return Workload.sgd(steps), NONLINEAR_OPTIMIZER.format(name=type(optimizer).__name__)
    groups = optimizer.param_groups
    names = ("momentum", "dampening", "nesterov", "weight_decay")
    options = {name: groups[0][name] for name in names}
    # Groups may differ in their rates, which only scale the workload.
    differ = any(group[name] != options[name] for group in groups for name in names)
    if not options["momentum"]:
        options["dampening"] = 0.0  # torch ignores it without momentum
    try:
        workload = Workload.sgd(steps, learning_rates=rates, **options)
    except ValueError as error:
        raise ValueError(f"the optimizer's schedule has no workload: {error}") from error
    return workload, UNEQUAL_GROUPS if differ else None


def planned_learning_rates(
    optimizer: Any, scheduler: Any, steps: int, scheduler_every: str, steps_per_epoch: int
) -> Array:
    """The learning rate of each step, by running a copy of the scheduler ahead.

    The optimizer and its scheduler are not changed.
    """
    check.choice("scheduler_every", scheduler_every, ("step", "epoch"))
    if scheduler is None:
        return np.full(steps, float(optimizer.param_groups[0]["lr"]))
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ValueError(
            "scheduler = ReduceLROnPlateau: its rates follow the losses, so they are not known "
            "ahead, and not private. Leave scheduler out to design for constant rates"
        )
    groups = [
        {**group, "params": [torch.zeros(1, requires_grad=True)]}
        for group in optimizer.param_groups
    ]
    stand_in = torch.optim.SGD(groups, lr=1.0)
    stand_in.param_groups = [
        {**own, **copied} for own, copied in zip(stand_in.param_groups, groups, strict=True)
    ]
    scheduler = copy.deepcopy(scheduler, {id(optimizer): stand_in})
    rates = np.empty(steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of a scheduler stepped before its optimizer
        for step in range(steps):
            rates[step] = float(stand_in.param_groups[0]["lr"])
            if scheduler_every == "step" or (step + 1) % steps_per_epoch == 0:
                try:
                    scheduler.step()
                except ValueError:  # OneCycleLR: stepped past its end
                    rates[step + 1 :] = rates[step]
                    break
    return rates


def _steps_without_length(request: Request, factorization: Factorization | None) -> int:
    """Steps of the one pass over a loader without a length.

    Raises:
        ValueError: unless there are ``steps``, and the user vouches for who takes part in which.
    """
    if factorization is not None:
        return factorization.steps
    # PRIVACY: nothing tells how often an example comes, so somebody has to vouch for it.   [G14]
    if request.steps is None or not request.is_trusted:
        raise ValueError(
            f"data_loader has no length, epochs = {request.epochs}, steps = {request.steps}, "
            f"participation = {request.participation!r}: who takes part in which step cannot be "
            'derived or checked. Give steps=… and participation="trusted" if each example comes '
            "at most once in these steps; if examples come back, also "
            "PrivacyEngine(mechanism=antiphase.design(…, participation=…))"
        )
    warn(
        f"data_loader has no length: the noise is for one pass of {request.steps} steps, in which "
        "each example takes part at most once. Nothing checks this. If examples come back, give "
        "PrivacyEngine(mechanism=antiphase.design(…, participation=…))"
    )
    return check.whole_number("steps", request.steps) * check.whole_number(
        "gradient_accumulation_steps", request.gradient_accumulation_steps
    )
