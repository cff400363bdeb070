"""A small private training for most tests."""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import antiphase as ap
from antiphase.torch import PrivacyEngine


def data(size=60, width=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(size, width, generator=generator)
    return TensorDataset(X, (X[:, 0] > 0).long())


def small_model(width=5, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, 6), nn.Tanh(), nn.Linear(6, 2))


def make_private(engine, loader, model=None, **options):
    """``engine.make_private`` of a small model; ``loader`` None is a loader of `data`."""
    model = small_model() if model is None else model
    return engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data(), batch_size=12) if loader is None else loader,
        **{"noise_multiplier": 1.0, "max_grad_norm": 1.0, **options},
    )


def epoch(module, optimizer, loader):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs), targets).backward()
        optimizer.step()


class Training:
    """What make_private returned, and a training loop."""

    def __init__(
        self,
        mechanism="dp-mf",
        *,
        dataset=None,
        model=None,
        optimizer=None,
        batch_size=12,
        shuffle=True,
        workers=0,
        epochs=3,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        key=None,
        mode="hooks",
        design=None,
        criterion=None,
        run="ab" * 16,
        **options,
    ):
        self.dataset = data() if dataset is None else dataset
        self.model = small_model() if model is None else model
        make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1))
        self.inner = make(self.model.parameters())
        self.scheduler = options.get("scheduler")
        if callable(self.scheduler):
            self.scheduler = options["scheduler"] = self.scheduler(self.inner)
        loader = DataLoader(
            self.dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            num_workers=workers,
            generator=torch.Generator().manual_seed(7),
        )
        self.engine = PrivacyEngine(
            mechanism=mechanism, key=key or ap.Key.insecure(1), **(design or {})
        )
        self.criterion = criterion or nn.CrossEntropyLoss()
        made = self.engine.make_private(
            module=self.model,
            optimizer=self.inner,
            criterion=self.criterion,
            data_loader=loader,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            grad_sample_mode=mode,
            epochs=None if options.get("steps") else epochs,
            target_delta=1e-5,
            **options,
        )
        self.module, self.optimizer = made[:2]
        self.loader = made[-1]
        if mode == "ghost":
            self.criterion = made[2]
        self.epochs = epochs
        self._batches = None
        if run is not None:
            self.release.begin(run)

    def step(self, batch):
        inputs, targets = batch
        self.optimizer.zero_grad()
        self.criterion(self.module(inputs), targets).backward()
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()

    def batches(self):
        for _ in range(self.engine.completed_epochs, self.epochs):
            yield from self.loader

    def run(self, steps=None):
        """Train for ``steps`` more steps, or to the end."""
        if self._batches is None:
            self._batches = self.batches()
        for batch in itertools.islice(self._batches, steps):
            self.step(batch)
        return self

    @property
    def release(self):
        return self.optimizer.release

    def weights(self):
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])
