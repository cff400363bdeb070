"""ε and the privacy statement of a planned training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from antiphase.statement import PrivacyStatement
from antiphase.torch import earlier_runs
from antiphase.torch.noise_run import NoiseRun
from antiphase.torch.wrapping import PrivateTraining


class PlanAccountant:
    """Takes the place of Opacus' accountant: ε follows from the plan, not from composition.

    Args:
        run: the noise of the training.
    """

    def __init__(self, run: NoiseRun) -> None:
        self._run = run

    def get_epsilon(self, delta: float, spent: bool = False, **_: Any) -> float:
        """ε of the whole plan and of runs that it replaced.

        Args:
            delta: δ of the guarantee.
            spent: whether to count the rows drawn so far instead of the whole plan.
        """
        run = self._run
        rows = run.drawn if spent else run.mechanism.steps
        return run.mechanism.epsilon_of_runs([*run.replaced_runs(), rows], delta)

    def __repr__(self) -> str:
        return f"<PlanAccountant {describe_run(self._run)}>"

    def __len__(self) -> int:
        return self._run.position

    @classmethod
    def mechanism(cls) -> str:
        """The name that Opacus asks an accountant for."""
        return "antiphase"

    def state_dict(self, *_: Any) -> dict[str, Any]:
        """Empty: the plan is saved by `PrivacyEngine.save_checkpoint`."""
        return {}

    def load_state_dict(self, _: Any) -> None:
        """Refuse: the plan is restored by `PrivacyEngine.load_checkpoint`."""
        raise ValueError("the plan is restored by PrivacyEngine.load_checkpoint")


def describe_run(run: NoiseRun) -> str:
    """Mechanism and progress of a training in a few words; nothing of the data or the key."""
    mechanism = run.mechanism
    insecure = ", INSECURE" if run.key.is_insecure else ""
    return (
        f"{mechanism.factorization.name}: {run.position} of {mechanism.steps} steps released, "
        f"noise multiplier {mechanism.noise_multiplier:.4g}, clip norm {mechanism.clip_norm:g}"
        f"{insecure}"
    )


def privacy_statement(training: PrivateTraining, delta: float | None) -> PrivacyStatement:
    """The privacy statement of a training, with its coverage and caveats."""
    release, mechanism = training.release, training.mechanism
    statement = mechanism.statement(delta, released=release.drawn, insecure=release.key.is_insecure)
    coverage = training.coverage
    participation = statement.participation
    if training.is_trusted:
        participation += ", on the user's word, not checked"
    statement = replace(
        statement,
        covered_tensors=coverage.tensors,
        covered_numbers=coverage.numbers,
        frozen_parameters=coverage.frozen,
        participation=participation,
        caveats=(*statement.caveats, *_caveats(training, statement.delta)),
    )
    if release.replaced_runs():
        accountant = PlanAccountant(release)
        statement = replace(
            statement,
            epsilon=accountant.get_epsilon(statement.delta),
            released_epsilon=accountant.get_epsilon(statement.delta, spent=True),
            mu=None,
            rho=None,
        )
    return statement


def _caveats(training: PrivateTraining, delta: float) -> list[str]:
    """What a reader of the statement should know of this training."""
    release, caveats = training.release, []
    if training.unchecked is not None:
        caveats.append(f"The gradient check was not made ({training.unchecked}).")
    if changes := training.unchanged_model.changes_between_steps:
        caveats.append(
            f"Code outside the private step changed parameters or buffers between steps, {changes} "
            "times."
        )
    if replaced := release.replaced_runs():
        caveats.append(
            f"{len(replaced)} earlier run(s) of the same data were given up and are accounted for."
        )
    if others := release.others_on_same_data():
        runs = [*replaced, training.mechanism.steps]
        epsilon = earlier_runs.combined_epsilon(training.mechanism, runs, others, delta)
        caveats.append(
            f"{len(others)} other training(s) under this key used the same data set and are not "
            f"part of the ε above: with this one, {earlier_runs.describe_combined(epsilon, delta)}."
        )
    return caveats
