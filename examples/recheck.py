"""Check a privacy statement without trusting antiphase: this script does not import it.

    python examples/recheck.py mechanism.antiphase statement.json

Computes the sensitivity from the mechanism file and ε from the statement; exit code 0 if all agrees to 1e-6.
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
    data = Path(path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    content = json.loads(header.pop("__metadata__")["content"])
    types, arrays, marks = {"F64": "<f8", "I64": "<i8"}, {}, {}
    for name, info in header.items():
        a = np.frombuffer(
            data[8 + length :][slice(*info["data_offsets"])], types[info["dtype"]]
        ).reshape(info["shape"])
        arrays[name], marks[name] = (
            a,
            {"array": hashlib.sha256(a).hexdigest(), "shape": a.shape, "dtype": a.dtype.str},
        )
    text = json.dumps(fill(content, marks), sort_keys=True, separators=(",", ":"))
    return fill(content, arrays), hashlib.sha256(text.encode()).hexdigest()


def fill(item, arrays):
    filled = (
        {key: fill(value, arrays) for key, value in item.items()}
        if isinstance(item, dict)
        else item
    )
    return arrays[item["$array"]] if isinstance(item, dict) and "$array" in item else filled


def unpacked(lower):
    matrix = np.zeros((math.isqrt(2 * len(lower)),) * 2)
    matrix[np.tril_indices(len(matrix))] = lower
    return matrix


def streamed(s):
    """C_jj = δ_j, C_ij = r_i·S with the state S that column j has left by row i; 1 at steps with noise of their own."""
    C, live = np.eye(s["size"]), s["live"]
    for j in range(len(live)):
        C[live[j], live[j]], S = s["delta"][j], s["g"][j]
        for i in range(j + 1, len(live)):
            if i > j + 1:
                S = np.column_stack([(s["move"][i] * S).sum(axis=1), S[:, :-1]])
            C[live[i], live[j]] = (s["r"][i] * S).sum()
    return C


def encoder(factorization):
    form, stored, steps = (
        factorization["form"],
        factorization["stored"],
        factorization["workload"]["steps"],
    )
    if form in ("Identity", "Toeplitz", "InverseToeplitz", "Blt"):
        c = (
            [1.0, *(stored["decays"] ** np.arange(steps - 1)[:, None] @ stored["scales"])]
            if form == "Blt"
            else [1.0]
        )
        c = stored.get("coefficients", stored.get("inverse", c))
        matrix = sum(x * np.eye(steps, k=-k) for k, x in enumerate(c))
        matrix = np.linalg.inv(matrix) if form == "InverseToeplitz" else matrix
        return matrix / np.linalg.norm(matrix, axis=0) if stored.get("normalized") else matrix
    if form == "Banded":
        return sum(
            np.diag(stored["columns"][: steps - i, i], -i)
            for i in range(stored["columns"].shape[1])
        )
    if form in ("Blocks", "Streamed"):
        parts, one = (
            (stored["blocks"], unpacked) if form == "Blocks" else (stored["stretches"], streamed)
        )
        return block_diag(*(one(parts[str(i)]) for i in stored["sequence"]))
    if (
        form == "Tree" and not stored
    ):  # charged by its nodes: a row for each dyadic stretch of steps
        spans = [
            (e - 2**j, e) for j in range(steps.bit_length()) for e in range(2**j, steps + 1, 2**j)
        ]
        return np.array([[start <= i < end for i in range(steps)] for start, end in spans], float)
    return unpacked(stored["lower"])


def sensitivity(C, participation):
    """The largest Σ|X_ij| over the patterns, X = CᵀC; for a minimum separation, over every allowed set of steps."""
    X, steps, every = np.abs(C.T @ C), C.shape[1], participation.get("every", C.shape[1])
    patterns = [list(range(j, steps, every)) for j in range(min(every, steps))]
    if participation["kind"] == "MinSeparation":
        sets = itertools.chain(
            *(itertools.combinations(range(steps), n + 1) for n in range(participation["count"]))
        )
        patterns = [
            p
            for p in sets
            if all(b - a >= participation["apart"] for a, b in itertools.pairwise(p))
        ]
    return math.sqrt(max(X[np.ix_(p, p)].sum() for p in patterns))


def gaussian_epsilon(s, delta):
    def log_phi(x):
        return (
            math.log(math.erfc(-x / 2**0.5) / 2)
            if x > -30
            else -x * x / 2 - math.log(-x * math.sqrt(2 * math.pi))
        )

    low, high = 0.0, 1e6
    for _ in range(200):
        e = (low + high) / 2
        d = math.exp(log_phi(0.5 / s - e * s)) - math.exp(min(e + log_phi(-0.5 / s - e * s), 0))
        low, high = (low, e) if d <= delta else (e, high)
    return high


def main(mechanism, statement):
    content, digest = read(mechanism)
    said, factorization = json.loads(Path(statement).read_text()), content["factorization"]
    if content["sampler"] == "poisson":
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent, pld

        event = PoissonSampledDpEvent(
            said["sampling_rate"], GaussianDpEvent(said["noise_multiplier"])
        )
        account = pld.PLDAccountant().compose(SelfComposedDpEvent(event, said["steps"]))
        sens, epsilon = 1.0, account.get_epsilon(said["delta"])
    else:
        sens = sensitivity(encoder(factorization), factorization["participation"])
        ratio = said["noise_scale"] / (
            said["clip_norm"] * sens * (2 if said["adjacency"] == "replace-one" else 1)
        )
        epsilon = gaussian_epsilon(ratio, said["delta"])
    pairs = [
        ("sensitivity", sens),
        ("epsilon", epsilon),
        ("noise_multiplier", content["noise_multiplier"]),
    ]
    slack = (
        1e-6 if said["sensitivity_is_exact"] else math.inf
    )  # an upper bound may be above the truth, never below
    wrong = [name for name, value in pairs if not -1e-6 <= said[name] / value - 1 <= slack]
    wrong += ["digest"] * (digest != said["digest"])
    print(
        *(f"{name}: statement {said[name]:.9g}, recomputed {value:.9g}" for name, value in pairs),
        sep="\n",
    )
    print("DISAGREES: " + ", ".join(wrong) if wrong else "agrees")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]) if len(sys.argv) == 3 else __doc__)
