"""Package tools name the URL of an archive; what they print is downloaded and verified here."""

import sys

import pytest

from antiphase.data import packages
from antiphase.data.archives import UnavailableError
from antiphase.data.fetch import fetch_files
from tests.data import site
from tests.data.test_fetch import failure, left


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Put a shell script of this name on a PATH of its own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}")

    def write(name, script):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
        return folder / name

    return write


TINY = packages.npm("tiny@1.0.0")


def test_npm_names_the_url_and_the_archive_is_downloaded_here(tool, cache_folder):
    with site.serving({"all.tar.gz": site.tarred()}) as server:
        asked = '[ "$1 $2 $3" = "view tiny@1.0.0 dist.tarball" ] || exit 9'
        tool("npm", f"{asked}\necho {server.url}all.tar.gz")
        assert fetch_files(site.archived(address=TINY)) == site.contents()
    assert left(cache_folder) == sorted(site.contents())


def test_apt_prints_uris_in_quotes_and_escaped(tool):
    tool("apt-get", "echo \"'http://mirror.example/t/tiny_0%7e1.deb' tiny_0~1.deb 9 SHA256:0\"")
    assert (
        packages.debian("tiny").locate("tiny_0~1.deb") == "http://mirror.example/t/tiny_0%7e1.deb"
    )


def test_pip_prints_found_links_with_their_hashes(tool, monkeypatch):
    """As `pip index versions -vv` does, on either stream."""
    link = "https://index.example/p/tiny-1.0.tar.gz"
    other = "https://index.example/p/tiny-0.9.tar.gz#sha256=1"
    script = tool("python", f"echo 'Found link {other}'; echo 'Found link {link}#sha256=0' >&2")
    monkeypatch.setattr(sys, "executable", str(script))
    assert packages.pypi("tiny").locate("tiny-1.0.tar.gz") == link


def test_the_installed_pip_has_the_command():
    """Without an index it fails by its own error message."""
    pytest.importorskip("pip")
    package = packages.pypi("tiny")
    command = (*package.command, "--no-index")
    with pytest.raises(UnavailableError, match="No matching distribution found for tiny"):
        packages.Package("", command).locate("tiny-1.0.tar.gz")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'npm error code ENOTFOUND' >&2; exit 1", "(npm error code ENOTFOUND)"),
        ("exit 3", "(status 3, and no URL of all.tar.gz)"),
        ("echo http://elsewhere.example/other.tgz", "(status 0, and no URL of all.tar.gz)"),
        ("exec /bin/sleep 60", "(no answer in 0.5 seconds)"),
    ],
)
def test_a_tool_that_fails_is_quoted(tool, cache_folder, monkeypatch, script, reason):
    monkeypatch.setattr(packages, "TIMEOUT", 0.5)
    tool("npm", script)
    assert f"npm view tiny@1.0.0 {reason}" in failure(site.archived(address=TINY))
    assert left(cache_folder) == []


@pytest.mark.parametrize(("package", "name"), [(TINY, "npm"), (packages.debian("tiny"), "apt-get")])
def test_a_missing_tool_is_named(tool, cache_folder, package, name):
    assert f"{name} is not installed" in failure(site.archived(address=package))
    assert left(cache_folder) == []
