"""`design`: from the names of the literature to a factorization."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from antiphase._util import checks as check
from antiphase._util.progress import Progress
from antiphase.errors import AntiphaseWarning
from antiphase.factorizations.base import Factorization
from antiphase.factorizations.dense import Dense
from antiphase.factorizations.identity import Identity
from antiphase.factorizations.inverse_toeplitz import InverseToeplitz
from antiphase.factorizations.toeplitz import Toeplitz
from antiphase.factorizations.tree import Tree
from antiphase.objective import Average, Curvature, Damped, Maximum, Objective, Restarts
from antiphase.participation import Participation, from_epochs
from antiphase.problem import Problem
from antiphase.solvers.banded import banded_optimum
from antiphase.solvers.blt import blt_optimum
from antiphase.solvers.closed_form import (
    anti_encoder,
    chess_coefficients,
    fourier_encoder,
    inverse_root_coefficients,
    square_root_coefficients,
)
from antiphase.solvers.design_cache import cached
from antiphase.solvers.dispatch import optimal
from antiphase.solvers.epoch_restarts import epoch_restarts
from antiphase.solvers.inverse_toeplitz import best_correlation, best_inverse_bands
from antiphase.solvers.toeplitz import toeplitz_optimum
from antiphase.workload import Workload

NAMED_OBJECTIVES = {"mean": Average(), "maximum": Maximum()}


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
    """The factorization of a mechanism of the literature.

    Names and their options:

    - ``dp-sgd``, ``anti-pgd``, ``chess``, ``fourier``
    - ``tree``: ``estimator="full" | "online" | "plain"``, ``sensitivity="square" | "nodes"``
    - ``sqrt-toeplitz``: ``normalized=True``, ``bands``
    - ``bisr`` (banded inverse square root): ``bands`` (default: the best up to 64)
    - ``lambda-cgd``: ``correlation`` with the noise of the step before (default: the best)
    - ``toeplitz``: ``bands``; ``banded``: ``bands``; ``blt``: ``buffers``, up to 8;
      ``epoch-restarts``
    - ``dp-mf``: ``weights``, ``final_weight``
    - ``dp-mf+``: ``tau`` (default: ``steps``), ``weight``, ``include_final``,
      ``anchor="start" | "end"``
    - ``damped``: ``rho``, or ``learning_rate`` and ``smoothness``; ``weights``, ``final_weight``
    - ``curvature``: ``spectrum``, ``learning_rate``, ``probabilities``, ``weights``,
      ``final_weight``
    - ``optimal``: ``objective``

    The mechanisms up to ``epoch-restarts`` take ``objective``, by which their error is measured
    (default: every iterate counts the same; ``"mean"`` and ``"maximum"`` are names). ``toeplitz``,
    ``banded``, ``blt`` and ``epoch-restarts`` are searched for it; for the maximum only where the
    last iterate is known to be the noisiest, else for the mean, with a warning.

    The others are optimal for their own objective. They take ``tolerance``, the relative gap to
    reach (default: 1e-9; for several epochs 1e-6 above 512 steps and 1e-4 above 4,096), and
    ``buffers``. The optimum is a stream if the workload is a short recurrence and records take part
    once, or ``dp-mf+`` restarts between any two participations. Then ``buffers="auto"`` uses the
    fewest vectors of memory within 0.1 % of the optimum, ``"exact"`` as many as full precision
    needs, and a number asks for the best stream of that many. Otherwise the optimum is dense, and a
    number of buffers asks for the best stream whose buffers are each emptied once an epoch.

    Args:
        name: a name in the list above.
        steps: number of steps of SGD at a constant rate; or give ``workload``.
        epochs: number of passes over the data in a fixed order; or give ``participation``.
        participation: the steps that one record may take part in.
        workload: what the optimizer computes from gradients.
        progress: called with a `ProgressReport` (``done`` iterations, ``gap``) while a search runs.
            For several epochs it may return True to stop the search; the gap reached so far is
            certified all the same.
        **options: the options of the mechanism.

    Raises:
        ValueError: an argument is out of range, or arguments contradict each other.
        TypeError: an argument is missing or of the wrong type, or the mechanism has no such option.
        TooLargeError: the encoder is dense, and too large for the memory.

    Example:
        >>> design("dp-mf", steps=4)
        <Factorization dp-mf: 4 steps, once, error 6.87..., gap ..., sensitivity 1>
    """
    mechanism = _mechanism(name)
    workload = _workload(steps, workload)
    participation = _participation(workload.steps, epochs, participation)
    known = options_for(name)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise TypeError(
            f"{unknown[0]} = {options[unknown[0]]!r}: {name} has no such option; it takes "
            f"{', '.join(known)}{check.suggestion(unknown[0], known)}"
        )
    if name in _OPTIMAL:
        search = {key: options.pop(key) for key in SEARCH_OPTIONS if key in options}
        if search.get("tolerance") is not None:
            search["tolerance"] = check.positive_number("tolerance", search["tolerance"])
        problem = Problem(workload, mechanism(workload, **options), participation)
        shown = {key: getattr(problem.objective, key) for key in SHOWN_OPTIONS.get(name, ())}
        return optimal(problem, progress=progress, **search).labelled(name, shown)
    problem = Problem(workload, _objective(options.pop("objective", None)), participation)
    if name in _SEARCHED:
        options = _own_options(mechanism) | options
        shown = {key: value for key, value in options.items() if value is not None}
        return cached(mechanism, problem, progress=progress, **options).labelled(name, shown)
    factorization: Factorization = mechanism(problem, **options)
    return factorization


def designs() -> list[str]:
    """The names that `design` knows.

    Example:
        >>> designs()[:3]
        ['dp-sgd', 'anti-pgd', 'chess']
    """
    return [*_CLOSED_FORM, *_SEARCHED, *_OPTIMAL]


def options_for(name: str) -> list[str]:
    """The options that `design` takes for ``name``.

    Example:
        >>> options_for("tree")
        ['estimator', 'sensitivity', 'objective']
    """
    common = SEARCH_OPTIONS if name in _OPTIMAL else ("objective",)
    return [*_own_options(_mechanism(name)), *common]


def _own_options(mechanism: Callable[..., Any]) -> dict[str, Any]:
    """The keyword arguments of the function, and their defaults."""
    parameters = inspect.signature(mechanism).parameters.values()
    return {
        p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "progress"
    }


# ---- encoders in closed form; the keyword arguments of a function are the options --------------


def _tree(
    problem: Problem, *, estimator: str = "full", sensitivity: str = "square"
) -> Factorization:
    options = {"estimator": estimator, "sensitivity": sensitivity}
    return Tree("tree", **problem.fields, options=options)


def _sqrt_toeplitz(
    problem: Problem, *, normalized: bool = True, bands: int | None = None
) -> Factorization:
    options: dict[str, Any] = {"normalized": check.flag("normalized", normalized)}
    if bands is not None:
        options["bands"] = check.whole_number("bands", bands)
    coefficients = square_root_coefficients(min(bands or problem.steps, problem.steps))
    return Toeplitz(
        "sqrt-toeplitz",
        **problem.fields,
        coefficients=coefficients,
        normalized=normalized,
        options=options,
    )


def _bisr(problem: Problem, *, bands: int | None = None) -> Factorization:
    bands = best_inverse_bands(problem) if bands is None else check.whole_number("bands", bands)
    inverse = inverse_root_coefficients(problem.workload, min(bands, problem.steps))
    return InverseToeplitz("bisr", **problem.fields, inverse=inverse, options={"bands": bands})


def _lambda_cgd(problem: Problem, *, correlation: float | None = None) -> Factorization:
    if correlation is None:
        correlation = best_correlation(problem)
    correlation = check.real_number("correlation", correlation, minimum=0.0, below=1.0)
    inverse, options = np.array([1.0, -correlation]), {"correlation": correlation}
    return InverseToeplitz("lambda-cgd", **problem.fields, inverse=inverse, options=options)


# ---- objectives of the optimal designs ---------------------------------------------------------


def _mean(workload: Workload, *, weights: Any = None, final_weight: float = 1.0) -> Objective:
    return Average(weights, final_weight)


def _restarts(
    workload: Workload,
    *,
    tau: int | None = None,
    weight: float | None = None,
    include_final: bool = False,
    anchor: str = "start",
) -> Objective:
    return Restarts(workload.steps if tau is None else tau, weight, include_final, anchor)


def _damped(
    workload: Workload,
    *,
    rho: float | None = None,
    learning_rate: float | None = None,
    smoothness: float | None = None,
    weights: Any = None,
    final_weight: float | None = None,
) -> Objective:
    if (learning_rate is None) != (smoothness is None):
        raise ValueError(
            f"learning_rate = {learning_rate}, smoothness = {smoothness}: give both, or rho"
        )
    if rho is not None and learning_rate is not None:
        raise ValueError(
            f"rho = {rho} follows from learning_rate and smoothness; give one or the other"
        )
    if learning_rate is not None:
        curvature = check.positive_number("learning_rate", learning_rate) * check.positive_number(
            "smoothness", smoothness
        )
        if curvature > 1:
            raise ValueError(f"learning_rate × smoothness = {curvature:g} must be at most 1")
        # Errors live along all curvatures up to the largest; half of it serves best.
        rho = 1.0 - 0.5 * curvature
    if rho is None:
        rho = 1.0
        if final_weight is None:
            final_weight = math.sqrt(workload.steps)
            warnings.warn(
                "damped without rho, learning_rate or smoothness: rho = 1, "
                f"final_weight = √steps = {final_weight:.4g}",
                AntiphaseWarning,
                stacklevel=3,
            )
    return Damped(rho, weights, 1.0 if final_weight is None else final_weight)


def _curvature(
    workload: Workload,
    *,
    spectrum: Any = None,
    learning_rate: float = 1.0,
    probabilities: Any = None,
    weights: Any = None,
    final_weight: float = 1.0,
) -> Objective:
    if spectrum is None:
        raise TypeError(
            "curvature needs spectrum: the curvatures (Hessian eigenvalues) to design for"
        )
    return Curvature(spectrum, learning_rate, probabilities, weights, final_weight)


_CLOSED_FORM: dict[str, Callable[..., Factorization]] = {
    "dp-sgd": lambda p: Identity("dp-sgd", **p.fields),
    "anti-pgd": lambda p: Dense("anti-pgd", **p.fields, matrix=anti_encoder(p.workload)),
    "chess": lambda p: Toeplitz(
        "chess", **p.fields, coefficients=chess_coefficients(), normalized=False
    ),
    "tree": _tree,
    "sqrt-toeplitz": _sqrt_toeplitz,
    "fourier": lambda p: Dense("fourier", **p.fields, matrix=fourier_encoder(p.steps)),
    "bisr": _bisr,
    "lambda-cgd": _lambda_cgd,
}
_SEARCHED: dict[str, Callable[..., Factorization]] = {
    "toeplitz": toeplitz_optimum,
    "banded": banded_optimum,
    "blt": blt_optimum,
    "epoch-restarts": epoch_restarts,
}
_OPTIMAL: dict[str, Callable[..., Objective]] = {
    "dp-mf": _mean,
    "dp-mf+": _restarts,
    "damped": _damped,
    "curvature": _curvature,
    "optimal": lambda workload, *, objective=None: _objective(objective),
}
SEARCH_OPTIONS = ("tolerance", "buffers")  # of the optimal designs
SHOWN_OPTIONS = {"dp-mf+": ("tau",), "damped": ("rho", "final_weight")}


# ---- checked arguments -------------------------------------------------------------------------


def _mechanism(name: Any) -> Callable[..., Any]:
    mechanisms: dict[str, Callable[..., Any]] = {**_CLOSED_FORM, **_SEARCHED, **_OPTIMAL}
    if not isinstance(name, str):
        raise TypeError(f"name = {name!r} must be a string, one of {', '.join(mechanisms)}")
    if name not in mechanisms:
        raise ValueError(
            f"name = {name!r} must be one of {', '.join(mechanisms)}"
            f"{check.suggestion(name, mechanisms)}"
        )
    return mechanisms[name]


def _objective(objective: Any) -> Objective:
    if objective is None:
        return Average()
    if isinstance(objective, str):
        check.choice("objective", objective, tuple(NAMED_OBJECTIVES))
        return NAMED_OBJECTIVES[objective]
    checked: Objective = check.instance("objective", objective, Objective)
    return checked


def _workload(steps: int | None, workload: Workload | None) -> Workload:
    if workload is None:
        if steps is None:
            raise TypeError("steps = None: give the number of steps, or a workload")
        return Workload.sgd(steps)
    check.instance("workload", workload, Workload)
    if steps is not None and check.whole_number("steps", steps) != workload.steps:
        raise ValueError(f"steps = {steps}, but the workload has {workload.steps}; leave steps out")
    return workload


def _participation(steps: int, epochs: int, participation: Participation | None) -> Participation:
    if participation is None:
        return from_epochs(steps, epochs)
    check.instance("participation", participation, Participation)
    if epochs != 1:
        raise ValueError(
            f"epochs = {epochs} and participation = {participation!r} exclude each other; give one"
        )
    participation.patterns(steps)  # refuses a participation that does not cover the steps
    return participation
