"""Attacks on clipping: an example that would contribute more than the clip norm."""

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

from tests.adversarial.attacks import (
    MODES,
    TOLERANCE,
    Outcome,
    Setup,
    attack,
    contributions,
    cross_entropy,
    data,
    exact,
    refused,
    seeded,
    small_model,
    tokens,
)

# Row 28: tokens that cancel


class Weighted(nn.Module):
    """A layer on tokens, with outputs weighted by data, so that gradients of tokens can cancel."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        values, weights = x[..., :-1], x[..., -1:]
        if isinstance(self.layer, nn.Embedding):
            out = self.layer(values[..., 0].long())
        elif isinstance(self.layer, nn.Conv1d):
            out = self.layer(values.transpose(1, 2)).transpose(1, 2)
        else:
            out = self.layer(values)
        return (out * weights).sum(dim=1)


LAYERS = {
    "linear": lambda: nn.Linear(24, 32, bias=False),
    "linear with bias": lambda: nn.Linear(24, 32),
    "convolution": lambda: nn.Conv1d(24, 32, 1),
    "embedding": lambda: nn.Embedding(24, 32),
}


def cancelling(count, length, scale, remainder, kind, seed=0):
    """Examples whose tokens come in pairs with weights +w and −w(1 − remainder)."""
    x = data(count, length, 25, seed=seed)
    if kind == "embedding":
        x[..., 0] = tokens(count, length, 24).float()
    pairs = length // 2
    x[:, pairs : 2 * pairs, :-1] = x[:, :pairs, :-1]
    x[:, :pairs, -1] = scale * (1 + x[:, :pairs, -1].abs())
    x[:, pairs : 2 * pairs, -1] = -x[:, :pairs, -1] * (1 - remainder)
    return x


class Dot(nn.Module):
    """The loss Σ output·target of each example: gradients are as large as the targets."""

    def __init__(self, reduction="mean"):
        super().__init__()
        self.reduction = reduction

    def forward(self, output, target):
        each = output.sum(dim=1) * (2.0 * target - 1.0)
        return each if self.reduction == "none" else each.mean()


@attack(28, "tokens that cancel", "exact", *[(kind, mode) for kind in LAYERS for mode in MODES])
def cancelling_tokens(kind, mode):
    """2 … 4,096 tokens, scales 1e-2 … 1e5, remainders 1e-1 … 0: norms are upper bounds."""
    worst = 0.0
    for length, scale, remainder in [
        (2, 1e-2, 1e-1),
        (2, 1e5, 1e-3),
        (2, 1.0, 0.0),
        (6, 1e2, 1e-4),
        (6, 1e5, 1e-6),
        (8, 1.0, 1e-5),
        (64, 1e3, 1e-4),
        (512, 1e5, 1e-3),
        (4096, 1.0, 1e-2),
    ]:
        x = cancelling(4 if length > 64 else 12, length, scale, remainder, kind)
        make = seeded(lambda: Weighted(LAYERS[kind]()))
        worst = max(
            worst, *contributions(make, x, mode=mode, criterion=Dot, probe=False, which=[0])
        )
    return Outcome("exact" if worst <= 1.0 else "WRONG", f"{worst:.4f} C")


@attack(28, "100 copies of one example that cancels", "exact", *MODES)
def copies_that_cancel(mode):
    """Rounding remains, in the same direction for all copies; the batch size must not change it."""
    x = torch.zeros(101, 6, 25)
    x[..., :-1], x[..., -1] = data(24), 1e5 * torch.tensor([1.0, 1.0, -2.0, 1.0, 1.0, -2.0])
    x[0] = data(6, 25)
    make = seeded(lambda: Weighted(LAYERS["linear"]()))
    worst = max(
        contributions(
            make, x, torch.zeros(101).long(), mode, criterion=Dot, probe=False, which=[0, 50]
        )
    )
    return Outcome("exact" if worst <= 1.0 else "WRONG", f"{worst:.4f} C")


class Deep(nn.Module):
    """Three layers: output gradients of the lower ones are products over the batch."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 3)
        )

    def forward(self, x):
        return (self.layers(x[..., :-1]) * x[..., -1:]).sum(dim=1)


