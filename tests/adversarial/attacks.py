"""Attacks on a private training through make_private, and their outcomes.

`attack` registers an attack. Its outcome is `exact`, `refused` or `warned`, or it succeeded.
"""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import antiphase as ap
from antiphase.errors import AntiphaseError, AntiphaseWarning
from antiphase.torch import PrivacyEngine
from antiphase.torch.noise_run import row_of

MODES = ("hooks", "functorch", "ghost")
CLIP = 0.1
TOLERANCE = 1e-4  # relative, of a released sum


class Outcome(NamedTuple):
    kind: str
    detail: str

    def __str__(self):
        return f"{self.kind}: {self.detail}"


@dataclass(frozen=True)
class Attack:
    row: int
    what: str
    expected: tuple[str, ...]
    run: Callable[[], Outcome]

    def __str__(self):
        return f"{self.row}: {self.what}"

    @functools.cache  # noqa: B019
    def outcome(self):
        torch.manual_seed(0)
        return self.run()


ATTACKS: list[Attack] = []


def attack(row, what, expected, *cases):
    """Register an attack for each of the ``cases``, which are arguments of the function."""

    def register(function):
        for case in cases or [None]:
            arguments = case if isinstance(case, tuple) else () if case is None else (case,)
            names = [
                a if isinstance(a, str) else getattr(a, "__name__", repr(a)) for a in arguments
            ]
            title = ", ".join([what, *names])
            kinds = (expected,) if isinstance(expected, str) else tuple(expected)
            ATTACKS.append(Attack(row, title, kinds, functools.partial(function, *arguments)))
        return function

    return register


# A private training on one batch


def targets_for(count):
    return torch.arange(count) % 2


class Setup:
    """A training whose one batch is ``inputs``; if ``trusted``, `step` takes any batch."""

    def __init__(
        self,
        model,
        inputs,
        targets=None,
        mode="hooks",
        *,
        trusted=False,
        batch_size=None,
        **options,
    ):
        self.model, self.inputs = model, inputs
        self.targets = targets_for(len(inputs)) if targets is None else targets
        self.inner = options.pop("inner", None) or torch.optim.SGD(model.parameters(), lr=1e-3)
        loader = DataLoader(
            TensorDataset(inputs, self.targets), batch_size=batch_size or len(inputs)
        )
        self.engine = PrivacyEngine(
            mechanism=options.pop("mechanism", "dp-mf"), key=options.pop("key", ap.Key.insecure(1))
        )
        self.criterion = options.pop("criterion", nn.CrossEntropyLoss)()
        if trusted:
            options["participation"] = "trusted"
        made = self.engine.make_private(
            module=model,
            optimizer=self.inner,
            criterion=self.criterion,
            data_loader=loader,
            grad_sample_mode=mode,
            **{
                "noise_multiplier": 1e-2,
                "max_grad_norm": CLIP,
                "steps": 6,
                "target_delta": 1e-9,
                **options,
            },
        )
        self.module, self.optimizer, self.loader = made[0], made[1], made[-1]
        self.criterion = made[2] if len(made) == 4 else self.criterion
        self._sums = {}
        self.optimizer.release.guards.append(self._keep_sums)

    def _keep_sums(self):
        self._sums = {id(p): p.summed_grad.detach().double() for p in self.optimizer.params}

    def batches(self):
        while True:
            yield from self.loader

    def step(self, inputs, targets):
        self.optimizer.zero_grad()
        self.criterion(self.module(inputs), targets).backward()
        self.optimizer.step()

    def released(self):
        """The sum of the last step without its row of noise, in float64.

        Gradients in low precision are rounded after the noise; for these, the sum before it.
        """
        release = self.optimizer.release
        row, found = row_of(release, release.position - 1), []
        for name, p in zip(release.shapes, self.optimizer.params, strict=True):
            noise = torch.from_numpy(row[name]).double().view(p.shape)
            low = p.dtype not in (torch.float32, torch.float64)
            found.append(self._sums[id(p)] if low else p.grad.double() * release.divisor - noise)
        return torch.cat([t.flatten() for t in found])

    def weights(self):
        return [p.detach().clone() for p in self.model.parameters()]


