"""Images of the user's own, in a folder for each class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase.data.dataset import Dataset
from antiphase.data.own import MOST_PACKED, SLACK, assembled
from antiphase.errors import DataError

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP"}
GREY = ("1", "L", "LA")
COLOUR = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


def from_folder(folder: Path) -> Dataset:
    """``train/CLASS/*.png`` and ``test/CLASS/*.png``, or ``CLASS/*.png``, which are split by the rule.

    Images are PNG, JPEG or BMP with 8 bits a channel, all of one size. If all are grey there is one channel, and three
    otherwise; transparency is dropped.
    """
    split = (folder / "train").is_dir() and (folder / "test").is_dir()
    parts = [folder / "train", folder / "test"] if split else [folder]
    found = [_images(part) for part in parts]
    opened = [(path, *_header(path)) for files, _ in found for path in files]
    first, size, _ = opened[0]
    for path, other, mode in opened:
        if other != size:
            raise DataError(
                f"{path} has {other[0]} × {other[1]} pixels, {first} {size[0]} × {size[1]}; "
                "all images must have one size: crop or resize them first"
            )
        if mode not in GREY + COLOUR:
            raise DataError(
                f"{path} has pixels of type {mode}; 8 bits a channel are read: convert it first"
            )
    grey = all(mode in GREY for _, _, mode in opened)
    _refuse_bombs(folder, [path for path, *_ in opened], size, 1 if grey else 3)
    names = ["train", "test"] if split else ["the folder"]
    inputs = [
        (name, _pixels(files, size, grey)) for name, (files, _) in zip(names, found, strict=True)
    ]
    return assembled(
        folder,
        inputs,
        [(name, np.array(labels)) for name, (_, labels) in zip(names, found, strict=True)],
    )


def _refuse_bombs(folder: Path, files: list[Path], size: tuple[int, int], channels: int) -> None:
    """Refuse images that are small as files and would fill the memory as pixels, by their headers."""
    pixels = size[0] * size[1] * channels
    packed = [path.stat().st_size for path in files]
    smallest = min(range(len(files)), key=packed.__getitem__)
    for name, bytes_, needed in (
        (files[smallest], packed[smallest], pixels),
        (folder, sum(packed), pixels * len(files)),
    ):
        if needed > MOST_PACKED * bytes_ + SLACK:
            raise DataError(
                f"{name} of {bytes_} bytes would unpack to {needed} ({size[0]} × {size[1]} pixels an image). "
                "Nothing was unpacked. Crop or resize the images, or store the pixels in an .npz"
            )


def _images(folder: Path) -> tuple[list[Path], list[str]]:
    """Every image with its class, in the order of their names."""
    files, labels = [], []
    for place in sorted(
        path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    ):
        for path in sorted(place.iterdir()):
            if path.suffix.lower() in FORMATS and not path.name.startswith("."):
                files.append(path)
                labels.append(place.name)
    if not files:
        raise DataError(
            f"{folder} has no images; it must have a folder for each class with {', '.join(FORMATS)} in it, or train "
            "and test with such folders (for a data set with a name, say load(name, folder=…))"
        )
    return files, labels


def _open(path: Path) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            f"{path}: images are read by Pillow, which is missing: pip install 'antiphase[data]'"
        ) from error
    return Image.open(path, formats=list(set(FORMATS.values())))


def _header(path: Path) -> tuple[tuple[int, int], str]:
    try:
        with _open(path) as image:
            return image.size, image.mode
    except Exception as error:  # Pillow raises nearly anything for a damaged image
        raise _damaged(path, error) from error


def _pixels(files: list[Path], size: tuple[int, int], grey: bool) -> NDArray[np.uint8]:
    result = np.empty((len(files), 1 if grey else 3, size[1], size[0]), np.uint8)
    for row, path in zip(result, files, strict=True):
        try:
            with _open(path) as image:
                pixels = np.asarray(image.convert("L" if grey else "RGB"))
        except Exception as error:
            raise _damaged(path, error) from error
        row[:] = pixels[None] if grey else pixels.transpose(2, 0, 1)
    return result


def _damaged(path: Path, error: Exception) -> DataError:
    if isinstance(error, DataError):
        return error
    return DataError(f"{path} cannot be read as an image ({error}); repair or remove it")
