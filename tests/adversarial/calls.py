"""Generated calls of the public API: each returns, or raises an error that names the problem.

    python -m tests.adversarial.calls COUNT SEED

makes COUNT calls and prints one line of JSON; `python -O` makes no difference.
"""

import json
import resource
import signal
import sys
import traceback
import warnings
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import numpy as np
from hypothesis import strategies as st

import antiphase as ap
from antiphase import accounting, auditing, data, federated, objective, theory
from antiphase.errors import AntiphaseError
from antiphase.theory.spectrum import Spectrum
from antiphase.torch import (
    BallsInBinsBatches,
    FixedOrderBatches,
    PoissonBatches,
    PrivacyEngine,
    batch_sampler_for,
)
from antiphase.torch.recipe import Recipe
from antiphase.verification import verify

PACKAGE = Path(ap.__file__).parent
MAX_SECONDS = 20  # of a call
EDGES = [
    0,
    1,
    -1,
    2,
    3,
    8,
    10**9,
    10**18,
    10**400,
    0.0,
    -0.0,
    0.5,
    1.0,
    1e-300,
    1e300,
    5e-324,
    float("nan"),
    float("inf"),
]
WORDS = [
    "",
    "dp-mf",
    "once",
    "auto",
    "exact",
    "end",
    "zero-out",
    "poisson",
    "none",
    "a" * 300,
    "\0",
    "../../etc/passwd",
]


class Odd:
    """An object of no known kind."""

    def __repr__(self):
        return "<odd>"


def arrays():
    shapes = st.sampled_from([(0,), (1,), (3,), (8,), (2, 2), (8, 8), (3, 3, 3)])
    fills = st.sampled_from([0.0, 1.0, np.nan, -1e200, "x", True, 1j, 10**400, None])
    return st.builds(lambda fill, shape: np.full(shape, fill), fills, shapes)


def made():
    """Objects of the right kind, for calls that are nearly valid."""
    return st.sampled_from(
        [
            ap.once(),
            ap.epochs(2, 4),
            ap.min_separation(2, 3),
            ap.Workload.sgd(8),
            ap.Workload.sgd(8, momentum=0.9),
            objective.Average(),
            objective.Restarts(3),
            objective.Damped(0.9),
            F,
            M,
            KEY,
            auditing.GaussianClaim(1.0),
        ]
    )


F = ap.design("dp-mf", steps=8)
M = ap.calibrate(F, noise_multiplier=1.0, delta=1e-5)
KEY = ap.Key.insecure(0)
CYCLIC = ap.calibrate(
    ap.design("toeplitz", steps=8, bands=2, participation=ap.min_separation(4, 2)),
    noise_multiplier=1.0,
    delta=1e-5,
    sampling=ap.sampling.CyclicPoisson(0.1),
)
USERS = ap.calibrate(
    ap.design("dp-mf", steps=8, participation=ap.min_separation(2, 3)),
    noise_multiplier=1.0,
    delta=1e-5,
    unit="user",
)
SMALL = st.integers(1, 9)
NUMBERS = st.one_of(
    SMALL, st.floats(0, 2), st.sampled_from(EDGES), st.integers(-5, 40), st.floats()
)
NUMPY = st.sampled_from(
    [np.float32(0.5), np.int8(3), np.bool_(True), np.float64("nan"), np.array(2.0)]
)
ANYTHING = st.one_of(
    NUMBERS,
    NUMPY,
    st.none(),
    st.booleans(),
    st.sampled_from(WORDS),
    st.binary(max_size=40),
    arrays(),
    made(),
    st.lists(NUMBERS, max_size=9),
    st.builds(Odd),
    st.dictionaries(st.sampled_from(WORDS), NUMBERS, max_size=2),
)


def bound(name, factorization, constants):
    return getattr(theory, name if isinstance(name, str) and name in BOUNDS else BOUNDS[0])(
        factorization, constants
    )


