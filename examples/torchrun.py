"""Private training over several processes: scikit-learn's digits, (8, 1e-5)-differentially private.

torchrun --nproc-per-node 2 examples/torchrun.py --key digits.key
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from antiphase import Key
from antiphase.torch import PrivacyEngine

parser = argparse.ArgumentParser()
parser.add_argument("--key", type=Path, default=Path("digits.key"), help="file of the secret key")
parser.add_argument("--epochs", type=int, default=20)
arguments = parser.parse_args()

dist.init_process_group("gloo")
first = dist.get_rank() == 0
if first and not arguments.key.exists():
    Key.generate().save(arguments.key)
dist.barrier()  # all processes must have the same key

torch.manual_seed(0)  # for the split, which must be the same in all processes
images, labels = load_digits(return_X_y=True)
everything = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
train, test = random_split(everything, [0.8, 0.2])

model = DPDDP(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9)
# The batch size is that of all processes together.
loader = DataLoader(train, batch_size=150, shuffle=True)

engine = PrivacyEngine(key=Key.load(arguments.key))
model, optimizer, loader = engine.make_private_with_epsilon(
    module=model,
    optimizer=optimizer,
    data_loader=loader,
    target_epsilon=8.0,
    target_delta=1e-5,
    epochs=arguments.epochs,
    max_grad_norm=1.0,
)
for _ in range(arguments.epochs):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

if first:
    inputs, targets = test[:]
    accuracy = (model.eval()(inputs).argmax(dim=1) == targets).float().mean().item()
    epsilon = engine.get_epsilon(1e-5)
    print(
        f"{dist.get_world_size()} processes: accuracy {accuracy:.3f}, ε = {epsilon:.4f} at δ = 1e-5"
    )
dist.destroy_process_group()
