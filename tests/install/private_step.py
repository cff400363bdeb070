"""A private training step in PyTorch, in an environment that ``make test-install`` made."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from antiphase.torch import PrivacyEngine


def main():
    torch.manual_seed(0)
    model = nn.Linear(5, 2)
    before = model.weight.detach().clone()
    data = TensorDataset(torch.randn(64, 5), torch.randint(0, 2, (64,)))
    engine = PrivacyEngine(mechanism="dp-mf+")
    private, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=16),
        target_epsilon=8.0,
        target_delta=1e-5,
        epochs=1,
        max_grad_norm=1.0,
    )
    inputs, labels = next(iter(loader))
    nn.functional.cross_entropy(private(inputs), labels).backward()
    optimizer.step()
    assert not torch.equal(model.weight, before)
    assert 0 < engine.get_epsilon(1e-5) <= 8.0
    print("a private step:", engine.get_epsilon(1e-5))


if __name__ == "__main__":
    main()