BOUNDS = sorted(n for n in theory.__all__ if n.endswith(("_bound", "_rate")))
SHARES, POSITIVE, YES, TEXT = st.floats(0, 1), st.floats(0.1, 5), st.booleans(), st.sampled_from
MATRICES = st.sampled_from(
    [np.eye(3), np.tril(np.ones((8, 8))), np.tril(np.arange(1, 17.0).reshape(4, 4))]
)
PARTICIPATIONS = st.sampled_from(
    [
        ap.once(),
        ap.epochs(2, 4),
        ap.epochs(4, 2),
        ap.min_separation(2, 3),
        ap.min_separation(10**9, 1),
        ap.epochs(10**18, 8),
    ]
)
WORKLOADS = st.sampled_from(
    [ap.Workload.sgd(8), ap.Workload.sgd(8, momentum=0.9), ap.Workload.sgd(5, delay=1)]
)
OBJECTIVES = st.sampled_from(
    [objective.Average(), objective.Restarts(3), objective.Damped(0.9), objective.Maximum()]
)
SCHEMES = st.sampled_from(
    [ap.sampling.FixedOrder(), ap.sampling.HashSlots(), ap.sampling.BallsInBins()]
)
PROMISE = {"?adjacency": TEXT(["zero-out", "replace-one"]), "?sampling": SCHEMES,
           "?unit": TEXT(["example", "user"])}  # fmt: skip

