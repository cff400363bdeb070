"""Data sets as NumPy arrays, and the rules that split data without a split."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

INVERSE_GOLDEN_RATIO = 2654435769  # 2³² / φ


@dataclass(frozen=True, eq=False)
class Split:
    """Examples and their classes.

    Attributes:
        inputs: float32, one example a row.
        targets: int64, indices into `Dataset.classes`.
    """

    inputs: NDArray[np.float32]
    targets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test split.

    Attributes:
        name: name of the data set, or of the file.
        train: training examples.
        test: test examples.
        classes: names of the classes.
        mean: published mean for each channel; None for data of your own, since figures computed
            from private examples are not private.
        std: published standard deviation for each channel, or None.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.train.inputs.shape[1:])

    @cached_property
    def digest(self) -> str:
        """SHA-256 of arrays, shapes and classes; it identifies the data."""
        sha256 = hashlib.sha256(repr(self.classes).encode())
        for array in (self.train.inputs, self.train.targets, self.test.inputs, self.test.targets):
            little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
            sha256.update(repr((little.dtype.str, little.shape)).encode())
            sha256.update(little.data.cast("B") if little.size else b"")
        return sha256.hexdigest()


def train_test_split(
    inputs: NDArray[np.generic], targets: NDArray[np.int64]
) -> tuple[Split, Split]:
    """Split data that come without a split, by position alone: a fifth is for testing.

    Example i is a test example if the fractional part of i·φ is below 1/5. Multiples of the golden
    ratio φ are spread evenly along every regular sequence, so that each class gives a fifth whether
    the data are sorted by class or the classes alternate (as in digits).
    """
    hashed = np.arange(len(targets), dtype=np.uint64) * np.uint64(INVERSE_GOLDEN_RATIO)
    test = hashed % np.uint64(1 << 32) < (1 << 32) // 5
    as_float = inputs.astype(np.float32, copy=False)
    return Split(as_float[~test], targets[~test]), Split(as_float[test], targets[test])


def user_split(user: str) -> str:
    """Split of a user, by a hash of the name: ``train``, ``val`` and ``test`` are 80 : 10 : 10.

    Example:
        >>> [user_split(user) for user in ("anna", "ben", "cleo")]
        ['train', 'train', 'val']
    """
    remainder = int.from_bytes(hashlib.sha256(user.encode()).digest()[:8]) % 10
    return {0: "val", 1: "test"}.get(remainder, "train")
