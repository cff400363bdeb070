"""Small files that would cost much time or memory: refused before anything is allocated.

Each file is loaded in its own process, which measures itself and is limited to a few GiB.
"""

import io
import json
import multiprocessing
import resource
import time
import zipfile

import numpy as np
import pytest

import antiphase as ap
from antiphase import data
from antiphase._util import files
from antiphase.errors import DataError, FileFormatError

pytestmark = pytest.mark.issue(21)

MAX_SECONDS = 5.0
MAX_BYTES = files.MAX_MEMORY  # besides those in proportion to the file
HARD_LIMIT = 4 << 30  # bytes that a process may allocate


def memory(field):
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(field))
    return int(line.split()[1]) << 10


def _measure(load, path, connection):
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")  # reset the peak
    before = memory("VmRSS")
    limit = memory("VmSize") + HARD_LIMIT
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    began = time.perf_counter()
    try:
        load(path)
        outcome = "loaded", ""
    except Exception as error:
        outcome = type(error).__name__, str(error)
    seconds = time.perf_counter() - began
    connection.send((*outcome, seconds, max(memory("VmHWM") - before, 0)))


def measured(load, path):
    """How loading ended: name and text of the error, seconds, and peak memory in bytes."""
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(load, path, writer))
    process.start()
    answered = reader.poll(60)
    result = reader.recv() if answered else ("took too long", "", 60.0, 0)
    process.kill()
    process.join()
    return result


def workload(steps, rates=None):
    rates = np.ones(steps) if rates is None else rates
    return ap.Workload.sgd(2).spec() | {"steps": steps, "learning_rates": rates}


def factorization(form, steps, *, participation=None, rates=None, stored=None, options=None):
    participation = ap.once() if participation is None else participation
    content = ap.design("dp-sgd", steps=2).content()
    return content | {
        "form": form,
        "workload": workload(steps, rates),
        "participation": participation.spec(),
        "stored": stored or {},
        "options": options or {},
    }


def mechanism(content, **more):
    plain = ap.calibrate(ap.design("dp-sgd", steps=2), noise_multiplier=1.0)._content()
    return plain | {"factorization": content} | more


def one_name_for_many(path):
    """Thousands of blocks with the name of one array: each would be a copy."""
    count, steps = 3000, 300
    content = factorization("Blocks", steps)
    lower = np.eye(steps)[np.tril_indices(steps)]
    content["stored"] = {"blocks": {"0": lower}, "sequence": np.array([0])}
    files.write(path, content)
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    text = json.loads(header["__metadata__"]["content"])
    text["stored"]["blocks"] = {str(i): text["stored"]["blocks"]["0"] for i in range(count)}
    metadata = header["__metadata__"] | {"content": json.dumps(text)}
    arrays = files.parse(raw)
    metadata["digest"] = files.digest({"content": metadata["content"], "arrays": arrays})
    path.write_bytes(files.serialise(arrays, metadata))


def stretch(steps, size=None):
    ones = np.ones((steps, 1, 1))
    return {
        "size": steps if size is None else size,
        "live": np.arange(steps),
        "delta": np.ones(steps),
        "r": 0 * ones,
        "g": ones,
        "move": 0.5 * ones,
    }


