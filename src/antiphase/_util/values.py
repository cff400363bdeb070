"""Immutable values that are compared, hashed and stored by content.

A `Value` is a frozen dataclass whose fields are numbers, strings, ``None``, read-only arrays and
other values. `Value.spec` returns it as a plain nested dictionary, and `Value.restore` passes such
a dictionary through the constructor, so that a file cannot hold a value that the constructor
refuses.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from antiphase.errors import FileFormatError


class Value:
    """Base class of workloads, objectives and participations."""

    _kinds: ClassVar[dict[str, type[Value]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register the class by its name, for `restore`."""
        super().__init_subclass__(**kwargs)
        Value._kinds[cls.__name__] = cls

    def spec(self) -> dict[str, Any]:
        """The name of the class and the fields: enough to build the value again."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {"kind": type(self).__name__} | {f.name: getattr(self, f.name) for f in fields}

    @classmethod
    def restore(cls, spec: Any) -> Self:
        """The value that `spec` describes; raises `FileFormatError` if it is not of this class."""
        if not isinstance(spec, dict) or not isinstance(spec.get("kind"), str):
            raise FileFormatError(f"a {cls.__name__} is described by a dictionary with a 'kind'")
        kind = Value._kinds.get(spec["kind"])
        if kind is None or not issubclass(kind, cls):
            raise FileFormatError(
                f"{spec['kind']!r} is not a kind of {cls.__name__} that this version knows"
            )
        try:
            return kind(**{name: value for name, value in spec.items() if name != "kind"})
        except (TypeError, ValueError) as error:
            raise FileFormatError(f"a stored {spec['kind']} is not valid: {error}") from error

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content, in hexadecimal."""
        return digest(self.spec())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def digest(content: Any) -> str:
    """SHA-256 of nested dictionaries, lists, numbers, strings, values and arrays.

    Independent of key order.
    """

    def plain(item: Any) -> Any:
        if isinstance(item, Value):
            return plain(item.spec())
        if isinstance(item, np.ndarray):
            data = np.ascontiguousarray(item)
            return {
                "array": hashlib.sha256(data.tobytes()).hexdigest(),
                "shape": data.shape,
                "dtype": data.dtype.str,
            }
        if isinstance(item, dict):
            return {key: plain(value) for key, value in item.items()}
        if isinstance(item, (list, tuple)):
            return [plain(value) for value in item]
        return item

    text = json.dumps(plain(content), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
