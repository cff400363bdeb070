"""Recorded per-example gradients equal those of batches of one, for all batch sizes."""

import copy
import gc
import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from antiphase.errors import PerExampleGradientError
from antiphase.torch import layer_rules
from antiphase.torch.ghost_clipping import gradients_and_bounds
from antiphase.torch.recorded_module import recorded
from tests.torch import zoo

pytestmark = [pytest.mark.slow, pytest.mark.issue(21)]


def wrap(model, **options):
    return recorded(
        model,
        "ghost",
        **{"batch_first": True, "loss_reduction": "mean", "wrap_model": True} | options,
    )


def losses(output, dim=0):
    """A nonlinear loss of each example."""
    output = output.movedim(dim, 0).flatten(1)
    return (output * torch.linspace(0.5, 1.5, output.shape[1])).tanh().sum(
        1
    ) + output.square().mean(1)


def assert_same_as_batches_of_one(model, inputs, dim=0, **options):
    """In float64, dropout off."""
    model = model.double().eval()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    wrapped = wrap(model, **options)
    with wrapped.recorder.always_on():
        found, _ = gradients_and_bounds(wrapped, losses(wrapped(inputs), dim))
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for i in range(inputs.shape[dim]):
        alone = losses(model(inputs.narrow(dim, i, 1)), dim).sum()
        truth = torch.autograd.grad(alone, list(trained.values()), allow_unused=True)
        for (name, p), gradient in zip(trained.items(), truth, strict=True):
            own = found[name][i] if name in found else torch.zeros_like(p)
            expected = torch.zeros_like(p) if gradient is None else gradient
            torch.testing.assert_close(
                own, expected, atol=1e-5 * float(expected.norm() + 1e-6), rtol=1e-5, msg=name
            )


# Batches with as many examples as there are tokens, features, heads and classes.
@pytest.mark.parametrize("size", [1, 2, 3, 4, zoo.LENGTH, zoo.WIDTH, 12])
@pytest.mark.parametrize("name", [n for n in zoo.MODELS if "cnn" not in n or n == "sequence cnn"])
def test_the_sizes_of_the_batch_do_not_matter(name, size):
    """Batch dimensions follow from functions, so equal sizes do not matter."""
    model, data = zoo.make(name)
    assert_same_as_batches_of_one(model, data.tensors[0][:size])


class TimeFirst(nn.Module):
    """Tensors are (time, examples) throughout; mean over features, then over time."""

    def __init__(self):
        super().__init__()
        self.tokens, self.norm = nn.Embedding(zoo.TOKENS, zoo.WIDTH), nn.LayerNorm(zoo.WIDTH)
        self.linear, self.scale = (
            nn.Linear(zoo.WIDTH, zoo.WIDTH),
            nn.Parameter(torch.randn(zoo.LENGTH, 1)),
        )
        self.head = nn.Linear(zoo.LENGTH, 3)

    def forward(self, ids):
        x = self.norm(torch.tanh(self.linear(self.tokens(ids))))
        return self.head((x.mean(dim=2) * self.scale).t())  # (time, examples) again before the head


@pytest.mark.parametrize("size", [1, 2, zoo.LENGTH, zoo.WIDTH])
def test_time_before_examples(size):
    """batch_first=False, also with as many examples as time steps."""
    ids = zoo.tokens().tensors[0][:size].t()
    model = TimeFirst().double()
    wrapped = wrap(model, batch_first=False)
    found, _ = gradients_and_bounds(wrapped, losses(wrapped(ids)))
    for i in range(size):
        truth = torch.autograd.grad(
            losses(model(ids[:, i : i + 1])).sum(), list(model.parameters())
        )
        for (name, _), expected in zip(model.named_parameters(), truth, strict=True):
            torch.testing.assert_close(found[name][i], expected, atol=1e-8, rtol=1e-5, msg=name)


class Custom(nn.Module):
    """One square parameter used by the test's function."""

    def __init__(self, function):
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(4, 4)), function

    def forward(self, x):
        return self.function(x, self.weight)


