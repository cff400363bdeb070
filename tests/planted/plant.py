"""Run tests on a copy of the package with one planted change, each in a process of its own.

    python -m tests.planted.plant FOLDER bugs|lines|extras

prints one line of JSON for each change when its test has ended. Processes are forked from one that
has imported torch and Numba, which takes seconds, but nothing of antiphase.
"""

import gc
import json
import multiprocessing
import os
import re
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.planted.bugs import BUGS
from tests.planted.lines import EXTRAS, LINES

ROOT = Path(__file__).parents[2]
TIMEOUT = 600  # seconds for a run, however broken the package is
PROCESSES = 2
CHANGES = {"bugs": BUGS, "lines": LINES, "extras": EXTRAS}
GREEN, RED = 0, 1  # pytest's exit codes; others mean that no test ran


def warm_up():
    """Import third-party libraries once for all processes."""
    import dp_accounting  # noqa: F401
    import mpmath  # noqa: F401
    import numba
    import opacus  # noqa: F401
    import pytest  # noqa: F401
    import randomgen  # noqa: F401
    import torch

    torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # imports more of torch
    numba.njit(lambda x: x + 1)(1)  # and of Numba
    gc.freeze()  # so that collections in the processes skip what was imported


def copy_of(package, folder):
    """Copy it with its compiled code and time stamps, so that Numba does not compile it again."""
    return Path(shutil.copytree(package, folder / "antiphase", copy_function=shutil.copy2))


def places(old, text):
    """Spans of ``old`` in ``text``; if it is not there verbatim, with other line breaks."""
    exact = [found.span() for found in re.finditer(re.escape(old), text)]
    if exact:
        return exact
    pieces = re.findall(r"\w+|[^\w\s]|\s+", old)
    pattern = "".join(
        r"\s+"
        if a.isspace() and _is_word(b) and _is_word(c)
        else r"\s*"
        if a.isspace()
        else (r",?\s*" if a in ")]}" else "") + re.escape(a) + (r"\s*" if a in "([{" else "")
        for b, a, c in zip(["", *pieces], pieces, [*pieces[1:], ""], strict=False)
    )
    return [found.span() for found in re.finditer(pattern, text)]


def _is_word(piece):
    return bool(piece) and (piece[0].isalnum() or piece[0] == "_")


def put_in(change, package):
    path = package / change.file
    text = path.read_text()
    found = places(change.old, text)
    if len(found) != 1:
        raise ValueError(
            f"{change.name}: {change.file} has {len(found)} places like {change.old!r}"
        )
    text = text[: found[0][0]] + change.new + text[found[0][1] :]
    compile(text, str(path), "exec")  # a test that fails by a syntax error proves nothing
    path.write_text(text)


def run(folder, tests, name="tests"):
    """Run tests with the package in ``folder``; returns pytest's exit code and output.

    Runs that share a folder have different names.
    """
    process = multiprocessing.get_context("fork").Process(target=_child, args=(folder, tests, name))
    process.start()
    process.join(TIMEOUT)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode, (folder / f"{name}.log").read_text(errors="replace")


def _child(folder, tests, name):
    assert not any(name.split(".")[0] == "antiphase" for name in sys.modules)
    with open(folder / f"{name}.log", "w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ |= {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # plugins take seconds to import
    sys.path.insert(0, str(folder))
    os.chdir(ROOT)
    import pytest

    code = pytest.main(
        ["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={folder / name}", *tests]
    )
    here = Path(sys.modules["antiphase"].__file__).parent.parent
    sys.stdout.flush()
    os._exit(int(code) if here == folder else 99)


def main():
    folder, changes = Path(sys.argv[1]).resolve(), CHANGES[sys.argv[2]]
    warm_up()
    whole = copy_of(ROOT / "src" / "antiphase", folder / "whole")
    tests = list(dict.fromkeys(change.test for change in changes))

    def unbroken(part):
        """Run every PROCESSES-th test without a change."""
        code, log = run(whole.parent, tests[part::PROCESSES], f"part{part}")
        return "" if code == GREEN else log[-5000:] or "no log"

    def planted(number):
        began, place = time.perf_counter(), folder / str(number)
        package = copy_of(whole, place)
        put_in(changes[number], package)
        code, log = run(place, [changes[number].test])
        shutil.rmtree(place)
        return {
            "number": number,
            "red": code == RED,
            "code": code,
            "seconds": time.perf_counter() - began,
            "log": "" if code == RED else log[-5000:],
        }

    with ThreadPoolExecutor(PROCESSES) as pool:
        log = "".join(pool.map(unbroken, range(PROCESSES)))
        print(json.dumps({"green": not log, "log": log}), flush=True)
        for done in pool.map(planted, range(len(changes))):
            print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
