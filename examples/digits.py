"""Private training in a few lines: scikit-learn's digits, (8, 1e-5)-differentially private.

python examples/digits.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from antiphase.torch import PrivacyEngine

EPSILON, DELTA, EPOCHS = 8.0, 1e-5, 10

torch.manual_seed(0)  # for the split and the weights; the noise comes from a secret key
images, labels = load_digits(return_X_y=True)
everything = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
train, test = random_split(everything, [0.8, 0.2])

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
loader = DataLoader(train, batch_size=150, shuffle=True)

engine = PrivacyEngine()
target = {"target_epsilon": EPSILON, "target_delta": DELTA, "epochs": EPOCHS}
model, optimizer, loader = engine.make_private_with_epsilon(
    module=model, optimizer=optimizer, data_loader=loader, max_grad_norm=1.0, **target
)
for _ in range(EPOCHS):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

inputs, targets = test[:]
accuracy = (model.eval()(inputs).argmax(dim=1) == targets).float().mean().item()
print(f"accuracy on held-out digits: {accuracy:.1%}")
print(f"ε = {engine.get_epsilon(DELTA):.4f} at δ = {DELTA:g}\n")
print(engine.statement())
