"""Arrays from files in the formats of named data sets, in small."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from antiphase.data import formats


def idx_file(array):
    shape = np.array(array.shape, ">i4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + shape + array.astype(np.uint8).tobytes()


def test_images_and_labels_of_mnist():
    rng = np.random.default_rng(0)
    images = {"train": rng.integers(0, 256, (5, 3, 4)), "t10k": rng.integers(0, 256, (2, 3, 4))}
    labels = {"train": rng.integers(0, 10, 5), "t10k": rng.integers(0, 10, 2)}
    files = {f"{part}-images-idx3-ubyte": idx_file(x) for part, x in images.items()}
    files |= {f"{part}-labels-idx1-ubyte": idx_file(y) for part, y in labels.items()}
    for part, split in zip(images, formats.idx(files), strict=True):
        np.testing.assert_array_equal(
            split.inputs, (images[part][:, None] / np.float32(255)).astype(np.float32)
        )
        np.testing.assert_array_equal(split.targets, labels[part])
        assert (split.inputs.dtype, split.targets.dtype) == (np.float32, np.int64)


def test_planes_and_labels_of_cifar():
    rng = np.random.default_rng(0)
    records = rng.integers(0, 256, (6, 2, 3073), dtype=np.uint8)
    names = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]
    train, test = formats.cifar(
        {name: batch.tobytes() for name, batch in zip(names, records, strict=True)}
    )
    np.testing.assert_array_equal(train.targets, records[:5, :, 0].ravel())
    np.testing.assert_array_equal(
        test.inputs * np.float32(255), records[5, :, 1:].reshape(2, 3, 32, 32)
    )
    green = records[0, 1, 1 + 1024 + 32 * 7 + 9]  # of the second image, row 7, column 9
    assert train.inputs[1, 1, 7, 9] == np.float32(green) / np.float32(255)


@pytest.mark.slow
def test_a_batch_is_rebuilt_from_a_sheet():
    """The third of six, of images that are each of one colour."""
    rng = np.random.default_rng(0)
    labels, colours = (
        rng.integers(0, 10, (6, 10_000), np.uint8),
        rng.integers(0, 256, (10_000, 3), np.uint8),
    )
    Image.fromarray(np.repeat(colours[:, None], 1024, axis=1)).save(
        packed := io.BytesIO(), "PNG", compress_level=1
    )
    members = {
        "package/train_lables.json": json.dumps(labels[:5].ravel().tolist()).encode(),
        "package/test_lables.json": json.dumps(labels[5].tolist()).encode(),
        "package/data_batch_3.png": packed.getvalue(),
    }
    found = formats.cifar_from_sheets(members)
    records = np.frombuffer(found.pop("data_batch_3.bin"), np.uint8).reshape(10_000, 3073)
    assert not found
    np.testing.assert_array_equal(records[:, 0], labels[2])
    np.testing.assert_array_equal(records[:, 1:], np.repeat(colours, 1024, axis=1))


def test_sheets_of_another_size_and_labels_of_another_kind_are_refused():
    Image.new("RGB", (1024, 9_999)).save(packed := io.BytesIO(), "PNG")
    labels = {"package/train_lables.json": json.dumps([0] * 50_000).encode()}
    labels["package/test_lables.json"] = json.dumps([0] * 10_000).encode()
    with pytest.raises(ValueError, match="1024 × 9999 pixels, not 1024 × 10000"):
        formats.cifar_from_sheets(labels | {"package/data_batch_1.png": packed.getvalue()})
    with pytest.raises(ValueError, match="not a list"):
        formats.cifar_from_sheets(labels | {"package/test_lables.json": b"{}"})
