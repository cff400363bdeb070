"""A small federated training whose every round can be computed by hand."""

import numpy as np

import antiphase as ap
from antiphase.federated import Server

MODEL = {
    "weight": np.zeros((3, 4), np.float32),
    "bias": np.zeros(3, np.float32),
    "scale": np.array(1.0, np.float32),
    "seen": np.array(7),  # an integer: not trained
}
TRAINED = ("weight", "bias", "scale")
USERS = [f"user {i}" for i in range(12)]


def mechanism(
    rounds=6, count=3, apart=2, noise_multiplier=1.0, clip_norm=1.0, workload=None, name="dp-mf"
):
    workload = ap.Workload.sgd(rounds) if workload is None else workload
    f = ap.design(name, workload=workload, participation=ap.min_separation(count, apart))
    return ap.calibrate(
        f, noise_multiplier=noise_multiplier, delta=1e-6, clip_norm=clip_norm, unit="user"
    )


def server(m=None, *, clients=4, seed=0, **options):
    """In memory with an insecure key unless there is a folder, so that noise can be compared."""
    if "folder" not in options:
        options.setdefault("key", ap.Key.insecure(seed))
    return Server(mechanism() if m is None else m, MODEL, clients_per_round=clients, **options)


def update(seed=0, norm=0.5, model=MODEL):
    """An update of this norm."""
    rng = np.random.default_rng(seed)
    arrays = {name: rng.normal(size=model[name].shape) for name in TRAINED}
    length = np.sqrt(sum((a**2).sum() for a in arrays.values()))
    return {name: a * (norm / length) for name, a in arrays.items()}


def answer_all(s, users, seed=0, norm=0.5):
    for i, user in enumerate(users):
        s.receive(user, update(seed + i, norm))


def train(s, available=USERS, until=None):
    """Train to the end of the plan, with an update from every client."""
    while s.position < (s.rounds if until is None else until):
        answer_all(s, s.begin_round(available), seed=100 * s.position)
        s.finish_round()
    return s


def row(m, number, seed=0):
    """Row ``number`` of the noise again, from the stream itself."""
    key = ap.Key.insecure(seed)
    shapes = {name: MODEL[name].shape or (1,) for name in TRAINED}
    stream = m.noise(key=key, run=f"{key.subkey('run'):032x}", shapes=shapes)
    stream.skip(number)
    return {name: a.reshape(MODEL[name].shape) for name, a in stream.next().items()}
