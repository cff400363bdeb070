"""Downloads over HTTP: verified files, or nothing; interrupted transfers are resumed."""

import errno
import gzip
import os
import socket
import subprocess
import threading

import pytest

from antiphase.data import download
from antiphase.data.fetch import fetch_files
from antiphase.errors import DataError
from tests.data import site

IMAGES = "train-images-idx3-ubyte.gz"


def failure(dataset, **options):
    """Message of a failing call: one line, with the name of the data set and the remedy."""
    with pytest.raises(DataError) as caught:
        fetch_files(dataset, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("data = 'tiny' could not be ")
    assert "folder" in message
    return message


def left(cache_folder):
    """Names of the files in the cache."""
    return sorted(path.name for path in cache_folder.iterdir()) if cache_folder.exists() else []


def test_a_download_is_cached(mirror, cache_folder):
    """Files are verified and stored uncompressed; a second call makes no request."""
    seen = []
    dataset = site.dataset(mirror.url)
    assert fetch_files(dataset, progress=seen.append) == site.contents()
    assert left(cache_folder) == sorted(site.contents())
    assert seen[-1].done == seen[-1].total == len(mirror.files["t10k-labels-idx1-ubyte.gz"])
    asked = len(mirror.requests)
    assert fetch_files(dataset) == site.contents()
    assert len(mirror.requests) == asked == 4


def test_only_a_file_that_is_damaged_in_the_cache_is_downloaded_again(mirror, cache_folder):
    dataset = site.dataset(mirror.url)
    fetch_files(dataset)
    (cache_folder / "t10k-labels-idx1-ubyte").write_bytes(b"x" * 108)
    mirror.requests.clear()
    assert fetch_files(dataset) == site.contents()
    assert mirror.requests == [("t10k-labels-idx1-ubyte.gz", None)]
    assert (cache_folder / "t10k-labels-idx1-ubyte").read_bytes() == site.contents()[
        "t10k-labels-idx1-ubyte"
    ]


def test_an_interrupted_transfer_is_resumed_in_the_same_call(mirror):
    faults = iter(["drop", "drop"])
    mirror.fault = lambda name: next(faults, None) if name == IMAGES else None
    assert fetch_files(site.dataset(mirror.url)) == site.contents()
    whole = len(mirror.files[IMAGES])
    assert mirror.ranges(IMAGES) == [
        None,
        f"bytes={whole // 2}-",
        f"bytes={whole // 2 + (whole - whole // 2) // 2}-",
    ]


def test_a_partial_file_is_kept_and_the_next_call_resumes_it(mirror, cache_folder, monkeypatch):
    monkeypatch.setattr(download, "MAX_RESUMES", 1)
    dataset, half = site.dataset(mirror.url), len(mirror.files[IMAGES]) // 2
    mirror.fault = lambda name: "drop"
    message = failure(dataset)
    assert f"{half} bytes of {IMAGES} are kept, and the next call resumes there" in message
    assert left(cache_folder) == [f"{IMAGES}.part"]
    mirror.fault = lambda name: None
    assert fetch_files(dataset) == site.contents()
    assert mirror.ranges(IMAGES) == [None, f"bytes={half}-"]
    assert left(cache_folder) == sorted(site.contents())


def test_ctrl_c_keeps_what_came_so_far(mirror, cache_folder, monkeypatch):
    monkeypatch.setattr(download, "BLOCK", 1000)

    def press(report):
        if report.done > 5000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_files(site.dataset(mirror.url), progress=press)
    assert left(cache_folder) == [f"{IMAGES}.part"]
    came = (cache_folder / f"{IMAGES}.part").stat().st_size
    assert 5000 < came <= 6000
    assert fetch_files(site.dataset(mirror.url)) == site.contents()
    assert mirror.ranges(IMAGES) == [None, f"bytes={came}-"]


@pytest.mark.parametrize("fault", ["no ranges", "no length"])
def test_servers_without_ranges_or_lengths_work(mirror, cache_folder, fault):
    cache_folder.mkdir(parents=True)
    (cache_folder / f"{IMAGES}.part").write_bytes(mirror.files[IMAGES][:999])
    mirror.fault = lambda name: fault
    assert fetch_files(site.dataset(mirror.url)) == site.contents()
    assert len(mirror.ranges(IMAGES)) == 1


@pytest.mark.parametrize(
    "beginning", [b"x" * 5000, b"x" * 10**6], ids=["of something else", "longer than the file"]
)
def test_a_partial_file_of_something_else_is_discarded(mirror, cache_folder, beginning):
    cache_folder.mkdir(parents=True)
    (cache_folder / f"{IMAGES}.part").write_bytes(beginning)
    assert fetch_files(site.dataset(mirror.url)) == site.contents()
    assert left(cache_folder) == sorted(site.contents())


def test_a_wrong_hash_is_reported_and_leaves_nothing(mirror, cache_folder):
    mirror.files |= site.packed(site.contents(seed=1))
    message = failure(site.dataset(mirror.url))
    assert "train-images-idx3-ubyte has SHA-256 " in message
    assert "Nothing was kept" in message
    assert left(cache_folder) == []


def test_a_wrong_hash_of_the_last_file_leaves_nothing_either(mirror, cache_folder):
    mirror.files["t10k-labels-idx1-ubyte.gz"] = site.packed(site.contents(1))[
        "t10k-images-idx3-ubyte.gz"
    ]
    assert "t10k-labels-idx1-ubyte has" in failure(site.dataset(mirror.url))
    assert left(cache_folder) == []


def test_mirrors_are_tried_in_order(mirror):
    with site.serving(site.packed(site.contents(seed=1))) as forger, site.serving({}) as empty:
        dataset = site.dataset(forger.url, empty.url, mirror.url)
        assert fetch_files(dataset) == site.contents()
        assert len(empty.requests) == 1  # without the first file, it is not asked for the others


def test_a_truncated_file_leaves_nothing(mirror, cache_folder):
    mirror.files[IMAGES] = mirror.files[IMAGES][:-20]
    assert f"{IMAGES} is truncated" in failure(site.dataset(mirror.url))
    assert left(cache_folder) == []


def test_a_file_that_unpacks_to_too_much_is_refused(mirror, cache_folder):
    mirror.files[IMAGES] = gzip.compress(bytes(1 << 26), 1)
    assert "train-images-idx3-ubyte has" in failure(site.dataset(mirror.url))
    assert left(cache_folder) == []


def test_a_response_that_is_too_long_is_cut_off(mirror, cache_folder, monkeypatch):
    monkeypatch.setattr("antiphase.data.archives.SLACK", 0)
    mirror.files[IMAGES], seen = bytes(1 << 20), []
    message = failure(site.dataset(mirror.url), progress=lambda report: seen.append(report.done))
    assert "the limit for this data set" in message
    assert seen[-1] <= sum(map(len, site.contents().values()))
    assert left(cache_folder) == []


def test_another_range_than_requested_is_refused(mirror, cache_folder):
    cache_folder.mkdir(parents=True)
    (cache_folder / f"{IMAGES}.part").write_bytes(mirror.files[IMAGES][:999])
    mirror.fault = lambda name: "other range"
    assert "when asked for those from 999" in failure(site.dataset(mirror.url))


def test_every_unreachable_server_is_named(cache_folder):
    """A refused connection, a name that does not exist, a 404; nothing is kept."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        refused = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        with site.serving({}) as empty:
            message = failure(site.dataset(refused, "http://no-such-host.invalid/", empty.url))
    assert "Connection refused" in message
    assert "no-such-host.invalid (" in message
    assert "HTTP 404" in message
    assert "pass folder=…, or set ANTIPHASE_DATA" in message
    assert left(cache_folder) == []


def test_a_silent_server_times_out(mirror, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    monkeypatch.setattr(download, "MAX_RESUMES", 2)
    mirror.fault = lambda name: "stall"
    assert "timed out" in failure(site.dataset(mirror.url))


@pytest.mark.parametrize("moment", ["while downloading", "while storing"])
def test_a_full_disk_leaves_nothing(mirror, cache_folder, monkeypatch, moment):
    calls = []

    def full(*_):
        calls.append(1)
        if len(calls) >= (3 if moment == "while storing" else 1):  # two files are complete by then
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if moment == "while storing":
        monkeypatch.setattr(os, "fsync", full)
        message = failure(site.dataset(mirror.url))
    else:
        message = failure(site.dataset(mirror.url), progress=full)
    assert "the disk is full" in message
    assert "Nothing was kept" in message
    assert left(cache_folder) == []


def test_a_full_disk_in_reality_leaves_nothing(mirror, tmp_path, monkeypatch):
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
        assert "the disk is full" in failure(site.dataset(mirror.url))
        assert [path for path in disk.rglob("*") if path.is_file()] == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_cache_that_cannot_be_written_is_reported(mirror, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path / "file"))
    assert "cannot be written" in failure(site.dataset(mirror.url))


def test_without_a_cache_nothing_is_kept(mirror, cache_folder, monkeypatch):
    monkeypatch.setenv("ANTIPHASE_CACHE", "off")
    assert fetch_files(site.dataset(mirror.url)) == site.contents()
    assert not cache_folder.exists()
    mirror.fault = lambda name: "drop"
    monkeypatch.setattr(download, "MAX_RESUMES", 1)
    assert "Nothing was kept" in failure(site.dataset(mirror.url))


def test_concurrent_calls_download_once(mirror, cache_folder):
    """The others wait, and find the files in the cache."""
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(fetch_files(site.dataset(mirror.url))))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [site.contents()] * 6
    assert len(mirror.requests) == 4
    assert left(cache_folder) == sorted(site.contents())


def test_temporary_files_of_a_killed_process_are_removed(mirror, cache_folder):
    (cache_folder / ".package-abc" / "npm").mkdir(parents=True)
    (cache_folder / ".train-images-idx3-ubyte.xyz").write_bytes(b"half")
    mirror.fault = lambda name: "drop"
    failure(site.dataset(mirror.url))
    assert left(cache_folder) == [f"{IMAGES}.part"]
