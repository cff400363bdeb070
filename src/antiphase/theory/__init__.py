"""What theory has to say about a setting: which mechanism to take, and why."""

from antiphase.theory.bounds import (
    Bound,
    Bracket,
    Constants,
    anti_pgd_bound,
    chess_bound,
    convex_bound,
    fresh_nonconvex_bound,
    frobenius_rate,
    noise_bracket,
    nonconvex_bound,
    pgd_bound,
    plain_convex_bound,
    published_convex_bound,
)

__all__ = [
    "Bound",
    "Bracket",
    "Constants",
    "anti_pgd_bound",
    "chess_bound",
    "convex_bound",
    "fresh_nonconvex_bound",
    "frobenius_rate",
    "noise_bracket",
    "nonconvex_bound",
    "pgd_bound",
    "plain_convex_bound",
    "published_convex_bound",
]
