"""Workloads and quadratics that the tests of the theory share."""

import numpy as np

import antiphase as ap
from antiphase.theory.quadratic import Quadratic

PAPER = Quadratic.paper()
T = 24
RATES = np.linspace(1.0, 0.2, T)
RESTING = np.where(np.arange(T) % 5 == 4, 0.0, 1.0)
WORKLOADS = {
    "sgd": ap.Workload.sgd(T),
    "schedule": ap.Workload.sgd(T, learning_rates=RATES),
    "idle steps": ap.Workload.sgd(T, learning_rates=RESTING),
    "momentum": ap.Workload.sgd(T, momentum=0.8, learning_rates=RATES),
    "dampened": ap.Workload.sgd(T, momentum=0.8, dampening=0.3),
    "nesterov": ap.Workload.sgd(T, momentum=0.7, nesterov=True),
    "weight decay": ap.Workload.sgd(T, momentum=0.5, weight_decay=0.3),
    "delay": ap.Workload.sgd(T, delay=3, momentum=0.5),
    "ema": ap.Workload.sgd(T, momentum=0.5).with_ema(0.6),
    "tail average": ap.Workload.sgd(T, learning_rates=RATES).with_tail_average(9),
}
SMALL = Quadratic(
    [0.0, 0.1, 0.7, 2.0],
    optimum=[1.0, -2.0, 0.5, 0.3],
    start=[0.4, 1.0, -1.0, 0.2],
    spread=[0, 1, 0.5, 2],
)
RATE = 0.3
