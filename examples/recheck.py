"""Check a privacy statement without trusting antiphase: this script does not import it.

    python examples/recheck.py mechanism.antiphase statement.json

Computes the sensitivity from the mechanism file and ε from the statement. The exit code is 0 if
both agree with the statement to 1e-6.
"""

import hashlib
import itertools
import json
import math
import sys
from pathlib import Path

import numpy as np
from scipy.linalg import block_diag


def read(path):
    """The content of a mechanism file, and its digest."""
    data = Path(path).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    content = json.loads(header.pop("__metadata__")["content"])
    arrays, marks = {}, {}
    for name, info in header.items():
        first, last = info["data_offsets"]
        a = np.frombuffer(
            data[start + first : start + last], {"F64": "<f8", "I64": "<i8"}[info["dtype"]]
        )
        arrays[name] = a = a.reshape(info["shape"])
        marks[name] = {
            "array": hashlib.sha256(a).hexdigest(),
            "shape": a.shape,
            "dtype": a.dtype.str,
        }
    text = json.dumps(fill(content, marks), sort_keys=True, separators=(",", ":"))
    return fill(content, arrays), hashlib.sha256(text.encode()).hexdigest()


def fill(item, arrays):
    """The item, with arrays in place of their names."""
    if not isinstance(item, dict):
        return item
    return (
        arrays[item["$array"]]
        if "$array" in item
        else {k: fill(v, arrays) for k, v in item.items()}
    )


def unpacked(lower):
    """A lower-triangular matrix from its rows."""
    matrix = np.zeros((math.isqrt(2 * len(lower)),) * 2)
    matrix[np.tril_indices(len(matrix))] = lower
    return matrix


def streamed(s):
    """C_jj = δ_j, C_ij = r_i·S with the state S of column j at row i; 1 at independent steps."""
    C, live = np.eye(s["size"]), s["live"]
    for j in range(len(live)):
        C[live[j], live[j]], S = s["delta"][j], s["g"][j]
        for i in range(j + 1, len(live)):
            if i > j + 1:
                S = np.column_stack([(s["move"][i] * S).sum(axis=1), S[:, :-1]])
            C[live[i], live[j]] = (s["r"][i] * S).sum()
    return C


def encoder(factorization):
    """The encoder matrix C."""
    form, stored = factorization["form"], factorization["stored"]
    steps = factorization["workload"]["steps"]
    if form in ("Identity", "Toeplitz", "InverseToeplitz", "Blt"):
        c = stored.get("coefficients", stored.get("inverse", [1.0]))
        if form == "Blt":
            c = [1.0, *(stored["decays"] ** np.arange(steps - 1)[:, None] @ stored["scales"])]
        matrix = sum(x * np.eye(steps, k=-k) for k, x in enumerate(c))
        matrix = np.linalg.inv(matrix) if form == "InverseToeplitz" else matrix
        return matrix / np.linalg.norm(matrix, axis=0) if stored.get("normalized") else matrix
    if form == "Banded":
        return sum(np.diag(c[: steps - i], -i) for i, c in enumerate(stored["columns"].T))
    if form == "Blocks":
        return block_diag(*(unpacked(stored["blocks"][str(i)]) for i in stored["sequence"]))
    if form == "Streamed":
        return block_diag(*(streamed(stored["stretches"][str(i)]) for i in stored["sequence"]))
    if form == "Tree" and not stored:  # a row for each node: a dyadic interval of steps
        sizes = [2**j for j in range(steps.bit_length())]
        ends = [(size, end) for size in sizes for end in range(size, steps + 1, size)]
        return np.array(
            [[end - size <= i < end for i in range(steps)] for size, end in ends], float
        )
    return unpacked(stored["lower"])


def sensitivity(C, participation):
    """The largest sum of |X_ij|, X = CᵀC, over all allowed participation patterns."""
    X, steps, every = np.abs(C.T @ C), C.shape[1], participation.get("every", C.shape[1])
    patterns = [list(range(j, steps, every)) for j in range(min(every, steps))]
    if participation["kind"] == "MinSeparation":
        most, apart = participation["count"], participation["apart"]
        sets = (itertools.combinations(range(steps), n + 1) for n in range(most))
        sets = itertools.chain.from_iterable(sets)
        patterns = [p for p in sets if all(b - a >= apart for a, b in itertools.pairwise(p))]
    return math.sqrt(max(X[np.ix_(p, p)].sum() for p in patterns))


def gaussian_epsilon(s, delta):
    """ε of the Gaussian mechanism with noise multiplier s."""

    def log_phi(x):
        if x > -30:
            return math.log(math.erfc(-x / 2**0.5) / 2)
        return -x * x / 2 - math.log(-x * math.sqrt(2 * math.pi))

    low, high = 0.0, 1e6
    for _ in range(200):
        e = (low + high) / 2
        d = math.exp(log_phi(0.5 / s - e * s)) - math.exp(min(e + log_phi(-0.5 / s - e * s), 0))
        low, high = (low, e) if d <= delta else (e, high)
    return high


def recomputed(content, said):
    """Sensitivity and ε, from the mechanism and its noise multiplier."""
    if content["sampler"] == "poisson":
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent, pld

        step = GaussianDpEvent(said["noise_multiplier"])
        step = PoissonSampledDpEvent(said["sampling_rate"], step)
        accountant = pld.PLDAccountant().compose(SelfComposedDpEvent(step, said["steps"]))
        return 1.0, accountant.get_epsilon(said["delta"])
    factorization = content["factorization"]
    sens = sensitivity(encoder(factorization), factorization["participation"])
    factor = 2 if said["adjacency"] == "replace-one" else 1
    ratio = said["noise_scale"] / (said["clip_norm"] * sens * factor)
    return sens, gaussian_epsilon(ratio, said["delta"])


def main(mechanism, statement):
    """Compare; return the exit code."""
    content, digest = read(mechanism)
    said = json.loads(Path(statement).read_text())
    values = *recomputed(content, said), content["noise_multiplier"]
    values = dict(zip(("sensitivity", "epsilon", "noise_multiplier"), values, strict=True))
    # A sensitivity that is an upper bound may be above the true one, never below.
    slack = 1e-6 if said["sensitivity_is_exact"] else math.inf
    wrong = [n for n, value in values.items() if not -1e-6 <= said[n] / value - 1 <= slack]
    wrong += ["digest"] * (digest != said["digest"])
    for name, value in values.items():
        print(f"{name}: statement {said[name]:.9g}, recomputed {value:.9g}")
    print("DISAGREES: " + ", ".join(wrong) if wrong else "agrees")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]) if len(sys.argv) == 3 else __doc__)
