"""Models by name: logistic regression, a small perceptron, a small convolutional network, or a function of the user's.

None of them mixes examples of a batch, so the gradient of one example is its own.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable

from torch import nn

CHANNELS = (32, 64, 128)  # of the network's blocks, each of which halves the image
UNITS = 128  # of its dense layer
LEAST = 4  # pixels that a halved image must have left, or it is not halved


def model(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """The model called ``name``, from inputs of ``shape`` to one score a class, freshly initialised.

    - ``logistic``: one matrix, without a bias; it begins at zero
    - ``mlp``: one hidden layer of 128 units
    - ``cnn``: for images of 32 × 32 × 3 the network of the paper's CIFAR-10 experiment, with 550,570 parameters; for
      smaller ones the same with fewer blocks
    - ``cnn-half``: the same with half as many channels and units; for those images 138,330 parameters
    - ``package.module:function``: what ``function(shape, classes)`` returns; the current folder is importable too

    >>> sum(p.numel() for p in model("cnn", (3, 32, 32), 10).parameters())
    550570
    """
    makers: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
        "logistic": _logistic, "mlp": _mlp, "cnn": _cnn, "cnn-half": _half_cnn,
    }  # fmt: skip
    shape = tuple(shape)
    if name in makers:
        return makers[name](shape, classes)
    if ":" not in name:
        raise ValueError(
            f"model = {name!r} must be one of {', '.join(makers)}, or package.module:function"
        )
    return _from_function(name, shape, classes)


def _logistic(shape: tuple[int, ...], classes: int) -> nn.Module:
    layer = nn.Linear(math.prod(shape), classes, bias=False)
    nn.init.zeros_(layer.weight)  # the problem is convex, and no direction is better to begin with
    return nn.Sequential(nn.Flatten(), layer)


def _mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), 128), nn.Tanh(), nn.Linear(128, classes)
    )


def _half_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    return _cnn(shape, classes, parts=2)


def _cnn(shape: tuple[int, ...], classes: int, parts: int = 1) -> nn.Module:
    """``parts``: by what the channels and units of the paper's network are divided."""
    if len(shape) != 3:
        raise ValueError(
            f"model = 'cnn' is for images (channels, height, width), and the inputs have shape {shape}"
        )
    channels, height, width = shape
    layers: list[nn.Module] = []
    for count in (whole // parts for whole in CHANNELS):
        if layers and min(height, width) < 2 * LEAST:
            break
        layers += [nn.Conv2d(channels, count, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(count, count, 3, padding=1), nn.Tanh()]
        channels = count
        if min(height, width) >= 2:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
    units = UNITS // parts
    layers += [
        nn.Flatten(),
        nn.Linear(channels * height * width, units),
        nn.Tanh(),
        nn.Linear(units, classes),
    ]
    return nn.Sequential(*layers)


def _from_function(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    module, _, function = name.partition(":")
    sys.path.insert(0, os.getcwd())  # which a script that pip installed does not have
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"model = {name!r} cannot be imported: {error}. It must be package.module:function, installed or in "
            f"{os.getcwd()}"
        ) from error
    finally:
        sys.path.remove(os.getcwd())
    made = found(shape, classes)
    if not isinstance(made, nn.Module):
        raise TypeError(f"model = {name!r} returned a {type(made).__name__}, not a torch.nn.Module")
    return made
