"""A folder that has the files: nothing is downloaded and nothing is written."""

import shutil

import pytest

from antiphase.data.obtain import obtain
from antiphase.errors import DataError
from tests.data import site


def filled(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("layout", [".", "tiny", "raw"])
@pytest.mark.parametrize("files", [site.contents(), site.packed()], ids=["plain", "gz"])
def test_a_folder_that_has_the_files(tmp_path, kept, layout, files):
    filled(tmp_path / "mine" / layout, files)
    assert obtain(site.known(), tmp_path / "mine") == site.contents()
    assert not kept.exists()


def test_an_archive_in_a_folder(tmp_path):
    known = site.known(archive="all.tar.gz", archive_folder="all/")
    filled(
        tmp_path, {"all.tar.gz": site.tarred({f"all/{n}": c for n, c in site.contents().items()})}
    )
    assert obtain(known, tmp_path) == site.contents()


def test_the_environment_names_a_folder_and_downloads_come_after_it(tmp_path, monkeypatch, mirror):
    monkeypatch.setenv("ANTIPHASE_DATA", str(filled(tmp_path / "mine", site.contents())))
    assert obtain(site.known(mirror.url)) == site.contents()
    assert mirror.requests == []
    (tmp_path / "mine" / "train-labels-idx1-ubyte").unlink()
    assert obtain(site.known(mirror.url)) == site.contents()
    assert len(mirror.requests) == 4


def test_the_usual_places_are_looked_at(tmp_path):
    place = filled(tmp_path / "usr", site.packed())
    assert obtain(site.known(places=(str(place),))) == site.contents()


def test_files_of_another_data_set_with_the_same_names_do_not_hide_it(tmp_path):
    """MNIST and Fashion-MNIST call their files the same."""
    filled(tmp_path, site.contents(seed=1))
    filled(tmp_path / "tiny", site.contents())
    assert obtain(site.known(), tmp_path) == site.contents()


def test_a_folder_that_was_named_is_used_or_refused(tmp_path, mirror):
    """Never a download instead: a misspelt folder would pass unnoticed."""

    def message(folder):
        with pytest.raises(DataError) as caught:
            obtain(site.known(mirror.url), folder)
        assert "or leave folder out to download it" in str(caught.value)
        return str(caught.value)

    assert "there is no such folder" in message(tmp_path / "absent")
    assert "none of its files is there" in message(tmp_path)
    mine = filled(tmp_path / "mine", site.contents())
    (mine / "t10k-images-idx3-ubyte").unlink()
    assert f"t10k-images-idx3-ubyte missing in {mine}" in message(mine)
    (mine / "t10k-images-idx3-ubyte").write_bytes(b"short")
    assert "t10k-images-idx3-ubyte has 5 bytes, not 78416" in message(mine)
    shutil.copy(mine / "train-images-idx3-ubyte", mine / "t10k-images-idx3-ubyte")
    assert "t10k-images-idx3-ubyte has " in message(mine)
    assert mirror.requests == []


def test_pickles_are_not_read(tmp_path):
    filled(tmp_path / "batches-py", {"data_batch_1": b"\x80\x04."})
    with pytest.raises(DataError, match="batches-py holds pickles, which can run code"):
        obtain(site.known(pickles="batches-py"), tmp_path)


def test_a_wrong_folder_in_the_environment_is_named_when_all_else_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("ANTIPHASE_DATA", str(tmp_path / "absent"))
    with pytest.raises(DataError, match=r"ANTIPHASE_DATA = '.*absent' \(there is no such folder\)"):
        obtain(site.known())
