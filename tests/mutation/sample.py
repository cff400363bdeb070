"""A seeded sample of mutants, stratified by file."""

import hashlib
import math

MIN_PER_FILE = 5  # or all mutants of a file that has fewer


def sample(mutants, size, seed):
    """A sample of mutants, from each file in proportion to its number of mutants.

    Args:
        mutants: {file: its mutants}.
        size: the number of mutants to take; all of them if there are fewer.
        seed: the same seed takes the same mutants; a change of one file changes few of the others.

    Returns:
        {file: its mutants in the sample, in the order of their lines}.
    """
    sizes = shares({file: len(those) for file, those in mutants.items()}, size)
    return {file: _drawn(those, sizes[file], seed) for file, those in mutants.items()}


def shares(counts, size):
    """The number of mutants to take of each file, by largest remainders."""
    least = {file: min(MIN_PER_FILE, count) for file, count in counts.items()}
    size = max(min(size, sum(counts.values())), sum(least.values()))
    rate = _rate(counts, least, size)
    exact = {file: min(max(rate * counts[file], least[file]), counts[file]) for file in counts}
    taken = {file: math.floor(share + 1e-9) for file, share in exact.items()}
    by_remainder = sorted(counts, key=lambda file: (taken[file] - exact[file], file))
    for file in by_remainder[: size - sum(taken.values())]:
        taken[file] += 1
    return taken


def _rate(counts, least, size):
    """The share of each file at which the numbers, none below its minimum, add up to `size`."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        total = sum(max(middle * count, least[file]) for file, count in counts.items())
        low, high = (middle, high) if total <= size else (low, middle)
    return high if size >= sum(counts.values()) else low


def _drawn(mutants, count, seed):
    """The mutants with the smallest hashes, which do not depend on the rest of the file."""
    seen, ranks = {}, []
    for number, mutant in enumerate(mutants):
        seen[mutant.name] = seen.get(mutant.name, 0) + 1  # a statement may occur twice
        text = "\0".join([str(seed), *mutant.name, str(seen[mutant.name])])
        ranks.append((hashlib.sha256(text.encode()).digest(), number))
    return [mutants[number] for number in sorted(number for _, number in sorted(ranks)[:count])]
