"""What a training script says without being asked: how many steps, who takes part when, what the optimizer computes."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase.design import design
from antiphase.errors import AntiphaseWarning
from antiphase.factorizations.base import Factorization
from antiphase.mechanism import Mechanism, calibrate
from antiphase.participation import Epochs, Once, Participation
from antiphase.workload import Workload

HEURISTIC = (
    "{name} is not linear in the gradients, so the noise is designed for prefix sums: privacy is exact, and the "
    "design is a heuristic"
)


@dataclass(frozen=True)
class Plan:
    """Steps, participation and workload, and what had to be assumed."""

    workload: Workload
    participation: Participation
    every: int  # steps an epoch
    accumulation: int  # batches a step
    notes: tuple[str, ...]
    rates: Array | None = (
        None  # learning rates that the noise was designed for; None where they do not matter
    )

    @property
    def steps(self) -> int:
        return self.workload.steps


def derive(
    optimizer: Any,
    batches: int,
    *,
    epochs: int | None,
    steps: int | None,
    scheduler: Any = None,
    scheduler_every: str = "step",
    accumulation: int = 1,
    participation: Participation | None = None,
) -> Plan:
    """The plan for ``epochs`` passes over a loader of ``batches`` batches, or for ``steps`` steps."""
    accumulation = check.whole_number("gradient_accumulation_steps", accumulation)
    every = -(-batches // accumulation)
    if (epochs is None) == (steps is None):
        raise TypeError(
            f"epochs = {epochs}, steps = {steps}: noise that cancels over the steps is planned ahead, so say how many "
            "there will be, by one of the two"
        )
    if epochs is not None:
        epochs = check.whole_number("epochs", epochs)
        steps = epochs * every
    assert steps is not None
    steps = check.whole_number("steps", steps)
    if participation is None:
        passes = -(-steps // every)
        participation = Once() if passes == 1 else Epochs(passes, every)
    rates, notes = learning_rates(optimizer, scheduler, steps, scheduler_every, every), []
    workload, note = workload_of(optimizer, rates, steps)
    notes += [note] if note else []
    # Other optimizers than SGD have a workload without rates; for a scale of all rates alone the design is the same.
    told = rates if type(optimizer) is torch.optim.SGD else None
    return Plan(workload, participation, every, accumulation, tuple(notes), told)


def workload_of(optimizer: Any, rates: Array, steps: int) -> tuple[Workload, str | None]:
    """What the optimizer does with gradients, and a note where that is not known exactly."""
    if type(optimizer) is not torch.optim.SGD:
        return Workload.sgd(steps), HEURISTIC.format(name=type(optimizer).__name__)
    groups = optimizer.param_groups
    names = ("momentum", "dampening", "nesterov", "weight_decay")
    options = {name: groups[0][name] for name in names}
    note = None
    if any(
        group[name] != options[name] for group in groups for name in names
    ):  # other rates only scale the workload
        note = "the parameter groups differ; the noise is designed for the first group's options. Privacy is exact"
    if not options["momentum"]:
        options["dampening"] = 0.0  # torch looks at it only with momentum
    try:
        return Workload.sgd(steps, learning_rates=rates, **options), note
    except ValueError as error:
        raise ValueError(f"the optimizer's schedule has no workload: {error}") from error


def learning_rates(
    optimizer: Any, scheduler: Any, steps: int, scheduler_every: str, every: int
) -> Array:
    """The rate of every step, by running a copy of the scheduler ahead; the optimizer and its scheduler see nothing."""
    check.choice("scheduler_every", scheduler_every, ("step", "epoch"))
    if scheduler is None:
        return np.full(steps, float(optimizer.param_groups[0]["lr"]))
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ValueError(
            "scheduler = ReduceLROnPlateau: its rates follow the losses, so they are not known ahead, and losses on "
            "the training data are not private. Leave scheduler out to design for constant rates"
        )
    groups = [
        {
            "params": [torch.zeros(1, requires_grad=True)],
            **{k: v for k, v in group.items() if k != "params"},
        }
        for group in optimizer.param_groups
    ]
    stand_in = torch.optim.SGD(groups, lr=1.0)
    stand_in.param_groups = [
        {**mine, **theirs} for mine, theirs in zip(stand_in.param_groups, groups, strict=True)
    ]
    ahead = copy.deepcopy(scheduler, {id(optimizer): stand_in})
    rates = np.empty(steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a scheduler that is stepped before its optimizer
        for t in range(steps):
            rates[t] = float(stand_in.param_groups[0]["lr"])
            if scheduler_every == "step" or (t + 1) % every == 0:
                try:
                    ahead.step()
                except ValueError:  # OneCycleLR: stepped past its end
                    rates[t + 1 :] = rates[t]
                    break
    return rates


def planned(wanted: Any, optimizer: Any, loader: Any, *, participation: Any, **how: Any) -> Plan:
    """The plan for a mechanism that is ``wanted`` by name or made already; warns of what had to be assumed."""
    made = wanted.factorization if isinstance(wanted, Mechanism) else wanted
    batches = _batches(loader, made)
    if isinstance(made, Factorization):
        if how["epochs"] is None and how["steps"] is None:
            how["steps"] = made.steps
        participation = made.participation
    given = participation if isinstance(participation, Participation) else None
    inner = getattr(optimizer, "original_optimizer", optimizer)
    plan = derive(inner, batches, participation=given, **how)
    if isinstance(made, Factorization):
        if plan.steps != made.steps:
            raise ValueError(
                f"the mechanism is for {made.steps} steps, and training has {plan.steps}"
            )
        rates = None if made.workload.learning_rates is None else plan.rates
        plan = replace(plan, workload=made.workload, participation=made.participation, rates=rates)
    for note in plan.notes:
        warnings.warn(note, AntiphaseWarning, stacklevel=4)
    return plan


def _batches(loader: Any, made: Any) -> int:
    try:
        return len(loader)
    except TypeError as error:  # an IterableDataset without a length
        if isinstance(made, Factorization):
            return made.steps
        raise ValueError(
            "data_loader has no length, so who takes part when does not follow from it. Design the mechanism "
            "yourself, with its participation: PrivacyEngine(mechanism=antiphase.design(…, participation=…))"
        ) from error


def calibrated(
    wanted: Any,
    options: dict[str, Any],
    plan: Plan,
    clip: float | list[float],
    noise_multiplier: float | None,
    epsilon: float | None,
    delta: float | None,
) -> Mechanism:
    """The mechanism with its noise, designed for the plan if it is ``wanted`` by name."""
    # PRIVACY: with one norm for each tensor, a record moves the sum by at most the norm of these.   [G16]
    clip_norm = (
        math.sqrt(sum(c * c for c in clip)) if isinstance(clip, list | tuple) else float(clip)
    )
    if isinstance(wanted, Mechanism):
        if epsilon is not None:
            raise ValueError(
                f"target_epsilon = {epsilon}: the mechanism has its noise multiplier already"
            )
        if noise_multiplier not in (None, wanted.noise_multiplier) or clip_norm != wanted.clip_norm:
            raise ValueError(
                f"noise_multiplier = {noise_multiplier}, max_grad_norm = {clip_norm:g}: the mechanism has "
                f"{wanted.noise_multiplier:g} and {wanted.clip_norm:g}"
            )
        return wanted
    if (noise_multiplier is None) == (epsilon is None):
        raise TypeError(
            f"noise_multiplier = {noise_multiplier}, target_epsilon = {epsilon}: give one of the two, the other follows"
        )
    factorization = wanted
    if isinstance(factorization, str):
        factorization = design(
            factorization, workload=plan.workload, participation=plan.participation, **options
        )
    assert isinstance(factorization, Factorization)
    return calibrate(
        factorization,
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=noise_multiplier,
        clip_norm=clip_norm,
    )


class PlannedRates:
    """Warns once, at the first step whose learning rate is not the one that the noise was designed for."""

    def __init__(self, plan: Plan, optimizer: Any, position: Callable[[], int]) -> None:
        self._rates, self._optimizer, self._position = plan.rates, optimizer, position

    def __call__(self) -> None:
        step = self._position()
        if self._rates is None or step >= len(self._rates):
            return
        planned, now = float(self._rates[step]), float(self._optimizer.param_groups[0]["lr"])
        if abs(now - planned) > 1e-6 * abs(planned):
            self._rates = None
            warnings.warn(
                f"step {step}: the learning rate is {now:g}, and the noise was designed for {planned:g}. Privacy "
                "holds, but the noise cancels less than it could. Hand the scheduler over to make_private "
                "(scheduler=…) and step it as planned (scheduler_every=…)",
                AntiphaseWarning,
                stacklevel=4,
            )