EXACT = {
    "a row for each example": lambda x, w: x + w[0].expand(len(x), 4, 4) * 2,
    "repeated rows": lambda x, w: torch.cat([w[None].repeat(len(x), 1, 1), x], 1),
    "repeated more than once": lambda x, w: torch.cat([w[None].repeat(len(x), 2, 1), x], 1),
    "an attribute": lambda x, w: x @ w.T.contiguous().to(x.dtype),
    "matrices on the left": lambda x, w: w @ x,
    "batched matrices": lambda x, w: torch.bmm(w.expand(len(x), 4, 4), x),
    "iteration": lambda x, w: torch.stack([row @ w for row in x.transpose(0, 1)], 1),
    "each example as several rows": lambda x, w: (x.reshape(-1, 4) @ w).relu().view(len(x), 4, 4),
    "rows with a scale each": lambda x, w: (x.reshape(-1, 4) * w[0]).view(len(x), 4, 4),
    "moved and moved back": lambda x, w: (x.movedim(0, 2).permute(2, 0, 1) * w).swapaxes(1, 2),
    "the last of each": lambda x, w: x[torch.arange(len(x)), torch.tensor([1]).expand(len(x))] @ w,
    "some of each": lambda x, w: x[torch.arange(len(x))[:, None], torch.tensor([[0, 2]])] @ w,
    "two dimensions by tensors": lambda x, w: (x[:, torch.tensor([0, 1])] @ w)[
        :, :, torch.tensor([3])
    ],
    "in place": lambda x, w: (x * 1).mul_(w).sub_(w[0]).add_(w[1]),
    "from the left": lambda x, w: w - x * (w + 1),
    "where": lambda x, w: torch.where(x > 0, x * w, w),
    "a buffer of parameters": lambda x, w: x * _buffer(w),
    "grouped by several": lambda x, w: x.sum(2, keepdim=True).expand(-1, 4, 4) * w,
    "a derived parameter in place": lambda x, w: x @ (w * 2).mul_(3),
    "one row for all examples": lambda x, w: (
        F.embedding(torch.zeros(1, 4, dtype=torch.long), w).to(x.dtype) + x
    ),
    "shifted": lambda x, w: _shifted(x) @ w,
    "heads, a bias for each": lambda x, w: (
        x.repeat_interleave(4, 0) + w.repeat(len(x), 1)[:, None]
    ).view(-1, 4, 4, 4),
    "heads, a matrix for each": lambda x, w: torch.bmm(
        x.repeat_interleave(4, 0), w[:, :, None].repeat(len(x), 1, 1)
    ).view(len(x), 4, 4),
    "attention with a bias": lambda x, w: F.scaled_dot_product_attention(x, x, x, attn_mask=w),
    "causal attention": lambda x, w: F.scaled_dot_product_attention(
        x @ w, x, w * 1, is_causal=True, scale=0.3
    ),
    "attention with a mask": lambda x, w: F.scaled_dot_product_attention(
        x, x, w.expand(len(x), 4, 4), x[:, :1] > -3
    ),
    "arguments by name": lambda x, w: torch.add(input=x, other=w).mul(other=w[0]),
    "addmm by name": lambda x, w: torch.addmm(input=w[0], mat1=x[:, 0], mat2=w),
    "bilinear": lambda x, w: F.bilinear(x, x, w[None]),
    "a sum with a factor": lambda x, w: torch.add(x, w, alpha=3).sub(w[0], alpha=-2),
    "a table with a row that is not trained": lambda x, w: F.embedding(
        _tokens(x), w, padding_idx=1
    ),
    "a table used twice": lambda x, w: F.embedding(_tokens(x), w) * F.embedding(_tokens(-x), w),
}


def _tokens(x):
    return (x[:, :, 0] > 0).long() + 2 * (x[:, :, 1] > 0)


def _buffer(w):
    buffer = torch.zeros(4, 4, dtype=w.dtype)
    buffer[0] = w[1]
    return buffer


def _shifted(x):
    moved = x.new_zeros(x.shape)
    moved[:, 1:] = x[:, :-1]
    moved[:, 0] = 2.0
    return moved


def _scattered(x):
    moved = x.new_zeros(x.shape)
    moved[x[:, 0, 0].argsort()] = x
    return moved


@pytest.mark.parametrize("size", [1, 2, 4, 8, 11])
@pytest.mark.parametrize("name", EXACT)
def test_functions(name, size):
    """For every function of a parameter, the gradient is that of a batch of one."""
    torch.manual_seed(0)
    assert_same_as_batches_of_one(Custom(EXACT[name]), torch.randn(size, 4, 4))


def assert_adds_up(model, inputs, plain):
    """In train mode per-example gradients add up to the gradient of the batch.

    ``plain`` computes the batch with the same random numbers.
    """
    model, inputs = (
        model.double().train(),
        inputs.double() if inputs.is_floating_point() else inputs,
    )
    wrapped = wrap(model)
    torch.manual_seed(1)
    found, _ = gradients_and_bounds(wrapped, losses(wrapped(inputs)))
    torch.manual_seed(1)
    expected = torch.autograd.grad(losses(plain(inputs)).sum(), list(model.parameters()))
    for (name, _), gradient in zip(model.named_parameters(), expected, strict=True):
        torch.testing.assert_close(found[name].sum(0), gradient, atol=1e-8, rtol=1e-5, msg=name)


@pytest.mark.parametrize("name", ["language model", "tied language model", "resnet", "patches"])
def test_dropout_is_that_of_the_forward_pass(name):
    model, data = zoo.make(name)
    assert_adds_up(model, data.tensors[0], model)


def test_attention_with_dropout_and_a_bias():
    """Attention with data, parameters and random numbers is computed by simpler functions."""
    model = Custom(lambda x, w: F.scaled_dot_product_attention(x, x, x, attn_mask=w, dropout_p=0.5))
    assert_adds_up(
        model,
        torch.randn(6, 4, 4),
        lambda x: layer_rules.scaled_dot_product_attention(x, x, x, model.weight, 0.5),
    )


