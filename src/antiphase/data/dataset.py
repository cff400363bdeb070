"""What a data set is here: two splits of NumPy arrays, the names of the classes, and public statistics."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Split:
    """``inputs``: float32, one example a row; ``targets``: int64, the place of its class in ``Dataset.classes``."""

    inputs: NDArray[np.float32]
    targets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test examples.

    ``mean`` and ``std`` are published figures, one for each channel, or None for data of the user's own: figures
    computed from private examples would not be private.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.train.inputs.shape[1:])

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the four arrays with their shapes and of the classes: what a record of a run calls its data."""
        mark = hashlib.sha256(repr(self.classes).encode())
        for array in (self.train.inputs, self.train.targets, self.test.inputs, self.test.targets):
            little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
            mark.update(repr((little.dtype.str, little.shape)).encode())
            mark.update(little.data.cast("B") if little.size else b"")
        return mark.hexdigest()


def divided(inputs: NDArray[np.generic], targets: NDArray[np.int64]) -> tuple[Split, Split]:
    """The split of data that come without one: example i is a test example if the fraction of i·φ is below 1/5.

    Multiples of the golden ratio φ are spread evenly along every regular sequence, so that data sorted by class, or
    with the classes in turn (as digits are), give each class its fifth. The rule looks at nothing but the position.
    """
    turn = (np.arange(len(targets), dtype=np.uint64) * np.uint64(2654435769)) % np.uint64(
        1 << 32
    )  # 2³²/φ
    test = turn < (1 << 32) // 5
    as_float = inputs.astype(np.float32, copy=False)
    return Split(as_float[~test], targets[~test]), Split(as_float[test], targets[test])


def split_of(user: str) -> str:
    """Where a user belongs of whom it is not said: of ten, one to ``val`` and one to ``test``, by a hash of the name.

    >>> [split_of(user) for user in ("anna", "ben", "cleo")]
    ['train', 'train', 'val']
    """
    turn = int.from_bytes(hashlib.sha256(user.encode()).digest()[:8]) % 10
    return {0: "val", 1: "test"}.get(turn, "train")
