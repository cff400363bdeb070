"""A seeded sample of mutants, stratified by file."""

import hashlib
import math

LEAST = 5  # of each file that has as many


def sample(mutants, size, seed):
    """`size` of the mutants, from each file in proportion to how many it has, `LEAST` at least.

    Args:
        mutants: {file: its mutants}.
        size: how many to take; all of them if there are no more.
        seed: the same seed takes the same mutants. A file that changes costs the others few.

    Returns:
        {file: those taken, in the order of their lines}.
    """
    sizes = shares({file: len(those) for file, those in mutants.items()}, size)
    return {file: _drawn(those, sizes[file], seed) for file, those in mutants.items()}


def shares(counts, size):
    """How many to take of each file: proportional shares, rounded to the largest remainders."""
    least = {file: min(LEAST, count) for file, count in counts.items()}
    size = max(min(size, sum(counts.values())), sum(least.values()))
    rate = _rate(counts, least, size)
    exact = {file: min(max(rate * counts[file], least[file]), counts[file]) for file in counts}
    taken = {file: math.floor(share + 1e-9) for file, share in exact.items()}
    by_remainder = sorted(counts, key=lambda file: (taken[file] - exact[file], file))
    for file in by_remainder[: size - sum(taken.values())]:
        taken[file] += 1
    return taken


def _rate(counts, least, size):
    """The share of every file at which the sizes, none below its least, add up to `size`."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        total = sum(max(middle * count, least[file]) for file, count in counts.items())
        low, high = (middle, high) if total <= size else (low, middle)
    return high if size >= sum(counts.values()) else low


def _drawn(mutants, count, seed):
    """Those whose hashes are smallest: what else the file holds does not matter."""
    seen, ranks = {}, []
    for number, mutant in enumerate(mutants):
        seen[mutant.name] = seen.get(mutant.name, 0) + 1  # the same line may stand in two places
        text = "\0".join([str(seed), *mutant.name, str(seen[mutant.name])])
        ranks.append((hashlib.sha256(text.encode()).digest(), number))
    return [mutants[number] for number in sorted(number for _, number in sorted(ranks)[:count])]
