"""Attacks by writes into the model in a pass (row 34) and by saved models (row 43)."""

import io

import torch
from torch import nn

from tests.adversarial.attacks import (
    MODES,
    Outcome,
    Setup,
    attack,
    data,
    refused,
    seeded,
    small_model,
    tokens,
)

# Row 34: layers that write into the model


class Words(nn.Module):
    """The mean of embeddings, and a layer."""

    def __init__(self, **options):
        super().__init__()
        self.embedding, self.layer = nn.Embedding(9, 4, **options), nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(self.embedding(x).mean(dim=1))


def max_norm():
    return Words(max_norm=0.5)


class Images(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.layer, self.norm, self.head = nn.Conv1d(1, 4, 2), norm, nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.norm(self.layer(x[:, None])).flatten(1))


def instance_norm():
    return Images(nn.InstanceNorm1d(4, track_running_stats=True))


def affine_instance_norm():
    return Images(nn.InstanceNorm1d(4, affine=True, track_running_stats=True))


def batch_norm():
    return Images(nn.BatchNorm1d(4))


class RunningMean(nn.Module):
    """A mean of inputs in a buffer, or in a plain attribute of the module."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.mean = 0.9 * self.mean + 0.1 * x.mean(dim=0)
        return self.layer(x)


class RunningMeanInPlace(RunningMean):
    def forward(self, x):
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(dim=0))
        return self.layer(x)


class Observed(nn.Module):
    """A quantization observer: the smallest and the largest number seen."""

    def __init__(self):
        super().__init__()
        self.observer = torch.ao.quantization.MinMaxObserver()
        self.layer = nn.Linear(5, 2)

    def forward(self, x):
        return self.layer(self.observer(x))


class WritesPastVersions(nn.Module):
    """``p.data.add_`` in the forward pass, which torch's version counters do not see."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x):
        if self.training:
            self.layer.weight.data.add_(1e-3 * x.mean(dim=0))
        return self.layer(x)


UNNOTICED = (max_norm, RunningMean, RunningMeanInPlace, Observed, WritesPastVersions)
KNOWN = (instance_norm, affine_instance_norm, batch_norm)  # validators refuse these
WRITING = [(make, mode) for make in (UNNOTICED[0], *KNOWN, *UNNOTICED[1:]) for mode in MODES]


@attack(34, "a layer that writes", "refused", *WRITING)
def writing_layer(make, mode):
    """Refused by make_private: what a pass writes is neither clipped nor noised."""
    inputs = tokens() if make is max_norm else data(12, 5)
    return refused(lambda: Setup(seeded(make)(), inputs, mode=mode))


UNCHECKED = [(make, mode) for make in UNNOTICED for mode in MODES]


@attack(34, "a layer that writes, without the gradient check", "refused", *UNCHECKED)
def writing_layer_unchecked(make, mode):
    """Refused by the first step, before a release."""
    inputs = tokens() if make is max_norm else data(12, 5)
    setup = Setup(seeded(make)(), inputs, mode=mode, probe=False)
    before = setup.optimizer.release.drawn
    found = refused(lambda: setup.step(*next(iter(setup.loader))), None, RuntimeError)
    return found if setup.optimizer.release.drawn == before else Outcome("WRONG", "released")


class Frozen(nn.Module):
    """Batch normalisation with fixed statistics until ``fixed`` is set to False."""

    def __init__(self):
        super().__init__()
        self.layer, self.head, self.fixed = nn.Linear(5, 4), nn.Linear(4, 2), True
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("variance", torch.ones(4))

    def forward(self, x):
        return self.head(
            nn.functional.batch_norm(
                self.layer(x), self.mean, self.variance, training=not self.fixed
            )
        )


@attack(34, "batch normalisation unfrozen after the first step", "refused", *MODES)
def unfrozen_later(mode):
    """Running statistics that change in a later step are detected before its release."""
    model = seeded(Frozen)()
    setup = Setup(model, data(12, 5), mode=mode)
    setup.step(*next(iter(setup.loader)))
    model.fixed = False
    return refused(lambda: setup.step(*next(iter(setup.loader))), setup)


