"""Your own arrays and tables: read as documented, or refused with the place and the reason."""

import contextlib
import random
import sys

import numpy as np
import pytest

from antiphase import data
from antiphase.errors import DataError

X, Y = np.arange(60, dtype=np.float64).reshape(20, 3), np.arange(20) % 2


def npz(path, **arrays):
    np.savez(path / "mine.npz", **arrays)
    return path / "mine.npz"


def csv(path, text):
    (path / "mine.csv").write_text(text)
    return path / "mine.csv"


def refusal(path):
    with pytest.raises(DataError) as caught:
        data.load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_npz_with_a_split(tmp_path):
    dataset = data.load(npz(tmp_path, x_train=X, y_train=Y, x_test=X[:4], y_test=Y[:4]))
    assert (len(dataset.train), len(dataset.test), dataset.shape, dataset.classes) == (
        20,
        4,
        (3,),
        ("0", "1"),
    )
    assert dataset.train.inputs.dtype == np.float32
    assert dataset.train.targets.dtype == np.int64
    assert dataset.mean is dataset.std is None


def test_npz_without_a_split_and_with_words_as_labels(tmp_path):
    dataset = data.load(npz(tmp_path, x=X, y=np.where(Y, "dog", "cat")))
    assert dataset.classes == ("cat", "dog")
    assert (len(dataset.train), len(dataset.test)) == (15, 5)
    assert all(
        dataset.classes[t] == ("dog" if x[0] / 3 % 2 else "cat")
        for x, t in zip(*_pair(dataset.train), strict=True)
    )


def _pair(split):
    return split.inputs, split.targets


def test_labels_are_numbered_from_zero(tmp_path):
    dataset = data.load(npz(tmp_path, x=X, y=(Y * 7 - 3)[:, None]))
    assert dataset.classes == ("-3", "4")
    assert set(dataset.train.targets) == {0, 1}


def test_images_in_an_npz(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 4, 5), dtype=np.uint8)
    dataset = data.load(npz(tmp_path, x=pixels, y=Y))
    assert dataset.shape == (1, 4, 5)
    np.testing.assert_allclose(
        np.sort(dataset.train.inputs.ravel())[-1], pixels.max() / 255, atol=0.05
    )
    assert dataset.train.inputs.max() <= 1
    assert "x.transpose(0, 3, 1, 2)" in refusal(npz(tmp_path, x=np.zeros((20, 5, 5, 3)), y=Y))


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"a": X}, "holds a; it must hold x_train, y_train, x_test, y_test, or x and y"),
        ({"x": X, "y": Y[:-1]}, "x has 20 examples and y 19 labels"),
        ({"x": X, "y": Y * 0}, "are all of one class, 0"),
        ({"x": X, "y": Y + 0.5}, "y has type float64; labels are whole numbers or words"),
        ({"x": X, "y": np.eye(2)[Y]}, "y has shape (20, 2)"),
        ({"x": np.where(X == 7, np.nan, X), "y": Y}, "x[2, 1] = nan; every entry must be finite"),
        ({"x": X * 1e38, "y": Y}, "every entry must be finite"),
        ({"x": X[:0], "y": Y[:0]}, "x has shape (0, 3)"),
        ({"x": X[:, 0], "y": Y}, "x has shape (20,)"),
        ({"x": X + 1j, "y": Y}, "x has type complex128"),
        ({"x": np.array([[object()]] * 20), "y": Y}, "numbers and no objects"),
        (
            {"x_train": X, "y_train": Y, "x_test": X[:, :2], "y_test": Y},
            "examples of x_test have shape (2,)",
        ),
        ({"x_train": X, "y_train": Y, "x_test": X, "y_test": Y.astype(str)}, "both be words"),
    ],
)
def test_arrays_that_are_refused(tmp_path, arrays, said):
    assert said in refusal(npz(tmp_path, **arrays))


def test_a_damaged_npz_is_refused_wherever_it_is_damaged(tmp_path):
    """200 changed bytes: `DataError`, or an array that passes every check; nothing else."""
    path, rng = npz(tmp_path, x=X, y=Y), random.Random(0)
    whole = path.read_bytes()
    for _ in range(200):
        i = rng.randrange(len(whole))
        path.write_bytes(whole[:i] + bytes([rng.randrange(256)]) + whole[i + 1 :])
        with contextlib.suppress(DataError):
            data.load(path)
    for cut in (0, 10, len(whole) - 5):
        path.write_bytes(whole[:cut])
        refusal(path)


