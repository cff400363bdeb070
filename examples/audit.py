"""Audit your own training in one run.

    antiphase audit examples/audit.py:scores --one-run --canaries 2000 --mu 1

`scores` trains once with the canaries that `included` selects, and returns a score for each: larger
where the canary seems to be present. Here a canary is an example with one large input that is 0 in
all others. So its gradient has a weight of its own, is clipped, and can be seen in that weight at
the end, through the noise. A canary that is left out is an example of zeros, which keeps its place
in the batches.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from antiphase.torch import PrivacyEngine


def scores(included):
    """Train once; return the weight of each canary."""
    count = len(included)
    inputs = 100.0 * torch.diag(torch.as_tensor(included, dtype=torch.float32))
    model = nn.Linear(count, 1, bias=False)
    nn.init.zeros_(model.weight)
    engine = PrivacyEngine(mechanism="dp-mf")
    module, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        data_loader=DataLoader(TensorDataset(inputs), batch_size=count // 4, shuffle=True),
        noise_multiplier=1.0,  # 1-Gaussian privacy, whatever the number of steps
        max_grad_norm=1.0,
        epochs=1,
    )
    for (batch,) in loader:
        optimizer.zero_grad()
        (-module(batch)).mean().backward()
        optimizer.step()
    return model.weight.detach().flatten().numpy()
