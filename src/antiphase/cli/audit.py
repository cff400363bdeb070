"""``antiphase audit``: look for evidence that a training is less private than claimed."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from typer import Argument, Option

from antiphase import auditing
from antiphase.auditing import AuditResult, Claim
from antiphase.auditing.many_trials import TRIALS
from antiphase.auditing.one_run import CANARIES
from antiphase.cli import errors, options, output
from antiphase.cli.errors import UserCodeError, usage_error
from antiphase.cli.progress import progress_bar
from antiphase.cli.statement import load_calibrated
from antiphase.reporting.charts import roc
from antiphase.verification import read_statement


def audit(
    target: Annotated[
        str, Argument(help="A mechanism file, or FILE.py:FUNCTION.", show_default=False)
    ],
    *,
    mu: Annotated[float | None, Option(help="Claim: μ of Gaussian privacy.")] = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    statement: Annotated[Path | None, Option(help="Claim: a statement in JSON.")] = None,
    trials: Annotated[
        int | None, Option(help="Trainings with the canary (8000).", min=20, show_default=False)
    ] = None,
    one_run: Annotated[bool, Option("--one-run", help="One training, many canaries.")] = False,
    canaries: Annotated[
        int | None, Option(help="Canaries of --one-run (4000).", min=2, show_default=False)
    ] = None,
    confidence: Annotated[
        float | None, Option(help="Confidence of an alarm (0.999999; one run: 0.999).")
    ] = None,
    figure: Annotated[Path | None, Option(help="Draw the trade-offs found and claimed.")] = None,
    display: options.Display,
) -> None:
    """Test a privacy claim by an attack.

    A training is attacked, and the privacy loss found is compared with the claim.
    TARGET is a mechanism file, whose own noise is audited; or a function in a Python file:
    scores(canary, count) makes count trainings with or without a canary and returns a score for
    each, larger where the canary seems to be present. With --one-run it is scores(included): one
    training with the canaries that the array includes, and a score for each canary.
    Exit code 0: no alarm, which proves nothing; 1: the claim is false; 2: there was no audit, as
    where scores raises.

    Example: antiphase audit plan.antiphase
    """
    if one_run and trials is not None:
        raise usage_error(
            "--trials is for many trainings, and --one-run makes one: give --canaries"
        )
    if canaries is not None and not one_run:
        raise usage_error(
            "--canaries is for --one-run: many trainings have one canary; give --trials"
        )
    options.require_writable(figure)
    level: dict[str, Any] = {} if confidence is None else {"confidence": confidence}
    scores, claim = _scores_and_claim(target, _claim(mu, epsilon, delta, statement), one_run)
    if one_run:
        with progress_bar(display.silent, "training once"):
            result: AuditResult = auditing.audit_one_run(
                scores, claim, canaries=canaries or CANARIES, **level
            )
    else:
        result = _audit(scores, claim, trials or TRIALS, level, display.silent)
    print(result.to_json() if display.as_json else result)
    if figure is not None:
        _draw(result, figure, display.silent)
    if result.alarm:
        raise typer.Exit(errors.EXIT_NO)


def _audit(
    scores: Any, claim: Claim, trials: int, level: dict[str, Any], silent: bool
) -> auditing.TrialAudit:
    total = 2 * trials
    column = "{task.completed:.0f} of {task.total:.0f} trials"
    with progress_bar(silent, "auditing", column, total=total) as update:
        result = auditing.audit(
            scores,
            claim,
            trials=trials,
            progress=lambda now: update(completed=2 * now.done),
            **level,
        )
    if result.trials < trials:
        output.print_warning(
            f"interrupted by Ctrl-C; this is the result of {result.trials} of {trials} trials"
        )
    return result


def _claim(
    mu: float | None, epsilon: float | None, delta: float | None, statement: Path | None
) -> Claim | None:
    if sum(value is not None for value in (mu, epsilon, statement)) > 1:
        raise usage_error("give one of --mu, --epsilon and --statement")
    if (epsilon is None) != (delta is None):
        raise usage_error("--epsilon and --delta belong together")
    if mu is not None:
        return auditing.GaussianClaim(mu)
    if epsilon is not None and delta is not None:
        return auditing.ApproximateClaim(epsilon, delta)
    return auditing.claim_of(read_statement(statement)) if statement is not None else None


def _scores_and_claim(target: str, claim: Claim | None, one_run: bool) -> tuple[Any, Claim]:
    """Return the function that runs trainings and the claim about them."""
    file, colon, name = target.rpartition(":")
    if colon and Path(file).suffix == ".py":
        if claim is None:
            raise usage_error("give the claim: --mu, --epsilon and --delta, or --statement")
        function = _user_function(Path(file), name)
        _require_arguments(target, function, one_run)
        return _reporting_errors(target, function), claim
    if Path(target).suffix == ".py":
        raise usage_error(f"{target}: give a function of it, as in {target}:scores")
    mechanism = load_calibrated(target)
    trials = auditing.MechanismTrials(mechanism)
    scores = trials.one_run if one_run else trials
    return scores, auditing.claim_of(mechanism) if claim is None else claim


def _user_function(file: Path, name: str) -> Callable[..., Any]:
    """Run a Python file of the user and return its function ``name``."""
    if not file.is_file():
        raise FileNotFoundError(f"{file}: there is no such file")
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    sys.path.insert(0, str(file.parent))
    sys.modules[file.stem] = module  # dataclasses look it up
    code = _reporting_errors(str(file), compile)(file.read_bytes(), str(file), "exec")
    _reporting_errors(str(file), exec)(code, module.__dict__)
    function: object = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{file} has no function {name!r}")
    return function


def _reporting_errors(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that raises `UserCodeError` if ``function``, which is the user's, fails."""

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (Exception, SystemExit) as error:
            if error.__traceback__ is not None:
                error.__traceback__ = error.__traceback__.tb_next  # without this frame
            message = f"{name} raised {type(error).__name__}; there was no audit"
            raise UserCodeError(message) from error

    return call


def _require_arguments(target: str, function: Callable[..., Any], one_run: bool) -> None:
    """Refuse a function for many trainings with --one-run and vice versa, before any training."""
    count, other = (1, 2) if one_run else (2, 1)
    if _accepts(function, count):
        return
    arguments = "(included)" if one_run else "(canary, count)"
    remedy = ""
    if _accepts(function, other):
        remedy = "for many trainings, omit" if one_run else "for one training, give"
        remedy = f"; {remedy} --one-run"
    raise usage_error(f"{target} cannot be called with {arguments}{remedy}")


def _accepts(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a built-in function without a signature
        return True
    return True


def _draw(result: AuditResult, path: Path, silent: bool) -> None:
    from antiphase.reporting import figures

    paths = figures.draw(path, roc(result.roc, result.claim.min_false_negatives, str(result.claim)))
    if not silent:
        output.print_files(paths)
