"""Opacus' MNIST example with antiphase: another import and one more keyword.

python examples/mnist_opacus.py --epochs 10
python examples/mnist_opacus.py --data folder/with/mnist --batch-size 512

Lines that differ from Opacus are marked. There is no --secure-rng: the noise always comes from a
cryptographic generator with a secret key.
"""

import argparse
import gzip
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from antiphase.torch import PrivacyEngine  # with Opacus: from opacus import PrivacyEngine


class ConvNet(nn.Module):
    """Two convolutions and a linear layer, for images of 28 × 28."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(16, 32, 3)
        self.out = nn.Linear(32 * 5 * 5, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)  # 28 → 14 → 7
        x = F.relu(self.conv2(x))  # 7 → 5
        return self.out(x.flatten(1))


def read_idx(folder, name):
    """An IDX file: two zeros, the type (8 is bytes), the number of dimensions, these, the data."""
    path = next((p for p in (folder / name, folder / f"{name}.gz") if p.exists()), None)
    if path is None:
        raise SystemExit(f"{folder}: has neither {name} nor {name}.gz")
    data = (gzip.open if path.suffix == ".gz" else open)(path, "rb").read()
    dimensions = np.frombuffer(data, ">i4", count=data[3], offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(dimensions)


def load(data):
    """Training and test set, images of 28 × 28 scaled to [0, 1]."""
    if data != "digits":
        folder = Path(data)
        parts = [
            [read_idx(folder, f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1")]
            for part in ("train", "t10k")
        ]
        return [
            TensorDataset(torch.tensor(x / 255).float()[:, None], torch.tensor(y).long())
            for x, y in parts
        ]
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images / 16).float()[:, None]
    images = F.interpolate(images, size=(28, 28), mode="bilinear", align_corners=False)
    everything = TensorDataset(images, torch.tensor(digits.target))
    return random_split(everything, [0.8, 0.2], generator=torch.Generator().manual_seed(0))


def train(args, model, train_loader, optimizer, privacy_engine, epoch):
    model.train()
    losses = []
    for images, labels in train_loader:
        images, labels = images.to(args.device), labels.to(args.device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    line = f"epoch {epoch}: loss {np.mean(losses):.4f}"
    if not args.disable_dp:
        # Without spent=True: ε of the whole plan.
        spent = privacy_engine.get_epsilon(args.delta, spent=True)
        line += f", ε = {spent:.3f} so far at δ = {args.delta:g}"
    print(line)


def test(args, model, test_loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for images, labels in test_loader:
            correct += (
                (model(images.to(args.device)).argmax(dim=1) == labels.to(args.device)).sum().item()
            )
    accuracy = correct / len(test_loader.dataset)
    print(f"test accuracy: {accuracy:.2%}")
    return accuracy


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", default="digits", help="'digits' (scikit-learn's), or a folder with MNIST's files"
    )
    parser.add_argument("-b", "--batch-size", type=int, default=128)
    parser.add_argument("--test-batch-size", type=int, default=1024)
    parser.add_argument("-n", "--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument(
        "--sigma",
        type=float,
        default=0.7,
        help="noise multiplier; unlike with Opacus, ε does not depend on the epochs",
    )
    parser.add_argument(
        "-c",
        "--max-per-sample-grad_norm",
        type=float,
        default=1.0,
        help="limit on the norm of each example's gradient",
    )
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--disable-dp",
        action="store_true",
        help="train without privacy; without clipping, use --lr 0.1",
    )
    args = parser.parse_args()

    train_set, test_set = load(args.data)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=args.test_batch_size)
    model = ConvNet().to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0)
    privacy_engine = None
    if not args.disable_dp:
        privacy_engine = PrivacyEngine()
        model, optimizer, train_loader = privacy_engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=train_loader,
            noise_multiplier=args.sigma,
            max_grad_norm=args.max_per_sample_grad_norm,
            epochs=args.epochs,  # not with Opacus: correlated noise is planned ahead
        )
    for epoch in range(1, args.epochs + 1):
        train(args, model, train_loader, optimizer, privacy_engine, epoch)
    test(args, model, test_loader)


if __name__ == "__main__":
    main()