# Functions with valid arguments; those whose name starts with "?" are optional.
CALLS = {
    "Workload.sgd": (
        ap.Workload.sgd,
        {
            "steps": SMALL,
            "?momentum": SHARES,
            "?nesterov": YES,
            "?learning_rates": POSITIVE,
            "?weight_decay": SHARES,
            "?delay": SMALL,
        },
    ),
    "Workload.from_matrix": (ap.Workload.from_matrix, {"matrix": MATRICES}),
    "with_ema": (ap.Workload.sgd(8).with_ema, {"decay": SHARES}),
    "with_tail_average": (ap.Workload.sgd(8).with_tail_average, {"start": SMALL}),
    "epochs": (ap.epochs, {"count": SMALL, "every": SMALL}),
    "min_separation": (ap.min_separation, {"count": SMALL, "apart": SMALL}),
    "Average": (
        objective.Average,
        {"?weights": st.lists(POSITIVE, max_size=9), "?final_weight": POSITIVE},
    ),
    "Restarts": (
        objective.Restarts,
        {
            "tau": SMALL,
            "?weight": POSITIVE,
            "?include_final": YES,
            "?anchor": TEXT(["start", "end"]),
        },
    ),
    "Damped": (objective.Damped, {"rho": SHARES, "?final_weight": POSITIVE}),
    "Curvature": (
        objective.Curvature,
        {
            "spectrum": st.lists(POSITIVE, max_size=4),
            "learning_rate": SHARES,
            "?probabilities": st.lists(SHARES, max_size=4),
        },
    ),
    "sampling.parse": (ap.sampling.parse, {"name": TEXT(list(ap.sampling.KINDS)), "?rate": SHARES}),
    "sensitivity": (ap.sensitivity, {"encoder": MATRICES, "participation": PARTICIPATIONS}),
    "design": (ap.design, {"name": TEXT(ap.designs()), "?steps": SMALL, "?epochs": SMALL}),
    "design of a workload": (
        ap.design,
        {
            "name": TEXT(ap.designs()),
            "workload": WORKLOADS,
            "?epochs": st.just(2),
            "?participation": PARTICIPATIONS,
        },
    ),
    "design with options": (
        ap.design,
        {
            "name": TEXT(["dp-mf", "dp-mf+", "damped", "optimal", "curvature"]),
            "steps": SMALL,
            "?tau": SMALL,
            "?rho": SHARES,
            "?weights": ANYTHING,
            "?buffers": TEXT(["auto", "exact", 2]),
            "?objective": OBJECTIVES,
            "?tolerance": SHARES,
            "?spectrum": st.lists(POSITIVE, max_size=3),
            "?learning_rate": SHARES,
        },
    ),
    "design of a form": (
        ap.design,
        {
            "name": TEXT(
                [
                    "toeplitz",
                    "banded",
                    "blt",
                    "bisr",
                    "lambda-cgd",
                    "sqrt-toeplitz",
                    "epoch-restarts",
                ]
            ),
            "steps": SMALL,
            "?participation": PARTICIPATIONS,
            "?bands": SMALL,
            "?buffers": SMALL,
            "?correlation": SHARES,
            "?objective": OBJECTIVES,
        },
    ),
    "calibrate": (
        ap.calibrate,
        {
            "factorization": st.just(F),
            "epsilon": POSITIVE,
            "delta": SHARES,
            "?clip_norm": POSITIVE,
            **PROMISE,
        },
    ),
    "calibrate, noise": (
        ap.calibrate,
        {"factorization": st.just(F), "noise_multiplier": POSITIVE, "?delta": SHARES, **PROMISE},
    ),
    "Mechanism": (
        ap.Mechanism,
        {
            "factorization": st.just(F),
            "noise_multiplier": POSITIVE,
            "?clip_norm": POSITIVE,
            "?target_delta": SHARES,
            **PROMISE,
        },
    ),
    "epsilon": (M.epsilon, {"?delta": SHARES, "?rows": SMALL}),
    "delta": (M.delta, {"epsilon": POSITIVE, "?rows": SMALL}),
    "epsilon_of_runs": (M.epsilon_of_runs, {"runs": st.lists(SMALL, max_size=4), "?delta": SHARES}),
    "statement": (M.statement, {"?delta": SHARES, "?released": SMALL}),
    "noise": (
        M.noise,
        {
            "dimension": SMALL,
            "key": st.just(KEY),
            "?run": st.just("ab" * 16),
            "?memory": TEXT(["1MB", 10**6]),
            "?threads": st.integers(1, 2),
        },
    ),
    "noise of tensors": (M.noise, {"shapes": st.just({"a": (2, 3), "b": 4}), "key": st.just(KEY)}),
    "resume": (
        M.resume,
        {"state": st.just(M.noise(3, key=KEY, run="ab" * 16).state()), "key": st.just(KEY)},
    ),
    "Key": (ap.Key, {"secret": st.binary(min_size=32, max_size=32)}),
    "Key.insecure": (ap.Key.insecure, {"seed": SMALL}),
    "check_run": (KEY.check_run, {"run": st.just("ab" * 16)}),
    "gaussian_epsilon": (
        accounting.gaussian_epsilon,
        {"noise_multiplier": POSITIVE, "delta": SHARES},
    ),
    "gaussian_delta": (
        accounting.gaussian_delta,
        {"noise_multiplier": POSITIVE, "epsilon": POSITIVE},
    ),
    "gaussian_noise_multiplier": (
        accounting.gaussian_noise_multiplier,
        {"epsilon": POSITIVE, "delta": SHARES},
    ),
    "GaussianClaim": (auditing.GaussianClaim, {"mu": POSITIVE}),
    "ApproximateClaim": (auditing.ApproximateClaim, {"epsilon": POSITIVE, "delta": SHARES}),
    "claim_of": (
        auditing.claim_of,
        {"promise": TEXT([M, {"mu": 1.0}, {"epsilon": 1.0, "delta": 1e-5}])},
    ),
    "audit": (
        auditing.audit,
        {
            "scores": st.just(lambda canary, count: np.arange(count) + canary),
            "claim": st.just(auditing.GaussianClaim(1.0)),
            "trials": st.integers(20, 40),
            "?thresholds": SHARES,
            "?confidence": SHARES,
        },
    ),
    "audit_one_run": (
        auditing.audit_one_run,
        {
            "scores": st.just(lambda included: included * 1.0),
            "claim": st.just(auditing.GaussianClaim(1.0)),
            "canaries": st.integers(2, 40),
            "?guesses": SMALL,
            "?confidence": SHARES,
        },
    ),
    "Spectrum": (
        Spectrum,
        {"values": st.lists(POSITIVE, max_size=4), "?weights": st.lists(POSITIVE, max_size=4)},
    ),
    "load": (ap.load, {"path": st.sampled_from([*WORDS[:3], "absent", "a" * 300])}),
    "MechanismTrials": (auditing.MechanismTrials, {"mechanism": st.just(M), "?key": st.just(KEY)}),
    "PrivacyEngine": (
        PrivacyEngine,
        {"?mechanism": TEXT([*ap.designs(), F]), "?key": st.just(KEY)},
    ),
    "FixedOrderBatches": (
        FixedOrderBatches,
        {
            "size": SMALL,
            "batch_size": SMALL,
            "?shuffle": YES,
            "?drop_last": YES,
            "?order": st.just([0, 1]),
            "?rank": st.just(0),
            "?world": SMALL,
        },
    ),
    "PoissonBatches": (PoissonBatches, {"size": SMALL, "rate": SHARES, "groups": SMALL}),
    "BallsInBinsBatches": (BallsInBinsBatches, {"size": SMALL, "bins": SMALL}),
    "batch_sampler_for": (batch_sampler_for, {"mechanism": st.just(CYCLIC), "size": SMALL}),
    "Server": (
        federated.Server,
        {
            "mechanism": st.just(USERS),
            "model": st.just({"w": np.zeros(3)}),
            "clients_per_round": SMALL,
            "?key": st.just(KEY),
            "?workload": WORKLOADS,
        },
    ),
    "min_population": (
        federated.min_population,
        {"participation": PARTICIPATIONS, "rounds": SMALL, "clients_per_round": SMALL},
    ),
    "Constants": (
        theory.Constants,
        {
            "smoothness": POSITIVE,
            "learning_rate": SHARES,
            "noise_length": POSITIVE,
            "?distance": POSITIVE,
            "?gap": POSITIVE,
            "?lipschitz": POSITIVE,
        },
    ),
    "a bound": (
        bound,
        {
            "name": TEXT(BOUNDS),
            "factorization": TEXT(
                [F, *(ap.design(n, steps=8) for n in ("dp-sgd", "anti-pgd", "chess", "tree"))]
            ),
            "constants": st.just(
                theory.Constants(1.0, 0.2, 1.0, distance=1.0, gap=1.0, lipschitz=1.0)
            ),
        },
    ),
    "noise_terms": (theory.noise_terms, {"factorization": st.just(F), "tau": SMALL}),
    "Recipe": (
        Recipe,
        {
            "epochs": SMALL,
            "batch_size": SMALL,
            "learning_rate": POSITIVE,
            "?mechanism": TEXT(ap.designs()),
            "?epsilon": POSITIVE,
            "?delta": SHARES,
            "?clip_norm": POSITIVE,
            "?momentum": SHARES,
        },
    ),
    "data.load": (data.load, {"source": TEXT(["digits", *WORDS[:3], "absent"])}),
    "load_texts": (data.load_texts, {"source": TEXT([*WORDS[:3], "absent"])}),
    "verify": (verify, {"target": TEXT([F, M]), "?delta": SHARES}),
    "verify a statement": (
        verify,
        {"target": st.just(M), "claims": st.just({"delta": 1e-5, "epsilon": 0.1})},
    ),
}


