"""``antiphase audit``: is a training as private as it claims, seen from outside?"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphase.cli import console
from antiphase.cli.console import Delta, Epsilon, Json, Quiet, misused, out

if TYPE_CHECKING:
    from antiphase.auditing import AuditResult, Claim


def audit(
    target: Annotated[
        str,
        typer.Argument(
            help="A mechanism file, or a function as in train.py:scores.", show_default=False
        ),
    ],
    mu: Annotated[
        float | None, typer.Option(help="What is claimed: μ of Gaussian privacy.")
    ] = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    statement: Annotated[
        Path | None, typer.Option("--statement", help="Or a statement in JSON that claims it.")
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(help="With the canary, and as many without.", min=20, show_default="8000"),
    ] = None,
    one_run: Annotated[
        bool, typer.Option("--one-run", help="One training with many canaries instead.")
    ] = False,
    canaries: Annotated[
        int | None, typer.Option(help="With --one-run: how many.", min=2, show_default="4000")
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(help="That an alarm is none by chance: 0.999999, with --one-run 0.999."),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option("--figure", help="Draw what was found beside what was claimed.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Look for a record in many trainings with and without it, and compare what is found with what is claimed.

    TARGET is a mechanism file, whose own noise is audited; or a function in a Python file: scores(canary, count) makes
    count trainings with or without a canary and returns a score for each, larger where it seems to be there. With
    --one-run it is scores(included): one training with those canaries that the array says, a score for each canary.
    Exit code 0: no alarm, which proves nothing; 1: the claim is false; 2: there was no audit, as where scores raises.

    Example: antiphase audit plan.antiphase
    """
    from antiphase import auditing
    from antiphase.auditing.many_trials import TRIALS
    from antiphase.auditing.one_run import CANARIES

    if one_run and trials is not None:
        raise misused("--trials is for many trainings, and --one-run makes one: give --canaries")
    if canaries is not None and not one_run:
        raise misused("--canaries is for --one-run: many trainings have one canary; give --trials")
    console.check_output(figure)
    options: dict[str, Any] = {} if confidence is None else {"confidence": confidence}
    scores, claim = _prepared(target, _claimed(mu, epsilon, delta, statement), one_run)
    found: auditing.TrialAudit | auditing.OneRunAudit
    with console.bar(
        quiet or as_json, "{task.completed:.0f} of {task.total:.0f} trials"
    ) as progress:
        if one_run:
            progress.add_task("training once", total=None)
            found = auditing.audit_one_run(scores, claim, canaries=canaries or CANARIES, **options)
        else:
            trials = trials or TRIALS
            task = progress.add_task("auditing", total=2 * trials)
            found = auditing.audit(
                scores,
                claim,
                trials=trials,
                progress=lambda now: progress.update(task, completed=2 * now.done),
                **options,
            )
            if found.trials < trials:
                console.warn(
                    f"stopped by Ctrl-C after {found.trials} of {trials} trials, for which this holds"
                )
    if as_json:
        print(found.to_json())
    else:
        print(found)
    if figure is not None:
        _draw(found, figure, quiet or as_json)
    if found.alarm:
        raise typer.Exit(console.NO)


def _claimed(
    mu: float | None, epsilon: float | None, delta: float | None, statement: Path | None
) -> Claim | None:
    from antiphase import auditing
    from antiphase.verification import read_statement

    if sum(value is not None for value in (mu, epsilon, statement)) > 1:
        raise misused("give one of --mu, --epsilon and --statement")
    if (epsilon is None) != (delta is None):
        raise misused("--epsilon and --delta belong together")
    if mu is not None:
        return auditing.GaussianClaim(mu)
    if epsilon is not None and delta is not None:
        return auditing.ApproximateClaim(epsilon, delta)
    return auditing.claim_of(read_statement(statement)) if statement is not None else None


def _prepared(target: str, claim: Claim | None, one_run: bool) -> tuple[Any, Claim]:
    """What makes the trials, and what is claimed of it."""
    import antiphase as ap
    from antiphase import auditing

    file, colon, name = target.rpartition(":")
    if colon and Path(file).suffix == ".py":
        if claim is None:
            raise misused("say what is claimed: --mu, --epsilon and --delta, or --statement")
        function = _function(Path(file), name)
        _check_arguments(target, function, one_run)
        return _theirs(target, function), claim
    mechanism = ap.load(target)
    if not isinstance(mechanism, ap.Mechanism):
        raise ValueError(
            f"{target} holds a design that is not calibrated, and claims nothing; first: antiphase calibrate {target} "
            "--epsilon … --delta … -o …"
        )
    made = auditing.MechanismTrials(mechanism)
    return made.one_run if one_run else made, auditing.claim_of(
        mechanism
    ) if claim is None else claim


def _function(file: Path, name: str) -> Callable[..., Any]:
    """``name`` of a Python file, which is run for it."""
    if not file.is_file():
        raise FileNotFoundError(f"{file}: there is no such file")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    sys.modules[file.stem] = module  # where dataclasses look for it
    _theirs(str(file), spec.loader.exec_module)(module)
    function: object = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{file} has no function {name!r}")
    return function


def _theirs(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which is the user's, and so is what it raises. If it ends the process, that is no answer either."""

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (Exception, SystemExit) as error:
            raise console.TheirError(
                f"{name} raised {type(error).__name__}; there was no audit"
            ) from error

    return call


def _check_arguments(target: str, function: Callable[..., Any], one_run: bool) -> None:
    """Refuse a function of one run for many trials, and the other way round, before any training."""
    if _takes(function, 1 if one_run else 2):
        return
    called = "(included)" if one_run else "(canary, count)"
    remedy = ""
    if _takes(function, 2 if one_run else 1):
        remedy = (
            "; for many trainings, leave --one-run out"
            if one_run
            else "; for one training, say --one-run"
        )
    raise misused(f"{target} cannot be called with {called}{remedy}")


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # it does not say what it takes
        return True
    return True


def _draw(found: AuditResult, path: Path, quiet: bool) -> None:
    from antiphase.reporting import figures
    from antiphase.reporting.charts import roc

    paths = figures.draw(path, roc(found.roc, found.claim.min_false_negatives, str(found.claim)))
    if not quiet:
        for written in paths:
            out.print(f"Written to {written}")
