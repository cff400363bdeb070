"""Warn of unplanned learning rates and of parameters without gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antiphase.torch.coverage import shortened
from antiphase.torch.plan import TrainingPlan
from antiphase.torch.recorded_loader import StepCounter
from antiphase.torch.user_warnings import warn


class PlannedLearningRates:
    """Guard that warns once, at the first step with a learning rate that was not planned.

    Args:
        plan: has the rates.
        optimizer: the user's optimizer.
        steps: the steps released so far.
        scheduler_every: "step" or "epoch" if make_private was given a scheduler; else None.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        optimizer: Any,
        steps: StepCounter,
        scheduler_every: str | None = None,
    ) -> None:
        self._rates, self._optimizer, self._steps = plan.learning_rates, optimizer, steps
        self._scheduler_every = scheduler_every

    def __call__(self) -> None:
        """Compare the learning rate of the step with the plan."""
        step = self._steps.position
        if self._rates is None or step >= len(self._rates):
            return
        planned, current = float(self._rates[step]), float(self._optimizer.param_groups[0]["lr"])
        if abs(current - planned) > 1e-6 * abs(planned):
            cause = self._cause(step, current)
            self._rates = None
            warn(
                f"step {step}: the learning rate is {current:g}, and the noise was designed for "
                f"{planned:g}. Privacy holds, but the noise cancels less than it could. {cause}"
            )

    def _cause(self, step: int, current: float) -> str:
        """What happened, as far as the rates tell, and what to do."""
        assert self._rates is not None
        if self._scheduler_every is None:
            return (
                "make_private was given no scheduler, so it planned a constant rate. Give it: "
                "make_private(…, scheduler=…)"
            )
        if step and current == float(self._rates[0]):
            return (
                "The scheduler that make_private was given was not stepped. Call scheduler.step() "
                f"after every {self._scheduler_every}"
            )
        return (
            f"Step the scheduler as planned, after every {self._scheduler_every} "
            f"(scheduler_every={self._scheduler_every!r})"
        )


class UnusedParameters:
    """Guard that warns after the first epoch of parameters that had no gradient in any step.

    Whether the backward pass reaches a parameter depends on the model, not on values of the data.
    The sums are not looked at.
    """

    def __init__(self, plan: TrainingPlan, optimizer: Any) -> None:
        self._optimizer, self._steps_left = optimizer, plan.steps_per_epoch
        self._unused: set[str] | None = None

    def __call__(self) -> None:
        """Look which parameters have no gradient, and warn at the end of the first epoch."""
        find: Callable[[], list[str]] | None = getattr(self._optimizer, "unused_parameters", None)
        if self._steps_left <= 0 or find is None:
            return
        names = find()
        self._unused = set(names) if self._unused is None else self._unused & set(names)
        self._steps_left -= 1
        if not self._steps_left and self._unused:
            unused = [name for name in names if name in self._unused]
            warn(
                f"{shortened(unused)} had no gradient in the first epoch, so they are trained by "
                "noise alone. Freeze them, or check that the loss depends on them"
            )
