"""Coverage of a training: which parameters are private. No others may be trained."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import nn

from antiphase._util import checks as check
from antiphase.errors import SettingsError
from antiphase.torch.distributed import plain
from antiphase.torch.user_warnings import warn

MAX_NAMES = 10  # in a message


@dataclass(frozen=True)
class Coverage:
    """The parameters that are trained privately, and those that are frozen.

    Attributes:
        tensors: how many parameter tensors are trained.
        numbers: how many numbers these have.
        frozen: names of the parameters that are not trained.
    """

    tensors: int
    numbers: int
    frozen: tuple[str, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Coverage:
        """The coverage of a model by an optimizer that has all its trainable parameters."""
        named = list(plain(module).named_parameters())
        trained = [p for _, p in named if p.requires_grad]
        frozen = tuple(name for name, p in named if not p.requires_grad)
        return cls(len(trained), sum(p.numel() for p in trained), frozen)


def require_coverage(module: nn.Module, optimizer: Any, uncovered: str = "refuse") -> None:
    """Refuse or freeze trainable parameters that are not in ``optimizer``.

    Parameters of the optimizer that require no gradient are left out of the private step, as
    Opacus does.

    Args:
        module: the model.
        optimizer: the user's optimizer.
        uncovered: "refuse", or "freeze" parameters that are not in the optimizer.

    Raises:
        ValueError: if the optimizer does not have every trainable parameter of the module.
    """
    check.choice("uncovered", uncovered, ("refuse", "freeze"))
    missing = uncovered_parameters(module, optimizer)
    # PRIVACY: another optimizer could train these on raw gradients; the promise is for all.   [G16]
    if missing and uncovered == "refuse":
        raise ValueError(
            f"optimizer: {shortened(missing)} require gradients and are not in this optimizer, so "
            "they may be trained without privacy. Give all parameters to one optimizer, or freeze "
            'them: make_private(…, uncovered="freeze")'
        )
    if missing:
        for p in missing.values():
            p.requires_grad_(False)
        warn(
            f"{shortened(missing)}: not in the optimizer, and frozen now; training does not change "
            "them"
        )


def refuse_uncovered(module: nn.Module, optimizer: Any) -> None:
    """Refuse a step of ``optimizer`` if parameters outside it require gradients.

    Raises:
        SettingsError: with the names of the parameters.
    """
    missing = uncovered_parameters(module, optimizer)
    # PRIVACY: a parameter that was unfrozen later is trained by something else.   [G16]
    if missing:
        raise SettingsError(
            f"{shortened(missing)}: require gradients now, and are not in the private optimizer. "
            "Nothing was released. Freeze them, or call make_private with all parameters"
        )


def uncovered_parameters(module: nn.Module, optimizer: Any) -> dict[str, nn.Parameter]:
    """The parameters that require a gradient and are not in ``optimizer``, by name."""
    covered = {
        id(p) for p in chain.from_iterable(group["params"] for group in optimizer.param_groups)
    }
    return {
        name: p
        for name, p in plain(module).named_parameters()
        if p.requires_grad and id(p) not in covered
    }


def shortened(names: Collection[str]) -> str:
    """The first names of a list, and the number of the others.

    Example:
        >>> shortened([f"p{i}" for i in range(12)])
        'p0, p1, p2, p3, p4, p5, p6, p7, p8, p9 and 2 more'
    """
    rest = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(list(names)[:MAX_NAMES]) + rest
