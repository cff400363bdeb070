"""Which tensors depend on the examples and which on parameters alone, for the recorder.

*Data* depends on the model's inputs. A *derived parameter* depends on parameters and not on data.
"""

from __future__ import annotations

import weakref
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import nn

from antiphase.errors import PerExampleGradientError
from antiphase.torch.batch_dim import BatchDim, Call, can_have
from antiphase.torch.batching_rules import result_batch_dim
from antiphase.torch.function_calls import padding_index, tensors_in, writes_in_place

Tensor = torch.Tensor
Value = TypeVar("Value")
_TRANSPOSES = frozenset(("t", "T", "mT", "transpose", "permute", "swapaxes", "adjoint", "H", "mH"))
_EXPANSIONS = frozenset(("expand", "repeat", "broadcast_to", "tile", "expand_as"))
_IN_PLACE_RESHAPES = frozenset(
    (
        *("transpose_", "t_", "swapaxes_", "swapdims_", "unsqueeze_", "squeeze_"),
        *("resize_", "resize_as_", "set_"),
    )
)


class TensorMap(Generic[Value]):
    """Values by tensor (by identity, not by its numbers), for as long as the tensor lives."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[Any, Value]] = {}

    def __contains__(self, tensor: Tensor) -> bool:
        entry = self._entries.get(id(tensor))
        return entry is not None and entry[0]() is tensor

    def get(self, tensor: Tensor) -> Value | None:
        """The value of the tensor; None if it has none."""
        entry = self._entries.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def __setitem__(self, tensor: Tensor, value: Value) -> None:
        key = id(tensor)
        entry = self._entries.get(key)
        if entry is not None and entry[0]() is tensor:
            self._entries[key] = entry[0], value
        else:
            self._entries[key] = weakref.KeyedRef(tensor, self._drop, key), value

    def _drop(self, reference: Any) -> None:
        entry = self._entries.get(reference.key)
        if entry is not None and entry[0] is reference:
            del self._entries[reference.key]


class Derived(NamedTuple):
    """How a tensor depends on its ``parents``, which are parameters or derived parameters."""

    kind: Literal["transpose", "expand", "lookup", "graph"]  # graph: any other function
    parents: tuple[Tensor, ...]
    indices: Tensor | None = None  # of a lookup


class TensorRoles:
    """Roles of the tensors of one model.

    Attributes:
        batch_size: number of examples of the forward pass.
        data: the batch dimension of each data tensor; None where it is unknown.
        derived: how each derived parameter depends on parameters.
    """

    def __init__(self, module: nn.Module) -> None:
        self.batch_size = 0
        self._module = module
        self._names: dict[int, str] = {}
        self.forget()

    def forget(self) -> None:
        """Keep nothing of the data."""
        self.data = TensorMap[BatchDim | None]()
        self.derived = TensorMap[Derived]()

    def begin(self, inputs: Any, batch_dim: int) -> None:
        """Begin a forward pass: these inputs are data, with examples along ``batch_dim``."""
        tensors = [t for t in tensors_in(inputs) if t.ndim]
        if not tensors:
            raise ValueError(
                "the model was called without a tensor: its examples cannot be told apart"
            )
        first = tensors[0]
        self.batch_size = first.shape[min(batch_dim, first.ndim - 1)]
        self._names = {}
        self._read_names()
        for tensor in tensors:
            if not self.is_parameter(tensor):  # the model's own
                dim = BatchDim(min(batch_dim, tensor.ndim - 1))
                self.data[tensor] = dim if can_have(dim, tensor, self.batch_size) else None

    # Parameters

    def _read_names(self) -> None:
        named = self._module.named_parameters()
        self._names.update((id(p), name) for name, p in named if p.requires_grad)

    def name_of(self, tensor: Tensor) -> str | None:
        """Name of a trainable parameter; None for other tensors."""
        name = self._names.get(id(tensor))
        if name is None and isinstance(tensor, nn.Parameter) and tensor.requires_grad:
            self._read_names()  # FSDP puts parameters together in the course of a pass
            name = self._names.get(id(tensor))
        return name

    def is_parameter(self, tensor: Any) -> bool:
        """Whether this is a trainable parameter or a derived one."""
        if not isinstance(tensor, Tensor) or not tensor.requires_grad:
            return False
        return tensor in self.derived or self.name_of(tensor) is not None

    def leaves(self, tensor: Tensor) -> dict[str, Tensor]:
        """The parameters, by name, that a (derived) parameter depends on."""
        name = self.name_of(tensor)
        if name is not None:
            return {name: tensor}
        derived, leaves = self.derived.get(tensor), dict[str, Tensor]()
        for parent in () if derived is None else derived.parents:
            leaves.update(self.leaves(parent))
        return leaves

    def note_derived(
        self, name: str, args: Any, kwargs: Any, parameters: list[Tensor], out: Any
    ) -> None:
        """Note that the function ``name`` was called with these parameters and without data."""
        if writes_in_place(name):
            written: Tensor = args[0]
            if written.requires_grad and self.name_of(written) is None:
                before = self.derived.get(written)
                others = [p for p in parameters if p is not written]
                parents = (*others, *(before.parents if before else ()))
                self.derived[written] = Derived("graph", parents)
            return
        derived = _derived_by(name, args, kwargs, parameters, out)
        for tensor in tensors_in(out):
            # Functions such as `to` and `contiguous` may return their argument.
            is_argument = any(tensor is p for p in parameters)
            if tensor.requires_grad and not is_argument and self.name_of(tensor) is None:
                self.derived[tensor] = derived

    # Data

    def result_batch_dims(
        self, name: str, args: Any, kwargs: Any, sources: list[Tensor], out: Tensor
    ) -> set[BatchDim]:
        """The batch dimensions that ``out`` has according to each argument that is data."""
        known = [(source, self.data.get(source)) for source in sources]
        calls = [
            Call(args, kwargs, source, batch_dim, out, self.batch_size)
            for source, batch_dim in known
            if batch_dim is not None
        ]
        return {dim for call in calls if (dim := result_batch_dim(name, call)) is not None}

    def note_data(self, name: str, args: Any, kwargs: Any, sources: list[Tensor], out: Any) -> None:
        """Note that the results of the function ``name`` depend on data."""
        if name in _IN_PLACE_RESHAPES:
            self.data[args[0]] = None
            return
        if writes_in_place(name):
            results = [] if args[0] in self.data else [args[0]]
        else:
            results = [t for t in tensors_in(out) if t not in self.data]
        for tensor in results:
            dims = self.result_batch_dims(name, args, kwargs, sources, tensor)
            self.data[tensor] = dims.pop() if len(dims) == 1 else None

    def refusal(self, parameters: list[Tensor], why: str) -> PerExampleGradientError:
        """The error for a use of parameters that cannot be attributed to examples."""
        names = ", ".join(name for p in parameters for name in sorted(self.leaves(p)))
        return PerExampleGradientError(
            f"{names}: {why}, so per-example gradients cannot be computed. Nothing was released. "
            "Write the layer with the examples in the first dimension of every tensor, or freeze "
            "the parameter"
        )

    def shape_refusal(self, parameter: Tensor, x: Tensor) -> PerExampleGradientError:
        """The error for a use on data whose examples cannot be located."""
        why = f"used on data of shape {tuple(x.shape)} in a batch of {self.batch_size}"
        return self.refusal([parameter], why)


def _derived_by(name: str, args: Any, kwargs: Any, parameters: list[Tensor], out: Any) -> Derived:
    """How the results of the function ``name`` depend on its parameters."""
    first, parents = parameters[0], tuple(parameters)
    if name in _TRANSPOSES and first.ndim == 2 and isinstance(out, Tensor):
        shape, strides = first.shape[::-1], first.stride()[::-1]
        if out.shape == shape and out.stride() == strides:
            return Derived("transpose", parents)
    if name in _EXPANSIONS:
        return Derived("expand", parents)
    looks_up = name == "embedding" and len(args) > 1 and args[1] is first
    if looks_up and padding_index(first, args, kwargs) is None:
        return Derived("lookup", parents, args[0])
    return Derived("graph", parents)
