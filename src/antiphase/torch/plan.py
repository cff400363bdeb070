"""What a training script says without being asked: how many steps, who takes part when, what the optimizer computes."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from antiphase import _checks as check
from antiphase._checks import Array
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
    return Plan(workload, participation, every, accumulation, tuple(notes))


def workload_of(optimizer: Any, rates: Array, steps: int) -> tuple[Workload, str | None]:
    """What the optimizer does with gradients, and a note where that is not known exactly."""
    if type(optimizer) is not torch.optim.SGD:
        return Workload.sgd(steps), HEURISTIC.format(name=type(optimizer).__name__)
    groups = optimizer.param_groups
    names = ("momentum", "dampening", "nesterov", "weight_decay")
    options = {name: groups[0][name] for name in names}
    note = None
    if any(group[name] != options[name] for group in groups for name in names):  # other rates only scale the workload
        note = "the parameter groups differ; the noise is designed for the first group's options. Privacy is exact"
    if not options["momentum"]:
        options["dampening"] = 0.0  # torch looks at it only with momentum
    try:
        return Workload.sgd(steps, learning_rates=rates, **options), note
    except ValueError as error:
        raise ValueError(f"the optimizer's schedule has no workload: {error}") from error


def learning_rates(optimizer: Any, scheduler: Any, steps: int, scheduler_every: str, every: int) -> Array:
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
        {"params": [torch.zeros(1, requires_grad=True)], **{k: v for k, v in group.items() if k != "params"}}
        for group in optimizer.param_groups
    ]
    stand_in = torch.optim.SGD(groups, lr=1.0)
    stand_in.param_groups = [{**mine, **theirs} for mine, theirs in zip(stand_in.param_groups, groups, strict=True)]
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
