"""``antiphase calibrate``, ``statement`` and ``verify``: what is promised, and whether it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from antiphase.cli import console
from antiphase.cli.console import Adjacency, Clip, Delta, Epsilon, Json, Multiplier, err, out

File = Annotated[Path, typer.Argument(help="A mechanism file.", show_default=False)]


def calibrate(
    file: Annotated[Path | None, typer.Argument(help="A design to calibrate; without one, a single release.")] = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    noise_multiplier: Multiplier = None,
    clip: Clip = 1.0,
    adjacency: Adjacency = "zero-out",
    sampling_rate: Annotated[
        float | None, typer.Option(help="Poisson batches (dp-sgd alone): a record's chance to be in one.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="With --sampling-rate and no file: how many steps.", min=1)] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File for the calibrated mechanism.")] = None,
    as_json: Json = False,
) -> None:
    """From ε to the noise multiplier, or back; with a design, from that to a mechanism.

    Example: antiphase calibrate --epsilon 8 --delta 1e-6
    """
    import antiphase as ap
    from antiphase.statement import rounded_up

    if (epsilon is None) == (noise_multiplier is None):
        raise typer.BadParameter("give one of --epsilon and --noise-multiplier; the other follows")
    if delta is None:
        raise typer.BadParameter("--delta is yours to choose, well below one over the number of records")
    if file is None:
        if output is not None:
            raise typer.BadParameter("--output needs a design to calibrate: antiphase calibrate FILE …")
        if steps is not None and sampling_rate is None:
            raise typer.BadParameter("--steps without a file is for --sampling-rate; a whole plan is one release")
        if sampling_rate is not None and steps is None:
            raise typer.BadParameter("--sampling-rate needs --steps")
        design: Any = ap.design("dp-sgd", steps=steps or 1)
    else:
        if steps is not None:
            raise typer.BadParameter(f"--steps is known from {file}")
        design = ap.load(file)
        if isinstance(design, ap.Mechanism):
            design = design.factorization
    promise: dict[str, Any] = {"clip_norm": clip, "adjacency": adjacency}
    if sampling_rate is not None:
        promise |= {"sampler": "poisson", "sampling_rate": sampling_rate}
    m = ap.calibrate(design, epsilon=epsilon, delta=delta, noise_multiplier=noise_multiplier, **promise)
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
    if file is not None:
        rows["sensitivity"] = f"{m.sensitivity:.6g}"
        rows["noise"] = f"standard deviation {m.noise_scale:.6g} before correlation, at clip norm {clip:g}"
    gdp, zcdp = m.mu(), m.rho()
    if gdp is not None and zcdp is not None:
        rows["also"] = f"{rounded_up(gdp)}-GDP, {rounded_up(zcdp)}-zCDP"
    out.print(console.facts(rows))
    if output is not None:
        out.print(f"\nWritten to {output} (mechanism, {m.digest[:16]}…)")


def statement(
    file: File,
    delta: Delta = None,
    released: Annotated[int | None, typer.Option(help="How many rows have been released so far.", min=0)] = None,
    as_json: Json = False,
) -> None:
    """What a mechanism promises, in words, or as JSON that anybody can re-derive.

    Example: antiphase statement plan.antiphase
    """
    mechanism = _mechanism(file)
    made = mechanism.statement(delta, released=released)
    print(made.to_json() if as_json else made)


def verify(
    file: File,
    statement: Annotated[
        Path | None, typer.Option("--statement", help="A statement in JSON that is to match it.")
    ] = None,
    delta: Delta = None,
    full: Annotated[bool, typer.Option("--full", help="Solve for the bound again, too: may take long.")] = False,
    as_json: Json = False,
) -> None:
    """Check that a mechanism file is what it claims: sensitivity, noise and ε computed again, by other ways.

    Example: antiphase verify plan.antiphase
    """
    import antiphase as ap
    from antiphase import verification

    loaded = ap.load(file)
    claims = verification.read_statement(statement) if statement is not None else None
    checks = verification.verify(loaded, claims, delta=delta, full=full)
    good = all(check.holds for check in checks)
    if as_json:
        console.print_json({"file": str(file), "holds": good, "checks": [vars(check) for check in checks]})
    else:
        for check in checks:
            mark = "[green]holds[/]" if check.holds else "[bold red]FAILS[/]"
            out.print(f"{mark}  {check.what}: claimed {check.claimed}; found {check.found}")
        if good:
            out.print(f"{file}: all {len(checks)} checks hold.")
    if not good:
        err.print(f"[bold red]refused:[/] {file} is not what it claims to be. Do not train with it.")
        raise typer.Exit(1)


def _mechanism(file: Path) -> Any:
    import antiphase as ap

    loaded = ap.load(file)
    if not isinstance(loaded, ap.Mechanism):
        raise ValueError(
            f"{file}: holds a design that is not calibrated yet, and promises nothing; first: antiphase calibrate "
            f"{file} --epsilon … --delta … -o …"
        )
    return loaded
