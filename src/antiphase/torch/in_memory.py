"""Data sets in memory, and the accuracy of a model on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import default_collate

from antiphase.data import Dataset

Tensor = torch.Tensor


class InMemoryDataset(TorchDataset[Any]):
    """Inputs and targets of one split; batches are fetched ten times as fast as single examples.

    Args:
        dataset: has the public constants that inputs are standardised by.
        split: has the inputs and targets.
        inputs: "range" for inputs as they are, or "standard" for (x − mean)/std.

    Raises:
        ValueError: if the data set has no public mean and deviation.
    """

    def __init__(self, dataset: Dataset, split: Any, inputs: str) -> None:
        self.inputs, self.targets = torch.as_tensor(split.inputs), torch.as_tensor(split.targets)
        if inputs == "standard":
            if dataset.mean is None or dataset.std is None:
                raise ValueError(
                    f"inputs = 'standard': the dataset {dataset.name} has no public mean and "
                    "deviation"
                )
            shape = (1, -1) + (1,) * (self.inputs.ndim - 2)
            mean, std = (
                torch.tensor(v, dtype=torch.float32).view(shape)
                for v in (dataset.mean, dataset.std)
            )
            self.inputs = (self.inputs - mean) / std

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: Any) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The batch of these examples; called by `DataLoader`."""
        return self[torch.tensor(indices, dtype=torch.int64)]


def collate(fetched: Any) -> Any:
    """The batch: fetched at once, or a list of examples, which the gradient check asks for."""
    return default_collate(fetched) if isinstance(fetched, list) else fetched


def accuracy_and_loss(
    module: nn.Module, dataset: InMemoryDataset, batch_size: int = 1000
) -> tuple[float, float]:
    """Accuracy and mean cross-entropy of a classifier."""
    was_training, correct, loss = module.training, 0, 0.0
    module.eval()
    with torch.no_grad():
        for first in range(0, len(dataset), batch_size):
            inputs, targets = dataset[first : first + batch_size]
            scores = module(inputs)
            correct += int((scores.argmax(dim=1) == targets).sum())
            loss += float(nn.functional.cross_entropy(scores, targets, reduction="sum"))
    module.train(was_training)
    return correct / len(dataset), loss / len(dataset)