def gradients_alone(model, inputs, targets, loss):
    """The gradient of each example in a batch of one, in float64."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    for x, y in zip(inputs, targets, strict=True):
        gradients = torch.autograd.grad(
            loss(model, x[None], y[None]), parameters, allow_unused=True
        )
        pairs = zip(parameters, gradients, strict=True)
        yield torch.cat(
            [(torch.zeros_like(p) if g is None else g).double().flatten() for p, g in pairs]
        )


def cross_entropy(model, inputs, targets):
    return nn.functional.cross_entropy(model(inputs), targets)


def plain(setup, inputs, targets):
    setup.step(inputs, targets)


# Outcomes


def exact(
    make,
    inputs,
    targets=None,
    mode="hooks",
    *,
    step=plain,
    loss=cross_entropy,
    tolerance=TOLERANCE,
    double=True,
    left_out=(),
    same_shape=False,
    which=None,
    **options,
):
    """Compare the released sum without noise with a loop over batches of one.

    Leaving an example out must also move the sum by at most the clip norm. Examples ``left_out``
    contribute nothing. The loop is in float64 if ``double``.
    """
    targets = targets_for(len(inputs)) if targets is None else targets
    setup = Setup(make(), inputs, targets, mode, **options)
    reference = make().double() if double else make()
    wide = inputs.double() if double and inputs.is_floating_point() else inputs
    step(setup, *next(iter(setup.loader)))
    most, expected = CLIP * (1 - setup.optimizer.clip_margin), 0.0
    for i, g in enumerate(gradients_alone(reference, wide, targets, loss)):
        expected = (
            expected
            if i in left_out
            else expected + g * min(1.0, most / float(g.norm().clamp(min=1e-300)))
        )
    error = float((setup.released() - expected).norm() / expected.norm())
    moved = max(
        contributions(
            make, inputs, targets, mode, step=step, which=which, same_shape=same_shape, **options
        )
    )
    kind = "exact" if error <= tolerance and moved <= 1.0 else "WRONG"
    return Outcome(kind, f"{moved:.4f} C, sum differs by {error:.0e}")


def contributions(
    make, inputs, targets=None, mode="hooks", *, step=plain, which=None, same_shape=False, **options
):
    """How far the released sum moves if an example is left out, in clip norms.

    For the first, the last and the middle example, or those in ``which``. If ``same_shape``, the
    example becomes non-finite instead, for layers whose rounding depends on the batch size.
    """
    targets = targets_for(len(inputs)) if targets is None else targets
    sums = {}
    chosen = {0, len(inputs) // 2, len(inputs) - 1} if which is None else set(which)
    for left in [None, *chosen]:
        setup = Setup(make(), inputs, targets, mode, trusted=True, **options)
        kept = torch.arange(len(inputs)) != (-1 if left is None else left)
        others = inputs[kept]
        if same_shape:
            others, kept = inputs.clone(), torch.ones_like(kept)
            others[[] if left is None else [left]] = torch.nan
        step(setup, others, targets[kept])
        sums[left] = setup.released()
    return [float((sums[None] - sums[left]).norm()) / CLIP for left in chosen]


def refused(action, setup=None, *more):
    """Whether ``action()`` raises an error of ours before a release or a change of the model.

    ``more`` are errors of Opacus or torch that are accepted too.
    """
    before = None if setup is None else (setup.optimizer.release.drawn, setup.weights())
    try:
        action()
    except (AntiphaseError, ValueError, *more) as error:
        if setup is not None:
            moved = not all(map(torch.equal, before[1], setup.weights()))
            if setup.optimizer.release.drawn != before[0] or moved:
                return Outcome("WRONG", f"{type(error).__name__} after something was released")
        return Outcome("refused", type(error).__name__)
    return Outcome("WRONG", "released")


def warned(action, words):
    """Whether ``action()`` issues a warning that contains ``words``."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        action()
    ours = [
        str(w.message)
        for w in seen
        if issubclass(w.category, AntiphaseWarning) and words in str(w.message)
    ]
    return Outcome("warned", "AntiphaseWarning") if ours else Outcome("WRONG", "silent")


def data(count=12, *shape, seed=0):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))


def tokens(count=12, length=6, vocabulary=9, seed=0):
    return torch.randint(vocabulary, (count, length), generator=torch.Generator().manual_seed(seed))


def seeded(make: Callable[[], Any]) -> Callable[[], Any]:
    """``make`` with a fixed seed."""

    @functools.wraps(make)
    def made() -> Any:
        torch.manual_seed(0)
        return make()

    return made


@seeded
def small_model():
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))
