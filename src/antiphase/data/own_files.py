"""Your own data: arrays in an ``.npz``, or a table in a ``.csv``."""

from __future__ import annotations

import csv
import math
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase.data.dataset import Dataset, Split, train_test_split
from antiphase.data.formats import unit
from antiphase.errors import DataError

AnyArray = NDArray[Any]
MAX_FLOAT32 = float(np.finfo(np.float32).max)
# A file that unpacks to more than this is meant to fill the memory.
MAX_COMPRESSION_RATIO, COMPRESSION_SLACK = 200, 1 << 24  # the latter in bytes
LABELS = ("label", "target", "class", "y")
SPLIT = ("x_train", "y_train", "x_test", "y_test")


def max_unpacked(packed: int) -> int:
    """Limit in bytes on the unpacked content of a file of ``packed`` bytes."""
    return MAX_COMPRESSION_RATIO * packed + COMPRESSION_SLACK


def assemble(
    path: Path, inputs: Sequence[tuple[str, AnyArray]], targets: Sequence[tuple[str, AnyArray]]
) -> Dataset:
    """Data set from named arrays, which are checked.

    Args:
        path: where they come from, for the messages and the name.
        inputs: one array, which is split by `train_test_split`, or that of training and of test.
        targets: the labels of each.
    """
    arrays = [_inputs(path, name, array) for name, array in inputs]
    labels = [_labels(path, name, array) for name, array in targets]
    for (x_name, _), (y_name, _), array, label in zip(inputs, targets, arrays, labels, strict=True):
        if len(array) != len(label):
            raise DataError(
                f"{path}: {x_name} has {len(array)} examples and {y_name} {len(label)} labels; "
                "each example needs one"
            )
        if array.shape[1:] != arrays[0].shape[1:]:
            raise DataError(
                f"{path}: examples of {x_name} have shape {array.shape[1:]}, those of "
                f"{inputs[0][0]} {arrays[0].shape[1:]}; all must have the same"
            )
    if len({label.dtype.kind == "U" for label in labels}) > 1:
        raise DataError(
            f"{path}: {targets[0][0]} and {targets[1][0]} must both be whole numbers, or both be "
            "words"
        )
    classes, indices = np.unique(np.concatenate(labels), return_inverse=True)
    indices = indices.astype(np.int64)
    if len(arrays) == 1:
        train, test = train_test_split(arrays[0], indices)
    else:
        count = len(labels[0])
        train, test = Split(arrays[0], indices[:count]), Split(arrays[1], indices[count:])
    if not len(train):
        raise DataError(
            f"{path}: none of {len(indices)} example(s) is left for training; give more"
        )
    if len(np.unique(train.targets)) < 2:
        raise DataError(
            f"{path}: the {len(train)} training examples are all of one class, "
            f"{classes[train.targets[0]]!s}; give at least two"
        )
    return Dataset(path.name, train, test, tuple(str(label) for label in classes))


def from_npz(path: Path) -> Dataset:
    """Data set from ``x_train``, ``y_train``, ``x_test``, ``y_test``; or from ``x`` and ``y``."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = SPLIT if set(SPLIT) <= set(archive.files) else ("x", "y")
            if not set(names) <= set(archive.files):
                raise DataError(
                    f"{path} holds {', '.join(archive.files) or 'nothing'}; it must hold "
                    f"{', '.join(SPLIT)}, or x and y"
                )
            unpacked = sum(archive.zip.getinfo(f"{name}.npy").file_size for name in names)
            size = path.stat().st_size
            if unpacked > max_unpacked(size):
                raise DataError(
                    f"{path} of {size} bytes would unpack to {unpacked}; if that is intended, "
                    "write it with numpy.savez, which does not compress"
                )
            for name in names:
                _check_content(path, archive.zip, f"{name}.npy")
            arrays = [(name, archive[name]) for name in names]
    except DataError:
        raise
    except Exception as error:  # a damaged zip or header raises almost anything
        raise DataError(
            f"{path} cannot be read as an .npz of plain arrays ({error}); write it with "
            "numpy.savez(path, x=…, y=…), numbers and no objects"
        ) from error
    return assemble(path, arrays[::2], arrays[1::2])


def _check_content(path: Path, archive: zipfile.ZipFile, member: str) -> None:
    """Refuse an array whose header claims more than its member holds: NumPy would allocate that."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(file)
    claimed, held = math.prod(shape) * dtype.itemsize, archive.getinfo(member).file_size
    if claimed > held:
        raise DataError(
            f"{path}: {member} claims {claimed} bytes and has {held}; write the file again"
        )