TABLE = "".join(f"{i},{i * 0.5},{i % 2}\n" for i in range(20))


@pytest.mark.parametrize(
    "text",
    [
        TABLE,
        "a,b,kind\n" + TABLE,
        "\ufeffa,b,kind\r\n\n" + TABLE.replace("\n", "\r\n"),
        "Label,0,1\n" + "".join(f"{i % 2},{i},{i * 0.5}\n" for i in range(20)),
        "0,1,target\n" + TABLE,
        "a, y ,b\n" + "".join(f"{i}, {i % 2},{i * 0.5}\n" for i in range(20)),
    ],
    ids=[
        "bare",
        "header",
        "BOM, CRLF and an empty line",
        "label first",
        "numbers for names",
        "label between",
    ],
)
def test_tables_with_and_without_a_header(tmp_path, text):
    dataset = data.load(csv(tmp_path, text))
    assert (dataset.shape, dataset.classes, len(dataset.train), len(dataset.test)) == (
        (2,),
        ("0", "1"),
        15,
        5,
    )
    np.testing.assert_array_equal(dataset.train.inputs[:, 0], 2 * dataset.train.inputs[:, 1])
    np.testing.assert_array_equal(dataset.train.inputs[:, 0] % 2, dataset.train.targets)


def test_a_table_of_yes_and_no_has_no_header(tmp_path):
    dataset = data.load(csv(tmp_path, "".join(f"{i},{i},{'yn'[i % 2]}\n" for i in range(20))))
    assert (dataset.classes, len(dataset.train) + len(dataset.test)) == (("n", "y"), 20)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: 0 columns"),
        ("a,b,label\n", "has no examples"),
        ("1\n2\n", "line 1: 1 columns"),
        ("a,b,label\n1,x,0\n", "line 2, column 2 (b): 'x' is not a finite number"),
        ("label,a,b\n0,1,2\n0,1,\n", "line 3, column 3 (b): '' is not a finite number"),
        ("1,2,0\n1,nan,0\n", "line 2, column 2: 'nan' is not a finite number"),
        ("1,2,0\n1,1e39,0\n", "line 2, column 2: '1e39' is not a finite number"),
        ("1,2,0\n1,0\n", "line 2: 2 columns; the first line has 3"),
        ("1,2,0\n1,2,0.5\n", "line 2: label = '0.5' must be a whole number or a word"),
        ("1,2,0\n1,2,\n", "line 2: label = '' must be"),
        ("1,2,0\n3,4,0\n", "all of one class, 0"),
    ],
)
def test_tables_that_are_refused(tmp_path, text, said):
    assert said in refusal(csv(tmp_path, text))


def test_bytes_that_are_not_a_table(tmp_path):
    (tmp_path / "mine.csv").write_bytes(b"\xff\xfe\x00\x81" * 10)
    assert "cannot be read as a .csv in UTF-8" in refusal(tmp_path / "mine.csv")


def test_unknown_names_and_files_are_refused(tmp_path):
    assert "is neither one of digits, mnist, fashion-mnist, cifar10 nor a folder" in refusal(
        "minst"
    )
    (tmp_path / "mine.pkl").write_bytes(b"\x80\x04.")
    assert "must be a folder of images, an .npz or a .csv" in refusal(tmp_path / "mine.pkl")
    with pytest.raises(TypeError, match="data = 3 must be a name or a path"):
        data.load(3)
    with pytest.raises(DataError, match="is for mnist, fashion-mnist, cifar10"):
        data.load("digits", folder=tmp_path)


def test_digits():
    dataset = data.load("digits")
    assert dataset.shape == (1, 8, 8)
    assert (len(dataset.train), len(dataset.test)) == (1436, 361)
    assert dataset.classes == tuple("0123456789")
    assert (dataset.train.inputs.min(), dataset.train.inputs.max()) == (0, 1)
    assert np.bincount(dataset.test.targets).min() >= 30
    assert abs(dataset.train.inputs.mean() - dataset.mean[0]) < 1e-4
    assert abs(dataset.train.inputs.std() - dataset.std[0]) < 1e-4


def test_without_scikit_learn_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"pip install 'antiphase\[data\]'"):
        data.load("digits")
