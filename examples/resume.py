"""Training that can be killed at any moment and resumed.

python examples/resume.py --folder run                    # trains to the end
python examples/resume.py --folder run --kill-after 23    # kills itself after 23 steps

The folder holds the key, the ledger of released sums, and the checkpoint. A process that starts
there resumes from the checkpoint with the same noise. Repeated steps have the same outcome, bit for
bit, and cost no more privacy. The final weights are those of a run without interruption.
"""

import argparse
import hashlib
import os
import signal
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from antiphase import Key
from antiphase.torch import PrivacyEngine

DELTA = 1e-5


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("run"), help="where key, ledger and checkpoint are kept"
    )
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--checkpoint-every", type=int, default=5, metavar="STEPS")
    parser.add_argument(
        "--kill-after", type=int, metavar="STEPS", help="kill this process after so many steps"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # reproducible sums

    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9)
    loader = DataLoader(data, batch_size=150, shuffle=True)

    arguments.folder.mkdir(parents=True, exist_ok=True)
    key_file, checkpoint = arguments.folder / "key", arguments.folder / "checkpoint"
    if not key_file.exists():
        Key.generate().save(key_file)
    engine = PrivacyEngine(key=Key.load(key_file))
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        target_epsilon=8.0,
        target_delta=DELTA,
        epochs=arguments.epochs,
        max_grad_norm=1.0,
    )
    if checkpoint.exists():
        engine.load_checkpoint(path=checkpoint, module=model, optimizer=optimizer)
    else:
        # Before the first step, so that there is always a checkpoint to resume from.
        engine.save_checkpoint(path=checkpoint, module=model, optimizer=optimizer)

    steps = engine.plan.steps
    print(f"{steps - engine.remaining_steps} of {steps} steps are done", flush=True)
    made = 0
    for _ in range(engine.completed_epochs, arguments.epochs):
        # After a restart, the first pass begins with the next batch.
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            made += 1
            if made == arguments.kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
            if (steps - engine.remaining_steps) % arguments.checkpoint_every == 0:
                engine.save_checkpoint(path=checkpoint, module=model, optimizer=optimizer)

    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print(f"all {steps} steps are done, {made} of them by this process, each accounted for once")
    print(f"SHA-256 of the weights: {hashlib.sha256(weights).hexdigest()}")
    print(f"ε = {engine.get_epsilon(DELTA, spent=True):.6f} at δ = {DELTA:g}")


if __name__ == "__main__":
    main()
