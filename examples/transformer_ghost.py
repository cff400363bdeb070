"""A small transformer with ghost clipping: norms without per-example gradients in memory.

python examples/transformer_ghost.py

The task is synthetic: which of the tokens 0 and 1 occurs more often in a sequence of 15?
"""

import torch
from opacus.validators import ModuleValidator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from antiphase.torch import PrivacyEngine

TOKENS, LENGTH, WIDTH = 4, 15, 16
EPSILON, DELTA, EPOCHS = 4.0, 1e-5, 6


def sequences(count):
    tokens = torch.randint(TOKENS, (2 * count, LENGTH))
    balance = (tokens == 1).sum(dim=1) - (tokens == 0).sum(dim=1)
    tokens, balance = tokens[balance != 0], balance[balance != 0]
    return TensorDataset(tokens[:count], (balance[:count] > 0).long())


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.encoder = nn.TransformerEncoderLayer(
            WIDTH, nhead=2, dim_feedforward=32, dropout=0.0, batch_first=True
        )
        self.out = nn.Linear(WIDTH, 2)

    def forward(self, tokens):
        return self.out(self.encoder(self.embedding(tokens)).mean(dim=1))


torch.manual_seed(0)  # for the data and the weights; the noise comes from a secret key
train, test = sequences(8192), sequences(2048)
model = ModuleValidator.fix(Classifier())  # replaces PyTorch's attention by Opacus'
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
loader = DataLoader(train, batch_size=512, shuffle=True)

engine = PrivacyEngine()
model, optimizer, criterion, loader = engine.make_private_with_epsilon(
    module=model,
    optimizer=optimizer,
    criterion=nn.CrossEntropyLoss(),
    data_loader=loader,
    target_epsilon=EPSILON,
    target_delta=DELTA,
    epochs=EPOCHS,
    max_grad_norm=1.0,
    grad_sample_mode="ghost",
)
for _ in range(EPOCHS):
    for tokens, labels in loader:
        optimizer.zero_grad()
        criterion(model(tokens), labels).backward()  # two passes: the norms, then the clipped sum
        optimizer.step()

tokens, labels = test[:]
accuracy = (model.eval()(tokens).argmax(dim=1) == labels).float().mean().item()
print(f"accuracy on new sequences: {accuracy:.1%}")
print(f"ε = {engine.get_epsilon(DELTA):.4f} at δ = {DELTA:g}")