class WritesInStep(nn.Module):
    """A buffer that is written in the forward pass after so many steps."""

    def __init__(self):
        super().__init__()
        self.layer, self.writes = nn.Linear(5, 2), False
        self.register_buffer("kept", torch.zeros(5))

    def forward(self, x):
        if self.writes:
            self.kept.data.copy_(x[0].detach())
        return self.layer(x)


@attack(34, "a buffer changed in step 3", "refused", *MODES)
def changed_in_step_3(mode):
    """By ``.data``, past torch's version counters."""
    model = seeded(WritesInStep)()
    setup = Setup(model, data(12, 5), mode=mode)
    for _ in range(2):
        setup.step(*next(iter(setup.loader)))
    model.writes = True
    return refused(lambda: setup.step(*next(iter(setup.loader))), setup)


# Row 43: saved models


def patterns(tensors):
    """Bytes of the first four numbers of each nonzero row, in float32 and float64."""
    found = set()
    for tensor in tensors:
        flat = tensor.detach().reshape(len(tensor) if tensor.ndim > 1 else 1, -1)
        for row in flat:
            if len(row) >= 3 and bool(row[:3].abs().min() > 0):
                found |= {
                    row[:3].to(dtype).numpy().tobytes() for dtype in (torch.float32, torch.float64)
                }
    return found


def held(model):
    """Tensors in attributes of modules and parameters, which a file of the model would hold."""
    found, left = [], [vars(item) for item in [*model.modules(), *model.parameters()]]
    while left:
        item = left.pop()
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, dict):
            left += item.values()
        elif isinstance(item, list | tuple):
            left += item
    return found


SAVED = [
    (what, mode, wrap)
    for what in ("model", "module")
    for mode in MODES
    for wrap in (True, False)
    if wrap or mode != "functorch"
]


@attack(43, "torch.save after a step", "nothing found", *SAVED)
def saved(what, mode, wrap):
    """The file holds no per-example gradients, no sum without noise and no activations."""
    setup = Setup(small_model(), data(12, 5), mode=mode, wrap_model=wrap)
    inputs, targets = next(iter(setup.loader))
    kept = {"activations": [inputs], "gradients of examples": [], "sums": []}
    handles = [
        m.register_forward_hook(lambda _, __, out: kept["activations"].append(out.detach().clone()))
        for m in setup.model.children()
    ]

    def look():
        for p in setup.optimizer.params:
            rows = getattr(p, "grad_sample", None)
            kept["gradients of examples"] += [] if rows is None else [rows.detach().clone()]
            kept["sums"].append(p.summed_grad.detach().clone())

    setup.optimizer.release.guards.append(look)
    setup.optimizer.zero_grad()
    call = setup.module if wrap else setup.model
    setup.criterion(call(inputs), targets).backward()
    kept["gradients of examples"] += [
        p.grad.clone() for p in setup.optimizer.params if p.grad is not None
    ]
    setup.optimizer.step()
    setup.optimizer.release.guards.remove(look)
    for handle in handles:
        handle.remove()
    file, item = io.BytesIO(), setup.model if what == "model" else setup.module
    try:
        torch.save(item, file)
    except (
        AttributeError,
        TypeError,
    ):  # functions of Opacus' hooks cannot be pickled: what would be in the file?
        file = io.BytesIO()
        torch.save([*setup.model.parameters(), *held(setup.model)], file)
    content = file.getvalue()
    weights = setup.model[0].weight
    if weights[0, :3].detach().numpy().tobytes() not in content:
        return Outcome("WRONG", "the weights were not found either")
    for name, tensors in kept.items():
        hits = sum(pattern in content for pattern in patterns(tensors))
        if hits:
            return Outcome("WRONG", f"{hits} rows of {name}")
    return Outcome("nothing found", f"{sum(len(patterns(t)) for t in kept.values())} patterns")
