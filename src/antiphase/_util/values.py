"""Frozen values that know their own content: compared, hashed, cached and stored by it.

A `Value` is a frozen dataclass whose fields are numbers, strings, ``None``, read-only arrays and other values.
Its `spec` is a plain nested dictionary; `restore` turns one back into the value, through the constructor, so
that whatever a constructor refuses, a file cannot smuggle in.
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
    """Base of workloads, objectives and participations."""

    _kinds: ClassVar[dict[str, type[Value]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Value._kinds[cls.__name__] = cls

    def spec(self) -> dict[str, Any]:
        """The fields, by name, and the kind: enough to build the value again."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {"kind": type(self).__name__} | {f.name: getattr(self, f.name) for f in fields}

    @classmethod
    def restore(cls, spec: Any) -> Self:
        """The value that `spec` describes; raises `FileFormatError` if it describes none of this kind."""
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
    """SHA-256 of nested dictionaries, lists, numbers, strings, values and arrays; the order of keys is nothing."""

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
