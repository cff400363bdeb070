"""Your own images, in a folder for each class."""

import sys

import numpy as np
import pytest
from PIL import Image

from antiphase import data
from antiphase.errors import DataError


def picture(path, value, mode="L", size=(5, 4)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


@pytest.fixture
def zoo(tmp_path):
    for name, base in (("cat", 0), ("dog", 100)):
        for i in range(10):
            picture(tmp_path / "zoo" / name / f"{i}.png", base + i)
    return tmp_path / "zoo"


def refusal(folder):
    with pytest.raises(DataError) as caught:
        data.load(folder)
    return str(caught.value)


def test_a_folder_for_each_class(zoo):
    (zoo / "cat" / "notes.txt").write_text("not a picture")
    (zoo / ".hidden").mkdir()
    dataset = data.load(zoo)
    assert (dataset.name, dataset.shape, dataset.classes) == ("zoo", (1, 4, 5), ("cat", "dog"))
    assert (len(dataset.train), len(dataset.test)) == (15, 5)
    for split in (dataset.train, dataset.test):
        np.testing.assert_array_equal(
            split.targets, (split.inputs[:, 0, 0, 0] * 255 >= 99.5).astype(int)
        )


def test_folders_for_training_and_test(zoo, tmp_path):
    (tmp_path / "both").mkdir()
    zoo.rename(tmp_path / "both" / "train")
    picture(tmp_path / "both" / "test" / "dog" / "a.PNG", 255)
    dataset = data.load(tmp_path / "both")
    assert (len(dataset.train), len(dataset.test)) == (20, 1)
    assert dataset.test.inputs.min() == 1
    assert dataset.test.targets.tolist() == [1]


def test_one_colour_image_gives_three_channels(zoo):
    picture(zoo / "dog" / "x.png", (255, 0, 51), "RGB")
    dataset = data.load(zoo)
    assert dataset.shape == (3, 4, 5)
    every = np.concatenate([dataset.train.inputs, dataset.test.inputs])
    assert any(np.allclose(image[:, 0, 0], [1, 0, 0.2]) for image in every)


def test_images_that_do_not_fit_are_refused(zoo, tmp_path):
    picture(zoo / "dog" / "large.png", 3, size=(6, 4))
    assert "large.png has 6 × 4 pixels" in refusal(zoo)
    (zoo / "dog" / "large.png").write_bytes((zoo / "dog" / "1.png").read_bytes()[:40])
    assert "large.png cannot be read as an image" in refusal(zoo)
    Image.fromarray(np.full((4, 5), 1000, np.uint16)).save(zoo / "dog" / "large.png")
    assert "8 bits a channel" in refusal(zoo)
    (tmp_path / "empty").mkdir()
    assert "has no images; it must have a folder for each class" in refusal(tmp_path / "empty")
    for path in (zoo / "dog").iterdir():
        path.unlink()
    assert "all of one class, cat" in refusal(zoo)


def test_without_pillow_the_message_says_what_to_install(zoo, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "pip install 'antiphase[data]'" in refusal(zoo)