@attack(28, "copies that cancel, in a deep model", "exact", *MODES)
def copies_that_cancel_deep(mode):
    """Rounding of a backward pass depends on the batch size, and nothing else is left."""
    worst = 0.0
    for batch in (2, 3, 200):
        x = torch.zeros(batch, 6, 6)
        x[..., :-1], x[..., -1] = (
            data(5, seed=1),
            1e6 * torch.tensor([1.0, 1.0, -2.0, 1.0, 1.0, -2.0]),
        )
        x[0] = data(6, 6, seed=2)
        targets = torch.zeros(batch).long()
        worst = max(
            worst,
            *contributions(seeded(Deep), x, targets, mode, criterion=Dot, probe=False, which=[0]),
        )
    return Outcome("exact" if worst <= 1.0 else "WRONG", f"{worst:.4f} C")


@attack(
    28, "tokens that do not cancel", "exact", *[(kind, mode) for kind in LAYERS for mode in MODES]
)
def ordinary_tokens(kind, mode):
    """The same layers on ordinary tokens: the sum is that of a loop."""
    x = data(12, 6, 25)
    if kind == "embedding":
        x[..., 0] = tokens(12, 6, 24).float()

    def loss(model, inputs, targets):
        return Dot()(model(inputs), targets)

    make = seeded(lambda: Weighted(LAYERS[kind]()))
    tolerance = (
        1e-3 if mode == "ghost" else TOLERANCE
    )  # its norms are upper bounds, by 1.6e-5·(S/‖G‖)²
    return exact(make, x, mode=mode, criterion=Dot, loss=loss, tolerance=tolerance)


# Row 29: weights that are used in several places


class Language(nn.Module):
    """Embeddings, their mean through a layer, and scores of all words."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.layer = nn.Linear(4, 4)
        self.head = nn.Linear(4, 9, bias=False)

    def hidden(self, x):
        return torch.tanh(self.layer(self.embedding(x).mean(dim=1)))

    def forward(self, x):
        return self.head(self.hidden(x))


def by_module():
    model = Language()
    model.head.weight = model.embedding.weight
    return model


class ByFunction(Language):
    def __init__(self):
        super().__init__()
        del self.head

    def forward(self, x):
        return self.hidden(x) @ self.embedding.weight.T


class ByLinear(ByFunction):
    def forward(self, x):
        return nn.functional.linear(self.hidden(x), self.embedding.weight)


class Halved(nn.Module):
    def forward(self, weight):
        return weight * 0.5


def by_parametrization():
    """The head's weight is half of the embeddings."""
    model = Language()
    parametrize.register_parametrization(model.head, "weight", Halved())
    model.head.parametrizations.weight.original = model.embedding.weight
    return model


class Twice(nn.Module):
    """One layer that is called twice, with different inputs."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.layer(torch.tanh(self.layer(x))))


TIED = [by_module, ByFunction, ByLinear, by_parametrization]


@attack(
    29, "weights tied", "exact", *[(make, mode) for make in TIED for mode in ("hooks", "ghost")]
)
def tied_weights(make, mode):
    """Both uses of a weight are part of the gradient and of its norm."""
    return exact(seeded(make), tokens(), mode=mode)


@attack(29, "weights tied", ("exact", "refused"), *[(make, "functorch") for make in TIED])
def tied_weights_by_opacus_hooks(make, mode):
    """Opacus' hooks see only uses by modules; the gradient check refuses others."""
    try:
        return exact(seeded(make), tokens(), mode=mode)
    except ValueError:
        return refused(lambda: Setup(seeded(make)(), tokens(), mode=mode))


@attack(29, "a layer called twice", "exact", *MODES)
def called_twice(mode):
    """The gradients of both calls belong to one example."""
    return exact(seeded(Twice), data(12, 5), mode=mode)


# Row 30: other backward passes


def extra_backward(setup, inputs, targets):
    """A plain backward pass of the user's own model between the private one and step()."""
    setup.optimizer.zero_grad()
    setup.criterion(setup.module(inputs), targets).backward()
    (1000 * nn.functional.cross_entropy(setup.model(inputs), targets)).backward()
    setup.optimizer.step()


def gradients_by_hand(setup, inputs, targets):
    """Gradients written into ``p.grad`` between the private backward pass and step()."""
    setup.optimizer.zero_grad()
    setup.criterion(setup.module(inputs), targets).backward()
    for p in setup.model.parameters():
        p.grad = torch.full_like(p, 1000.0)
    setup.optimizer.step()


def penalty(setup, inputs, targets):
    """A penalty on weights, with a backward pass of its own."""
    setup.optimizer.zero_grad()
    setup.criterion(setup.module(inputs), targets).backward()
    (1000 * sum(p.square().sum() for p in setup.model.parameters())).backward()
    setup.optimizer.step()


