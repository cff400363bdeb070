"""Refuse a step after a setting that privacy depends on was changed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from antiphase.errors import BypassError, SettingsError
from antiphase.torch.batch_selection import ResumableBatches
from antiphase.torch.distributed import plain

SCALARS = (bool, int, float, str, type(None))
# Attributes that training itself changes, or that nothing released depends on.
VOLATILE = {
    "training", "examples", "nonfinite_examples", "pending", "first", "step_hook", "generator",
    "secure_mode", "release",  # for release see `ReleasedOnce`
}  # fmt: skip
OVERRIDABLE = {"step", "zero_grad"}  # schedulers and trainers of torch wrap these
RELEASE_SETTINGS = (
    "mechanism", "key", "divisor", "batches", "ledger", "group", "data", "max_batch_size", "steps",
)  # fmt: skip
LOADER_SETTINGS = ("dataset", "batch_sampler", "collate_fn")
MAX_VALUE_LENGTH = 200  # characters of a value in a message
REMEDY = (
    "Nothing was released. Undo the change, or call make_private again with the new value: on an "
    "engine of its own if this one has released steps"
)


class FrozenSettings:
    """Guard that compares every setting that privacy depends on with its value in make_private.

    Learning rates and other options of the inner optimizer may change: privacy does not depend on
    them.

    Guarantee: a changed clip norm, divisor, noise, parameter list, optimizer or sampler releases
    nothing.   [G16]

    Args:
        module: the user's model.
        wrapped: the model as make_private returns it.
        optimizer: the private optimizer.
        release: adds the noise.
        loader: the private loader.
        criterion: the loss of ghost clipping, or None.
    """

    def __init__(
        self,
        *,
        module: nn.Module,
        wrapped: Any,
        optimizer: Any,
        release: Any,
        loader: Any,
        criterion: Any,
    ) -> None:
        names = {id(p): name for name, p in plain(module).named_parameters()}
        self._groups: dict[str, Callable[[], dict[str, Any]]] = {
            "optimizer": lambda: _settings(optimizer) | _inner_optimizer(optimizer, names),
            "module": lambda: _settings(wrapped) | _parameters(module),
            "criterion": lambda: {} if criterion is None else _criterion(criterion),
            "release": lambda: (
                {name: getattr(release, name) for name in RELEASE_SETTINGS}
                | {"shapes": dict(release.shapes)}
            ),
            "loader": lambda: {name: getattr(loader, name, None) for name in LOADER_SETTINGS},
            "sampler": lambda: _sampler(release.batches),
        }
        self._before = {name: read() for name, read in self._groups.items()}

    def __call__(self) -> None:
        """Compare all settings.

        Raises:
            SettingsError: with the name of the first setting that has changed.
        """
        for group, read in self._groups.items():
            before, now = self._before[group], read()
            for name in before | now:
                old, new = before.get(name, _MISSING), now.get(name, _MISSING)
                # PRIVACY: noise and ε were computed for these values.   [G16]
                if not _same(old, new):
                    raise SettingsError(
                        f"{group}.{name} was {_shown(old, 'a')} when make_private planned the "
                        f"noise, and is now {_shown(new, 'another')}. {REMEDY}"
                    )

    def accept_sampler(self) -> None:
        """Take the sampler's state as it is now, after a checkpoint was restored."""
        self._before["sampler"] = self._groups["sampler"]()


class ReleasedOnce:
    """Pre-step hook of the inner optimizer that requires a release of its own for each step.

    Args:
        release: counts its releases.
    """

    def __init__(self, release: Any) -> None:
        self._release, self._before = release, release.releases

    def __call__(self, *_: Any) -> None:
        """Refuse a step without a release.

        Raises:
            BypassError: if nothing was released since the last step.
        """
        now = self._release.releases
        # PRIVACY: gradients that did not pass through the release have no noise.   [G16]
        if now <= self._before:
            raise BypassError(
                "the inner optimizer was about to step without a release of its own. The model was "
                "not changed. Call step() of the optimizer that make_private returned"
            )
        self._before = now


class _Missing:
    def __repr__(self) -> str:
        return "not there"


_MISSING = _Missing()


def _settings(item: Any) -> dict[str, Any]:
    """Public attributes that training does not change, and methods that were replaced."""
    settings: dict[str, Any] = {}
    kind: Any = type(item)
    for name, value in vars(item).items():
        replaces_method, is_setting = _classify(kind, name)
        if replaces_method or (is_setting and not isinstance(value, torch.Tensor)):
            # A copy of a list of numbers, so that changes in place are noticed.
            copied = isinstance(value, list) and all(isinstance(part, SCALARS) for part in value)
            settings[name] = list(value) if copied else value
    if isinstance(item, nn.Module):
        settings["modules"] = list(item.children())
    return settings


@functools.cache
def _classify(kind: type, name: str) -> tuple[bool, bool]:
    """Whether an attribute of an instance hides a method of the class; whether it is a setting."""
    hides = callable(getattr(kind, name, None))
    volatile = VOLATILE | set(getattr(kind, "VOLATILE", ()))
    return hides and name not in OVERRIDABLE, name[0] != "_" and name not in volatile and not hides


def _inner_optimizer(optimizer: Any, names: dict[int, str]) -> dict[str, Any]:
    groups = [list(group["params"]) for group in optimizer.param_groups]
    return {
        "class": type(optimizer),
        "inner_optimizer": optimizer.original_optimizer,
        "param_groups": [
            [names.get(id(p), f"unknown tensor {id(p)}") for p in group] for group in groups
        ],
    }


def _parameters(module: nn.Module) -> dict[str, Any]:
    """Every parameter with its identity and whether it is trained."""
    parameters: dict[str, Any] = {}
    for name, p in plain(module).named_parameters():
        parameters[name] = p
        parameters[f"{name}.requires_grad"] = p.requires_grad
    return parameters


def _criterion(criterion: Any) -> dict[str, Any]:
    inner = getattr(criterion, "criterion", None)
    return _settings(criterion) | {"criterion.reduction": getattr(inner, "reduction", None)}


def _sampler(batches: Any) -> dict[str, Any]:
    if batches is None:
        return {}
    settings = {name: getattr(batches, name) for name in ("sampler", "batch_size", "steps")}
    if not isinstance(batches.sampler, ResumableBatches):
        return settings  # the ledger watches what a sampler of the user's draws
    own = {n: v for n, v in vars(batches.sampler).items() if n[0] != "_" and n not in VOLATILE}
    return settings | {f"sampler.{name}": value for name, value in own.items()}


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, SCALARS) and isinstance(b, SCALARS):
        return a == b
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(_same(a[name], b[name]) for name in a)
    sequences = isinstance(a, list | tuple) and type(a) is type(b)
    return sequences and len(a) == len(b) and all(map(_same, a, b))


def _shown(value: Any, article: str) -> str:
    """A value as text, without tensors or data."""
    if isinstance(value, (*SCALARS, _Missing)):
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    flat = isinstance(value, list | tuple) and all(isinstance(v, (*SCALARS, list)) for v in value)
    text = repr(value) if flat else f"{article} {type(value).__name__}"
    return text if len(text) <= MAX_VALUE_LENGTH else text[:MAX_VALUE_LENGTH] + "…"
