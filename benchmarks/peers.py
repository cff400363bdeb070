"""Peers in virtual environments and processes of their own.

Opacus and dp-accounting are dependencies of antiphase, pinned to the versions compared with; they
run in the same process. JAX Privacy and opake need other versions of shared dependencies, so each
has an environment and a worker: a process that answers requests with its result and its time.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

HOME = Path(__file__).parents[1] / ".bench"  # environments are kept between runs
CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"  # for the same CPU build of torch
REQUIREMENTS = {
    "jax-privacy": ["jax-privacy==2.0.0"],
    "opake": ["opake[dpftrl]==0.16.1", "-c", str(CONSTRAINTS)],
}
WORKERS = {
    name: Path(__file__).with_name(f"{name.split('-')[0]}_worker.py") for name in REQUIREMENTS
}


class PeerError(RuntimeError):
    """A peer cannot be installed, or failed."""


def environment(name: str) -> Path:
    """The Python of the peer's environment, which is made if there is none."""
    folder = HOME / name
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    wanted = "\n".join(REQUIREMENTS[name][:1])
    if not ready.exists() or ready.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        done = subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS[name]],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise PeerError(
                f"{name} cannot be installed here: {done.stderr.strip().splitlines()[-1]}"
            )
        ready.write_text(wanted)
    return python


class Worker:
    """A process of the peer on one core, or on all."""

    def __init__(self, name: str, core: int | None = None) -> None:
        self.name = name
        self._folder = tempfile.TemporaryDirectory()
        threads = "1" if core is not None else str(os.cpu_count())
        variables = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
        command = [str(environment(name)), str(WORKERS[name]), self._folder.name]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | variables,
        )
        if core is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(self._process.pid, {core})
        self.hello = self._answer()  # versions of the peer and of its framework

    def begin(self, work: str, **settings) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"work": work, **settings}) + "\n")
        self._process.stdin.flush()

    def end(self) -> dict:
        """Wait for the answer; an encoder in it is loaded."""
        answer = self._answer()
        if "encoder" in answer:
            answer["encoder"] = np.load(answer["encoder"])
        return answer

    def ask(self, work: str, **settings) -> dict:
        self.begin(work, **settings)
        return self.end()

    def _answer(self) -> dict:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"{self.name} ended with code {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self.name}: {answer['error']}")
        return answer

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


@contextmanager
def optional_worker(name: str, core: int | None = None) -> Iterator[Worker | None]:
    """A worker, or None where the peer cannot be installed."""
    try:
        environment(name)
    except PeerError:
        yield None
        return
    with Worker(name, core) as worker:
        yield worker


def cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