def is_ours(error):
    """Whether an error was raised on purpose, for a reader.

    By a ``raise`` of this package, by Python for arguments that do not fit a signature, or by the
    system for a file.
    """
    last = traceback.extract_tb(error.__traceback__)[-1]
    if Path(last.filename).is_relative_to(PACKAGE):
        return last.line.startswith("raise ") or isinstance(error, OSError)
    return last.filename == __file__ or isinstance(error, OSError)


class TookTooLongError(BaseException):
    pass


@contextmanager
def limited(seconds):
    def stop(*_):
        raise TookTooLongError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def outcome(name, arguments):
    """How a call ended: "made", "refused", or the description of a failure."""
    function = CALLS[name][0]
    try:
        with limited(MAX_SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about options with default values
            warnings.simplefilter("error", RuntimeWarning)
            result = function(**arguments)
            repr(result)
    except (AntiphaseError, ValueError, TypeError, OSError) as error:
        return "refused" if is_ours(error) and str(error) else failure(name, arguments, error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return failure(name, arguments, error)
    return "made"


def failure(name, arguments, error):
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{name}({arguments}): {type(error).__name__}: {error} at {place}"


@st.composite
def call(draw):
    """A call with valid arguments, of which one or two are often replaced by anything."""
    name = draw(st.sampled_from(sorted(CALLS)))
    fitting = {
        k.removeprefix("?"): v
        for k, v in CALLS[name][1].items()
        if not (k[0] == "?" and draw(st.booleans()))
    }
    arguments = {argument: draw(values) for argument, values in fitting.items()}
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2]))):
        arguments[draw(st.sampled_from([*sorted(CALLS[name][1]), "unheard"])).removeprefix("?")] = (
            draw(ANYTHING)
        )
    return name, arguments


def run(count, seed):
    """Make ``count`` calls; how they ended, by name, and the failures."""
    ends, failures = Counter(), []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(call())
    def generated(one):
        end = outcome(*one)
        if end not in ("made", "refused"):
            failures.append(end[:2000])
            end = "failed"
        ends[one[0], end] += 1

    generated()
    return {
        "calls": sum(ends.values()),
        "made": sum(n for (_, end), n in ends.items() if end == "made"),
        "refused": sum(n for (_, end), n in ends.items() if end == "refused"),
        "never made": sorted(set(CALLS) - {name for name, end in ends if end == "made"}),
        "failures": failures,
    }


def peak():
    """Peak memory of this program in megabytes.

    The usual figure, ru_maxrss, includes the memory of the parent process.
    """
    with open("/proc/self/status") as status:
        kilobytes = next(line for line in status if line.startswith("VmHWM:")).split()[1]
    return int(kilobytes) / 1024


def main():
    count, seed = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    found = run(count, seed)
    found["megabytes"] = peak()
    print(json.dumps(found | {"optimised": not __debug__}))


if __name__ == "__main__":
    main()
