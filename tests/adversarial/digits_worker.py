"""A private training on digits in a folder, resumed from its checkpoint until it is complete.

Started and killed by test_kills.py. Arguments: the folder, and the steps between two checkpoints.
"""

import json
import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import antiphase as ap
from antiphase.torch import PrivacyEngine

EPOCHS = 4


def main():
    folder, often = Path(sys.argv[1]), int(sys.argv[2])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    X, y = load_digits(return_X_y=True)
    dataset = TensorDataset(torch.tensor(X / 16, dtype=torch.float32), torch.tensor(y))
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / 100)
    engine = PrivacyEngine(mechanism="dp-mf", key=ap.Key.load(folder / "key"))
    module, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(dataset, batch_size=100, shuffle=True),
        target_epsilon=8.0,
        target_delta=1e-5,
        epochs=EPOCHS,
        max_grad_norm=1.0,
        scheduler=scheduler,
    )
    checkpoint = {
        "path": folder / "checkpoint",
        "module": module,
        "optimizer": optimizer,
        "scheduler": scheduler,
    }
    if (folder / "checkpoint").exists():
        engine.load_checkpoint(**checkpoint)
    else:
        engine.save_checkpoint(**checkpoint)
        (folder / "start").write_bytes((folder / "checkpoint").read_bytes())
    print("ready", flush=True)
    for _ in range(engine.completed_epochs, EPOCHS):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(inputs), targets).backward()
            optimizer.step()
            scheduler.step()
            if engine.remaining_steps % often == 0:
                engine.save_checkpoint(**checkpoint)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    result = {"epsilon": engine.get_epsilon(1e-5), "spent": engine.get_epsilon(1e-5, spent=True)}
    result["weights"] = weights.numpy().tobytes().hex()
    (folder / "result").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