@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"scale": 0.3}, {"enable_gqa": True}, {"attn_mask": 1}]
)
def test_attention_written_out(options):
    """The same as torch's, without and with a row that is masked as a whole."""
    q, k, v = torch.randn(3, 4, 5, 8), torch.randn(3, 4, 5, 8), torch.randn(3, 4, 5, 8)
    if "enable_gqa" in options:
        k, v = k[:, :1], v[:, :2]
    masks = [torch.randn(5, 5), torch.rand(5, 5) > 0.5, torch.arange(5)[:, None].expand(5, 5) > 0]
    for mask in masks if "attn_mask" in options else [None]:
        found = layer_rules.scaled_dot_product_attention(q, k, v, **options | {"attn_mask": mask})
        torch.testing.assert_close(
            found, F.scaled_dot_product_attention(q, k, v, **options | {"attn_mask": mask})
        )


@pytest.mark.parametrize(
    "function", [F.embedding, F.layer_norm, F.rms_norm, F.group_norm, F.instance_norm]
)
def test_rules_have_the_defaults_of_their_functions(function):
    """An argument that is not given has the value that the forward pass used."""
    of_rule, of_function = (
        [parameter.default for parameter in inspect.signature(f).parameters.values()]
        for f in (layer_rules._RULES[function], function)
    )
    assert of_rule[1:] == of_function, "the rule's first argument is the roles"


REFUSED = {
    "examples in another order": lambda x, w: (x[torch.tensor([1, 0, 3, 2])] @ w)[
        torch.tensor([1, 0, 3, 2])
    ],
    "examples sorted": lambda x, w: x.index_select(0, x[:, 0, 0].argsort()) @ w,
    "examples gathered": lambda x, w: x.gather(0, x.argsort(0)) @ w,
    "examples flipped": lambda x, w: (x.flip(0) @ w).flip(0),
    "a parameter behind the examples": lambda x, w: torch.cat([x, w.expand(len(x), 4, 4)]).chunk(2)[
        0
    ],
    "examples and tokens merged, time first": lambda x, w: (
        x.transpose(0, 1).reshape(-1, 4) @ w
    ).view(4, 4, 4),
    "a mean over the batch": lambda x, w: x + x.mean(0) @ w,
    "random numbers": lambda x, w: torch.normal(x, w.square()),
    "written at data's places": lambda x, w: _scattered(x) @ w,
    "written into data": lambda x, w: (x * 1).addcmul_(x, w),
    "concatenated by axis": lambda x, w: torch.concatenate([w.expand(4, 4, 4), x], axis=1),
    "written into an output argument": lambda x, w: torch.matmul(x, w, out=torch.empty(4, 4, 4)),
    "written into a parameter": lambda x, w: (w * 1).add_(x[0]) + x,
    "a token written into data": lambda x, w: (x * 1).index_put_((torch.tensor(0),), w),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    """Functions that reorder or mix examples are refused, also if all sizes are equal."""
    wrapped = wrap(Custom(REFUSED[name]))
    with pytest.raises(PerExampleGradientError, match="weight: ") as error:
        gradients_and_bounds(wrapped, losses(wrapped(torch.randn(4, 4, 4))))
    assert "Nothing was released" in str(error.value)


def test_nothing_of_a_batch_is_kept():
    """Batch dimensions are dropped together with their tensors."""
    model, data = zoo.make("language model")
    wrapped = wrap(model)
    output = wrapped(data.tensors[0])
    assert wrapped.recorder.roles.data._entries
    del output
    gc.collect()
    kept = len(wrapped.recorder.roles.data._entries)
    assert kept <= 1, kept  # the inputs, which are ours


def test_a_copy_records_nothing_of_the_original():
    model, data = zoo.make("resnet")
    wrapped = wrap(model)
    again = copy.deepcopy(wrapped)
    found, _ = gradients_and_bounds(again, losses(again(data.tensors[0])))
    assert not wrapped.recorder.terms
    assert all(
        torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters(), strict=True)
    )
    assert set(found) == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("wrap_model", [True, False])
def test_nothing_is_followed_after_a_forward_pass_that_failed(wrap_model):
    model = Custom(lambda x, w: x @ w[0, :3])
    wrapped = wrap(model, wrap_model=wrap_model)
    with pytest.raises(RuntimeError, match="size"):
        (wrapped if wrap_model else model)(torch.zeros(2, 4, 4))
    assert torch.overrides._len_torch_function_stack() == 0


@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_batch_norm_with_fixed_statistics(size):
    """In eval mode batch norm treats examples alone, and its weights are trained."""
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    model[1].running_mean.normal_()
    assert_same_as_batches_of_one(model, torch.randn(size, 5))


def test_batch_norm_of_the_batch_is_refused():
    wrapped = wrap(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)))
    with pytest.raises(PerExampleGradientError, match="Nothing was released"):
        wrapped(torch.randn(6, 4))
