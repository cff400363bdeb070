"""Batching rules against what functions do: which part of a result each example moves."""

import itertools

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from antiphase.torch import recorder
from antiphase.torch.batch_dim import BatchDim, Call
from antiphase.torch.batching_rules import result_batch_dim
from antiphase.torch.function_calls import function_name, tensors_in

pytestmark = pytest.mark.issue(21)


class FirstCall(TorchFunctionMode):
    """Keeps name, arguments and result of the first function of torch with ``x`` as argument."""

    def __init__(self, x):
        super().__init__()
        self.x, self.call = x, None

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, kwargs = function_name(func), kwargs or {}
        out = func(*args, **kwargs)
        follows = name not in recorder._NOT_FOLLOWED and self.call is None
        if follows and any(t is self.x for t in tensors_in((args, kwargs))):
            self.call = name, args, kwargs
        return out


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def moments(x):
    return torch.zeros(x.shape[1]), torch.ones(x.shape[1])


CALLS = {  # functions of a tensor of shape (a, b, c); the first call in each is tested
    "where": lambda x: torch.where(x > 0, x, 2 * x),
    "matrix on the right": lambda x: x @ numbers(x.shape[-1], 7),
    "vector on the right": lambda x: x @ numbers(x.shape[-1]),
    "matrix on the left": lambda x: numbers(7, x.shape[-2]) @ x,
    "vector on the left": lambda x: torch.matmul(numbers(x.shape[-2]), x),
    "more dimensions on the left": lambda x: numbers(4, 1, 7, x.shape[-2]) @ x,
    "rows on the right": lambda x: torch.Tensor.__rmatmul__(x, numbers(7, x.shape[-2])),
    "vector on the right, reflected": lambda x: torch.Tensor.__rmatmul__(x, numbers(x.shape[-2])),
    "added product": lambda x: torch.baddbmm(
        x, numbers(x.shape[0], x.shape[1], 7), numbers(x.shape[0], 7, x.shape[2])
    ),
    "product added": lambda x: torch.baddbmm(numbers(9), x, numbers(x.shape[0], x.shape[2], 9)),
    "product from the right added": lambda x: torch.baddbmm(
        numbers(x.shape[2]), numbers(x.shape[0], 9, x.shape[1]), x
    ),
    "linear": lambda x: F.linear(x, numbers(7, x.shape[-1])),
    "attention, keys": lambda x: F.scaled_dot_product_attention(
        numbers(*x.shape[-2:]), x, numbers(x.shape[-2], 7)
    ),
    "attention, queries": lambda x: F.scaled_dot_product_attention(
        x, numbers(7, x.shape[-1]), numbers(7, x.shape[-1])
    ),
    "batch norm in training": lambda x: F.batch_norm(x, *moments(x), None, None, True),
    "batch norm by name": lambda x: F.batch_norm(x, *moments(x), training=True),
    "batch norm by position": lambda x: torch.batch_norm(
        x, None, None, *moments(x), False, 0.1, 1e-5, False
    ),
    "batch norm": lambda x: F.batch_norm(x, *moments(x)),
    "softmax": lambda x: x.softmax(1),
    "cumsum": lambda x: x.cumsum(-1),
    "sort": lambda x: torch.sort(x)[0],
    "argsort": lambda x: x.argsort(0),
    "glu": lambda x: F.glu(x),
    "split": lambda x: x.split(1)[0],
    "split by": lambda x: x.split(1, 1)[0],
    "chunk": lambda x: x.chunk(1)[0],
    "topk": lambda x: x.topk(1)[0],
    "kthvalue": lambda x: x.kthvalue(1)[0],
    "diff": lambda x: x.diff(),
    "cat": lambda x: torch.cat([x, x], 2),
    "cat by default": lambda x: torch.cat([x, x]),
    "normalize": lambda x: F.normalize(x),
    "take": lambda x: x.take_along_dim(torch.zeros(1, 1, 1).long(), 1),
    "flip": lambda x: x.flip(0),
    "flip by name": lambda x: torch.flip(x, dims=[1]),
    "roll": lambda x: x.roll(1, 2),
    "sum": lambda x: x.sum(1),
    "sums": lambda x: x.sum((0, -1)),
    "sum, kept": lambda x: x.sum(1, keepdim=True),
    "sum of all": lambda x: x.sum(),
    "norm": lambda x: torch.linalg.vector_norm(x, 2, 0),
    "max": lambda x: x.max(2)[0],
    "max of two": lambda x: torch.max(x, numbers(x.shape[-1])),
    "max of two by name": lambda x: torch.max(input=x, other=numbers(x.shape[-1])),
    "transpose": lambda x: x.transpose(0, 2),
    "transpose by name": lambda x: x.transpose(dim0=-1, dim1=0),
    "permute": lambda x: x.permute(2, 0, 1),
    "permute by list": lambda x: x.permute([1, 2, 0]),
    "permute by name": lambda x: torch.permute(x, dims=(1, 2, 0)),
    "movedim": lambda x: x.movedim(0, 2),
    "movedims": lambda x: x.movedim((0, 1), (1, 2)),
    "mT": lambda x: x.mT,
    "flatten": lambda x: x.flatten(1),
    "flatten the first": lambda x: x.flatten(0, 1),
    "flatten all": lambda x: x.reshape(-1),
    "view with one more": lambda x: x.view(1, *x.shape),
    "view split": lambda x: x.reshape(x.shape[0], x.shape[1], 1, x.shape[2]),
    "stack": lambda x: torch.stack([x, x]),
    "stack in between": lambda x: torch.stack([x, x], 2),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "squeeze": lambda x: x.squeeze(),
    "squeeze one": lambda x: x.squeeze(1),
    "unbind": lambda x: x.unbind()[0],
    "unbind by": lambda x: x.unbind(1)[0],
    "select": lambda x: x.select(2, 0),
    "repeated": lambda x: x.repeat_interleave(2, 1),
    "repeated all": lambda x: x.repeat_interleave(2),
    "einsum": lambda x: torch.einsum("abc,cd->bda", x, numbers(x.shape[-1], 7)),
    "diagonal sums": lambda x: torch.einsum("abc,abc->a", x, x),
    "broadcast": lambda x: x + numbers(4, 1, 1, 1),
    "one of each": lambda x: x[:, 0],
    "one of each, from the end": lambda x: x[..., 0],
    "some of each": lambda x: x[:, :, :2],
    "some examples": lambda x: x[:2],
    "a new dimension": lambda x: x[:, None],
    "tokens by tensor": lambda x: x[:, torch.tensor([0, 0])],
    "examples by tensor": lambda x: x[torch.tensor([1, 0])],
    "a token of every example": lambda x: x[torch.arange(len(x)), torch.zeros(len(x)).long()],
    "repeat": lambda x: x.expand(4, *x.shape),
}
UNKNOWN = {  # dimensions for which a rule gives up although examples could be told apart
    "attention, queries": (1,),
    "batch norm by position": (1, 2),
    "batch norm in training": (1, 2),
    "batch norm by name": (1, 2),
    "batch norm": (1, 2),
    "chunk": (0,),
    "kthvalue": (0, 1),
    "repeated all": (0,),
    "some of each": (2,),
    "some examples": (0,),
    "a token of every example": (0,),  # of several rows each
    "examples by tensor": (0,),
}


