r"""Fast private training of linear models, several noise levels at once.

Logistic regression from k inputs to c classes. The last class is the reference with score 0, so a
model is one matrix of (c − 1) × k without a bias. The gradient of an example is the outer product
of its c − 1 residuals and its inputs, and its norm is the product of theirs; per-example gradients
are never formed. Models that differ in their noise are trained on the same batches side by side.

Everything that privacy rests on comes from the library: batches from its samplers, noise from its
streams, clipping by its rule. The results equal those of `antiphase.torch.PrivacyEngine` up to
rounding; a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase.data.dataset import Split

CLIP_MARGIN = 1e-5  # relative; clipped gradients are shorter by it, for rounding errors of norms

Matrix = NDArray[np.float32]
Batches = Iterable[Any]  # of indices of examples


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs as rows, their norms, and one-hot classes without the reference class."""

    inputs: Matrix
    norms: Matrix
    targets: Matrix

    @classmethod
    def of(cls, split: Split, classes: int) -> Examples:
        """The examples of a split, each flattened to a row."""
        inputs = split.inputs.reshape(len(split), -1)
        return cls(
            inputs,
            np.linalg.norm(inputs, axis=1),
            np.eye(classes, classes - 1, dtype=np.float32)[split.targets],
        )

    def accuracy(self, weights: Matrix) -> float:
        """The share of examples classified correctly; ties go to the first class."""
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
    """Train models from zero by SGD on clipped gradients with noise.

    Args:
        examples: the training examples.
        batches: indices of the examples of each step.
        noise: one array per step in the shape of the weights; None adds no noise.
        learning_rate: learning rate.
        divisor: the public batch size; sums over a batch are divided by it, whatever their size.
        clip_norm: norm to which each example's gradient is clipped; None clips nothing.
        models: number of models.

    Returns:
        The weights after all batches: (models, classes − 1, inputs).
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
    """Probabilities − targets, (models, classes − 1, examples); the reference has score 0."""
    top = np.maximum(scores.max(axis=1, keepdims=True), 0)
    scores = np.exp(scores - top)
    scores /= scores.sum(axis=1, keepdims=True) + np.exp(-top)
    scores -= targets
    return scores
