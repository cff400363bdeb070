"""Comparison of mechanisms at equal privacy: their noise, memory and time."""

from antiphase.comparison.candidates import (
    Candidate,
    Setting,
    default_candidates,
    dp_sgd_candidates,
    fixed_order_rate,
    require_setting,
)
from antiphase.comparison.conclusion import batches_needed, conclusion
from antiphase.comparison.evaluation import compare
from antiphase.comparison.result import Comparison, Entry, pareto_front

__all__ = [
    "Candidate",
    "Comparison",
    "Entry",
    "Setting",
    "batches_needed",
    "compare",
    "conclusion",
    "default_candidates",
    "dp_sgd_candidates",
    "fixed_order_rate",
    "pareto_front",
    "require_setting",
]
