"""Other trainings under one key on the same data, and their combined ε."""

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

FINGERPRINT_EXAMPLES = 64  # the first, the last, and others evenly spaced
MAX_EXAMPLE_BYTES = 1 << 20  # of one example that are hashed


@dataclass(frozen=True)
class EarlierRun:
    """Another run under the key.

    Attributes:
        run: its id.
        mechanism: the digest of its mechanism.
        about: what its ε can be composed from; see `composition_record`.
        drawn: how many rows it drew; None if not known.
    """

    run: str
    mechanism: str
    about: dict[str, Any]
    drawn: int | None


def fingerprint(key: Key, dataset: Any) -> str | None:
    """A keyed hash of a data set: its length, and the bytes of some examples.

    Only type and length are hashed if an example cannot be read, or holds other things than arrays,
    bytes, texts and numbers. Generators are set back.

    Args:
        key: without it, nothing about the data follows from the hash.
        dataset: of the user.

    Returns:
        The hash, or None for data without a length.
    """
    try:
        size = len(dataset)
    except TypeError:
        return None
    header = [type(dataset).__name__.encode(), str(size).encode()]
    try:
        with same_randomness():
            count = min(size, FINGERPRINT_EXAMPLES)
            indices = np.unique(np.linspace(0, size - 1, count).round().astype(int)).tolist()
            parts = [part for index in indices for part in _bytes_of(dataset[index])]
    except Exception:  # whatever a data set of the user's raises
        parts = []
    return key.data_fingerprint([*header, *parts])


def on_same_data(key: Key, data: str | None, run: str) -> list[EarlierRun]:
    """The runs on the same data that released something, except ``run`` and those it replaced.

    Args:
        key: of all these runs.
        data: the fingerprint of the data set; without one there are no runs.
        run: the id of the run at hand.
    """
    if data is None:
        return []
    own, others = key.family(run), []
    for record in key.runs_on(data):
        drawn = WriteAheadLedger.released_steps(key, record["run"])
        # PRIVACY: a run without a record may have released all of its plan.   [G15]
        if record["run"] not in own and drawn != 0:
            about = record.get("about")
            about = about if isinstance(about, dict) else {}
            others.append(EarlierRun(record["run"], str(record.get("mechanism")), about, drawn))
    return others


def composition_record(mechanism: Mechanism) -> dict[str, Any]:
    """What is stored with a run, so that a later one can compute their combined ε."""
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
    """ε of several runs together, rounded up.

    Exact composition if all runs have one mechanism or all are Gaussian, otherwise the sum of ε at
    δ/k each.

    Args:
        mechanism: of the runs at hand.
        own: how many rows each of these has.
        others: other runs on the same data.
        delta: δ of the guarantee.

    Returns:
        ε, or None if there is a run whose composition is not known.
    """
    if all(other.mechanism == mechanism.digest for other in others):
        rows = [
            mechanism.steps if other.drawn is None else min(other.drawn, mechanism.steps)
            for other in others
        ]
        return mechanism.epsilon_of_runs([*own, *rows], delta)
    records = [composition_record(mechanism)] * len(own) + [other.about for other in others]
    try:
        if all("mu" in record for record in records):
            mu = math.sqrt(sum(float(record["mu"]) ** 2 for record in records))
            return accounting.gaussian_epsilon(1 / mu, delta)
        # PRIVACY: δ is split, since the probabilities of failure add up too.   [G7]
        return sum(_epsilon(record, delta / len(records)) for record in records)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def describe_combined(epsilon: float | None, delta: float) -> str:
    """The combined ε in words."""
    if epsilon is None:
        return (
            "their combined ε cannot be stated, since one of them has no composition with the "
            "others"
        )
    return f"together they are ({rounded_up(epsilon)}, {delta:g})-differentially private"


def _epsilon(record: dict[str, Any], delta: float) -> float:
    if "mu" in record:
        return accounting.gaussian_epsilon(1 / float(record["mu"]), delta)
    return accounting.poisson_epsilon(
        record["noise_multiplier"],
        delta,
        sampling_rate=record["sampling_rate"],
        steps=record["steps"],
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
        flat = item.detach().cpu().reshape(-1)[:MAX_EXAMPLE_BYTES].contiguous()
        content = flat.view(torch.uint8).numpy().tobytes()
        yield str(item.shape).encode() + content[:MAX_EXAMPLE_BYTES]
    elif isinstance(item, np.ndarray) and not item.dtype.hasobject:
        content = np.ascontiguousarray(item).reshape(-1)[:MAX_EXAMPLE_BYTES].tobytes()
        yield str(item.shape).encode() + content[:MAX_EXAMPLE_BYTES]
    elif isinstance(item, bytes | bytearray):
        yield bytes(item[:MAX_EXAMPLE_BYTES])
    elif item is None or isinstance(item, str | bool | int | float | complex | np.generic):
        yield repr(item).encode()[:MAX_EXAMPLE_BYTES]
    else:
        raise TypeError(f"a {type(item).__name__} has no bytes of its own")


@contextmanager
def same_randomness() -> Iterator[None]:
    """Seed all generators, so that two looks at the data see the same; set them back at the end."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - augmentations use it
    with torch.random.fork_rng(devices=[]):
        try:
            torch.manual_seed(0)
            random.seed(0)
            np.random.seed(0)  # noqa: NPY002 - augmentations use it
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002 - augmentations use it
