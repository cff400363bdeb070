"""``design("dp-mf+", steps=…)``: from the names people know to a `Factorization`."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from antiphase._util import checks as check
from antiphase._util.progress import Progress
from antiphase.factorizations.base import Factorization
from antiphase.factorizations.dense import Dense
from antiphase.factorizations.identity import Identity
from antiphase.factorizations.inverse_toeplitz import InverseToeplitz
from antiphase.factorizations.toeplitz import Toeplitz
from antiphase.factorizations.tree import Tree
from antiphase.objective import Average, Curvature, Damped, Maximum, Objective, Restarts
from antiphase.participation import Participation, from_epochs
from antiphase.solvers.banded import banded_optimum
from antiphase.solvers.blt import MOST, blt_optimum
from antiphase.solvers.closed_form import (
    anti_encoder,
    chess_coefficients,
    fourier_encoder,
    inverse_root_coefficients,
    square_root_coefficients,
)
from antiphase.solvers.design_cache import remembered
from antiphase.solvers.dispatch import optimal
from antiphase.solvers.epoch_restarts import restarted
from antiphase.solvers.inverse_toeplitz import best_bands, best_correlation
from antiphase.solvers.toeplitz import toeplitz_optimum
from antiphase.workload import Workload


def design(
    name: str,
    *,
    steps: int | None = None,
    epochs: int = 1,
    participation: Participation | None = None,
    workload: Workload | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Factorization:
    """The factorization called ``name``, for ``steps`` steps of SGD, or for ``workload``.

    ``epochs`` says how often each record takes part, in a fixed order; ``participation`` says it in full.
    ``progress`` is called with a `ProgressReport` (``done`` iterations, ``gap``) while a search runs. For several
    epochs it may return True to stop the search; the gap reached so far is still certified. Names and their options:

    - ``dp-sgd``, ``anti-pgd``, ``chess``, ``fourier``
    - ``tree``: ``estimator="full" | "online" | "plain"``, ``sensitivity="square" | "nodes"``
    - ``sqrt-toeplitz``: ``normalized=True``, ``bands``; ``bisr`` (banded inverse square root): ``bands`` (default: the
      best up to 64)
    - ``lambda-cgd``: ``correlation``, how much of the noise before is taken back (default: the best)
    - ``toeplitz``: ``bands``; ``banded``: ``bands``; ``blt``: ``buffers``, up to 8; ``epoch-restarts``
    - ``dp-mf``: ``weights``, ``final_weight``
    - ``dp-mf+``: ``tau`` (default: ``steps``), ``weight``, ``include_final``, ``anchor="start" | "end"``
    - ``damped``: ``rho``, or ``learning_rate`` and ``smoothness``; ``weights``, ``final_weight``
    - ``curvature``: ``spectrum``, ``learning_rate``, ``probabilities``, ``weights``, ``final_weight``
    - ``optimal``: ``objective``

    Optimal designs are streams where their workload is a short recurrence and records take part once, or ``dp-mf+``
    restarts between any two participations: ``buffers="auto"`` spends the fewest vectors of memory that keep within
    0.1 % of the optimum, ``"exact"`` as many as full precision needs; a number asks for the best stream of that many
    that a descent finds. For other participations the optimum is dense, and a number of buffers asks for the best
    stream of that many, each emptied once an epoch. Those in the first five lines take ``objective``, by which they
    are judged (default: every iterate alike; ``"mean"`` and ``"maximum"`` are names), and for which those of the fifth
    are searched; for the maximum where the last row is known to be the largest, else for the mean, and a warning says
    so. The others, which are optimal for theirs, take ``tolerance``, the relative gap to reach (default: 1e-9; for
    several epochs 1e-6 from 1,025 steps on and 1e-4 from 4,097).

    >>> design("dp-mf", steps=4)
    <Factorization dp-mf: 4 steps, once, error 6.87..., gap ..., sensitivity 1>
    """
    maker = _maker(name)
    setting = _setting(steps, epochs, participation, workload)
    known = options_for(name)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise TypeError(
            f"{unknown[0]} = {options[unknown[0]]!r}: {name} has no such option; it takes {', '.join(known) or 'none'}"
        )
    if isinstance(options.get("objective"), str):
        options["objective"] = NAMED[check.choice("objective", options["objective"], tuple(NAMED))]
    if "progress" in inspect.signature(maker).parameters:
        options["progress"] = progress
    made: Factorization = maker(setting, **options)
    return made


def names() -> list[str]:
    """Every name that `design` knows."""
    return list(_MAKERS)


def options_for(name: str) -> list[str]:
    """The options that `design` takes for ``name``."""
    return [
        p for p in inspect.signature(_maker(name)).parameters if p not in ("setting", "progress")
    ]


# ---- one function a name; its keyword arguments are its options --------------------------------------------

Setting = tuple[Workload, Participation]
NAMED = {"mean": Average(), "maximum": Maximum()}


def _dp_sgd(setting: Setting, *, objective: Objective | None = None) -> Factorization:
    workload, participation = setting
    return Identity("dp-sgd", workload, _judge(objective), participation)


def _anti_pgd(setting: Setting, *, objective: Objective | None = None) -> Factorization:
    workload, participation = setting
    return Dense("anti-pgd", workload, _judge(objective), participation, anti_encoder(workload))


def _chess(setting: Setting, *, objective: Objective | None = None) -> Factorization:
    workload, participation = setting
    return Toeplitz(
        "chess", workload, _judge(objective), participation, chess_coefficients(), False
    )


def _fourier(setting: Setting, *, objective: Objective | None = None) -> Factorization:
    workload, participation = setting
    return Dense(
        "fourier", workload, _judge(objective), participation, fourier_encoder(workload.steps)
    )


def _tree(
    setting: Setting,
    *,
    estimator: str = "full",
    sensitivity: str = "square",
    objective: Objective | None = None,
) -> Factorization:
    workload, participation = setting
    options = {"estimator": estimator, "sensitivity": sensitivity}
    return Tree("tree", workload, _judge(objective), participation, options=options)


def _sqrt_toeplitz(
    setting: Setting,
    *,
    normalized: bool = True,
    bands: int | None = None,
    objective: Objective | None = None,
) -> Factorization:
    workload, participation = setting
    options: dict[str, Any] = {"normalized": check.flag("normalized", normalized)}
    if bands is not None:
        options["bands"] = check.whole_number("bands", bands)
    coefficients = square_root_coefficients(
        min(options.get("bands", workload.steps), workload.steps)
    )
    return Toeplitz(
        "sqrt-toeplitz",
        workload,
        _judge(objective),
        participation,
        coefficients,
        normalized,
        options=options,
    )


def _bisr(
    setting: Setting, *, bands: int | None = None, objective: Objective | None = None
) -> Factorization:
    workload, participation = setting
    judge = _judge(objective)
    if bands is None:
        bands = best_bands("bisr", workload, judge, participation)
    options = {"bands": check.whole_number("bands", bands)}
    inverse = inverse_root_coefficients(workload, min(bands, workload.steps))
    return InverseToeplitz("bisr", workload, judge, participation, inverse, options=options)


def _lambda_cgd(
    setting: Setting, *, correlation: float | None = None, objective: Objective | None = None
) -> Factorization:
    workload, participation = setting
    judge = _judge(objective)
    if correlation is None:
        correlation = best_correlation(workload, judge, participation)
    options = {"correlation": check.real_number("correlation", correlation, minimum=0.0, below=1.0)}
    inverse = np.array([1.0, -options["correlation"]])
    return InverseToeplitz("lambda-cgd", workload, judge, participation, inverse, options=options)


def _toeplitz(
    setting: Setting,
    *,
    bands: int | None = None,
    objective: Objective | None = None,
    progress: Progress | None = None,
) -> Factorization:
    options = {} if bands is None else {"bands": check.whole_number("bands", bands)}
    return _searched(
        "toeplitz", toeplitz_optimum, setting, objective, options, progress, bands=bands
    )


def _banded(
    setting: Setting,
    *,
    bands: int = 16,
    objective: Objective | None = None,
    progress: Progress | None = None,
) -> Factorization:
    options = {"bands": check.whole_number("bands", bands)}
    return _searched("banded", banded_optimum, setting, objective, options, progress, bands=bands)


def _blt(
    setting: Setting,
    *,
    buffers: int = 4,
    objective: Objective | None = None,
    progress: Progress | None = None,
) -> Factorization:
    options = {"buffers": check.whole_number("buffers", buffers)}
    if buffers > MOST:
        raise ValueError(
            f"buffers = {buffers}: at most {MOST}; further ones change nothing that can be measured"
        )
    return _searched("blt", blt_optimum, setting, objective, options, progress, buffers=buffers)


def _epoch_restarts(
    setting: Setting, *, objective: Objective | None = None, progress: Progress | None = None
) -> Factorization:
    return _searched("epoch-restarts", restarted, setting, objective, {}, progress)


def _dp_mf(
    setting: Setting,
    *,
    weights: Any = None,
    final_weight: float = 1.0,
    tolerance: float | None = None,
    buffers: str | int = "auto",
    progress: Progress | None = None,
) -> Factorization:
    return _optimal("dp-mf", setting, Average(weights, final_weight), tolerance, buffers, progress)


def _dp_mf_plus(
    setting: Setting,
    *,
    tau: int | None = None,
    weight: float | None = None,
    include_final: bool = False,
    anchor: str = "start",
    tolerance: float | None = None,
    buffers: str | int = "auto",
    progress: Progress | None = None,
) -> Factorization:
    objective = Restarts(setting[0].steps if tau is None else tau, weight, include_final, anchor)
    return _optimal(
        "dp-mf+", setting, objective, tolerance, buffers, progress, {"tau": objective.tau}
    )


def _damped(
    setting: Setting,
    *,
    rho: float | None = None,
    learning_rate: float | None = None,
    smoothness: float | None = None,
    weights: Any = None,
    final_weight: float | None = None,
    tolerance: float | None = None,
    buffers: str | int = "auto",
    progress: Progress | None = None,
) -> Factorization:
    if (learning_rate is None) != (smoothness is None):
        raise ValueError(
            f"learning_rate = {learning_rate}, smoothness = {smoothness}: damping follows from both, or from rho"
        )
    if rho is not None and learning_rate is not None:
        raise ValueError(
            f"rho = {rho} says what learning_rate and smoothness say too; give one or the other"
        )
    if learning_rate is not None:
        curvature = check.positive_number("learning_rate", learning_rate) * check.positive_number(
            "smoothness", smoothness
        )
        if curvature > 1:
            raise ValueError(f"learning_rate × smoothness = {curvature:g} must be at most 1")
        rho = (
            1.0 - 0.5 * curvature
        )  # errors live along all curvatures up to the largest; half of it serves best
    if rho is None:
        rho = 1.0
        if final_weight is None:
            final_weight = math.sqrt(setting[0].steps)
            warnings.warn(
                f"damped without rho, learning_rate or smoothness: rho = 1, final_weight = √steps = {final_weight:.4g}",
                stacklevel=3,
            )
    final_weight = 1.0 if final_weight is None else final_weight
    objective = Damped(rho, weights, final_weight)
    options = {"rho": objective.rho, "final_weight": objective.final_weight}
    return _optimal("damped", setting, objective, tolerance, buffers, progress, options)


def _curvature(
    setting: Setting,
    *,
    spectrum: Any = None,
    learning_rate: float = 1.0,
    probabilities: Any = None,
    weights: Any = None,
    final_weight: float = 1.0,
    tolerance: float | None = None,
    buffers: str | int = "auto",
    progress: Progress | None = None,
) -> Factorization:
    if spectrum is None:
        raise TypeError(
            "curvature needs spectrum: the curvatures (Hessian eigenvalues) to design for"
        )
    objective = Curvature(spectrum, learning_rate, probabilities, weights, final_weight)
    return _optimal("curvature", setting, objective, tolerance, buffers, progress)


def _any_objective(
    setting: Setting,
    *,
    objective: Objective | None = None,
    tolerance: float | None = None,
    buffers: str | int = "auto",
    progress: Progress | None = None,
) -> Factorization:
    return _optimal("optimal", setting, _judge(objective), tolerance, buffers, progress)


_MAKERS: dict[str, Callable[..., Factorization]] = {
    "dp-sgd": _dp_sgd,
    "anti-pgd": _anti_pgd,
    "chess": _chess,
    "tree": _tree,
    "sqrt-toeplitz": _sqrt_toeplitz,
    "fourier": _fourier,
    "bisr": _bisr,
    "lambda-cgd": _lambda_cgd,
    "toeplitz": _toeplitz,
    "banded": _banded,
    "blt": _blt,
    "epoch-restarts": _epoch_restarts,
    "dp-mf": _dp_mf,
    "dp-mf+": _dp_mf_plus,
    "damped": _damped,
    "curvature": _curvature,
    "optimal": _any_objective,
}


def _searched(
    name: str,
    search: Callable[..., Factorization],
    setting: Setting,
    objective: Objective | None,
    options: dict[str, Any],
    progress: Progress | None,
    **wanted: Any,
) -> Factorization:
    workload, participation = setting
    judge = _judge(objective)
    question = {
        "form": name,
        "workload": workload,
        "objective": judge,
        "participation": participation,
        "wanted": wanted,
    }

    def make(watched: Progress) -> Factorization:
        return search(
            name, workload, judge, participation, options=options, progress=watched, **wanted
        )

    return remembered(question, make, name=name, options=options, progress=progress)


def _optimal(
    name: str,
    setting: Setting,
    objective: Objective,
    tolerance: float | None,
    buffers: str | int,
    progress: Progress | None,
    options: dict[str, Any] | None = None,
) -> Factorization:
    if tolerance is not None:
        tolerance = check.positive_number("tolerance", tolerance)
    workload, participation = setting
    return optimal(
        workload,
        objective,
        participation,
        name=name,
        options=options,
        tolerance=tolerance,
        buffers=buffers,
        progress=progress,
    )


def _judge(objective: Objective | None) -> Objective:
    if objective is None:
        return Average()
    judge: Objective = check.instance("objective", objective, Objective)
    return judge


def _maker(name: Any) -> Callable[..., Factorization]:
    if not isinstance(name, str):
        raise TypeError(f"name = {name!r} must be a string, one of {', '.join(_MAKERS)}")
    if name not in _MAKERS:
        raise ValueError(f"name = {name!r} is no mechanism of ours; there are {', '.join(_MAKERS)}")
    return _MAKERS[name]


def _setting(
    steps: int | None,
    epochs: int,
    participation: Participation | None,
    workload: Workload | None,
) -> Setting:
    if workload is None:
        if steps is None:
            raise TypeError("steps = None: say how many steps training takes, or give a workload")
        workload = Workload.sgd(steps)
    else:
        check.instance("workload", workload, Workload)
        if steps is not None and check.whole_number("steps", steps) != workload.steps:
            raise ValueError(
                f"steps = {steps}, but the workload has {workload.steps}; leave steps out"
            )
    if participation is None:
        participation = from_epochs(workload.steps, epochs)
    else:
        check.instance("participation", participation, Participation)
        if epochs != 1:
            raise ValueError(
                f"epochs = {epochs} and participation = {participation!r} say the same thing twice; give one"
            )
        participation.patterns(workload.steps)  # refuses what does not cover the steps
    return workload, participation
