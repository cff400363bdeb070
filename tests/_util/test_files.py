"""Files: atomic, private where secret, inert when hostile."""

import json
import os
import pickle
import random

import numpy as np
import pytest
from safetensors.numpy import save as serialise

import antiphase as ap
from antiphase._util import files
from antiphase._util.values import digest
from antiphase.objective import Restarts
from antiphase.problem import Problem
from antiphase.solvers.block_diagonal import block_diagonal_optimum


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "f.antiphase"
    problem = Problem(ap.Workload.sgd(20), Restarts(6), ap.once())
    block_diagonal_optimum(problem, tolerance=1e-9).save(path)
    return path


def test_a_flipped_bit_anywhere_is_refused(saved):
    """1,000 random bit flips: every one raises our error, none loads."""
    data, rng = saved.read_bytes(), random.Random(0)
    for _ in range(1000):
        i = rng.randrange(len(data))
        saved.write_bytes(data[:i] + bytes([data[i] ^ 1 << rng.randrange(8)]) + data[i + 1 :])
        with pytest.raises(ap.FileFormatError):
            ap.load(saved)


def test_truncated_and_foreign_files_are_refused(saved, tmp_path):
    data = saved.read_bytes()
    for broken in (
        b"",
        b"\0" * 8,
        data[:7],
        data[:100],
        data[:-1],
        data + b"x",
        b"PK\3\4" + data,
        os.urandom(4096),
    ):
        saved.write_bytes(broken)
        with pytest.raises(ap.FileFormatError):
            ap.load(saved)
    with pytest.raises(FileNotFoundError):
        ap.load(tmp_path / "absent")


def test_a_pickle_is_inert(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "exploded"),))

    path = tmp_path / "bomb"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ap.FileFormatError, match="not an antiphase file"):
        ap.load(path)
    assert not (tmp_path / "exploded").exists()


def rewritten(path, change):
    """The file after ``change`` of its content, with a digest that matches, as a forger would."""
    content = files.read(path)
    del content["digest"]
    change(content)
    files.write(path, content)
    return path


def test_a_file_cannot_hold_what_a_constructor_refuses(saved):
    def halve_tau(content):
        content["objective"]["tau"] = -3

    with pytest.raises(ap.FileFormatError, match="tau = -3"):
        ap.load(rewritten(saved, halve_tau))


def test_a_forged_encoder_has_its_own_sensitivity(tmp_path):
    """Sensitivity is computed from the stored encoder: scaling it up cannot lower the noise."""
    f = ap.design("dp-mf", steps=6, epochs=2)
    f.save(tmp_path / "f")

    def scale(content):
        content["stored"]["lower"] = content["stored"]["lower"] * 3

    assert ap.load(rewritten(tmp_path / "f", scale)).sensitivity == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(what="recipe"), "neither a mechanism nor a factorization"),
        (lambda c: c.update(form="Unheard"), "not a valid factorization"),
        (lambda c: c.pop("workload"), "not a valid factorization"),
        (lambda c: c["workload"].update(kind="Path"), "'Path' is not a kind of Workload"),
        (lambda c: c["workload"].update(extra=1), "stored Workload is not valid"),
        (lambda c: c.update(objective=c["participation"]), "is not a kind of Objective"),
        (lambda c: c["stored"]["blocks"].update({"0": np.ones(1)}), "not a valid factorization"),
        (
            lambda c: c["stored"]["blocks"].update({"0": -c["stored"]["blocks"]["0"]}),
            "diagonal that is not positive",
        ),
    ],
)
def test_forged_content_is_named(saved, change, words):
    with pytest.raises(ap.FileFormatError, match=words):
        ap.load(rewritten(saved, change))


def test_a_newer_version_says_to_update(saved):
    data = saved.read_bytes()
    assert data.count(b'"version":"1"') == 1
    saved.write_bytes(data.replace(b'"version":"1"', b'"version":"9"'))
    with pytest.raises(ap.FileFormatError, match="update antiphase"):
        ap.load(saved)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(saved, monkeypatch):
    before = saved.read_bytes()

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        ap.design("dp-sgd", steps=3).save(saved)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_umask_decides_the_mode_of_a_file_and_secrets_are_private(tmp_path, umask, mode):
    """Also where an older file with another mode is replaced."""
    (tmp_path / "secret").touch(0o644)
    before = os.umask(umask)
    try:
        files.write_bytes(tmp_path / "plain", b"1")
        files.write_bytes(tmp_path / "secret", b"1", secret=True)
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("plain", "secret")]
    assert modes == [mode, 0o600]


def test_writing_a_file_does_not_touch_the_umask_of_the_process(tmp_path, monkeypatch):
    """Another thread could create a file in between."""
    monkeypatch.delattr(os, "umask")
    files.write_bytes(tmp_path / "plain", b"1")


def test_the_format_is_plain_enough_for_an_outsider(saved):
    """Eight bytes of length, a JSON header, raw arrays: no need of antiphase or safetensors."""
    data = saved.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    content = json.loads(header["__metadata__"]["content"])
    assert content["objective"]["tau"] == 6
    name = content["stored"]["blocks"]["0"]["$array"]
    begin, end = header[name]["data_offsets"]
    packed = np.frombuffer(data[8 + length :][begin:end], dtype="<f8")
    assert len(packed) == 6 * 7 // 2


@pytest.mark.parametrize(
    "metadata",
    [
        {"version": "1", "digest": digest({"content": None, "arrays": {}})},
        {"version": "²", "content": "{}"},
        {"version": "9" * 5000, "content": "{}"},
        {"version": "1", "content": '{"what": {"$array": []}}'},
        {"version": "1", "content": "{" * 5 + '"a":' * 900 + "1"},
        {"version": "1", "content": '{"a":' * 900 + "1" + "}" * 900},
        {"version": "1", "content": "[]"},
    ],
)
def test_hostile_headers_are_refused(tmp_path, metadata):
    if "content" in metadata:
        metadata = {"digest": digest({"content": metadata["content"], "arrays": {}})} | metadata
    (tmp_path / "f").write_bytes(serialise({}, {"format": "antiphase"} | metadata))
    with pytest.raises(ap.FileFormatError):
        ap.load(tmp_path / "f")


@pytest.mark.parametrize(
    "change", [{"noise_multiplier": 10**400}, {"clip_norm": "one"}, {"unit": 3}]
)
def test_hostile_mechanisms_are_refused(tmp_path, change):
    ap.calibrate(ap.design("dp-mf", steps=4), noise_multiplier=1.0).save(tmp_path / "m")
    with pytest.raises(ap.FileFormatError):
        ap.load(rewritten(tmp_path / "m", lambda content: content.update(change)))


def test_a_stored_tree_with_another_encoder_is_refused(tmp_path):
    """Noise is made from the tree: a smaller stored encoder would understate the sensitivity."""
    ap.design("tree", steps=8, estimator="online").save(tmp_path / "f")

    def halve(content):
        content["stored"]["lower"] = content["stored"]["lower"] / 2

    with pytest.raises(ap.FileFormatError, match="not that of the tree"):
        ap.load(rewritten(tmp_path / "f", halve))
