"""Other trainings under the same key on the same data set, and the ε of all of them together."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from antiphase import accounting
from antiphase.ledger.write_ahead import WriteAheadLedger
from antiphase.mechanism import Mechanism
from antiphase.noise.key import Key
from antiphase.sampling import Poisson
from antiphase.statement import rounded_up

LOOKED_AT = (
    64  # examples that a fingerprint is made of: the first, the last, and others evenly spaced
)
MAX_BYTES = 1 << 20  # of one example that are hashed


@dataclass(frozen=True)
class EarlierRun:
    """A run under the key: its mechanism's digest, what is known of it, and how many rows it drew (None: unknown)."""

    run: str
    mechanism: str
    about: dict[str, Any]
    drawn: int | None


def fingerprint(key: Key, dataset: Any) -> str | None:
    """A keyed hash of the number of examples and the bytes of some of them; None for data without a length.

    If an example cannot be read or holds other things than arrays, bytes, texts and numbers, type and length of the
    data set are all that is hashed. Generators are set back, so that training goes on as if nobody had looked.
    """
    try:
        size = len(dataset)
    except TypeError:
        return None
    whose = [type(dataset).__name__.encode(), str(size).encode()]
    try:
        with same_randomness():
            indices = np.unique(
                np.linspace(0, size - 1, min(size, LOOKED_AT)).round().astype(int)
            ).tolist()
            parts = [part for index in indices for part in _bytes_of(dataset[index])]
    except Exception:  # whatever a data set of the user's raises
        parts = []
    return key.data_fingerprint([*whose, *parts])


def on_same_data(key: Key, data: str | None, run: str) -> list[EarlierRun]:
    """The runs on the data set ``data`` that have released something, but ``run`` and those it took the place of."""
    if data is None:
        return []
    own, found = key.family(run), []
    for record in key.runs_on(data):
        drawn = WriteAheadLedger.drawn_in(key, record["run"])
        # PRIVACY: a run without a record may have released all of its plan.   [G15]
        if record["run"] not in own and drawn != 0:
            about = record.get("about")
            known = about if isinstance(about, dict) else {}
            found.append(EarlierRun(record["run"], str(record.get("mechanism")), known, drawn))
    return found


def composition_record(mechanism: Mechanism) -> dict[str, Any]:
    """What to note with a run, so that a later one can say what the two come to together."""
    mu = mechanism.mu()
    if mu is not None:
        return {"mu": mu}
    if isinstance(mechanism.sampling, Poisson) and mechanism.adjacency != "replace-one":
        return {
            "sampler": mechanism.sampling.name,
            "noise_multiplier": mechanism.noise_multiplier,
            "sampling_rate": mechanism.sampling.rate,
            "steps": mechanism.steps,
        }
    return {}


def combined_epsilon(
    mechanism: Mechanism, own: Sequence[int], others: Sequence[EarlierRun], delta: float
) -> float | None:
    """ε at ``delta`` of the runs of ``mechanism`` with ``own`` rows each and of all ``others``; rounded up.

    Exact composition where all runs have one mechanism or all are Gaussian, otherwise the sum of ε at δ/k each.
    None if one of the runs was noted without what this needs.
    """
    if all(other.mechanism == mechanism.digest for other in others):
        rows = [
            mechanism.steps if other.drawn is None else min(other.drawn, mechanism.steps)
            for other in others
        ]
        return mechanism.epsilon_of_runs([*own, *rows], delta)
    each = [composition_record(mechanism)] * len(own) + [other.about for other in others]
    try:
        if all("mu" in one for one in each):
            mu = math.sqrt(sum(float(one["mu"]) ** 2 for one in each))
            return accounting.gaussian_epsilon(1 / mu, delta)
        # PRIVACY: δ is split, since the probabilities of failure add up too.   [G7]
        return sum(_epsilon(one, delta / len(each)) for one in each)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def describe_combined(epsilon: float | None, delta: float) -> str:
    if epsilon is None:
        return "what they come to together cannot be stated, since one of them has no composition with the others"
    return f"together they are ({rounded_up(epsilon)}, {delta:g})-differentially private"


def _epsilon(about: dict[str, Any], delta: float) -> float:
    if "mu" in about:
        return accounting.gaussian_epsilon(1 / float(about["mu"]), delta)
    return accounting.poisson_epsilon(
        about["noise_multiplier"], delta, sampling_rate=about["sampling_rate"], steps=about["steps"]
    )


def _bytes_of(item: Any) -> Iterator[bytes]:
    if isinstance(item, dict):
        for name in sorted(item):
            yield str(name).encode()
            yield from _bytes_of(item[name])
    elif isinstance(item, list | tuple):
        for part in item:
            yield from _bytes_of(part)
    elif isinstance(item, torch.Tensor):
        flat = item.detach().cpu().reshape(-1)[:MAX_BYTES].contiguous()
        yield str(item.shape).encode() + flat.view(torch.uint8).numpy().tobytes()[:MAX_BYTES]
    elif isinstance(item, np.ndarray) and not item.dtype.hasobject:
        yield (
            str(item.shape).encode()
            + np.ascontiguousarray(item).reshape(-1)[:MAX_BYTES].tobytes()[:MAX_BYTES]
        )
    elif isinstance(item, bytes | bytearray):
        yield bytes(item[:MAX_BYTES])
    elif item is None or isinstance(item, str | bool | int | float | complex | np.generic):
        yield repr(item).encode()[:MAX_BYTES]
    else:
        raise TypeError(f"a {type(item).__name__} has no bytes of its own")


@contextmanager
def same_randomness() -> Iterator[None]:
    """Seed the generators that augmentations draw from, so that two looks see the same; set them back at the end."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        try:
            torch.manual_seed(0)
            random.seed(0)
            np.random.seed(0)  # noqa: NPY002
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
