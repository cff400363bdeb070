"""Norms and sums of per-example gradients in floating point, against float64."""

import itertools
from pathlib import Path

import pytest
import torch
from opacus.layers import DPLSTM
from sklearn.datasets import load_digits
from torch import nn

from antiphase.torch.batched_products import batched_products, token_products
from antiphase.torch.clipping import MAX_CANCELLATION, clip_margin, norms_to_clip_by
from antiphase.torch.ghost_clipping import gradients_and_bounds
from antiphase.torch.gradient_terms import Lookups, Products, token_sums
from antiphase.torch.recorded_module import recorded

pytestmark = pytest.mark.issue(21)
BATCH = 512


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# What an example's neighbours in the batch change


@pytest.mark.parametrize("threads", [1, 2])
def test_products_do_not_depend_on_the_place_of_an_example(threads, shown):
    """Products, inner products and sums of an example do not depend on the other examples."""
    before, unlike, tried = torch.get_num_threads(), [], 0
    torch.set_num_threads(threads)
    try:
        sizes = itertools.product([2, 9, 70], [1, 2, 31, 100, 257], [1, 5, 33], [1, 17, 64])
        for n, t, p, d in sizes:
            if n * t * p * d > 2**24:
                continue
            g, a = normal(n, t, p), normal(n, t, d, seed=1)
            for function in (batched_products, inner_products, lambda x, _: token_sums(x).rows):
                whole = function(g, a)
                moved = function(g.roll(1, 0), a.roll(1, 0)).roll(-1, 0)
                fewer = function(g[1:].clone(), a[1:].clone())
                tried += 1
                few = fewer.split(1)[0], function(g[1:2].clone(), a[1:2].clone())
                if not (
                    torch.equal(whole, moved)
                    and torch.equal(whole[1:], fewer)
                    and torch.equal(*few)
                ):
                    unlike.append((n, t, p, d))
    finally:
        torch.set_num_threads(before)
    shown(
        f"{threads} thread(s): products that change with the place in the batch, of {tried}",
        len(unlike),
        0,
    )
    assert not unlike


def inner_products(g, a):
    """Inner products of all tokens with the last one, a block of one token."""
    return torch.cat([token_products(x, y[:, -1:]).flatten(1) for x, y in ((g, g), (a, a))], dim=1)


# Bounds


