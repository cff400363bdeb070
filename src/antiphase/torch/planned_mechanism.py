"""The mechanism of a training: designed if it is given by name, calibrated, and logged."""

from __future__ import annotations

import logging
import math
import os
import time
from pathlib import Path
from typing import Any

from antiphase._util import checks as check
from antiphase._util.checks import parse_memory
from antiphase._util.progress import QUIET_SECONDS, TextBar
from antiphase.comparison.noise_cost import kept_bytes, padded, redraws, row_seconds
from antiphase.design import design, designs, options_for
from antiphase.factorizations.base import Factorization
from antiphase.mechanism import Mechanism, calibrate, load
from antiphase.torch.distributed import Group
from antiphase.torch.plan import TrainingPlan
from antiphase.torch.request import Request
from antiphase.torch.user_warnings import warn

log = logging.getLogger("antiphase")

MAX_ROW_SECONDS = 1.0  # for a row of dense noise, as estimated; beyond, a stream is preferred
BUFFERS = (8, 4, 2)  # of that stream, as many as fit the memory
# Of one core, for every number of a row. Estimated and not measured: a run that is resumed must
# choose the same design.
SECONDS_PER_PRODUCT = 1.5e-11
SECONDS_PER_NORMAL = 1.5e-9
DESIGN_SECONDS = 8.0  # of a dense design for 1,000 steps; grows with the power 2.5 of the steps


def checked_mechanism(
    mechanism: Any, design_options: dict[str, Any]
) -> str | Factorization | Mechanism:
    """The mechanism of an engine; a file is read.

    Args:
        mechanism: a name, a path, a factorization or a mechanism.
        design_options: options of a design that is given by name.

    Raises:
        ValueError: if there is no such design.
        TypeError: if it is none of these, or there is no such option.
    """
    if isinstance(mechanism, os.PathLike) or (
        isinstance(mechanism, str) and Path(mechanism).suffix
    ):
        mechanism = load(mechanism)
    if isinstance(mechanism, str):
        known: Any = (*designs(),)
        check.choice("mechanism", mechanism, known)
        known = options_for(mechanism)
        for name in sorted(set(design_options) - set(known)):
            raise TypeError(
                f"{name} = {design_options[name]!r}: PrivacyEngine has no such argument, and "
                f"{mechanism} no such option; it takes {', '.join(known)}"
                f"{check.suggestion(name, known)}"
            )
        return mechanism
    if not isinstance(mechanism, Factorization | Mechanism):
        raise TypeError(
            f"mechanism = {mechanism!r} must be the name of a design, the path of a file, a "
            f"Factorization or a Mechanism, not {type(mechanism).__name__}"
        )
    if design_options:
        raise TypeError(
            f"{', '.join(sorted(design_options))}: options are for designs by name, and this one "
            "is made already. Give them to antiphase.design"
        )
    return mechanism


def planned_mechanism(
    requested: str | Factorization | Mechanism,
    design_options: dict[str, Any],
    plan: TrainingPlan,
    request: Request,
) -> Mechanism:
    """The calibrated mechanism of a plan, designed for it if it is given by name.

    Where dense noise would take too long or too much memory, a stream of few buffers is designed
    instead, with a warning that says what it costs in noise.

    Args:
        requested: the name of a design, a factorization, or a mechanism, which must fit.
        design_options: options of the design.
        plan: steps, workload and participation.
        request: has clip norm, noise multiplier or (ε, δ).

    Raises:
        ValueError: if a given mechanism has another noise multiplier or clip norm, or the noise
            does not fit the memory.
        TypeError: unless exactly one of noise multiplier and ε is given.
    """
    epsilon, noise_multiplier = request.target_epsilon, request.noise_multiplier
    clip_norm = _clip_norm(request.max_grad_norm)
    if isinstance(requested, Mechanism):
        if epsilon is not None:
            raise ValueError(
                f"target_epsilon = {epsilon}: the mechanism has its noise multiplier already. "
                "Leave target_epsilon out, or give the factorization alone: mechanism.factorization"
            )
        same_noise = noise_multiplier in (None, requested.noise_multiplier)
        if not same_noise or clip_norm != requested.clip_norm:
            raise ValueError(
                f"noise_multiplier = {noise_multiplier}, max_grad_norm = {clip_norm:g}: the "
                f"mechanism has {requested.noise_multiplier:g} and {requested.clip_norm:g}. Leave "
                "noise_multiplier out, and give that clip norm"
            )
        mechanism = requested
    else:
        if (noise_multiplier is None) == (epsilon is None):
            raise TypeError(
                f"noise_multiplier = {noise_multiplier}, target_epsilon = {epsilon}: give one of "
                "the two, the other follows"
            )
        factorization = requested
        if isinstance(factorization, str):
            factorization = _designed(factorization, design_options, plan, request)
        mechanism = calibrate(
            factorization,
            epsilon=epsilon,
            delta=request.target_delta,
            noise_multiplier=noise_multiplier,
            clip_norm=clip_norm,
        )
    _check_cost(mechanism, request)
    return mechanism


