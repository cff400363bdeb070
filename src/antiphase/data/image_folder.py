"""Your own images: a folder for each class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase._util.extras import optional
from antiphase.data.dataset import Dataset
from antiphase.data.own_files import assemble, max_unpacked
from antiphase.errors import DataError

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP"}
GREY = ("1", "L", "LA")
COLOUR = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


def from_folder(folder: Path) -> Dataset:
    """Data set from ``train/CLASS/*.png`` and ``test/CLASS/*.png``, or from ``CLASS/*.png``.

    Images are PNG, JPEG or BMP of one size, with 8 bits a channel. There is one channel if all are
    grey, and three otherwise; transparency is dropped.
    """
    split = (folder / "train").is_dir() and (folder / "test").is_dir()
    parts = (
        {"train": folder / "train", "test": folder / "test"} if split else {"the folder": folder}
    )
    listed = {name: _list_images(part) for name, part in parts.items()}
    headers = [(path, *_header(path)) for files, _ in listed.values() for path in files]
    first, size, _ = headers[0]
    for path, other, mode in headers:
        if other != size:
            raise DataError(
                f"{path} has {other[0]} × {other[1]} pixels, {first} {size[0]} × {size[1]}; "
                "all images must have one size: crop or resize them first"
            )
        if mode not in GREY + COLOUR:
            raise DataError(
                f"{path} has pixels of type {mode}; convert it to 8 bits a channel first"
            )
    grey = all(mode in GREY for _, _, mode in headers)
    _refuse_bombs(folder, [path for path, *_ in headers], size, 1 if grey else 3)
    inputs = [(name, _pixels(files, size, grey)) for name, (files, _) in listed.items()]
    targets = [(name, np.array(labels)) for name, (_, labels) in listed.items()]
    return assemble(folder, inputs, targets)


def _refuse_bombs(folder: Path, files: list[Path], size: tuple[int, int], channels: int) -> None:
    """Refuse small files whose headers claim so many pixels that they would fill the memory."""
    pixels = size[0] * size[1] * channels
    file_sizes = {path: path.stat().st_size for path in files}
    smallest = min(files, key=file_sizes.__getitem__)
    for name, packed, unpacked in (
        (smallest, file_sizes[smallest], pixels),
        (folder, sum(file_sizes.values()), pixels * len(files)),
    ):
        if unpacked > max_unpacked(packed):
            raise DataError(
                f"{name} of {packed} bytes would unpack to {unpacked} ({size[0]} × {size[1]} "
                "pixels an image). Nothing was unpacked. Crop or resize the images, or store the "
                "pixels in an .npz"
            )


def _list_images(folder: Path) -> tuple[list[Path], list[str]]:
    """Every image and its class, in the order of their names."""
    folders = [path for path in folder.iterdir() if path.is_dir() and not _is_hidden(path)]
    files = [
        path
        for class_folder in sorted(folders)
        for path in sorted(class_folder.iterdir())
        if path.suffix.lower() in FORMATS and not _is_hidden(path)
    ]
    if not files:
        raise DataError(
            f"{folder} has no images; it must have a folder for each class with "
            f"{', '.join(FORMATS)} in it, or train and test with such folders (for a data set with "
            "a name, use load(name, folder=…))"
        )
    return files, [path.parent.name for path in files]


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(".")


def _open(path: Path) -> Any:
    with optional("data", str(path), "Pillow", DataError):
        from PIL import Image
    return Image.open(path, formats=list(set(FORMATS.values())))


def _header(path: Path) -> tuple[tuple[int, int], str]:
    try:
        with _open(path) as image:
            return image.size, image.mode
    except Exception as error:  # Pillow raises almost anything for a damaged image
        raise _damaged(path, error) from error


def _pixels(files: list[Path], size: tuple[int, int], grey: bool) -> NDArray[np.uint8]:
    images = np.empty((len(files), 1 if grey else 3, size[1], size[0]), np.uint8)
    for row, path in zip(images, files, strict=True):
        try:
            with _open(path) as image:
                pixels = np.asarray(image.convert("L" if grey else "RGB"))
        except Exception as error:
            raise _damaged(path, error) from error
        row[:] = pixels[None] if grey else pixels.transpose(2, 0, 1)
    return images


def _damaged(path: Path, error: Exception) -> DataError:
    if isinstance(error, DataError):
        return error
    return DataError(f"{path} cannot be read as an image ({error}); repair or remove it")
