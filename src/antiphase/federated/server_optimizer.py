"""The server's optimizer: SGD with momentum on the noisy mean update."""

from __future__ import annotations

from typing import Any

import numpy as np

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase.workload import Workload

Tensors = dict[str, np.ndarray[Any, Any]]


class ServerOptimizer:
    """``torch.optim.SGD`` on the server, with the negative mean update as the gradient.

    Learning rates, momentum, dampening, Nesterov momentum and weight decay are those of the
    workload, so that a factorization of the workload is one of what the server computes.   [G4]

    Args:
        workload: made by `Workload.sgd`.
    """

    def __init__(self, workload: Workload) -> None:
        check.instance("workload", workload, Workload)
        rates = workload.learning_rates
        if rates is None or workload.delay or workload.is_averaged or workload.curvature:
            raise ValueError(
                f"workload = {workload.describe()}: the server's step is that of torch.optim.SGD, "
                "with learning rates, momentum and weight decay; give workload=Workload.sgd(rounds,"
                " …), and use other workloads for the design only"
            )
        self.workload, self._rates = workload, rates
        self.velocity: Tensors = {}

    def step(self, number: int, model: Tensors, mean: dict[str, Array]) -> Tensors:
        """The trained tensors after round ``number``, counted from 0.

        Args:
            number: the round, for the learning rate.
            model: all tensors before the round.
            mean: the noisy mean update of each trained tensor.
        """
        w, rate = self.workload, self._rates[number]
        moved = {}
        for name, update in mean.items():
            gradient = w.weight_decay * model[name] - update
            direction = gradient
            if w.momentum:
                velocity = gradient
                if name in self.velocity:
                    velocity = w.momentum * self.velocity[name] + (1 - w.dampening) * gradient
                direction = gradient + w.momentum * velocity if w.nesterov else velocity
                self.velocity[name] = np.asarray(velocity, np.result_type(model[name], np.float32))
            moved[name] = np.asarray(model[name] - rate * direction, model[name].dtype)
        return moved
