"""Time of the import and of the command line's start, and size on disk."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks import peers
from benchmarks.question import Claim, Loss
from benchmarks.timing import format_seconds, take_turns
from experiments.runner import Table

TITLE = "Import, cold start, size"
IMPORT, HELP = 0.5, 1.0


def measure(run):
    repetitions = 10 if run.full else 4
    run.report(f"processes, {repetitions + 1} times each")
    theirs = str(peers.environment("jax-privacy"))
    command = str(Path(sys.executable).with_name("antiphase"))
    works = {
        "python, nothing imported": _process(sys.executable, "-c", "pass"),
        "import antiphase": _process(sys.executable, "-c", "import antiphase"),
        "from antiphase import *": _process(sys.executable, "-c", "from antiphase import *"),
        "import antiphase.torch": _process(sys.executable, "-c", "import antiphase.torch"),
        "antiphase --help": _process(command, "--help"),
        "import opacus": _process(sys.executable, "-c", "import opacus"),
        "import jax_privacy": _process(theirs, "-c", "import jax_privacy"),
    }
    taken = {name: timing.json() for name, timing in take_turns(works, repetitions).items()}
    site = Path(peers.environment("jax-privacy")).parents[1]
    ours = sum(map(_installed, _needed("antiphase")))
    return {
        "seconds": taken,
        "megabytes": {
            "antiphase with the dependencies of its core": ours / 1e6,
            "JAX Privacy's environment": _folder(site) / 1e6,
        },
    }


def _process(*command):
    return lambda: subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _needed(name, found=()):
    """The distribution and its dependencies, without extras."""
    found = {*found, canonicalize_name(name)}
    for line in importlib.metadata.requires(name) or []:
        one = Requirement(line)
        if canonicalize_name(one.name) not in found and (
            one.marker is None or one.marker.evaluate({"extra": ""})
        ):
            found |= _needed(one.name, found)
    return found


def _installed(name):
    files = importlib.metadata.files(name) or []
    return sum(
        path.stat().st_size for path in (Path(file.locate()) for file in files) if path.is_file()
    )


def _folder(path):
    return sum(file.lstat().st_size for file in path.rglob("*") if file.is_file())


def tables(record):
    rows = [
        [
            name,
            format_seconds(t["median"]),
            f"{format_seconds(t['low'])} … {format_seconds(t['high'])}",
            format_seconds(t["first"]),
        ]
        for name, t in record["seconds"].items()
    ]
    sizes = [[name, f"{size:.0f} MB"] for name, size in record["megabytes"].items()]
    return [
        Table("Processes", ["", "time", "quartiles", "first"], rows),
        Table("Disk", ["", "size"], sizes),
    ]


def claims(record):
    took, helped = (
        record["seconds"][name]["median"] for name in ("import antiphase", "antiphase --help")
    )
    return [
        Claim("import antiphase", format_seconds(took), f"< {IMPORT} s", took < IMPORT),
        Claim("antiphase --help", format_seconds(helped), f"< {HELP} s", helped < HELP),
    ]


def losses(record):
    ours, theirs = (
        record["seconds"][name]["median"] for name in ("import antiphase.torch", "import opacus")
    )
    what = (
        f"import antiphase.torch: {format_seconds(ours)}, import opacus: {format_seconds(theirs)}"
    )
    return [Loss(what, "the former contains the latter")] if theirs < ours else []


def notes(record):
    return [
        "Whole processes, including the start of the interpreter. `import antiphase` imports "
        "nothing else until a name is used; `from antiphase import *` imports all but torch.",
    ]


def draw(record, folder):
    return []