BOMBS = {
    "steps that are a number alone": lambda: factorization("Identity", 10**7, rates=1.0),
    "steps that are a number alone, in a mechanism": lambda: mechanism(
        factorization("Identity", 10**7, rates=1.0, participation=ap.epochs(2, 5 * 10**6))
    ),
    "a dense encoder of one number": lambda: factorization(
        "Dense", 49_000, rates=np.ones(49_000, np.uint8), stored={"lower": np.ones(1)}
    ),
    "a dense encoder without its entries": lambda: factorization(
        "Dense", 6000, stored={"lower": np.ones(1)}
    ),
    "a tree without its encoder": lambda: factorization(
        "Tree", 6000, options={"estimator": "online", "sensitivity": "square"}
    ),
    "participations that fill a dense matrix": lambda: mechanism(
        factorization(
            "Toeplitz",
            40_000,
            participation=ap.min_separation(40_000, 1),
            stored={"coefficients": np.linspace(1, 2, 3), "normalized": True},
        )
    ),
    "participations that take long": lambda: mechanism(
        factorization(
            "Toeplitz",
            3000,
            participation=ap.min_separation(3000, 1),
            stored={"coefficients": np.linspace(1, 2, 3000), "normalized": True},
        )
    ),
    "one participation a step": lambda: mechanism(
        factorization("Identity", 10**5, participation=ap.min_separation(10**5, 1))
    ),
    "nodes of a tree, pairwise": lambda: mechanism(
        factorization(
            "Tree",
            50_000,
            participation=ap.epochs(50_000, 1),
            options={"estimator": "full", "sensitivity": "nodes"},
        )
    ),
    "buffers for every step": lambda: factorization(
        "Blt", 50_000, stored={"decays": np.full(2048, 0.5), "scales": np.ones(2048)}
    ),
    "more buffers than there are": lambda: factorization(
        "Blt", 3000, stored={"decays": np.full(3000, 0.5), "scales": np.ones(3000)}
    ),
    "a stretch that is not used": lambda: factorization(
        "Streamed",
        4,
        stored={
            "stretches": {"0": stretch(4), "1": stretch(1, size=10**9)},
            "sequence": np.array([0]),
        },
    ),
    "balls in bins of many steps": lambda: mechanism(
        factorization("Toeplitz", 20_000, stored={"coefficients": np.ones(2), "normalized": False}),
        sampler="balls-in-bins",
    ),
    "one name for many arrays": one_name_for_many,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_is_refused_before_it_costs_much(name, tmp_path, shown):
    """Row 46: 928 bytes took 20 s to load, and 49 kB needed 22 GiB."""
    path = tmp_path / "bomb"
    made = BOMBS[name]
    if made is one_name_for_many:
        made(path)
    else:
        files.write(path, made())
    size = path.stat().st_size
    kind, text, seconds, peak = measured(ap.load, path)
    shown(
        f"{name}, {size} bytes: seconds, MB, bytes of memory a byte",
        f"{seconds:.2f}, {peak / 1e6:.0f}, {peak / size:.0f}; {kind}",
        f"<= {MAX_SECONDS:g}, {MAX_BYTES / 1e6:.0f} and 16 a byte; FileFormatError",
    )
    assert kind == "FileFormatError", text
    assert str(path) in text
    assert seconds <= MAX_SECONDS
    assert peak <= MAX_BYTES + files.MEMORY_PER_BYTE * size


@pytest.mark.slow
@pytest.mark.parametrize(
    "design",
    [
        {"name": "sqrt-toeplitz", "steps": 4096, "participation": ap.min_separation(16, 256)},
        {"name": "sqrt-toeplitz", "steps": 100_000, "normalized": False, "epochs": 10},
        {"name": "dp-sgd", "steps": 1_000_000, "epochs": 10},
        {"name": "tree", "steps": 512, "estimator": "online"},
        {"name": "tree", "steps": 4096, "epochs": 8, "sensitivity": "nodes"},
        {"name": "dp-mf", "steps": 10_000},
        {"name": "dp-mf", "steps": 512, "epochs": 8},
        {"name": "dp-mf+", "steps": 10_000, "tau": 100},
        {"name": "blt", "steps": 20_000, "buffers": 3},
        {"name": "bisr", "steps": 4096, "epochs": 16, "bands": 8},
    ],
    ids=lambda design: " ".join(str(value) for value in design.values()),
)
def test_files_of_our_own_are_within_the_bounds(design, tmp_path, shown):
    """Row 46: realistic designs load quickly and without ``trusted``."""
    options = dict(design)
    made = ap.calibrate(ap.design(options.pop("name"), **options), noise_multiplier=1.0)
    made.save(tmp_path / "m")
    kind, text, seconds, peak = measured(ap.load, tmp_path / "m")
    size = (tmp_path / "m").stat().st_size
    shown(f"{made!r}, {size} bytes: seconds, MB", f"{seconds:.2f}, {peak / 1e6:.0f}", "loaded")
    assert kind == "loaded", text
    assert ap.load(tmp_path / "m", trusted=True).digest == made.digest


def test_a_trusted_file_has_no_bound_and_figures_of_its_own(tmp_path, monkeypatch):
    """Row 46: the remedy in the error works, and its effect ends with `load`."""
    f = ap.design("sqrt-toeplitz", steps=64, participation=ap.min_separation(4, 8))
    m = ap.calibrate(f, noise_multiplier=1.0)
    m.save(tmp_path / "m")
    monkeypatch.setattr(files, "MAX_MEMORY", 0)
    monkeypatch.setattr(files, "MEMORY_PER_BYTE", 1)
    with pytest.raises(FileFormatError, match=r"Nothing was allocated.*trusted=True"):
        ap.load(tmp_path / "m")
    assert ap.load(tmp_path / "m", trusted=True).sensitivity == m.sensitivity
    assert ap.design("sqrt-toeplitz", steps=64, participation=ap.min_separation(4, 8)).sensitivity
    with pytest.raises(TypeError, match="trusted = 'yes'"):
        ap.load(tmp_path / "m", trusted="yes")


# Data


def png(path, mode, size):
    image = pytest.importorskip("PIL.Image")
    image.new(mode, size).save(path, compress_level=9)


@pytest.mark.parametrize("name", ["grey", "one bit", "many"])
def test_images_are_refused_by_their_headers(name, tmp_path, shown):
    """Row 46: 40 kB of PNG needed 3.4 GB."""
    for label in ("a", "b"):
        (tmp_path / "images" / label).mkdir(parents=True)
        place = tmp_path / "images" / label
        if name == "grey":
            png(place / "0.png", "L", (5000, 5000))
        elif name == "one bit":
            png(place / "0.png", "1", (13_000, 13_000))
        else:
            for i in range(20):
                png(place / f"{i}.png", "1", (4000, 4000))
    size = sum(path.stat().st_size for path in (tmp_path / "images").rglob("*.*"))
    kind, text, seconds, peak = measured(data.load, tmp_path / "images")
    shown(
        f"{name}, {size} bytes: seconds, MB, bytes of memory a byte",
        f"{seconds:.2f}, {peak / 1e6:.0f}, {peak / size:.0f}; {kind}",
        "<= 1, 50; DataError",
    )
    assert kind == "DataError"
    assert "Nothing was unpacked" in text
    assert seconds <= 1.0
    assert peak <= 50e6


def test_ordinary_images_are_read(tmp_path):
    """Row 46: photographs and drawings compress by less than the bound."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for label in ("a", "b"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for i in range(6):
            pixels = np.zeros((512, 512, 3), np.uint8)
            pixels[100:200, 100:200] = rng.integers(0, 256, size=3)
            image.fromarray(pixels).save(tmp_path / "images" / label / f"{i}.png")
    assert data.load(tmp_path / "images").shape == (3, 512, 512)


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_an_array_that_claims_more_than_it_has_is_refused(version, tmp_path, shown):
    """Row 46: NumPy allocates what the header of an array claims."""
    header = {"descr": "<f8", "fortran_order": False, "shape": (3 << 30, 1)}
    write = {
        (1, 0): np.lib.format.write_array_header_1_0,
        (2, 0): np.lib.format.write_array_header_2_0,
    }[version]
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w") as archive:
        for name in ("x.npy", "y.npy"):
            stream = io.BytesIO()
            write(stream, header)
            archive.writestr(name, stream.getvalue() + bytes(64))
    size = (tmp_path / "bomb.npz").stat().st_size
    kind, text, seconds, peak = measured(data.load, tmp_path / "bomb.npz")
    shown(
        f"{size} bytes that claim 24 GiB: seconds, MB",
        f"{seconds:.2f}, {peak / 1e6:.0f}",
        "<= 1, 50",
    )
    assert kind == DataError.__name__
    assert "claims 25769803776 bytes" in text
    assert seconds <= 1.0
    assert peak <= 50e6