def from_csv(path: Path) -> Dataset:
    """Data set from a table with one example a line.

    The label is the column called label, target, class or y, or else the last one.
    """
    rows, labels = [], []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            table = ((reader.line_num, row) for row in reader if row)
            start, first = next(table, (1, []))
            if len(first) < 2:
                raise DataError(
                    f"{path}, line {start}: {len(first)} columns; give a label and a feature"
                )
            words = [cell.strip().lower() for cell in first]
            header = [cell.strip() for cell in first] if _is_header(words) else []
            column = next(
                (i for i, word in enumerate(words) if header and word in LABELS), len(words) - 1
            )
            for line, row in table if header else chain([(start, first)], table):
                if len(row) != len(first):
                    raise DataError(
                        f"{path}, line {line}: {len(row)} columns; the first line has {len(first)}"
                    )
                labels.append((line, row[column].strip()))
                rows.append(_numbers(path, line, row[:column] + row[column + 1 :], column, header))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a .csv in UTF-8 ({error})") from error
    if not rows:
        raise DataError(f"{path} has no examples; each is a line of numbers and a label")
    return assemble(
        path, [("the table", np.stack(rows))], [("the label", _parsed_labels(path, labels))]
    )


def _is_header(words: list[str]) -> bool:
    """Whether the first line is a header: no cell is a number, or a cell names the label.

    'y' in the last column does not count: it may be a label, as in yes or no.
    """
    named = any(word in LABELS for word in words[:-1]) or (words[-1:] and words[-1] in LABELS[:-1])
    return bool(named) or not any(_is_number(word) for word in words)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(
    path: Path, line: int, cells: list[str], label: int, header: list[str]
) -> NDArray[np.float32]:
    with suppress(ValueError):
        row = np.array([float(cell) for cell in cells])
        if np.abs(row).max() <= MAX_FLOAT32:  # false for NaN
            return row.astype(np.float32)
    i, cell = next(
        (i, cell)
        for i, cell in enumerate(cells)
        if not _is_number(cell) or not abs(float(cell)) <= MAX_FLOAT32
    )
    column = i + (i >= label)
    name = f" ({header[column]})" if header else ""
    raise DataError(
        f"{path}, line {line}, column {column + 1}{name}: {cell!r} is not a finite number"
    )


def _parsed_labels(path: Path, labels: list[tuple[int, str]]) -> AnyArray:
    """Labels of a table: all whole numbers, or all words; fractions are refused."""
    with suppress(ValueError, OverflowError):
        return np.array([int(label) for _, label in labels], np.int64)
    for line, label in labels:
        if not label or (_is_number(label) and not label.lstrip("+-").isdecimal()):
            raise DataError(
                f"{path}, line {line}: label = {label!r} must be a whole number or a word"
            )
    return np.array([label for _, label in labels])


def _inputs(path: Path, name: str, array: AnyArray) -> NDArray[np.float32]:
    if array.dtype.kind not in "buif":
        raise DataError(f"{path}: {name} has type {array.dtype}; numbers are needed")
    if array.ndim not in (2, 3, 4) or 0 in array.shape:
        raise DataError(
            f"{path}: {name} has shape {array.shape}; it must be (n, features), (n, height, width) "
            "or (n, channels, height, width), with nothing empty"
        )
    if array.ndim == 4 and array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        raise DataError(
            f"{path}: {name} has shape {array.shape}, with the channels last; store "
            f"{name}.transpose(0, 3, 1, 2)"
        )
    if array.ndim == 3:
        array = array[:, None]
    if array.dtype == np.uint8 and array.ndim == 4:
        return unit(array)
    with np.errstate(over="ignore"):
        result = np.ascontiguousarray(array, dtype=np.float32)
    if not math.isfinite(float(np.abs(result).max())):
        index = tuple(int(i) for i in np.argwhere(~np.isfinite(result))[0])
        raise DataError(
            f"{path}: {name}[{', '.join(map(str, index))}] = {array[index]}; every entry must be "
            "finite"
        )
    return result


def _labels(path: Path, name: str, array: AnyArray) -> AnyArray:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or not len(array):
        raise DataError(
            f"{path}: {name} has shape {array.shape}; it must be (n,), a label for each example"
        )
    if array.dtype.kind not in "iuU":
        raise DataError(
            f"{path}: {name} has type {array.dtype}; labels are whole numbers or words: store "
            f"{name}.astype(int)"
        )
    return array
