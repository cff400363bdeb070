"""Which parameters the promise covers: those that the private optimizer trains, and no others may be trained."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import nn

from antiphase._util import checks as check
from antiphase.errors import AntiphaseWarning, SettingsError
from antiphase.torch.distributed import plain

SHOWN = 10  # names in a message


@dataclass(frozen=True)
class Coverage:
    """The number of tensors and numbers that are trained privately, and the names of parameters that stay fixed."""

    tensors: int
    numbers: int
    frozen: tuple[str, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Coverage:
        named = list(plain(module).named_parameters())
        trained = [p for _, p in named if p.requires_grad]
        frozen = tuple(name for name, p in named if not p.requires_grad)
        return cls(len(trained), sum(p.numel() for p in trained), frozen)


def require_coverage(module: nn.Module, optimizer: Any, uncovered: str = "refuse") -> None:
    """Refuse parameters that require a gradient and are not in ``optimizer``; or freeze them, if asked.

    Parameters of the optimizer that require no gradient are left out of the private step, as Opacus does.

    Raises:
        ValueError: if the optimizer does not have every trainable parameter of the module.
    """
    check.choice("uncovered", uncovered, ("refuse", "freeze"))
    found = outside(module, optimizer)
    # PRIVACY: another optimizer could train these on raw gradients, and the promise is one for the model.   [G16]
    if found and uncovered == "refuse":
        raise ValueError(
            f"optimizer: {names(found)} require gradients and are not in this optimizer, so that whatever else trains "
            "them does so without privacy. Give all parameters to one optimizer (groups may have options of their "
            'own), or freeze them: make_private(…, uncovered="freeze")'
        )
    if found:
        for p in found.values():
            p.requires_grad_(False)
        warnings.warn(
            f"{names(found)}: not in the optimizer, and frozen now; training does not change them",
            AntiphaseWarning,
            stacklevel=4,
        )


def refuse_uncovered(module: nn.Module, optimizer: Any) -> None:
    """Refuse a step of ``optimizer`` if parameters outside it require gradients."""
    found = outside(module, optimizer)
    # PRIVACY: a parameter that was unfrozen later is trained by something else.   [G16]
    if found:
        raise SettingsError(
            f"{names(found)}: require gradients now, and are not in the private optimizer. Nothing was released. "
            "Freeze them again, or call make_private with an optimizer that has them"
        )


def outside(module: nn.Module, optimizer: Any) -> dict[str, nn.Parameter]:
    """The parameters that require a gradient and that ``optimizer`` does not have, by name."""
    covered = {
        id(p) for p in chain.from_iterable(group["params"] for group in optimizer.param_groups)
    }
    return {
        n: p
        for n, p in plain(module).named_parameters()
        if p.requires_grad and id(p) not in covered
    }


class UnusedParameters:
    """Warns after the first epoch of parameters that no step had gradients of.

    Whether the backward pass reached a parameter depends on the model, not on values of the data, and nothing of the
    sums is looked at.
    """

    def __init__(self, optimizer: Any, every: int) -> None:
        self._optimizer, self._left = optimizer, every
        self._unused: list[str] | None = None

    def __call__(self) -> None:
        find: Callable[[], list[str]] | None = getattr(self._optimizer, "unused_parameters", None)
        if self._left <= 0 or find is None:
            return
        now = find()
        self._unused = (
            now if self._unused is None else [name for name in self._unused if name in now]
        )
        self._left -= 1
        if not self._left and self._unused:
            warnings.warn(
                f"{names(self._unused)} had no gradient in the first epoch: the loss does not depend on them, "
                "so they are trained by noise alone. Freeze them, or look whether the model uses them",
                AntiphaseWarning,
                stacklevel=4,
            )


def names(found: Any) -> str:
    """The first of the names, and how many more there are."""
    every = list(found)
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return ", ".join(every[:SHOWN]) + more
