import copy
import hashlib
import json
import os
import pickle
import random
import re
import stat
import threading
import time

import pytest

import antiphase as ap
from antiphase.ledger.write_ahead import WriteAheadLedger

SECRET = bytes(range(1, 33))


def test_a_key_is_never_displayed():
    key = ap.Key(SECRET)
    shown = f"{key!r} {key} {[key]} {vars(type(key)).get('secret')}"
    assert SECRET.hex() not in shown
    assert "secret" in repr(key)
    assert not hasattr(key, "__dict__")
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled"):
            leak(key)
    with pytest.raises(TypeError):
        json.dumps(key)


def test_a_key_is_in_no_state_no_mechanism_and_no_error(tmp_path):
    key = ap.Key(SECRET)
    m = ap.calibrate(ap.design("dp-mf", steps=4), noise_multiplier=1.0, delta=1e-6)
    stream = m.noise(10, key=key)
    stream.next()
    m.save(tmp_path / "m")
    for text in (json.dumps(stream.state()), stream.statement().to_json(), repr(stream.__dict__)):
        assert SECRET.hex() not in text
    assert SECRET not in (tmp_path / "m").read_bytes()


def test_only_the_owner_can_read_the_key_file(tmp_path):
    path = tmp_path / "key"
    key = ap.Key.generate()
    key.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ap.Key.load(path) == key
    with pytest.raises(FileExistsError):
        ap.Key.generate().save(path)
    for mode in (0o666, *(0o600 | 1 << bit for bit in range(6))):
        path.chmod(mode)
        with pytest.raises(ap.KeyFileError, match=f"mode {mode:o} lets others read"):
            ap.Key.load(path)


def key_file(antiphase="key", version=1, secret=SECRET):
    return json.dumps({"antiphase": antiphase, "version": version, "key": secret.hex()}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"\x80\x04.",
        b"[1]",
        b"[" * 10_000,
        key_file(secret=b"0"),
        key_file("mechanism"),
        key_file(version=2),
    ],
)
def test_a_damaged_key_file_is_refused_without_showing_it(tmp_path, content):
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ap.KeyFileError, match="not a key file") as caught:
        ap.Key.load(path)
    assert caught.value.__cause__ is None
    with pytest.raises(FileNotFoundError):
        ap.Key.load(tmp_path / "absent")


def test_a_key_file_records_its_runs(tmp_path):
    path = tmp_path / "key"
    ap.Key.generate().save(path)
    key = ap.Key.load(path)
    m = ap.calibrate(ap.design("dp-mf", steps=4), noise_multiplier=1.0)
    first, second = m.noise(10, key=key), m.noise(10, key=key)
    assert [r["run"] for r in ap.Key.load(path).runs()] == [first.run, second.run]
    assert key.runs()[0]["mechanism"] == m.digest
    assert first.run != second.run
    m.resume(first.state(), key=ap.Key.load(path))
    with pytest.raises(ap.KeyFileError, match="has no run"):
        m.resume({**first.state(), "run": "0" * 32}, key=key)
    with open(path, "ab") as file:
        file.write(b'\n{"run": "cut o')  # a crash in the middle of a record
    third = m.noise(10, key=ap.Key.load(path))
    assert [r["run"] for r in ap.Key.load(path).runs()] == [first.run, second.run, third.run]


def test_lines_that_are_not_runs_are_ignored(tmp_path):
    path = tmp_path / "key"
    ap.Key(SECRET).save(path)
    key = ap.Key.load(path)
    first = key.start_run("m")
    with open(path, "ab") as file:
        file.write(b'\n[1]\n"run"\n{"walk": 1}\n\xff\n' + b"[" * 10_000 + b"\n")
    second = key.start_run("m")
    assert [record["run"] for record in key.runs()] == [first, second]
    assert first != second
    assert len(bytes.fromhex(first)) == 16


@pytest.mark.parametrize("saved", [True, False])
def test_runs_that_replace_one_another_are_a_family(tmp_path, saved):
    key = ap.Key.generate()
    if saved:
        key.save(tmp_path / "key")
    a, alone = key.start_run("m"), key.start_run("m")
    b = key.start_run("m", after=a)
    c, d = key.start_run("m", after=b), key.start_run("m", after=a)
    assert all(key.family(run) == {a, b, c, d} for run in (a, b, c, d))
    assert key.family(alone) == {alone}
    assert [record.get("after") for record in key.runs()] == [None, None, a, b, a]
    assert key.check_run(c) == c
    if saved:
        with pytest.raises(ap.KeyFileError, match="has no run"):
            key.check_run("0" * 32)


