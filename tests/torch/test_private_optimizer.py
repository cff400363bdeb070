"""The whole private update against NumPy and against a loop over examples."""

import numpy as np
import opacus
import pytest
import torch
from opacus.layers import DPGRU, DPLSTM, DPRNN, DPMultiheadAttention, SequenceBias
from torch import nn
from torch.utils.data import TensorDataset

import antiphase as ap
from antiphase.errors import AntiphaseWarning
from antiphase.torch.noise_run import row_of
from tests.torch.setting import Training, small_model

pytestmark = pytest.mark.slow  # seconds each; `make check` has test_engine.py

OPTIMIZERS = {
    "sgd": ({}, None),
    "momentum": ({"momentum": 0.9}, None),
    "dampening": ({"momentum": 0.9, "dampening": 0.3}, None),
    "nesterov": ({"momentum": 0.8, "nesterov": True}, None),
    "weight decay": ({"momentum": 0.5, "weight_decay": 0.1}, None),
    "schedule": ({"momentum": 0.9}, lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 15)),
}


def numpy_training(dataset, order, rows, batch_size, clip, options, rates):
    """Softmax regression in NumPy, with clipped gradients, these rows of noise and torch's SGD."""
    X, y = (t.numpy() for t in dataset.tensors)
    X = X.astype(np.float64)
    W, b = np.zeros((2, X.shape[1])), np.zeros(2)
    buffers = None
    for t, (row_W, row_b) in enumerate(rows):
        per_epoch = -(-len(order) // batch_size)
        batch = order[(t % per_epoch) * batch_size :][:batch_size]
        logits = X[batch] @ W.T + b
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(batch)), y[batch]] -= 1
        g_W, g_b = p[:, :, None] * X[batch][:, None, :], p
        norms = np.sqrt(np.square(g_W).sum(axis=(1, 2)) + np.square(g_b).sum(axis=1))
        factor = np.minimum(1, clip / norms)
        step = [
            (np.einsum("i,ijk->jk", factor, g_W) + row_W) / batch_size,
            (np.einsum("i,ij->j", factor, g_b) + row_b) / batch_size,
        ]
        step = [s + options.get("weight_decay", 0) * w for s, w in zip(step, (W, b), strict=True)]
        mu = options.get("momentum", 0)
        if mu:
            damp = 1 - options.get("dampening", 0)
            buffers = (
                step
                if buffers is None
                else [mu * v + damp * s for v, s in zip(buffers, step, strict=True)]
            )
            nesterov = options.get("nesterov", False)
            step = [s + mu * v for s, v in zip(step, buffers, strict=True)] if nesterov else buffers
        W, b = W - rates[t] * step[0], b - rates[t] * step[1]
    return np.concatenate([W.ravel(), b])


