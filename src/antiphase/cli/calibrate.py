"""``antiphase calibrate``: from ε to the noise multiplier, or back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

import antiphase as ap
from antiphase.cli import options, output
from antiphase.cli.design import sampling_fact
from antiphase.cli.errors import usage_error
from antiphase.factorizations.base import Factorization
from antiphase.statement import rounded_up


def calibrate(
    file: Annotated[Path | None, Argument(help="A design to calibrate.")] = None,
    *,
    calibration: options.Calibration,
    sampling: options.BatchSampling,
    steps: Annotated[int | None, Option(help="Steps of DP-SGD, without a file.", min=1)] = None,
    output_file: Annotated[Path | None, Option("--output", "-o", help="File to write.")] = None,
    as_json: options.Json = False,
) -> None:
    """Calibrate a design to ε, or compute its ε.

    The noise multiplier follows from ε, or ε from the noise multiplier. FILE is a design, or a
    mechanism to calibrate anew; without one, the result is for a single release.

    Example: antiphase calibrate --epsilon 8 --delta 1e-6
    """
    if sampling.sampling_rate is not None and sampling.sampler is None:
        sampling = replace(sampling, sampler="poisson")
    sampling.require_rate()
    options.require_writable(output_file)
    if not calibration.given:
        raise usage_error("give --epsilon or --noise-multiplier; the other follows")
    if calibration.delta is None:
        raise usage_error("--delta is needed: well below one over the number of records")
    if file is None:
        f = _single_release(steps, sampling.sampling_rate, output_file)
    else:
        f = _design(file, steps)
    mechanism = ap.calibrate(f, **calibration.arguments(), **sampling.arguments())
    digest = None if output_file is None else mechanism.save(output_file)
    if as_json:
        output.print_json(_to_dict(mechanism) | {"file": output_file, "digest": digest})
        return
    output.print_facts(_facts(mechanism, with_design=file is not None))
    if output_file is not None:
        output.print_text(f"\nWritten to {output_file} (mechanism, {mechanism.digest[:16]}…)")
    output.print_glossary(quiet=False)


def _single_release(
    steps: int | None, sampling_rate: float | None, output_file: Path | None
) -> Factorization:
    """Return the design without a file: one release, or steps of DP-SGD on Poisson batches."""
    if output_file is not None:
        raise usage_error("--output needs a design to calibrate: antiphase calibrate FILE …")
    if steps is not None and sampling_rate is None:
        raise usage_error("--steps without a file needs --sampling-rate")
    if sampling_rate is not None and steps is None:
        raise usage_error("--sampling-rate needs --steps")
    return ap.design("dp-sgd", steps=steps or 1)


def _design(file: Path, steps: int | None) -> Factorization:
    if steps is not None:
        raise usage_error(f"--steps is known from {file}")
    loaded = ap.load(file)
    return loaded.factorization if isinstance(loaded, ap.Mechanism) else loaded


def _to_dict(mechanism: ap.Mechanism) -> dict[str, Any]:
    return {
        "epsilon": mechanism.epsilon(),
        "delta": mechanism.target_delta,
        "noise_multiplier": mechanism.noise_multiplier,
        "clip_norm": mechanism.clip_norm,
        "sensitivity": mechanism.sensitivity,
        "noise_scale": mechanism.noise_scale,
        "mu": mechanism.mu(),
        "rho": mechanism.rho(),
        "adjacency": mechanism.adjacency,
        "sampler": mechanism.sampling.name,
        "sampling_rate": mechanism.sampling.rate,
    }


def _facts(mechanism: ap.Mechanism, with_design: bool) -> dict[str, str]:
    epsilon, delta = rounded_up(mechanism.epsilon()), mechanism.target_delta
    facts = {
        "ε": f"{epsilon} at δ = {delta:g} ({mechanism.adjacency})",
        "noise multiplier": f"{mechanism.noise_multiplier:.8g}",
    }
    facts |= sampling_fact(mechanism)
    if with_design:
        facts["sensitivity"] = f"{mechanism.sensitivity:.6g}"
        facts["noise"] = (
            f"standard deviation {mechanism.noise_scale:.6g} before correlation, at clip norm "
            f"{mechanism.clip_norm:g}"
        )
    mu, rho = mechanism.mu(), mechanism.rho()
    if mu is not None and rho is not None:
        facts["also"] = f"{rounded_up(mu)}-GDP, {rounded_up(rho)}-zCDP"
    return facts