def test_norms_of_products_are_never_below_the_truth(shown):
    """Cancelling tokens, scales 1e-25 to 1e18, 1 to 600 tokens: at least the float64 norm."""
    least = float("inf")
    for case in range(200):
        generator = torch.Generator().manual_seed(case)
        t = int(torch.randint(1, 600, (1,), generator=generator))
        scale = 10.0 ** float(torch.randint(-25, 5, (1,), generator=generator))
        g, a = (
            normal(3, t, 5, seed=case) * scale,
            normal(3, t, 7, seed=case + 1) * 10.0 ** (case % 19),
        )
        if t > 1 and case % 2:
            g[:, 1::2] = -g[:, : t // 2 * 2 : 2][:, : g[:, 1::2].shape[1]]
            a[:, 1::2] = a[:, : t // 2 * 2 : 2][:, : a[:, 1::2].shape[1]] * (1 + 1e-6)
        bound = Products(g, a).bound()
        clipped_by = bound.norm if bound.floor is None else torch.maximum(bound.norm, bound.floor)
        truth = torch.linalg.vector_norm(
            (g.double().transpose(1, 2) @ a.double()).flatten(1), dim=1
        )
        least = min(least, float((clipped_by / truth.clamp(min=1e-300)).min()))
    shown("least bound / norm", f"{least:.6f}", "≥ 1 − 2e-5, which the clip margin covers")
    assert least >= 1 - 2e-5


def test_norms_of_lookups_add_repeated_rows():
    """Fifty equal indices are one row with fifty gradients."""
    gradients = torch.ones(1, 50, 3)
    bound = Lookups(torch.full((1, 50), 4), gradients).bound()
    assert float(bound.norm) == pytest.approx(50 * 3**0.5, rel=1e-4)


def test_rows_whose_tokens_cancel_are_clipped_by_the_sum_of_norms():
    """+g and −g leave rounding; every form of a term is divided by at least S/κ."""
    g, a = normal(4, 6, 5), normal(4, 1, 7, seed=1).expand(4, 6, 7)
    g = torch.cat([g[:, :3], -g[:, :3]], dim=1)
    size = (g.norm(dim=2) * a.norm(dim=2)).sum(dim=1).double()
    for term in (Products(g, a), Products(g, a).to_rows()):
        assert bool((term.bound().floor >= size / MAX_CANCELLATION * (1 - 1e-4)).all())
    sums = token_sums(g)
    assert bool(
        (sums.bound().floor >= g.abs().sum(dim=1).norm(dim=1) / MAX_CANCELLATION * (1 - 1e-4)).all()
    )
    assert torch.equal(
        norms_to_clip_by(torch.zeros(4).double(), [sums.uncancelled]),
        sums.uncancelled / MAX_CANCELLATION,
    )


# What ordinary models lose


class Convolutional(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(512, 10),
        )


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (
            part.unflatten(2, (4, -1)).transpose(1, 2)
            for part in self.qkv(self.first(x)).chunk(3, dim=2)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(nn.functional.gelu(self.wide(self.second(x))))


class Transformer(nn.Module):
    """A language model of bytes; the head is tied to the embedding."""

    def __init__(self, width=128):
        super().__init__()
        self.embedding, self.place = (
            nn.Embedding(256, width),
            nn.Parameter(torch.randn(1, 64, width) * 0.02),
        )
        self.blocks = nn.Sequential(*[Block(width) for _ in range(2)])
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, x):
        return self.blocks(self.embedding(x) + self.place) @ self.embedding.weight.T


class Recurrent(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(256, width), DPLSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, x):
        return self.head(self.lstm(self.embedding(x))[0])


def digits():
    found = load_digits()
    return torch.tensor(found.images[:BATCH], dtype=torch.float32)[:, None] / 16, torch.tensor(
        found.target[:BATCH]
    )


def text():
    """The documentation of this project in examples of 64 bytes, and the next byte of each."""
    folder = Path(__file__).parents[2]
    data = b"".join(
        path.read_bytes() for path in [folder / "LICENSE", *sorted((folder / "docs").glob("*.md"))]
    )
    rows = torch.tensor(list(data[: 65 * BATCH])).view(BATCH, 65)
    return rows[:, :-1], rows[:, 1:]


MODELS = {
    "cnn": (Convolutional, digits),
    "transformer": (Transformer, text),
    "lstm": (Recurrent, text),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_bounds_of_norms_are_tight_on_real_models(name, shown):
    """On real inputs, 99 % of examples are divided by a norm within 1 % of the true one."""
    make, data = MODELS[name]
    torch.manual_seed(0)
    wrapped = recorded(make(), "ghost", batch_first=True, loss_reduction="mean", wrap_model=True)
    bounds, norms = [], []
    for inputs, targets in zip(*(tensor.split(64) for tensor in data()), strict=True):
        losses = nn.functional.cross_entropy(
            wrapped(inputs).flatten(0, -2), targets.flatten(), reduction="none"
        )
        rows, bound = gradients_and_bounds(wrapped, losses.view(len(inputs), -1).mean(dim=1))
        bounds.append(bound.detach())
        each = [torch.linalg.vector_norm(g.flatten(1).double(), dim=1) for g in rows.values()]
        norms.append(torch.linalg.vector_norm(torch.stack(each), dim=0))
    excess = torch.cat(bounds) / torch.cat(norms) - 1
    share, margin = float((excess <= 0.01).float().mean()), clip_margin(BATCH)
    shown(f"{name}: examples whose bound is within 1 % of the norm", f"{share:.1%}", "≥ 99 %")
    shown(f"{name}: largest excess of the bound", f"{float(excess.max()):.2e}", "for comparison")
    shown(f"{name}: clip margin η at batch {BATCH}", f"{margin:.2%}", "≤ 1 %")
    assert float(excess.min()) >= -2e-5
    assert share >= 0.99
    assert margin <= 0.01