def test_subkeys_are_the_same_in_every_version():
    """Keyed BLAKE2b of the parts, each after its length, by the standard library alone.

    A resumed run depends on them.
    """
    parts = b"\5\0\0\0\0\0\0\0noise" + b"\2\0\0\0\0\0\0\0\xc3\xa9"
    digest = hashlib.blake2b(parts, key=SECRET, digest_size=16, person=b"antiphase-noise1").digest()
    assert ap.Key(SECRET).subkey("noise", "é") == int.from_bytes(digest, "little")
    assert ap.Key(SECRET).fingerprint() == f"{ap.Key(SECRET).subkey('fingerprint', '2'):032x}"
    assert len(ap.Key.insecure(2).fingerprint()) == 32
    seeded = hashlib.blake2b(b"7", digest_size=32, person=b"antiphase-seed").digest()
    assert ap.Key.insecure(7) == ap.Key(seeded)
    assert ap.Key.insecure(0).is_insecure


def test_keys_are_equal_if_their_secrets_are():
    key = ap.Key(SECRET)
    assert key == ap.Key(bytearray(SECRET))
    assert hash(key) == hash(ap.Key(SECRET)) != hash(ap.Key(SECRET[::-1]))
    assert key != ap.Key(SECRET[::-1])
    assert key != SECRET
    assert not key.is_insecure
    assert key.path is None


def test_subkeys_are_separate():
    key = ap.Key(SECRET)
    parts = [("a", "b"), ("ab", ""), ("", "ab"), ("a", "b", ""), ("b", "a")]
    assert len({key.subkey(*p) for p in parts} | {ap.Key(SECRET[::-1]).subkey("a", "b")}) == 6
    assert all(key.subkey(*p) < 2**128 for p in parts)


def test_insecure_keys_report_it():
    key = ap.Key.insecure(3)
    assert key.is_insecure
    assert "INSECURE" in repr(key)
    assert key == ap.Key.insecure(3) != ap.Key.insecure(4)
    m = ap.calibrate(ap.design("dp-mf", steps=4), noise_multiplier=1.0, delta=1e-6)
    assert "INSECURE" in str(m.noise(10, key=key).statement())
    assert "INSECURE" not in str(m.noise(10, key=ap.Key.generate()).statement())
    with pytest.raises(ap.KeyFileError, match="its seed"):
        key.save("nowhere")
    assert not os.path.exists("nowhere")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ap.Key(b""), "32 bytes; these are 0"),
        (lambda: ap.Key(b"short"), "32 bytes; these are 5"),
        (lambda: ap.Key(bytes(32)), "zeros"),
        (lambda: ap.Key("password" * 4), "bytes, not of str"),
        (lambda: ap.Key.insecure(-1), "seed = -1"),
        (lambda: ap.Key.insecure("x"), "seed = 'x'"),
        (lambda: ap.Key(SECRET + b"!"), "32 bytes; these are 33"),
        *(
            (lambda run=run: ap.Key.generate().check_run(run), re.escape(f"run = {run!r}"))
            for run in ("xyz", "", "a" * 31, "a" * 33, "A" * 32, "g" + "0" * 31, 7, ["0"] * 32)
        ),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()


def test_keys_and_runs_come_from_the_operating_system():
    random.seed(0)
    first = ap.Key.generate(), ap.Key(SECRET).start_run("m")
    random.seed(0)
    second = ap.Key.generate(), ap.Key(SECRET).start_run("m")
    assert first[0] != second[0]
    assert first[1] != second[1]


@pytest.mark.issue(21)
def test_a_run_is_found_by_its_data_and_keeps_its_notes(tmp_path):
    """What is noted with a run is at most 4,096 bytes of JSON."""
    key = ap.Key.generate()
    key.save(tmp_path / "key")
    first = key.start_run("m", data="one", about={"a": "x" * (4096 - 9)})
    second = key.start_run("m", data="two")
    assert [record["run"] for record in key.runs_on("one")] == [first]
    assert [record["run"] for record in key.runs_on("two")] == [second]
    assert key.runs_on("three") == []
    assert len(key.runs_on("one")[0]["about"]["a"]) == 4096 - 9
    deep = []
    for _ in range(100_000):
        deep = [deep]
    for about, error, words in (
        ({"a": "x" * (4096 - 8)}, ValueError, "has 4097 bytes as JSON; at most 4096"),
        ({"a": float("nan")}, ValueError, "about = .* cannot be written as JSON"),
        ({"a": object()}, TypeError, "about = .* cannot be written as JSON"),
    ):
        with pytest.raises(error, match=words):
            key.start_run("m", about=about)
    with pytest.raises(ValueError, match="nested too deeply"):
        key.start_run("m", about={"a": deep})
    assert len(key.runs()) == 2