def difference_from_numpy(name, mode):
    """Largest difference of the trained weights, relative to the largest weight."""
    options, scheduler = OPTIMIZERS[name]
    model = nn.Linear(5, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    training = Training(
        "dp-mf",
        model=model,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.5, **options),
        scheduler=scheduler,
        mode=mode,
        max_grad_norm=0.7,
        noise_multiplier=0.5,
    )
    workload = training.engine.mechanism.factorization.workload
    training.run()
    rows = [row_of(training.release, t) for t in range(15)]
    rows = [(row["weight"], row["bias"]) for row in rows]
    order = training.loader.batch_sampler.sampler.order
    rates = np.broadcast_to(workload.learning_rates, 15)
    clip = 0.7 * (1 - training.optimizer.clip_margin)
    expected = numpy_training(training.dataset, order, rows, 12, clip, options, rates)
    return np.abs(training.weights().numpy() - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_weights_are_those_of_a_numpy_implementation(name, mode):
    assert difference_from_numpy(name, mode) <= 1e-5


class LastOutput(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        out = self.layer(x)[0]
        return out[:, -1]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = DPMultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0].mean(dim=1)


class Looked(nn.Module):
    """Indices in all columns but the last, which what is looked up is multiplied by."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        out = self.layer(x[:, :-1].long())
        return out * x[:, -1].view(-1, *[1] * (out.ndim - 1))


class Bag(nn.Module):
    """Embeddings of all indices except the last, multiplied by the last number."""

    def __init__(self, **options):
        super().__init__()
        self.bag = nn.EmbeddingBag(7, 8, **options)

    def forward(self, x):
        return self.bag(x[:, :-1].long()) * x[:, -1:]


LAYERS = {
    "linear": (lambda: nn.Linear(12, 8), (12,)),
    "linear over a sequence": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Flatten(), nn.Linear(24, 8)),
        (3, 4),
    ),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.Flatten(), nn.Linear(16, 8)), (2, 6)),
    "conv2d": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3, 2, 1), nn.Flatten(), nn.Linear(27, 8)),
        (1, 6, 6),
    ),
    "conv3d": (
        lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.Flatten(), nn.Linear(16, 8)),
        (1, 3, 3, 3),
    ),
    "groupnorm": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 8)
        ),
        (1, 6, 6),
    ),
    "layernorm": (lambda: nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8)), (12,)),
    "instancenorm": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.Flatten(), nn.Linear(64, 8)
        ),
        (1, 6, 6),
    ),
    "instancenorm1d": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3), nn.InstanceNorm1d(4, affine=True), nn.Flatten(), nn.Linear(16, 8)
        ),
        (2, 6),
    ),
    "instancenorm3d": (
        lambda: nn.Sequential(
            nn.Conv3d(1, 2, 2), nn.InstanceNorm3d(2, affine=True), nn.Flatten(), nn.Linear(16, 8)
        ),
        (1, 3, 3, 3),
    ),
    "rmsnorm": (lambda: nn.Sequential(nn.Linear(12, 8), nn.RMSNorm(8)), (12,)),
    "rmsnorm over a sequence": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.RMSNorm(8), nn.Flatten(), nn.Linear(24, 8)),
        (3, 4),
    ),
    "embedding": (
        lambda: nn.Sequential(Looked(nn.Embedding(7, 4)), nn.Flatten(), nn.Linear(20, 8)),
        (6,),
    ),
    "embedding bag": (lambda: Bag(mode="sum"), (6,)),
    "rnn": (lambda: LastOutput(DPRNN(4, 8, batch_first=True)), (3, 4)),
    "lstm": (lambda: LastOutput(DPLSTM(4, 8, batch_first=True)), (3, 4)),
    "gru": (lambda: LastOutput(DPGRU(4, 8, batch_first=True)), (3, 4)),
    "attention": (Attention, (3, 8)),
    "bias of a sequence": (
        lambda: nn.Sequential(SequenceBias(4, batch_first=True), nn.Flatten(), nn.Linear(16, 8)),
        (3, 4),
    ),
}


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_is_clipped_as_a_loop_over_examples_would(name, mode):
    """Also, an example a million times larger moves the sum by at most twice the clip norm."""
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    model = nn.Sequential(make(), nn.Flatten(), nn.Linear(8, 2))
    X = torch.randn(6, *shape)
    if "embedding" in name:
        X[:, :-1] = torch.randint(0, 7, (6, shape[0] - 1))
    dataset = TensorDataset(X, torch.randint(0, 2, (6,)))
    clip = 0.2
    sums = []
    for factor in (1.0, 1e6):
        inputs = X.clone()
        larger = inputs[2, -1:] if "embedding" in name else inputs[2]  # an index is an index
        larger *= factor
        twin = Training(
            "dp-mf",
            model=model_copy(make, model),
            dataset=TensorDataset(inputs, dataset.tensors[1]),
            batch_size=6,
            shuffle=False,
            epochs=1,
            mode=mode,
            max_grad_norm=clip,
            noise_multiplier=1.0,
        )
        twin.step(next(iter(twin.loader)))
        row = row_of(twin.release, 0)
        found = torch.cat([p.grad.flatten() for p in twin.optimizer.params]) * 6
        sums.append(found - torch.cat([torch.from_numpy(r).flatten() for r in row.values()]))
    expected = 0
    for x, y in zip(*dataset.tensors, strict=True):
        loss = nn.functional.cross_entropy(model(x[None]), y[None])
        g = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        expected = expected + g * min(
            1.0, clip * (1 - twin.optimizer.clip_margin) / float(g.norm())
        )
    torch.testing.assert_close(sums[0], expected, atol=1e-5, rtol=1e-5)
    for other in sums[1:]:
        assert float((other - sums[0]).norm()) <= 2 * clip * (1 + 1e-5)


def model_copy(make, model):
    twin = nn.Sequential(make(), nn.Flatten(), nn.Linear(8, 2))
    twin.load_state_dict(model.state_dict())
    return twin


def test_the_engine_is_a_subclass_with_opacus_signatures():
    import inspect

    from antiphase.torch import PrivacyEngine

    assert issubclass(PrivacyEngine, opacus.PrivacyEngine)
    for name in ("make_private", "is_compatible", "validate", "get_compatible_module"):
        theirs = set(inspect.signature(getattr(opacus.PrivacyEngine, name)).parameters)
        assert theirs <= set(inspect.signature(getattr(PrivacyEngine, name)).parameters)
    assert PrivacyEngine().is_compatible(module=nn.Linear(2, 2), optimizer=None, data_loader=None)
    assert not PrivacyEngine().is_compatible(
        module=nn.BatchNorm1d(2), optimizer=None, data_loader=None
    )


def test_reseeding_torch_changes_no_noise_and_noise_shifts_no_dropout():
    def run(reseed, multiplier):
        torch.manual_seed(0)
        seen = []

        class Watched(nn.Dropout):
            def forward(self, x):
                out = super().forward(x)
                seen.append((out == 0).clone())
                return out

        training = Training(
            model=nn.Sequential(nn.Linear(5, 9), Watched(0.5), nn.Linear(9, 2)),
            run="cd" * 16,
            noise_multiplier=multiplier,
            probe=False,
        )
        torch.manual_seed(1)
        for batch in training.loader:
            if reseed:
                torch.manual_seed(5)
            training.step(batch)
        return seen, [row_of(training.release, t) for t in range(5)]

    masks, rows = run(False, 1.0)
    quiet, _ = run(False, 1e-3)
    _, reseeded = run(True, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(masks, quiet, strict=True))
    for a, b in zip(rows, reseeded, strict=True):
        assert all((a[name] == b[name]).all() for name in a)


@pytest.mark.issue(23)
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_optimizers_that_are_not_linear_see_released_gradients_alone(kind, mode):
    """A plain one that is given the released gradients ends with the same weights, bit for bit."""
    with pytest.warns(AntiphaseWarning, match=f"{kind.__name__} is not linear in the gradients"):
        training = Training(optimizer=lambda p: kind(p, lr=0.01), mode=mode, epochs=2)
    twin = small_model()
    optimizer = kind(twin.parameters(), lr=0.01)
    for batch in training.batches():
        training.step(batch)
        for p, own in zip(training.model.parameters(), twin.parameters(), strict=True):
            own.grad = p.grad.clone()
        optimizer.step()
    for p, own in zip(training.model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, own)
    sgd = Training(mode=mode, epochs=2)
    assert training.engine.get_epsilon(1e-5) == sgd.engine.get_epsilon(1e-5)
    assert training.engine.plan.workload == ap.Workload.sgd(10)
