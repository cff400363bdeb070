"""Models for tests of per-example gradients: those of examples/, and small ones of each kind."""

import ast
import sys
import types
from pathlib import Path

import torch
from opacus.layers import DPGRU, DPLSTM, DPRNN
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from antiphase.torch import models

EXAMPLES = Path(__file__).parents[2] / "examples"
TOKENS, LENGTH, WIDTH, HEADS = 11, 6, 8, 2


def example_model(name):
    """The model of a script in examples/, without running the rest of the script."""
    tree = ast.parse((EXAMPLES / name).read_text(encoding="utf-8"))
    made = next(
        n.value
        for n in ast.walk(tree)
        if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "model"
    )
    kept = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom | ast.ClassDef)]
    kept += [
        n
        for n in tree.body
        if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]).strip("()").isupper()
    ]
    module = sys.modules.setdefault(
        f"example_{Path(name).stem}", types.ModuleType(f"example_{Path(name).stem}")
    )
    names = vars(module)  # a module, for Opacus copies models by pickling
    exec(compile(ast.Module(kept, []), name, "exec"), names)  # noqa: S102
    if ast.unparse(made.func) == "DPDDP":
        made = made.args[0]  # without processes
    if isinstance(made.func, ast.Attribute) and made.func.attr == "to":
        made = made.func.value
    return eval(compile(ast.Expression(made), name, "eval"), names)  # noqa: S307


class Attention(nn.Module):
    """Written out, with a mask and dropout."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / k.shape[-1] ** 0.5
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        return self.out((self.dropout(scores.softmax(-1)) @ v).transpose(1, 2).reshape(n, t, -1))


class LanguageModel(nn.Module):
    """Embedding tied to the output, positions shared by all examples, a block called twice."""

    def __init__(self, tied=True):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.first, self.second, self.norm = Attention(), Attention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 12), nn.GELU(), nn.Dropout(0.1), nn.Linear(12, WIDTH)
        )
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1])[None])
        for block in (self.first, self.second, self.first):
            x = x + block(self.norm(x))
        return self.head(x + self.mlp(x))


class Sdpa(nn.Module):
    """As Llama: rotary positions, an RMSNorm by hand, grouped keys; output of the last token."""

    def __init__(self):
        super().__init__()
        self.tokens, self.scale = (
            nn.Embedding(TOKENS, WIDTH),
            nn.Parameter(1 + 0.1 * torch.randn(WIDTH)),
        )
        self.q, self.k, self.v = (
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, WIDTH // 2),
            nn.Linear(WIDTH, WIDTH // 2),
        )
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, ids):
        n, t = ids.shape
        x = self.tokens(ids)
        x = self.scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        q, k, v = (
            f(x).view(n, t, -1, WIDTH // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        angles = torch.arange(t, dtype=x.dtype)[:, None] / torch.tensor([1.0, 10.0], dtype=x.dtype)
        cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
        q, k = (y * cos + torch.cat((-y[..., 2:], y[..., :2]), -1) * sin for y in (q, k))
        k, v = (y[:, :, None].expand(n, 1, 2, t, -1).reshape(n, 2, t, -1) for y in (k, v))
        y = (
            F.scaled_dot_product_attention(q, k, v, is_causal=True)
            .transpose(1, 2)
            .reshape(n, t, WIDTH)
        )
        last = (ids != 0).sum(1).clamp(min=1) - 1
        return self.head(y[torch.arange(n), last])


class RelativeBias(nn.Module):
    """Attention scores with a bias for each distance, as in T5."""

    def __init__(self):
        super().__init__()
        self.tokens, self.bias = nn.Embedding(TOKENS, WIDTH), nn.Embedding(2 * LENGTH, HEADS)
        self.qkv, self.head = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, 3)

    def forward(self, ids):
        n, t = ids.shape
        q, k, v = (
            y.view(n, t, HEADS, -1).transpose(1, 2) for y in self.qkv(self.tokens(ids)).chunk(3, -1)
        )
        places = torch.arange(t)
        bias = self.bias(places[:, None] - places[None] + LENGTH).permute(2, 0, 1)[None]
        scores = q @ k.mT + bias.masked_fill((ids == 0)[:, None, None, :], -10.0)
        return self.head((scores.softmax(-1) @ v).transpose(1, 2).flatten(2).mean(1))


class Patches(nn.Module):
    """As a vision transformer: a class token for each example, positions added to all."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.token, self.positions = (
            nn.Parameter(torch.randn(1, 1, WIDTH)),
            nn.Parameter(torch.randn(1, 5, WIDTH)),
        )
        self.attention, self.norm, self.head = Attention(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.attention(x))[:, 0])


