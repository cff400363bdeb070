"""Scripts in processes that do not import torch and Opacus anew, which would take seconds.

They are forked from a server that has imported both and done nothing else.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch", "opacus", "sklearn.datasets", "numba", "antiphase.torch"])
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Script:
    """A running script, similar to `subprocess.Popen`; its output goes to files."""

    def __init__(self, path, *arguments, env=None, together=False):
        with mock.patch.dict(os.environ, ONE_THREAD):
            forkserver.ensure_running()
        count = 1 if together else 2
        # The files live as long as this object.
        self._files = [tempfile.NamedTemporaryFile("w+") for _ in range(count)]  # noqa: SIM115
        environment = os.environ | ONE_THREAD | (env or {})
        names = [file.name for file in (self._files * 2)[:2]]
        argv = [str(path), *map(str, arguments)]
        self._process = CONTEXT.Process(target=_run, args=(argv, environment, os.getcwd(), names))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout):
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return self._process.exitcode

    def kill(self):
        self._process.kill()

    @property
    def out(self):
        """Its standard output so far."""
        return Path(self._files[0].name).read_text(encoding="utf-8")

    @property
    def err(self):
        return Path(self._files[-1].name).read_text(encoding="utf-8")


def _run(argv, environment, folder, names):
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, name in enumerate(names, start=1):
        file = os.open(name, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8")
    sys.argv = argv
    sys.path[0] = str(Path(argv[0]).parent)
    runpy.run_path(argv[0], run_name="__main__")
