"""What the server does with the noisy mean of the updates: a workload, one round at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase.workload import Workload

Tensors = dict[str, np.ndarray[Any, Any]]


class ServerOptimizer:
    """``torch.optim.SGD`` on the server, with the negative mean update as the gradient.

    Learning rates, momentum, dampening, Nesterov's momentum and weight decay are those of the workload, so a
    factorization of that workload is one of what the server computes.   [G4]
    """

    def __init__(self, workload: Workload) -> None:
        check.instance("workload", workload, Workload)
        if (
            workload.learning_rates is None
            or workload.delay
            or workload.is_averaged
            or workload.curvature
        ):
            raise ValueError(
                f"workload = {workload.describe()}: the server steps as torch.optim.SGD does, with learning rates, "
                "momentum and weight decay; give it as workload=Workload.sgd(rounds, …), and keep other workloads for "
                "the design"
            )
        self.workload, self._rates = workload, workload.learning_rates
        self.velocity: Tensors = {}

    def step(self, number: int, model: Tensors, mean: dict[str, Array]) -> Tensors:
        """The tensors after round ``number``, counted from 0; ``mean`` has one array for each that moves."""
        w, rate = self.workload, self._rates[number]
        moved = {}
        for name, update in mean.items():
            gradient = w.weight_decay * model[name] - update
            direction = gradient
            if w.momentum:
                before = self.velocity.get(name)
                velocity = (
                    gradient
                    if before is None
                    else w.momentum * before + (1 - w.dampening) * gradient
                )
                direction = gradient + w.momentum * velocity if w.nesterov else velocity
                self.velocity[name] = np.asarray(velocity, np.result_type(model[name], np.float32))
            moved[name] = np.asarray(model[name] - rate * direction, model[name].dtype)
        return moved
