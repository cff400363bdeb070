"""torch.compile: recorded passes run eagerly, function by function; other passes run compiled."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo

from antiphase.errors import SettingsError
from antiphase.torch.user_warnings import warn

# As torch.compiler.disable, which would import the compiler with antiphase.
uncompiled = _disable_dynamo


def eagerly() -> AbstractContextManager[Any]:
    """A context in which compiled models run eagerly."""
    context: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return context


def check_compiled(module: nn.Module, wrap_model: bool) -> None:
    """Warn that a compiled model is not compiled in training steps, or refuse it.

    Args:
        module: the model.
        wrap_model: whether it is wrapped, as of `make_private`.

    Raises:
        ValueError: if hooks are to record a compiled model.
    """
    if _is_compiled(module) and not wrap_model:
        raise ValueError(
            "wrap_model = False: hooks cannot record a model of torch.compile. Give the model that "
            "is not compiled, or leave wrap_model out"
        )
    if any(map(_is_compiled, module.modules())):
        warn(
            "the module is compiled by torch.compile. Training steps run it eagerly, since "
            "gradients of single examples are recorded function by function; only passes in eval "
            "mode or without gradients are compiled"
        )


def _is_compiled(module: nn.Module) -> bool:
    """Whether a module is from ``torch.compile`` or was compiled in place."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def refuse_compiled_call() -> None:
    """Refuse to record a pass of a compiled function that is under way.

    Raises:
        SettingsError: if a function of torch.compile is among the callers.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        # PRIVACY: compiled code has other rounding than that which the norms cover.   [G16]
        if frame.f_code.co_name == "compile_wrapper":
            raise SettingsError(
                "the model is called through torch.compile, and its hooks cannot record that. "
                "Nothing was released. Call the model itself, or use wrap_model=True"
            )
        frame = frame.f_back
