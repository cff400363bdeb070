"""Models by name: logistic regression, perceptron, convolutional networks.

None of them mixes the examples of a batch.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable
from functools import partial

from torch import nn

BLOCK_CHANNELS = (32, 64, 128)  # of the convolutional network; each block halves the image
HIDDEN_UNITS = 128  # of the dense layers
MIN_PIXELS = 4  # that a halved image must have, or it is not halved


def build_model(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """A freshly initialised model.

    - ``logistic``: one matrix, without a bias; it begins at zero
    - ``mlp``: one hidden layer of 128 units
    - ``cnn``: for images of 32 × 32 × 3 the network of the paper's CIFAR-10 experiment, with
      550,570 parameters; for smaller ones the same with fewer blocks
    - ``cnn-half``: the same with half as many channels and units; for those images 138,330
      parameters
    - ``package.module:function``: what ``function(shape, classes)`` returns; the current folder is
      importable too

    Args:
        name: one of these.
        shape: of an input.
        classes: number of scores.

    Raises:
        ValueError: if the name is not known, cannot be imported, or does not fit the inputs.
        TypeError: if the function returns something else than a module.

    Example:
        >>> sum(p.numel() for p in build_model("cnn", (3, 32, 32), 10).parameters())
        550570
    """
    builders: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
        "logistic": _logistic,
        "mlp": _mlp,
        "cnn": _cnn,
        "cnn-half": partial(_cnn, reduction=2),
    }
    shape = tuple(shape)
    if name in builders:
        return builders[name](shape, classes)
    if ":" not in name:
        raise ValueError(
            f"model = {name!r} must be one of {', '.join(builders)}, or package.module:function"
        )
    return _from_function(name, shape, classes)


def _logistic(shape: tuple[int, ...], classes: int) -> nn.Module:
    layer = nn.Linear(math.prod(shape), classes, bias=False)
    nn.init.zeros_(layer.weight)  # the problem is convex; no direction is better to begin with
    return nn.Sequential(nn.Flatten(), layer)


def _mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), HIDDEN_UNITS),
        nn.Tanh(),
        nn.Linear(HIDDEN_UNITS, classes),
    )


def _cnn(shape: tuple[int, ...], classes: int, reduction: int = 1) -> nn.Module:
    """The paper's network, with channels and units divided by ``reduction``."""
    if len(shape) != 3:
        raise ValueError(
            "model = 'cnn' is for images (channels, height, width), and the inputs have shape "
            f"{shape}"
        )
    channels, height, width = shape
    layers: list[nn.Module] = []
    for block_channels in BLOCK_CHANNELS:
        if layers and min(height, width) < 2 * MIN_PIXELS:
            break
        filters = block_channels // reduction
        layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(filters, filters, 3, padding=1), nn.Tanh()]
        channels = filters
        if min(height, width) >= 2:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
    units = HIDDEN_UNITS // reduction
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(channels * height * width, units),
        nn.Tanh(),
        nn.Linear(units, classes),
    )


def _from_function(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    module, _, function = name.partition(":")
    folder = os.getcwd()
    sys.path.insert(0, folder)  # which a script that pip installed does not have
    try:
        build = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"model = {name!r} cannot be imported: {error}. It must be package.module:function, "
            f"installed or in {folder}"
        ) from error
    finally:
        sys.path.remove(folder)
    model = build(shape, classes)
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model = {name!r} returned a {type(model).__name__}, not a torch.nn.Module"
        )
    return model