class Residual(nn.Module):
    def __init__(self, wide, out, stride):
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(wide, out, 3, stride, 1, bias=False),
            nn.Conv2d(out, out, 3, 1, 1),
        )
        self.norms = nn.ModuleList([nn.GroupNorm(2, out), nn.GroupNorm(2, out)])
        self.short = nn.Conv2d(wide, out, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = F.relu(self.norms[0](self.first(x)), inplace=True)
        y = self.norms[1](self.second(y))
        y += self.short(x)
        return F.relu(y)


def resnet():
    return nn.Sequential(
        nn.Conv2d(3, WIDTH, 3, padding=1),
        nn.GroupNorm(2, WIDTH),
        nn.ReLU(),
        Residual(WIDTH, WIDTH, 1),
        Residual(WIDTH, 12, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(12, 3),
    )


def sequence_cnn():
    """Convolutions in one dimension, of all channels, in groups and for each channel alone."""
    return nn.Sequential(
        nn.Conv1d(WIDTH, 12, 3, padding="same"),
        nn.InstanceNorm1d(12, affine=True),
        nn.SiLU(),
        nn.Conv1d(12, 12, 3, groups=12, padding=2, dilation=2),
        nn.Conv1d(12, 8, 1, groups=2),
        nn.ELU(),
        nn.Flatten(),
        nn.Linear(8 * LENGTH, 3),
    )


class Recurrent(nn.Module):
    """One of Opacus' recurrent layers; time comes first inside of it."""

    def __init__(self, kind):
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.layer, self.head = kind(WIDTH, 5, batch_first=True), nn.Linear(5, TOKENS)

    def forward(self, ids):
        return self.head(self.layer(self.tokens(ids))[0])


class OwnParameters(nn.Module):
    """Parameters used without a layer: products, sums, in place, einsum and a gate."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(WIDTH, WIDTH)),
            nn.Parameter(torch.randn(LENGTH, 1)),
        )
        self.gate, self.shift = (
            nn.Parameter(torch.randn(WIDTH)),
            nn.Parameter(torch.randn(LENGTH, WIDTH)),
        )
        self.mix, self.log = nn.Parameter(torch.randn(LENGTH, LENGTH)), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        y = torch.einsum("btd,de->bte", x, self.weight) - self.bias
        y = self.mix @ (y * torch.sigmoid(self.gate))
        y *= self.shift
        y += self.gate
        return torch.stack([row * self.log.exp() for row in y.unbind(1)], 1) / (
            1 + self.gate.square()
        )


def tokens(size=24, length=LENGTH, classes=3):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(TOKENS, (size, length), generator=generator)
    return TensorDataset(ids, torch.randint(classes, (size,), generator=generator))


def vectors(*shape, size=24, classes=3):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(size, *shape, generator=generator)
    return TensorDataset(inputs, torch.randint(classes, (size,), generator=generator))


MODELS = {
    "examples/digits.py": (lambda: example_model("digits.py"), lambda: vectors(64)),
    "examples/resume.py": (lambda: example_model("resume.py"), lambda: vectors(64)),
    "examples/torchrun.py": (lambda: example_model("torchrun.py"), lambda: vectors(64)),
    "examples/mnist_opacus.py": (
        lambda: example_model("mnist_opacus.py"),
        lambda: vectors(1, 28, 28),
    ),
    "examples/transformer_ghost.py": (
        lambda: example_model("transformer_ghost.py"),
        lambda: _few_tokens(),
    ),
    "logistic": (lambda: models.build_model("logistic", (1, 8, 8), 10), lambda: vectors(1, 8, 8)),
    "mlp": (lambda: models.build_model("mlp", (1, 8, 8), 10), lambda: vectors(1, 8, 8)),
    "cnn": (lambda: models.build_model("cnn", (3, 32, 32), 10), lambda: vectors(3, 32, 32)),
    "cnn-half": (
        lambda: models.build_model("cnn-half", (3, 32, 32), 10),
        lambda: vectors(3, 32, 32),
    ),
    "resnet": (resnet, lambda: vectors(3, 8, 8)),
    "sequence cnn": (sequence_cnn, lambda: vectors(WIDTH, LENGTH)),
    "language model": (lambda: LanguageModel(tied=False), tokens),
    "tied language model": (LanguageModel, tokens),
    "sdpa": (Sdpa, tokens),
    "relative bias": (RelativeBias, tokens),
    "patches": (Patches, lambda: vectors(3, 8, 8)),
    "lstm": (lambda: Recurrent(DPLSTM), tokens),
    "gru": (lambda: Recurrent(DPGRU), tokens),
    "rnn": (lambda: Recurrent(DPRNN), tokens),
    "own parameters": (OwnParameters, lambda: vectors(LENGTH, WIDTH)),
}


def _few_tokens():
    ids, classes = tokens(length=15).tensors
    return TensorDataset(ids % 4, classes % 2)


def make(name, seed=0):
    """The model and its data set."""
    torch.manual_seed(seed)
    model, dataset = MODELS[name]
    return model(), dataset()