def _clip_norm(max_grad_norm: float | list[float]) -> float:
    if isinstance(max_grad_norm, list | tuple):
        # PRIVACY: with one norm for each tensor, an example moves the sum by their norm.   [G16]
        return math.sqrt(sum(norm * norm for norm in max_grad_norm))
    return float(max_grad_norm)


def _designed(
    name: str, options: dict[str, Any], plan: TrainingPlan, request: Request
) -> Factorization:
    """The design of this name, or a stream in its place."""
    problem: dict[str, Any] = {"workload": plan.workload, "participation": plan.participation}
    seconds = DESIGN_SECONDS * (plan.steps / 1000) ** 2.5
    is_long = plan.participation.max_participations > 1 and seconds >= QUIET_SECONDS
    log.info(
        "%s: noise for %d steps (%s)%s",
        name,
        plan.steps,
        plan.participation.describe(),
        f"; if the design is dense, it can take about {seconds:.0f} s" if is_long else "",
    )
    began = time.perf_counter()
    with TextBar(f"designing {name}", request.progress) as bar:
        best = design(name, **problem, **options, progress=bar)
    gap = f", certified gap {best.gap:.0e}" if best.is_certified else ""
    log.info("%s: designed in %.1f s%s", name, time.perf_counter() - began, gap)
    reason = _too_costly(best, request) if "buffers" in options_for(name) else ""
    if not reason or "buffers" in options:
        return best
    memory, parameters = parse_memory(request.memory), _parameters(request)
    for buffers in (n for n in BUFFERS if 4 * n * parameters <= memory):
        try:
            with TextBar(f"designing {name} with {buffers} buffers", request.progress) as bar:
                stream = design(name, **problem, **options, buffers=buffers, progress=bar)
        except ValueError:  # the design has no form with few buffers
            break
        if kept_bytes(stream, parameters) <= memory:
            excess = math.sqrt(stream.error / best.lower_bound) - 1
            warn(
                f"{name}: {reason}. A stream of {buffers} buffers is used instead, with noise at "
                f"most {excess:.1%} above the best possible (certified). To choose the form: "
                f'PrivacyEngine(mechanism="{name}", buffers=…), a number or "auto"'
            )
            return stream
    return best


def _too_costly(factorization: Factorization, request: Request) -> str:
    """Why rows of this noise cost too much; empty if they do not."""
    if not redraws(factorization):
        return ""
    parameters, memory = _parameters(request), parse_memory(request.memory)
    rows = memory // (4 * parameters) // 4 * 4
    if not rows:
        return f"dense noise does not fit into memory = {request.memory}"
    steps = max(len(block) for _, block in factorization.diagonal_blocks())
    seconds = parameters * steps * (SECONDS_PER_PRODUCT + SECONDS_PER_NORMAL / min(rows, steps))
    if seconds <= MAX_ROW_SECONDS:
        return ""
    return f"dense noise would take about {seconds:.2g} s of one core for every step"


def _parameters(request: Request) -> int:
    """Numbers in a row of noise, each tensor padded."""
    trained = (p for group in request.optimizer.param_groups for p in group["params"])
    return sum(padded(p.numel()) for p in trained if p.requires_grad)


def _check_cost(mechanism: Mechanism, request: Request) -> None:
    """Refuse noise that does not fit the memory, and log what it costs."""
    parameters, memory = _parameters(request), parse_memory(request.memory)
    name = mechanism.factorization.name
    kept = kept_bytes(mechanism.factorization, parameters)
    least = 16 * parameters if redraws(mechanism.factorization) else kept
    if least > memory and Group.current().world == 1:
        raise ValueError(
            f"memory = {request.memory!r}: the noise of {name} keeps {least / 1e6:.3g} MB from "
            "step to step for this model. Give at least that, or a mechanism that keeps less"
        )
    if log.isEnabledFor(logging.INFO):  # so that the time is measured only if somebody listens
        log.info(
            "%s: noise multiplier %.4g, clip norm %g; the noise of %s numbers keeps %.3g MB from "
            "step to step and takes about %.2g s for each step",
            name,
            mechanism.noise_multiplier,
            mechanism.clip_norm,
            f"{parameters:,}",
            min(kept, memory) / 1e6,
            row_seconds(mechanism, parameters, min(kept, memory)),
        )