def parts_moved(function, x, n, dim):
    """The batch dimensions of the result in which each example moves its own part alone."""
    out, rows = function(x), x.shape[dim] // n
    possible = [BatchDim(d, size // n) for d, size in enumerate(out.shape) if size % n == 0]
    for i, seed in itertools.product(range(n), range(3)):
        other = x.clone()
        part = other.narrow(dim, i * rows, rows)
        part.copy_(2 * numbers(*part.shape, seed=seed + 9))
        differs, others = function(other) != out, [j for j in range(n) if j != i]
        possible = [
            found for found in possible
            if not differs.unflatten(found.dim, (n, found.rows)).movedim(found.dim, 0)[others].any()
        ]  # fmt: skip
    return possible


@pytest.mark.parametrize("shape", [(2, 3, 4), (4, 4, 4), (5, 1, 2)])
@pytest.mark.parametrize("name", CALLS)
def test_batch_dimensions_are_where_each_example_moves_its_part_alone(name, shape):
    """Whatever sizes agree; by one and by two rows for each example."""
    function, x = CALLS[name], numbers(*shape, seed=1)
    with FirstCall(x) as first:
        out = function(x)
    called, args, kwargs = first.call
    for dim, rows in itertools.product(range(3), (1, 2)):
        n = shape[dim] // rows
        if n < 2 or shape[dim] % rows:
            continue
        found = result_batch_dim(called, Call(args, kwargs, x, BatchDim(dim, rows), out, n))
        possible = parts_moved(function, x, n, dim)
        if found is None and dim in UNKNOWN.get(name, ()):
            continue
        assert found in (possible or [None]), f"{called}, examples in dimension {dim}"


def result_of(function, x, batch_dim, batch_size):
    with FirstCall(x) as first:
        out = function(x)
    name, args, kwargs = first.call
    out = out[0] if isinstance(out, tuple) else out
    return result_batch_dim(name, Call(args, kwargs, x, batch_dim, out, batch_size))


def test_indices_of_true_values_belong_to_no_example():
    assert result_of(torch.where, torch.ones(3), BatchDim(), 3) is None


def test_a_batch_of_one_stays_in_its_dimension():
    x = torch.zeros(1, 1, 3)
    assert result_of(lambda x: x.reshape(1, 1, 3, 1), x, BatchDim(1), 1) == BatchDim(1)