def retained_plain(setup, inputs, targets):
    """A plain backward pass of the private graph, which is retained for the private one."""
    setup.optimizer.zero_grad()
    output = setup.module(inputs)
    (1000 * output.sum()).backward(retain_graph=True)
    setup.optimizer.zero_grad()
    setup.criterion(output, targets).backward()
    setup.optimizer.step()


PLAIN = [extra_backward, gradients_by_hand, penalty, retained_plain]


@attack(
    30,
    "another backward pass",
    "exact",
    *[(step, mode) for step in PLAIN for mode in ("hooks", "ghost")],
)
def another_backward(step, mode):
    """Only what the private backward pass recorded is released."""
    return exact(small_model, data(12, 5), mode=mode, step=step)


@attack(30, "another backward pass", ("exact", "refused"), *[(step, "functorch") for step in PLAIN])
def another_backward_with_opacus_hooks(step, mode):
    """Opacus' hooks on the model itself record extra rows, which are counted and refused."""
    try:
        return exact(small_model, data(12, 5), mode=mode, step=step)
    except (RuntimeError, ValueError, IndexError):
        setup = Setup(small_model(), data(12, 5), mode=mode)
        return refused(lambda: step(setup, *next(iter(setup.loader))), setup, IndexError)


def both(model, inputs, targets):
    output = model(inputs)
    return nn.functional.cross_entropy(output, targets) + output.square().mean()


class SecondLoss(nn.Module):
    def __init__(self, reduction="mean"):
        super().__init__()
        self.reduction = reduction

    def forward(self, output, target):
        each = output.square().mean(dim=1)
        return each if self.reduction == "none" else each.mean()


def two_losses(setup, inputs, targets):
    """Two losses of one forward pass, each with a backward pass."""
    setup.optimizer.zero_grad()
    output = setup.module(inputs)
    setup.criterion(output, targets).backward(retain_graph=True)
    output.square().mean().backward()
    setup.optimizer.step()


def added_losses(setup, inputs, targets):
    """Two losses, added up before the backward pass."""
    setup.optimizer.zero_grad()
    output = setup.module(inputs)
    more = SecondLoss()
    if setup.criterion is not None and hasattr(setup.criterion, "optimizer"):  # ghost clipping
        from antiphase.torch.ghost_clipping import GhostLoss

        more = GhostLoss(setup.module, setup.optimizer, more, "mean")
    (setup.criterion(output, targets) + more(output, targets)).backward()
    setup.optimizer.step()


TWO_LOSSES = [
    (two_losses, "hooks"),
    (added_losses, "hooks"),
    (added_losses, "ghost"),
    (added_losses, "functorch"),
]


@attack(30, "two losses", "exact", *TWO_LOSSES)
def several_losses(step, mode):
    """The gradient of an example is that of both losses, clipped once."""
    return exact(small_model, data(12, 5), mode=mode, step=step, loss=both)


def two_private_passes(setup, inputs, targets):
    """The private loss of one batch twice: each pass would be clipped to C on its own."""
    setup.optimizer.zero_grad()
    setup.criterion(setup.module(inputs), targets).backward()
    setup.criterion(setup.module(inputs), targets).backward()
    setup.optimizer.step()


@attack(30, "one batch in two private backward passes", "refused", *MODES)
def one_batch_twice(mode):
    """Twice as many rows as examples in the batch: refused."""
    setup = Setup(small_model(), data(12, 5), mode=mode)
    return refused(lambda: two_private_passes(setup, *next(iter(setup.loader))), setup)


# Row 36: dtypes


class Cast(nn.Module):
    """A layer of one dtype between layers of another."""

    def __init__(self, dtype, other=torch.float32):
        super().__init__()
        self.first, self.middle = nn.Linear(5, 16).to(other), nn.Linear(16, 16).to(dtype)
        self.last = nn.Linear(16, 2).to(other)
        self.dtype, self.other = dtype, other

    def forward(self, x):
        hidden = torch.tanh(self.first(x.to(self.other)))
        return self.last(self.middle(hidden.to(self.dtype)).to(self.other)).float()


MIXED = {
    "bfloat16 in float32": (torch.bfloat16, torch.float32),
    "float32 in bfloat16": (torch.float32, torch.bfloat16),
    "float16 in float32": (torch.float16, torch.float32),
    "float64 in float32": (torch.float64, torch.float32),
    "float32 in float64": (torch.float32, torch.float64),
}


