"""Theory: convergence bounds, exact expectations on quadratics, spectra."""

from antiphase.theory.bounds import (
    Constants,
    ConvergenceBound,
    NoiseTerms,
    anti_pgd_bound,
    chess_bound,
    convex_bound,
    fresh_nonconvex_bound,
    frobenius_rate,
    noise_terms,
    nonconvex_bound,
    pgd_bound,
    plain_convex_bound,
    published_convex_bound,
)

__all__ = [
    "Constants",
    "ConvergenceBound",
    "NoiseTerms",
    "anti_pgd_bound",
    "chess_bound",
    "convex_bound",
    "fresh_nonconvex_bound",
    "frobenius_rate",
    "noise_terms",
    "nonconvex_bound",
    "pgd_bound",
    "plain_convex_bound",
    "published_convex_bound",
]
