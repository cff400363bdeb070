"""Files in a folder of the user's: nothing is downloaded and nothing is written."""

import shutil

import pytest

from antiphase.data.fetch import fetch_files
from antiphase.errors import DataError
from tests.data import site


def filled(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("layout", [".", "tiny", "raw"])
@pytest.mark.parametrize("files", [site.contents(), site.packed()], ids=["plain", "gz"])
def test_files_are_found_in_every_usual_layout(tmp_path, cache_folder, layout, files):
    filled(tmp_path / "mine" / layout, files)
    assert fetch_files(site.dataset(), tmp_path / "mine") == site.contents()
    assert not cache_folder.exists()


def test_an_archive_in_a_folder(tmp_path):
    filled(tmp_path, {"all.tar.gz": site.tarred()})
    assert fetch_files(site.archived(), tmp_path) == site.contents()


def test_the_folder_in_the_environment_comes_before_downloads(tmp_path, monkeypatch, mirror):
    monkeypatch.setenv("ANTIPHASE_DATA", str(filled(tmp_path / "mine", site.contents())))
    assert fetch_files(site.dataset(mirror.url)) == site.contents()
    assert mirror.requests == []
    (tmp_path / "mine" / "train-labels-idx1-ubyte").unlink()
    assert fetch_files(site.dataset(mirror.url)) == site.contents()
    assert len(mirror.requests) == 4


def test_the_folders_of_the_operating_system_are_used(tmp_path):
    place = filled(tmp_path / "usr", site.packed())
    assert fetch_files(site.dataset(system_folders=(str(place),))) == site.contents()


def test_files_of_another_data_set_with_the_same_names_are_passed_over(tmp_path):
    """MNIST and Fashion-MNIST use the same file names."""
    filled(tmp_path, site.contents(seed=1))
    filled(tmp_path / "tiny", site.contents())
    assert fetch_files(site.dataset(), tmp_path) == site.contents()


def test_a_given_folder_is_used_or_refused(tmp_path, mirror):
    """Without a download: otherwise nobody would notice a misspelt folder."""

    def message(folder):
        with pytest.raises(DataError) as caught:
            fetch_files(site.dataset(mirror.url), folder)
        assert "or leave folder out to download it" in str(caught.value)
        return str(caught.value)

    assert "there is no such folder" in message(tmp_path / "absent")
    assert "it has none of the files" in message(tmp_path)
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
        fetch_files(site.dataset(pickles="batches-py"), tmp_path)


def test_a_wrong_folder_in_the_environment_is_named_if_downloads_fail(tmp_path, monkeypatch):
    monkeypatch.setenv("ANTIPHASE_DATA", str(tmp_path / "absent"))
    with pytest.raises(DataError, match=r"ANTIPHASE_DATA = '.*absent' \(there is no such folder\)"):
        fetch_files(site.dataset())
