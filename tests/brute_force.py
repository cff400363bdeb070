"""Sensitivity by brute force, for encoders small enough to try every pattern."""

import itertools

import numpy as np

from antiphase.participation import Epochs, MinSeparation, Once


def patterns(participation, steps):
    """Every set of steps that one record may take part in."""
    if isinstance(participation, Once):
        return [(i,) for i in range(steps)]
    if isinstance(participation, Epochs):
        return [
            tuple(range(j, steps, participation.every))
            for j in range(min(participation.every, steps))
        ]
    assert isinstance(participation, MinSeparation)
    out = []
    for size in range(1, participation.count + 1):
        for chosen in itertools.combinations(range(steps), size):
            if all(b - a >= participation.apart for a, b in itertools.pairwise(chosen)):
                out.append(chosen)
    return out


def best_signs(gram):
    """``max Σ s_i s_j X_ij`` over signs: one-dimensional gradients."""
    k = len(gram)
    signs = np.array(list(itertools.product([1.0], *[[-1.0, 1.0]] * (k - 1))))
    return np.einsum("si,ij,sj->s", signs, gram, signs).max()


def best_vectors(gram, rng, starts=6, rounds=40):
    """``max Σ ⟨u_i, u_j⟩ X_ij`` over unit vectors in R³, by coordinate ascent."""
    k = len(gram)
    u = rng.normal(size=(starts, k, 3))
    u /= np.linalg.norm(u, axis=2, keepdims=True)
    off = gram - np.diag(np.diagonal(gram))
    for _ in range(rounds):
        for i in range(k):
            pull = np.einsum("j,sjd->sd", off[i], u)
            norm = np.linalg.norm(pull, axis=1, keepdims=True)
            u[:, i] = np.where(norm > 0, pull / np.where(norm > 0, norm, 1), u[:, i])
    return np.einsum("sid,ij,sjd->s", u, gram, u).max()


def sensitivity(encoder, participation, rng, vectors=True):
    """The largest value over patterns, signs and unit vectors.

    It is never above the true sensitivity, and equal to it in most cases.
    """
    X = encoder.T @ encoder
    best = 0.0
    for pattern in patterns(participation, encoder.shape[1]):
        gram = X[np.ix_(pattern, pattern)]
        best = max(best, best_signs(gram))
        if vectors and len(pattern) > 2:
            best = max(best, best_vectors(gram, rng))
    return np.sqrt(best)
