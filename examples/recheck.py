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
    """A safetensors file: eight bytes of length, a JSON header, raw arrays."""
    data = Path(path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    content = json.loads(header.pop("__metadata__")["content"])
    types, arrays = {"F64": "<f8", "I64": "<i8"}, {}
    for name, a in header.items():
        begin, end = a["data_offsets"]
        arrays[name] = np.frombuffer(data[8 + length :][begin:end], types[a["dtype"]]).reshape(a["shape"])
    return content, arrays


def fill(item, arrays):
    if not isinstance(item, dict):
        return item
    return arrays[item["$array"]] if "$array" in item else {key: fill(value, arrays) for key, value in item.items()}


def digest(content, arrays):
    """SHA-256 of the content, with arrays by their own."""
    marks = {}
    for name, a in arrays.items():
        marks[name] = {"array": hashlib.sha256(a).hexdigest(), "shape": a.shape, "dtype": a.dtype.str}
    return hashlib.sha256(json.dumps(fill(content, marks), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def unpacked(lower):
    size = math.isqrt(2 * len(lower))
    matrix = np.zeros((size, size))
    matrix[np.tril_indices(size)] = lower
    return matrix


def encoder(factorization):
    """The encoder as a matrix, whose columns are the steps."""
    form, stored, steps = factorization["form"], factorization["stored"], factorization["workload"]["steps"]
    if form in ("Identity", "Toeplitz"):
        stored = stored or {"coefficients": [1.0], "normalized": False}
        matrix = sum(c * np.eye(steps, k=-k) for k, c in enumerate(stored["coefficients"]))
        return matrix / np.linalg.norm(matrix, axis=0) if stored["normalized"] else matrix
    if form == "Blocks":
        return block_diag(*(unpacked(stored["blocks"][str(i)]) for i in stored["sequence"]))
    if form == "Tree" and not stored:  # charged by its nodes: a row for each dyadic stretch of steps
        spans = [(e - 2**j, e) for j in range(steps.bit_length()) for e in range(2**j, steps + 1, 2**j)]
        return np.array([[start <= i < end for i in range(steps)] for start, end in spans], float)
    return unpacked(stored["lower"])


def sensitivity(C, participation):
    """The largest Σ|X_ij| over the patterns, X = CᵀC; for a minimum separation, over every allowed set of steps."""
    X, steps, kind = np.abs(C.T @ C), C.shape[1], participation["kind"]
    if kind == "Once":
        patterns = [[i] for i in range(steps)]
    elif kind == "Epochs":
        patterns = [list(range(j, steps, participation["every"])) for j in range(min(participation["every"], steps))]
    else:
        sets = itertools.chain(*(itertools.combinations(range(steps), n + 1) for n in range(participation["count"])))
        patterns = [p for p in sets if all(b - a >= participation["apart"] for a, b in itertools.pairwise(p))]
    return math.sqrt(max(X[np.ix_(p, p)].sum() for p in patterns))


def log_phi(x):
    return math.log(math.erfc(-x / math.sqrt(2)) / 2) if x > -30 else -x * x / 2 - math.log(-x * math.sqrt(2 * math.pi))


def gaussian_epsilon(s, delta):
    low, high = 0.0, 1e6
    for _ in range(200):
        e = (low + high) / 2
        d = math.exp(log_phi(0.5 / s - e * s)) - math.exp(min(e + log_phi(-0.5 / s - e * s), 0))
        low, high = (low, e) if d <= delta else (e, high)
    return high


def main(mechanism, statement):
    content, arrays = read(mechanism)
    said = json.loads(Path(statement).read_text())
    factorization = fill(content["factorization"], arrays)
    if content["sampler"] == "poisson":
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent, pld

        sens = 1.0
        event = PoissonSampledDpEvent(said["sampling_rate"], GaussianDpEvent(said["noise_multiplier"]))
        epsilon = pld.PLDAccountant().compose(SelfComposedDpEvent(event, said["steps"])).get_epsilon(said["delta"])
    else:
        sens = sensitivity(encoder(factorization), factorization["participation"])
        ratio = said["noise_scale"] / (said["clip_norm"] * sens * (2 if said["adjacency"] == "replace-one" else 1))
        epsilon = gaussian_epsilon(ratio, said["delta"])
    pairs = [("sensitivity", sens), ("epsilon", epsilon), ("noise_multiplier", content["noise_multiplier"])]
    slack = 1e-6 if said["sensitivity_is_exact"] else math.inf  # an upper bound may be above the truth, never below
    wrong = [name for name, value in pairs if not -1e-6 <= said[name] / value - 1 <= slack]
    wrong += ["digest"] * (digest(content, arrays) != said["digest"])
    for name, value in pairs:
        print(f"{name}: statement {said[name]:.9g}, recomputed {value:.9g}")
    print("DISAGREES: " + ", ".join(wrong) if wrong else "agrees")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]) if len(sys.argv) == 3 else __doc__)
