"""What a comparison shows, in sentences: which mechanism is best, and which batches each needs."""

from __future__ import annotations

from antiphase.comparison.candidates import no_poisson_reason
from antiphase.comparison.result import Comparison, Entry

RANDOM = "random batches, drawn anew and in secret in every step"
REQUIREMENTS = {
    "poisson": f"true Poisson sampling: {RANDOM}",
    "cyclic-poisson": f"true Poisson sampling within each group: {RANDOM}",
    "balls-in-bins": "a random assignment of records to batches, kept secret",
}


def conclusion(comparison: Comparison) -> str:
    """Which mechanism leaves least noise in the final model, against DP-SGD of both kinds.

    DP-SGD on Poisson batches comes first, then DP-SGD in a fixed order.
    """
    entries = comparison.entries
    best = min(entries, key=lambda entry: entry.final)
    if len(entries) > 1 and max(entry.final for entry in entries) <= best.final * (1 + 1e-9):
        return "All of them leave the same noise in the final model."
    sentence = f"{best.label} leaves least noise in the final model{_relative(comparison, best)}."
    ordinary = [entry for entry in entries if not entry.amplified]
    if best.amplified and ordinary:
        least = min(ordinary, key=lambda entry: entry.final)
        sentence += (
            f" On ordinary batches {least.label} leaves least{_relative(comparison, least)}."
        )
    return sentence


def batches_needed(comparison: Comparison) -> str:
    """Which batches the rows need; why DP-SGD on Poisson batches is missing, if it is."""
    sentences = [
        f"Rows with {sampling.label} need {REQUIREMENTS[sampling.name]}."
        for sampling in {e.mechanism.sampling: None for e in comparison.entries if e.amplified}
    ]
    rest = "All other rows" if sentences else "All rows"
    if not all(entry.amplified for entry in comparison.entries):
        sentences.append(f"{rest} work with ordinary batches in a fixed order.")
    if reason := no_poisson_reason(comparison.setting):
        sentences.append(f"DP-SGD on Poisson batches is not compared: {reason}.")
    return " ".join(sentences)


def _relative(comparison: Comparison, entry: Entry) -> str:
    """Noise relative to DP-SGD on Poisson batches and then in a fixed order.

    Returns:
        For example ``": 31% of that of DP-SGD (Poisson batches), at the same privacy"``.
    """
    rivals = {
        "DP-SGD (Poisson batches)": comparison.dp_sgd("poisson"),
        "DP-SGD in a fixed order": comparison.dp_sgd("fixed-order"),
    }
    shares = [
        f"{entry.final / rival.final:.0%} of that of {name}"
        for name, rival in rivals.items()
        if rival is not None and rival is not entry
    ]
    return f": {' and '.join(shares)}, at the same privacy" if shares else ""