@attack(36, "mixed dtypes", "exact", *[(name, mode) for name in MIXED for mode in MODES])
def mixed_dtypes(name, mode):
    """Each tensor has its dtype. In low precision the loop's own gradients are accurate to 1 %."""
    low = any(d in (torch.bfloat16, torch.float16) for d in MIXED[name])
    make = seeded(lambda: Cast(*MIXED[name]))
    return exact(
        make,
        data(12, 5),
        mode=mode,
        double=False,
        tolerance=2e-2 if low else 1e-4,
        same_shape=low,
        which=range(12),
    )


def under_autocast(setup, inputs, targets):
    setup.optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = setup.criterion(setup.module(inputs), targets)
    loss.backward()
    setup.optimizer.step()


def all_under_autocast(setup, inputs, targets):
    with torch.autocast("cpu", torch.bfloat16):
        setup.step(inputs, targets)


def autocast_loss(model, inputs, targets):
    with torch.autocast("cpu", torch.bfloat16):
        return cross_entropy(model, inputs, targets)


@attack(
    36,
    "autocast",
    "exact",
    *[(step, mode) for step in (under_autocast, all_under_autocast) for mode in MODES],
)
def autocast(step, mode):
    """Products of norms and sums are float32 under autocast too."""
    return exact(
        small_model,
        data(12, 5),
        mode=mode,
        step=step,
        loss=autocast_loss,
        double=False,
        tolerance=2e-2,
        same_shape=True,
    )


class LowPrecisionProducts(TorchDispatchMode):
    """Emulates a machine whose float32 products are in bfloat16 unless the flags forbid it."""

    PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.mv, torch.ops.aten.addmm)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if (
            func.overloadpacket in self.PRODUCTS
            and torch.backends.cuda.matmul.fp32_precision != "ieee"
        ):
            args = [a.bfloat16().float() if a.dtype is torch.float32 else a for a in args]
        return func(*args, **(kwargs or {}))


def with_low_precision_products(run):
    """``run()`` on such a machine, with the flags that allow it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with LowPrecisionProducts():
            return run()
    finally:
        torch.set_float32_matmul_precision(before)


class Wide(nn.Module):
    """One large layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(256, 256, bias=False)

    def forward(self, x):
        return self.layer(x)


class Scaled(nn.Module):
    """Per-example gradients that no product has rounded before."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(256))

    def forward(self, x):
        return x * self.scale


@attack(
    36,
    "products in low precision (emulated)",
    "exact",
    *[(make, mode) for make in (Wide, Scaled) for mode in MODES],
)
def low_precision_products(make, mode):
    """Sums ignore the flag. bfloat16 would round each input up by 0.36 %, more than the margin."""
    x = torch.full((64, 256), 1 + 2**-8 + 2**-12) * data(64, 256).sign()

    def run():
        found = contributions(seeded(make), x, mode=mode, criterion=Dot, probe=False, which=[0, 40])
        return max(found), torch.get_float32_matmul_precision()

    worst, flag = with_low_precision_products(run)
    if flag != "medium":
        return Outcome("WRONG", "the user's flag was changed")
    return Outcome("exact" if worst <= 1.0 else "WRONG", f"{worst:.4f} C")


# Row 37: examples that are not finite


@attack(
    37,
    "an example with NaN",
    "exact",
    *[(value, mode) for value in ("nan", "inf") for mode in MODES],
)
def not_finite(value, mode):
    """The example contributes nothing, and tensors of batch length stay in order."""

    class AsManyAsExamples(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(5, 12), nn.Linear(12, 2)
            self.scale = nn.Parameter(torch.linspace(0.5, 2.0, 12))

        def forward(self, x):
            return self.last(torch.tanh(self.first(x)) * self.scale)

    x = data(12, 5)
    x[3, 2] = float(value)
    make = seeded(AsManyAsExamples)
    return exact(make, x, mode=mode, left_out=[3], probe=False)


# Row 45: float64


@attack(45, "a float64 model", "exact", *MODES)
def float64_model(mode):
    """The sum is exact, and released values have float32 digits only."""
    make = seeded(lambda: small_model().double())
    found = exact(make, data(12, 5).double(), mode=mode)
    setup = Setup(make(), data(12, 5).double(), mode=mode, noise_multiplier=1e4)
    setup.step(*next(iter(setup.loader)))
    beyond = sum(int((p.grad.float().double() != p.grad).sum()) for p in setup.model.parameters())
    return found if not beyond else Outcome("WRONG", f"{beyond} numbers with digits below float32")