@pytest.mark.issue(21)
def test_data_fingerprints_are_the_same_in_every_version():
    """BLAKE2b of the parts, each after its length, then a subkey; by the standard library alone."""
    content = hashlib.blake2b(b"\3\0\0\0\0\0\0\0abc" + b"\1\0\0\0\0\0\0\0d").hexdigest()
    key = ap.Key(SECRET)
    assert key.data_fingerprint([b"abc", b"d"]) == f"{key.subkey('data', content):032x}"


@pytest.mark.issue(21)
def test_a_key_file_that_is_too_long_is_refused_unread(tmp_path):
    """64 MiB are more than a key with its runs takes."""
    path = tmp_path / "key"
    ap.Key(SECRET).save(path)
    os.truncate(path, 1 << 26)
    key = ap.Key.load(path)
    assert key.runs() == []
    os.truncate(path, (1 << 26) + 1)
    with pytest.raises(ap.KeyFileError, match="not a key file"):
        ap.Key.load(path)
    with pytest.raises(ap.KeyFileError, match="more than a key file has"):
        key.runs()


@pytest.mark.issue(21)
def test_a_missing_key_file_refuses_new_runs(tmp_path):
    """A run that is not recorded must not start."""
    key = ap.Key.generate()
    key.save(tmp_path / "key")
    (tmp_path / "key").unlink()
    with pytest.raises(ap.KeyFileError, match=r"key's file is gone\. Nothing was released"):
        key.start_run("m")
    assert not (tmp_path / "key").exists()


@pytest.mark.issue(21)
def test_records_are_appended_and_synced(tmp_path, monkeypatch):
    """Whatever another process wrote since the file was opened is kept."""
    path, synced, real = tmp_path / "key", [], os.fdopen
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    key = ap.Key.generate()
    key.save(path)
    assert synced == [path.stat().st_size]

    def fdopen(*arguments, **options):
        file = real(*arguments, **options)
        with open(path, "ab") as other:
            other.write(b'{"run": "of another process"}\n')
        return file

    monkeypatch.setattr(os, "fdopen", fdopen)
    run = key.start_run("m")
    assert synced[1:] == [path.stat().st_size]
    assert [record["run"] for record in key.runs()] == ["of another process", run]


@pytest.mark.issue(21)
def test_loading_waits_for_a_process_that_writes_the_key(tmp_path, monkeypatch):
    """Of several processes that create a key at once, one does so and the others load it."""
    path = tmp_path / "key"
    path.touch(mode=0o600)
    writer = threading.Timer(0.3, lambda: path.write_bytes(key_file()))
    writer.start()
    began = time.monotonic()
    assert ap.Key.load_or_create(path) == ap.Key(SECRET)
    assert time.monotonic() - began < 4, "no longer than needed"
    writer.join()
    load, answers = ap.Key.load, iter([FileNotFoundError])

    def not_yet(cls_path):
        if (error := next(answers, None)) is not None:
            raise error
        return load(cls_path)

    monkeypatch.setattr(ap.Key, "load", not_yet)
    assert ap.Key.load_or_create(path) == ap.Key(SECRET), "created between looking and saving"


def test_runs_from_before_the_file_are_marked(tmp_path):
    """A key that is saved late has its earlier runs in the file, marked as earlier."""
    key = ap.Key.generate()
    run = key.start_run("m")
    key.save(tmp_path / "key")
    later = key.start_run("m")
    records = {record["run"]: record for record in ap.Key.load(tmp_path / "key").runs()}
    assert set(records) == {run, later}
    assert records[run]["before the file"] is True
    assert "before the file" not in records[later]


def test_ledgers_of_a_key_without_a_file_are_known_by_run_and_rank():
    """The same names as in a key file."""
    key = ap.Key.generate()
    run = key.start_run("m")
    WriteAheadLedger(key, run, rank=3)
    assert key.ledgers() == {f"{run}.3"}
