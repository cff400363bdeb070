r"""A fast private training of linear models: for studies that train a thousand of them.

Logistic regression from k numbers to c classes, of which the last is the reference: its score is 0, so a model is one
matrix of (c − 1) × k and has no bias. The gradient of an example is the outer product of its c − 1 residuals and its
inputs, and so has the product of their norms: no gradient of a single example is ever formed. Several models that
differ in their noise learn from the same batches at once.

Everything that privacy rests on comes from the library: batches from its samplers, noise from its streams, clipping as
its optimizer clips. The results are those of `antiphase.torch.PrivacyEngine`, to rounding; a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase.data.dataset import Split

CLIP_MARGIN = (
    1e-5  # by how much clipped examples are shorter than the clip norm, for the rounding of norms
)

Matrix = NDArray[np.float32]
Batches = Iterable[Any]  # of indices of examples


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs as rows, their norms, and which class each belongs to as a row of 0 and 1, without the reference."""

    inputs: Matrix
    norms: Matrix
    targets: Matrix

    @classmethod
    def of(cls, split: Split, classes: int) -> Examples:
        inputs = split.inputs.reshape(len(split), -1)
        return cls(
            inputs,
            np.linalg.norm(inputs, axis=1),
            np.eye(classes, classes - 1, dtype=np.float32)[split.targets],
        )

    def accuracy(self, weights: Matrix) -> float:
        """How many of the examples the model puts into their class; the first of several that score alike."""
        scores = np.zeros((len(self.inputs), len(weights) + 1), np.float32)
        scores[:, :-1] = self.inputs @ weights.T
        right = np.where(self.targets.any(axis=1), self.targets.argmax(axis=1), len(weights))
        return float(np.mean(scores.argmax(axis=1) == right))


def train(
    examples: Examples,
    batches: Batches,
    noise: Iterator[Matrix] | None,
    *,
    learning_rate: float,
    divisor: float,
    clip_norm: float | None,
    models: int = 1,
) -> Matrix:
    """The weights of all models after all ``batches``, from zero on: plain SGD on clipped gradients with noise.

    The sum over a batch is divided by ``divisor``, which is public, and not by how many examples are in it. ``noise``
    yields one array a step, in the shape of the weights: (models, classes − 1, inputs). None adds none, and without
    ``clip_norm`` nothing is clipped.
    """
    shape = models, examples.targets.shape[1], examples.inputs.shape[1]
    weights = np.zeros((shape[0] * shape[1], shape[2]), np.float32)
    rate = np.float32(learning_rate / divisor)
    for batch in batches:
        x = examples.inputs[batch]
        residuals = _residuals((weights @ x.T).reshape(*shape[:2], -1), examples.targets[batch].T)
        if clip_norm is not None:
            norms = np.sqrt(np.square(residuals).sum(axis=1, keepdims=True)) * examples.norms[batch]
            with np.errstate(divide="ignore"):  # an example without a gradient is not clipped
                residuals *= np.minimum(np.float32(clip_norm * (1 - CLIP_MARGIN)) / norms, 1)
        update = residuals.reshape(len(weights), -1) @ x
        if noise is not None:
            update += next(noise).reshape(weights.shape)
        update *= rate
        weights -= update
    return weights.reshape(shape)


def _residuals(scores: Matrix, targets: Matrix) -> Matrix:
    """Probabilities − targets, for (models, classes − 1, examples); the score of the reference is 0."""
    top = np.maximum(scores.max(axis=1, keepdims=True), 0)
    scores = np.exp(scores - top)
    scores /= scores.sum(axis=1, keepdims=True) + np.exp(-top)
    scores -= targets
    return scores
