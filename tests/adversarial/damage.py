"""Damaged, forged and foreign files: every loader refuses them, or reads correct content.

    python -m tests.adversarial.damage FOLDER COUNT SEED

makes and loads COUNT files and prints one line of JSON.
"""

import dataclasses
import io
import json
import os
import pickle
import random
import shutil
import sys
import tarfile
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import antiphase as ap
from antiphase import data
from antiphase._util import files
from antiphase.errors import AntiphaseError
from antiphase.theory.spectrum import Spectrum
from antiphase.torch.recipe import Recipe
from antiphase.torch.training import train
from antiphase.verification import read_statement, verify
from tests.adversarial.calls import TookTooLongError, is_ours, limited, peak
from tests.federated import setting as federated
from tests.torch.setting import Training

SECONDS = 20  # of loading a file
ODD = [
    None,
    True,
    -1,
    0,
    3,
    10**9,
    10**18,
    1e300,
    -0.5,
    "",
    "x",
    [],
    {},
    [1, [2]],
    {"$array": "nowhere"},
    {"kind": "Key"},
]


class Payload:
    """Code that a pickle would run."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def originals(folder, scratch):
    """A good file of each kind and its loader; loaders of folders use ``scratch``."""
    kinds = {}
    design = {
        "stream": ap.design("dp-mf", steps=12),
        "dense": ap.design("dp-mf", steps=12, epochs=3),
        "tree": ap.design("tree", steps=8),
        "toeplitz": ap.design("sqrt-toeplitz", steps=9),
        "restarts": ap.design("dp-mf+", steps=12, tau=5),
        "blt": ap.design("blt", steps=9, buffers=2),
        "inverse": ap.design("bisr", steps=9, bands=3),
        "banded": ap.design("banded", steps=9, bands=3),
    }
    for name, f in design.items():
        path = folder / f"{name}.antiphase"
        ap.calibrate(f, noise_multiplier=1.0, delta=1e-5).save(path)
        kinds[name] = path, used_mechanism
    mechanism = ap.load(folder / "dense.antiphase")
    (folder / "statement.json").write_text(mechanism.statement().to_json())
    kinds["statement"] = (
        folder / "statement.json",
        lambda path: verify(mechanism, read_statement(path)),
    )
    ap.Key.generate().save(folder / "key")
    ap.Key.load(folder / "key").start_run("m")
    kinds["key"] = folder / "key", used_key
    Spectrum([3.0, 1.0]).save(folder / "spectrum.json")
    kinds["spectrum"] = folder / "spectrum.json", Spectrum.load
    rng = np.random.default_rng(0)
    np.savez_compressed(folder / "own.npz", x=rng.normal(size=(20, 3)), y=np.arange(20) % 2)
    kinds["npz"] = folder / "own.npz", data.load
    (folder / "own.csv").write_text(
        "a,b,label\n" + "".join(f"{i / 7},{-i},{'cat' if i % 2 else 'dog'}\n" for i in range(20))
    )
    kinds["csv"] = folder / "own.csv", data.load
    training = Training(mechanism=ap.design("dp-mf", steps=15, epochs=3))
    training.run(2)
    training.engine.save_checkpoint(
        path=folder / "checkpoint", module=training.module, optimizer=training.optimizer
    )
    weights, digest = training.weights(), files.read(folder / "checkpoint")["digest"]

    def resumed(path):
        fresh = Training(mechanism=ap.design("dp-mf", steps=15, epochs=3), probe=False)
        fresh.engine.load_checkpoint(path=path, module=fresh.module, optimizer=fresh.optimizer)
        forged = (
            files.read(path)["digest"] != digest
        )  # then it is another checkpoint, maybe of another model
        if not forged and not torch.equal(weights, fresh.weights()):
            raise AssertionError("another model was loaded")

    kinds["checkpoint"] = folder / "checkpoint", resumed
    made = (
        images(folder / "images")
        | training_folder(folder / "trained")
        | federated_folder(folder / "server")
    )
    return kinds | {name: among(*part, scratch) for name, part in made.items()}


def images(folder):
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for i in range(4):
            Image.new("L", (4, 4), 50 * i).save(folder / name / f"{i}.png")
    return {"image": (folder, folder / "cat" / "1.png", data.load)}


def training_folder(folder):
    """The files of a run that stopped after 4 of 6 steps."""
    digits = data.load("digits")
    few = dataclasses.replace(
        digits, train=data.Split(digits.train.inputs[:60], digits.train.targets[:60])
    )
    recipe = Recipe(
        epochs=2, batch_size=20, learning_rate=0.5, epsilon=8.0, delta=1e-5, mechanism="dp-mf"
    )

    def stop(report):
        if report.task == "training" and report.done == 4:
            raise EOFError

    with suppress(EOFError):
        train(recipe, few, checkpoint=folder, progress=stop)

    def went_on(whole):
        weights = train(recipe, few, checkpoint=whole, resume=True).weights
        if any(
            not torch.equal(ended.setdefault(name, weights[name]), weights[name])
            for name in weights
        ):
            raise AssertionError("the run ended otherwise")

    ended = {}
    parts = {
        "run": folder / "run.json",
        "curve": folder / "curve.json",
        "ledger": next(folder.glob("*.ledger")),
    }
    return {name: (folder, path, went_on) for name, path in parts.items()}


def federated_folder(folder):
    """The files of a federated training that stopped after 2 of 6 rounds."""
    mechanism = federated.mechanism()
    server = federated.train(federated.server(mechanism, folder=folder), until=2)
    server.close()

    def went_on(whole):
        server = federated.server(mechanism, folder=whole)
        try:
            federated.train(server, until=3)
        finally:
            server.close()

    return {"server": (folder, folder / "checkpoint", went_on)}


def among(folder, path, go_on, scratch):
    """A loader of one file among all others of its folder, copied to ``scratch`` and removed."""

    def load(damaged):
        with tempfile.TemporaryDirectory(dir=scratch) as temporary:
            whole = Path(temporary) / "whole"
            shutil.copytree(folder, whole)
            shutil.copy(damaged, whole / path.relative_to(folder))
            go_on(whole)

    return path, load


def used_mechanism(path):
    made = ap.load(path)
    if made.steps < 64:
        next(iter(made.noise(3, key=ap.Key.insecure(1))))
        made.epsilon(1e-5)


def used_key(path):
    key = ap.Key.load(path)
    key.runs()
    key.start_run("m")


def damaged(rng, content, path, folder):
    """The bytes with random damage: (kind of damage, bytes)."""
    kind = rng.choice(
        [
            "flip",
            "flip",
            "cut",
            "splice",
            "random",
            "longer",
            "pickle",
            "bomb",
            "forged",
            "forged",
            "text",
        ]
    )
    if kind == "flip":
        changed = bytearray(content)
        for _ in range(rng.choice([1, 1, 2, 16])):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        return kind, bytes(changed)
    if kind == "cut":
        return kind, content[: rng.randrange(len(content))]
    if kind == "splice":
        i, j = sorted(rng.randrange(len(content)) for _ in range(2))
        return kind, content[:i] + content[j:] + content[i:j]
    if kind == "random":
        return kind, rng.randbytes(rng.choice([0, 1, 8, 100, 4096]))
    if kind == "longer":
        return kind, content + rng.randbytes(rng.randrange(1, 100))
    if kind == "pickle":
        body = pickle.dumps(Payload(str(folder / "ran")))
        return kind, body if rng.random() < 0.5 else content[: rng.randrange(len(content))] + body
    if kind == "bomb":
        return kind, rng.choice(bombs())
    if kind == "forged" and path.suffix in (".antiphase", "") and path.name != "key":
        return kind, forged(rng, path, folder)
    return "text", forged_text(rng, content)


def forged(rng, path, folder):
    """A file with a part of its content replaced, and a valid digest."""
    content = files.read(path)
    del content["digest"]
    where = content
    while True:
        name = rng.choice(sorted(where, key=str))
        if isinstance(where[name], dict) and where[name] and rng.random() < 0.85:
            where = where[name]
            continue
        old = where[name]
        if isinstance(old, np.ndarray) and old.size and rng.random() < 0.7:
            new = np.array(old)
            with np.errstate(all="ignore"):
                new.flat[rng.randrange(new.size)] = np.array(
                    rng.choice([0, -1, 1e30, np.nan, 7])
                ).astype(new.dtype)
            where[name] = rng.choice([new, new[:-1], new.astype(np.float32), np.stack([new, new])])
        else:
            where[name] = rng.choice(ODD)
        break
    target = folder / "forged"
    try:
        files.write(target, content)
    except (TypeError, ValueError, AttributeError):
        return b""
    return target.read_bytes()


def forged_text(rng, content):
    """JSON or a table with one word or number replaced."""
    text = content.decode("latin-1")
    places = [i for i, c in enumerate(text) if c in ',:{}[]"0123456789'] or [0]
    i = rng.choice(places)
    new = rng.choice(
        [
            "[" * 100_000,
            '{"a":' * 50_000,
            "9" * 5000,
            "NaN",
            "Infinity",
            "-1",
            "null",
            '"',
            "\0",
            "1e999",
            "é",
            "",
        ]
    )
    return (text[:i] + new + text[i + rng.randrange(3) :]).encode("latin-1")


@cache
def bombs():
    """Small archives that would unpack to a quarter of a gigabyte, or outside their folder."""
    made = []
    for name, parts in (("x.npy", 16), ("../../outside.npy", 0), ("/outside.npy", 0)):
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            with archive.open(name, "w", force_zip64=True) as member:
                header = {"descr": "<f4", "fortran_order": False, "shape": (2**26, 1)}
                np.lib.format.write_array_header_1_0(member, header)
                for _ in range(parts):
                    member.write(bytes(2**24))
            archive.writestr("y.npy", b"")
        made.append(stream.getvalue())
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        entry = tarfile.TarInfo("../../outside")
        entry.size = 3
        archive.addfile(entry, io.BytesIO(b"abc"))
    made.append(stream.getvalue())
    metadata = {"format": "antiphase", "version": "1", "content": "{}", "digest": "0"}
    array = {"dtype": "F64", "shape": [2**40], "data_offsets": [0, 2**43]}
    header = json.dumps({"w": array, "__metadata__": metadata}).encode()
    made.append(len(header).to_bytes(8, "little") + header)
    made.append((2**63).to_bytes(8, "little") + b"{}")
    return made


def attempt(load, path):
    """How loading ended: "loaded", "refused", or the description of a failure."""
    try:
        with limited(SECONDS):
            load(path)
    except (AntiphaseError, ValueError, TypeError, OSError) as error:
        if is_ours(error) and str(error):
            return "refused"
        return f"{type(error).__name__}: {error} at {traceback.extract_tb(error.__traceback__)[-1]}"
    except (Exception, TookTooLongError) as error:
        return f"{type(error).__name__}: {error} at {traceback.extract_tb(error.__traceback__)[-1]}"
    return "loaded"


def outside():
    """Files that `bombs` would leave outside: at the root, or above the working folder."""
    places = (Path("/"), Path("../.."), Path(tempfile.gettempdir(), "../.."))
    return {found for place in places for found in place.resolve().glob("outside*")}


def run(folder, count, seed):
    """Load ``count`` files in a folder three levels below ``folder``; how it ended, and failures.

    Any new file in ``folder``, in the levels between, beside the files or at the root is a stray.
    """
    rng, deep, good = random.Random(seed), folder / "a" / "b", folder / "good"
    place, scratch = deep / "inside", deep / "scratch"
    for made in (place, scratch, good):
        made.mkdir(parents=True)
    kinds = originals(good, scratch)
    whole = {name: attempt(load, path) for name, (path, load) in kinds.items()}
    contents = {name: path.read_bytes() for name, (path, _) in kinds.items()}
    before = set(folder.rglob("*")) | outside()
    ends, failures, slowest = Counter(), [], 0.0
    for _ in range(count):
        name = rng.choice(sorted(kinds))
        original, load = kinds[name]
        how, content = damaged(rng, contents[name], original, place)
        path = place / original.name
        path.write_bytes(content)
        path.chmod(0o600)
        began = time.perf_counter()
        end = attempt(load, path)
        slowest = max(slowest, time.perf_counter() - began)
        if end not in ("loaded", "refused"):
            failures.append(f"{name}, {how}: {end}"[:2000])
            end = "failed"
        ends[name, how, end] += 1
        for left in place.iterdir():
            left.unlink() if left.is_file() else failures.append(
                f"{name}, {how}: {left.name} was made"
            )
    after = set(folder.rglob("*")) | outside()
    return {
        "files": sum(ends.values()),
        "whole": whole,
        "strays": sorted(map(str, after - before)),
        "failures": failures,
        "slowest": slowest,
        "refused": sum(n for (_, _, end), n in ends.items() if end == "refused"),
        "loaded": sorted(
            f"{name}, {how}: {n}" for (name, how, end), n in ends.items() if end == "loaded"
        ),
    }


def main():
    found = run(Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3]))
    found["megabytes"] = peak()
    print(json.dumps(found | {"optimised": not __debug__}))


if __name__ == "__main__":
    main()
