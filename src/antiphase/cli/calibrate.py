"""``antiphase calibrate``, ``statement`` and ``verify``: what is promised, and whether it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from antiphase.cli import console
from antiphase.cli.console import (
    Adjacency,
    Clip,
    Delta,
    Epsilon,
    Json,
    Multiplier,
    Sampler,
    SamplingRate,
    misused,
    out,
)

File = Annotated[Path, typer.Argument(help="A mechanism file.", show_default=False)]


def calibrate(
    file: Annotated[
        Path | None, typer.Argument(help="A design to calibrate; without one, a single release.")
    ] = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    noise_multiplier: Multiplier = None,
    clip: Clip = 1.0,
    adjacency: Adjacency = "zero-out",
    sampler: Sampler = None,
    sampling_rate: SamplingRate = None,
    steps: Annotated[
        int | None, typer.Option(help="With --sampling-rate and no file: how many steps.", min=1)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File for the calibrated mechanism.")
    ] = None,
    as_json: Json = False,
) -> None:
    """From ε to the noise multiplier, or back; with a design, from that to a mechanism.

    FILE is a design to calibrate, or a mechanism to calibrate anew; without one, it is about a single release.

    Example: antiphase calibrate --epsilon 8 --delta 1e-6
    """
    import antiphase as ap
    from antiphase.statement import rounded_up

    console.check_promise(epsilon, delta, noise_multiplier)
    if sampling_rate is not None and sampler is None:
        sampler = "poisson"
    console.check_sampler(sampler, sampling_rate)
    console.check_adjacency(adjacency, sampled=sampler is not None)
    console.check_output(output)
    if epsilon is None and noise_multiplier is None:
        raise misused("give --epsilon or --noise-multiplier; the other follows")
    if delta is None:
        raise misused(
            "--delta is needed, and yours to choose: well below one over the number of records"
        )
    design = _single_release(steps, sampling_rate, output) if file is None else _design(file, steps)
    promise: dict[str, Any] = {"clip_norm": clip, "adjacency": adjacency}
    if sampler is not None:
        promise |= {"sampler": sampler, "sampling_rate": sampling_rate}
    m = ap.calibrate(
        design, epsilon=epsilon, delta=delta, noise_multiplier=noise_multiplier, **promise
    )
    digest = m.save(output) if output is not None else None
    result = {
        "epsilon": m.epsilon(),
        "delta": delta,
        "noise_multiplier": m.noise_multiplier,
        "clip_norm": clip,
        "sensitivity": m.sensitivity,
        "noise_scale": m.noise_scale,
        "mu": m.mu(),
        "rho": m.rho(),
        "adjacency": adjacency,
        "sampler": m.sampler,
        "sampling_rate": sampling_rate,
        "file": None if output is None else str(output),
        "digest": digest,
    }
    if as_json:
        console.print_json(result)
        return
    rows = {
        "ε": f"{rounded_up(m.epsilon())} at δ = {delta:g} ({adjacency})",
        "noise multiplier": f"{m.noise_multiplier:.8g}",
    }
    rows |= console.rests_on(m)
    if file is not None:
        rows["sensitivity"] = f"{m.sensitivity:.6g}"
        rows["noise"] = (
            f"standard deviation {m.noise_scale:.6g} before correlation, at clip norm {clip:g}"
        )
    gdp, zcdp = m.mu(), m.rho()
    if gdp is not None and zcdp is not None:
        rows["also"] = f"{rounded_up(gdp)}-GDP, {rounded_up(zcdp)}-zCDP"
    console.show(console.facts(rows))
    if output is not None:
        out.print(f"\nWritten to {output} (mechanism, {m.digest[:16]}…)")


# ---- inside ------------------------------------------------------------------------------------------------


def _single_release(steps: int | None, sampling_rate: float | None, output: Path | None) -> Any:
    """What is calibrated without a file: one release, or so many steps of DP-SGD on Poisson batches."""
    import antiphase as ap

    if output is not None:
        raise misused("--output needs a design to calibrate: antiphase calibrate FILE …")
    if steps is not None and sampling_rate is None:
        raise misused("--steps without a file is for --sampling-rate; a whole plan is one release")
    if sampling_rate is not None and steps is None:
        raise misused("--sampling-rate needs --steps")
    return ap.design("dp-sgd", steps=steps or 1)


def _design(file: Path, steps: int | None) -> Any:
    import antiphase as ap

    if steps is not None:
        raise misused(f"--steps is known from {file}")
    loaded = ap.load(file)
    return loaded.factorization if isinstance(loaded, ap.Mechanism) else loaded
