"""The setting that ``antiphase compare`` and ``antiphase recommend`` are given as options."""

from __future__ import annotations

from antiphase.cli import options
from antiphase.cli.errors import usage_error
from antiphase.comparison import Setting, fixed_order_rate


def setting_from(
    length: options.Epochs,
    budget: options.Budget,
    sampling: options.BatchSampling,
    optimizer: options.Optimizer,
    parameters: int,
) -> Setting:
    """Return the setting that the options describe."""
    sampling.require_no_stray_rate()
    participation = length.participation()
    scheme = sampling.scheme(fixed_order_rate(participation, length.steps))
    if scheme.amplifies and not budget.given:
        raise usage_error(
            f"--sampler {sampling.sampler} needs --epsilon and --delta: amplification depends on "
            "them"
        )
    return Setting(
        optimizer.workload(length.steps),
        participation,
        epsilon=budget.epsilon,
        delta=budget.delta,
        adjacency=sampling.adjacency,
        parameters=parameters,
        sampling=scheme,
    )
