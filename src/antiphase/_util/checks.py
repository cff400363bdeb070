"""Argument checks that return the clean value or name the bad one.

Every function takes the ``name`` of the argument for the message, and its ``value``. A value of the
wrong type raises `TypeError`, a value out of range `ValueError`.
"""

from __future__ import annotations

import math
import numbers
import os
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase._util.suggestions import suggestion as suggestion

Array = NDArray[np.float64]
Indices = NDArray[np.intp]


def whole_number(name: str, value: Any, *, minimum: int = 1) -> int:
    """``value`` as an int of at least ``minimum``; bools and floats are refused."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} = {value!r} must be a whole number, not {type(value).__name__}")
    if value < minimum:
        raise ValueError(f"{name} = {value} must be at least {minimum}")
    return int(value)


def real_number(
    name: str, value: Any, *, minimum: float = -math.inf, below: float = math.inf
) -> float:
    """``value`` as a finite float with ``minimum <= value < below``."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} = {value!r} must be a number, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not minimum <= number < below:
        rule = "finite"
        if minimum > -math.inf:
            rule += f", at least {minimum:g}"
        if below < math.inf:
            rule += f", below {below:g}"
        raise ValueError(f"{name} = {value} must be {rule}")
    return number


def positive_number(name: str, value: Any) -> float:
    """``value`` as a finite float above 0."""
    number = real_number(name, value)
    if number <= 0:
        raise ValueError(f"{name} = {value} must be positive")
    return number


def flag(name: str, value: Any) -> bool:
    """``value`` as a bool; nothing but True and False is one."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} = {value!r} must be True or False, not {type(value).__name__}")
    return bool(value)


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """``value``, if it is one of the ``allowed`` strings."""
    if not isinstance(value, str):
        raise TypeError(f"{name} = {value!r} must be a string, one of {', '.join(allowed)}")
    if value not in allowed:
        raise ValueError(
            f"{name} = {value!r} must be one of {', '.join(allowed)}{suggestion(value, allowed)}"
        )
    return value


def instance(name: str, value: Any, kind: type) -> Any:
    """``value``, if it is an instance of ``kind``."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} = {value!r} must be a {kind.__name__}, not {type(value).__name__}")
    return value


def parse_memory(memory: str | int) -> int:
    """Return a number of bytes, from a number or a size like ``"512MB"``.

    Example:
        >>> parse_memory("1.5 GB")
        1500000000
    """
    if isinstance(memory, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", memory, re.IGNORECASE)
        if not match:
            raise ValueError(f"memory = {memory!r} must be a size such as '512MB' or '2GiB'")
        power = " KMGT".index(match[2].upper() or " ")
        return int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    return whole_number("memory", memory)


def name_or_path(name: str, value: Any) -> str | os.PathLike[str]:
    """``value``, if it is a string or a path."""
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} = {value!r} must be a name or a path, not {type(value).__name__}")
    return value


def function(name: str, value: Any) -> Any:
    """``value``, if it can be called."""
    if not callable(value):
        raise TypeError(f"{name} = {value!r} must be a function, not {type(value).__name__}")
    return value


def real_array(name: str, value: Any, *, ndim: int) -> Array:
    """A read-only float64 copy of ``value`` with ``ndim`` axes and finite entries."""
    if np.iscomplexobj(value):
        raise TypeError(f"{name} has complex entries; real numbers are needed")
    try:
        array = np.array(value, dtype=np.float64, order="C")
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name} = {value!r} cannot be read as an array of numbers") from error
    if array.ndim != ndim:
        raise ValueError(f"{name} has shape {array.shape}; an array with {ndim} axes is needed")
    bad = np.argwhere(~np.isfinite(array))
    if bad.size:
        index = tuple(int(i) for i in bad[0])
        subscript = ", ".join(map(str, index))
        raise ValueError(f"{name}[{subscript}] = {array[index]}: every entry must be finite")
    array.setflags(write=False)
    return array


def curvatures(name: str, value: Any) -> Array:
    """Return a read-only array of numbers of at least 0, of which one is positive."""
    array = real_array(name, value, ndim=1)
    if not len(array) or (array < 0).any() or not array.any():
        raise ValueError(f"{name} = {value!r} needs curvatures of at least 0, and one above 0")
    return array


def set_fields(instance: Any, **values: Any) -> None:
    """Set fields of a frozen dataclass, within its ``__post_init__``."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def per_step(name: str, value: Any, steps: int) -> Array:
    """One non-negative number per step; a single number is repeated for all steps."""
    if isinstance(value, numbers.Real):
        value = np.full(steps, real_number(name, value))
    array = real_array(name, value, ndim=1)
    if len(array) != steps:
        raise ValueError(
            f"{name} has {len(array)} entries for {steps} steps; give one for each step"
        )
    negative = np.flatnonzero(array < 0)
    if negative.size:
        i = negative[0]
        raise ValueError(f"{name}[{i}] = {array[i]} is negative; every entry must be at least 0")
    return array
