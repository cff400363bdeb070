"""Settings that the promise rests on are frozen by make_private; a step after one was changed is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from antiphase.errors import BypassError, SettingsError
from antiphase.torch.batch_selection import OURS
from antiphase.torch.distributed import plain

SCALARS = (bool, int, float, str, type(None))
# What training itself changes, or what nothing that is released depends on.
VOLATILE = {
    "training",
    "examples",
    "bad_examples",
    "pending",
    "first",
    "step_hook",
    "generator",
    "secure_mode",
}
VOLATILE |= {"release"}  # see `ReleasedOnce`
OVERRIDABLE = {"step", "zero_grad"}  # schedulers and trainers of torch wrap these
RELEASE = ("mechanism", "key", "divisor", "batches", "ledger", "group", "data", "most_examples")
LOADER = ("dataset", "batch_sampler", "collate_fn")
REMEDY = (
    "Nothing was released. Undo the change, or call make_private again with the new value: on an engine of its own if "
    "this one has released steps"
)


class FrozenSettings:
    """A snapshot of every setting that the promise rests on; calling it raises if one has changed since.

    Learning rates and other options of the inner optimizer may change: privacy does not rest on them.

    Guarantee: a changed clip norm, divisor, noise, parameter list, optimizer or sampler releases nothing.   [G16]
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
    ):
        names = {id(p): name for name, p in plain(module).named_parameters()}
        self._groups: dict[str, Callable[[], dict[str, Any]]] = {
            "optimizer": lambda: _settings(optimizer) | _inner(optimizer, names),
            "module": lambda: _settings(wrapped) | _parameters(module),
            "criterion": lambda: (
                {} if criterion is None else _settings(criterion) | _reduction(criterion)
            ),
            "release": lambda: (
                {name: getattr(release, name) for name in RELEASE}
                | {"shapes": dict(release._shapes)}
            ),
            "loader": lambda: {name: getattr(loader, name, None) for name in LOADER},
            "sampler": lambda: _sampler(release.batches),
        }
        self._before = {name: read() for name, read in self._groups.items()}

    def __call__(self) -> None:
        for group, read in self._groups.items():
            before, now = self._before[group], read()
            names = (
                before if before.keys() == now.keys() else [*before, *(now.keys() - before.keys())]
            )
            for name in names:
                # PRIVACY: the noise is scaled for these values, and ε was computed for them.   [G16]
                if not _same(before.get(name, _MISSING), now.get(name, _MISSING)):
                    raise SettingsError(
                        f"{group}.{name} was {_shown(before.get(name, _MISSING), 'a')} when make_private planned the "
                        f"noise, and is now {_shown(now.get(name, _MISSING), 'another')}. {REMEDY}"
                    )

    def accept_sampler(self) -> None:
        """Take the sampler's state as it is now: a checkpoint was restored."""
        self._before["sampler"] = self._groups["sampler"]()


class ReleasedOnce:
    """A hook before each step of the inner optimizer: every one needs a release of its own."""

    def __init__(self, release: Any) -> None:
        self._release, self._before = release, release.releases

    def __call__(self, *_: Any) -> None:
        now = self._release.releases
        # PRIVACY: gradients that did not pass through the release have no noise.   [G16]
        if now <= self._before:
            raise BypassError(
                "the inner optimizer was about to step without a release of its own, past clipping and noise. The "
                "model was not changed. Call step() of the optimizer that make_private returned, as it was returned"
            )
        self._before = now


class _Missing:
    def __repr__(self) -> str:
        return "not there"


_MISSING = _Missing()


def _settings(item: Any) -> dict[str, Any]:
    """The public attributes of an object but those that training changes, and methods that were replaced."""
    found: dict[str, Any] = {}
    kind: Any = type(item)
    for name, value in vars(item).items():
        shadows, public = _kind_of_name(kind, name)
        if shadows or (public and not isinstance(value, torch.Tensor)):
            found[name] = (
                list(value) if isinstance(value, list) and _is_plain_list(value) else value
            )
    if isinstance(item, nn.Module):
        found["modules"] = list(item.children())
    return found


@functools.cache
def _kind_of_name(kind: type, name: str) -> tuple[bool, bool]:
    """Whether an attribute of this class hides a method, and whether it is a setting."""
    hides = callable(getattr(kind, name, None))
    volatile = VOLATILE | set(getattr(kind, "VOLATILE", ()))
    return hides and name not in OVERRIDABLE, name[0] != "_" and name not in volatile and not hides


def _is_plain_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, SCALARS) for part in value)


def _inner(optimizer: Any, names: dict[int, str]) -> dict[str, Any]:
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
    found: dict[str, Any] = {}
    for name, p in plain(module).named_parameters():
        found[name] = p
        found[f"{name}.requires_grad"] = p.requires_grad
    return found


def _reduction(criterion: Any) -> dict[str, Any]:
    return {
        "criterion.reduction": getattr(getattr(criterion, "criterion", None), "reduction", None)
    }


def _sampler(batches: Any) -> dict[str, Any]:
    if batches is None:
        return {}
    found = {
        "sampler": batches.sampler,
        "batch_size": batches.batch_size,
        "position": batches.position,
    }
    if not isinstance(batches.sampler, OURS):
        return found  # the ledger watches what a sampler of the user's draws
    own = {n: v for n, v in vars(batches.sampler).items() if n[0] != "_" and n not in VOLATILE}
    return found | {f"sampler.{name}": value for name, value in own.items()}


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
    """A value as far as it may be seen: no tensor, no data."""
    if isinstance(value, (*SCALARS, _Missing)):
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    flat = isinstance(value, list | tuple) and all(isinstance(v, (*SCALARS, list)) for v in value)
    text = repr(value) if flat else f"{article} {type(value).__name__}"
    return text if len(text) <= 200 else text[:200] + "…"
