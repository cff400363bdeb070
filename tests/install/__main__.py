"""``make test-install``: what users get, in empty environments.

    python -m tests.install [newest] [lowest] [all] [pythons]

Builds the sdist, and from it the wheel. Installs the wheel with the newest and with the lowest
versions that its ranges allow (torch apart: one version), runs what a new user would, and runs a
part of the tests from the unpacked sdist. Nothing is taken from ``.venv`` or ``constraints.txt``.
Needs Python alone; other Pythons that are installed get the checks that need no PyTorch.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
TORCH = "torch==2.13.0"  # the newest may pull gigabytes of CUDA
MINUTES = 10
OTHER_PYTHONS = ("3.12", "3.13")
# Every kind of test that needs no browser, network or git: the core, the command line, PyTorch.
SUBSET = (
    "tests/test_init.py",
    "tests/test_main.py",
    "tests/test_sensitivity.py",
    "tests/accounting",
    "tests/cli/test_errors.py",
    "tests/conformance",
    "tests/noise",
    "tests/torch/test_clipping.py",
    "tests/torch/test_release.py",
)
TEST_LIBRARIES = ("pytest", "pytest-xdist", "hypothesis", "mpmath", "cryptography")
INTEGRATIONS = "antiphase.torch.lightning, antiphase.torch.huggingface"
CLI_MISSING = "error: the command line needs Typer and Rich: pip install 'antiphase[cli]'"


class Environment:
    """An empty environment."""

    def __init__(self, folder, python=sys.executable):
        run(python, "-m", "venv", folder)
        self.folder, self.python = folder, folder / "bin" / "python"
        self.command = folder / "bin" / "antiphase"
        self._size_before = self._size()

    def _size(self):
        files = (file for file in self.folder.rglob("*") if not file.is_symlink())
        return sum(file.stat().st_size for file in files if file.suffix != ".pyc")

    def install(self, *requirements, constraints=None):
        """Install, and return how long it took and how much it added, for the table."""
        limit = () if constraints is None else ("--constraint", constraints)
        began = time.perf_counter()
        run(self.python, "-m", "pip", "install", "--quiet", *limit, *requirements)
        seconds = time.perf_counter() - began
        run(self.python, "-m", "pip", "check")
        return f"{seconds:.0f} s, {(self._size() - self._size_before) / 1e6:.0f} MB"

    def versions(self, *names):
        """The versions of these libraries, or of those that the command line is made of."""
        names = names or ("numpy", "scipy", "numba", "typer", "rich")
        code = f"from importlib.metadata import version; print(*map(version, {names!r}))"
        versions = run(self.python, "-c", code).split()
        return ", ".join(f"{name} {one}" for name, one in zip(names, versions, strict=True))

    def check_core(self):
        """Design, calibrate and make noise in Python; return the digest of the noise."""
        assert run(self.command, "--version") == run(self.python, "-m", "antiphase", "--version")
        return run(self.python, HERE / "core.py").strip()

    def check_command_line(self):
        assert "Usage" in run(self.command, "--help")
        design = run(
            self.command, "design", "dp-mf", "--steps", "64", "-o", "d.antiphase", "--json"
        )
        assert '"gap"' in design
        run(self.command, "verify", "d.antiphase")

    def check_training(self):
        assert "a private step" in run(self.python, HERE / "private_step.py")
        assert "DP-MF" in run(self.command, "demo", "--trials", "1", "--output", "demo")


def run(*command, cwd=None, status=0):
    """Run a command in a clean environment, and return what it printed."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP_CONSTRAINT"))}
    clean |= {"ANTIPHASE_CACHE": "off", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=clean, capture_output=True, text=True, check=False
    )
    if done.returncode != status:
        sys.exit(f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout if status == 0 else done.stderr


def lowest_versions(*extras):
    """The lower bounds of the core and of these extras, as constraints."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *map(project["optional-dependencies"].get, extras)]
    bounds = "\n".join(requirement for group in groups for requirement in group)
    found = re.findall(r"^([\w-]+)>=([\w.]+)$", bounds, re.MULTILINE)
    return "\n".join(f"{name}=={version}" for name, version in found if name != "torch")


def build(folder):
    """Build the sdist and, from it, the wheel; return the wheel. The sdist is in ``antiphase``."""
    source, built = folder / "source", folder / "dist"
    ignored = (line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines())
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".git", *ignored))
    builder = Environment(folder / "builder")
    builder.install("build")
    run(builder.python, "-m", "build", "--outdir", built, source)
    (sdist,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    unpacked = (folder / sdist.name.removesuffix(".tar.gz")).rename(folder / "antiphase")
    check_sdist(source, unpacked)
    return wheel


def check_sdist(source, unpacked):
    """Nothing that the tests need is missing."""
    missing = [
        str(file.relative_to(source))
        for file in source.rglob("*")
        if file.is_file() and not (unpacked / file.relative_to(source)).exists()
    ]
    if missing:
        sys.exit(f"{len(missing)} files are not in the sdist: {missing[:10]}")


def other_python(version):
    """The interpreter of another version of Python, or None."""
    for python in (shutil.which(f"python{version}"), *pyenv(version)):
        if python and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
            return python
    return None


def pyenv(version):
    """Interpreters that pyenv has installed."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return sorted(map(str, root.glob(f"versions/{version}.*/bin/python")))


class Report:
    """Lines of the table: what, measured, asked."""

    def __init__(self):
        self.rows, self.digests, self._began = [], set(), time.perf_counter()

    def __call__(self, what, measured, asked="it works"):
        self.rows.append((what, measured, asked))
        print(f"  [{self.seconds():4.0f} s] {what}: {measured}", flush=True)

    def seconds(self):
        return time.perf_counter() - self._began

    def print_table(self):
        width = max(len(what) for what, _, _ in self.rows)
        print()
        for what, measured, asked in self.rows:
            print(f"{what:{width}}  measured {measured}; asked {asked}")


def check_newest(folder, wheel, report):
    """The core alone, then with its extras; and tests."""
    newest = Environment(folder / "newest")
    report("core: time and size of the install", newest.install(wheel), "shown")
    report.digests.add(newest.check_core())
    hint = run(newest.command, "design", "dp-mf", "--steps", "8", status=2).strip()
    assert hint == CLI_MISSING, hint
    report("core: noise, --version; a command without its extra", hint)

    newest.install(f"{wheel}[cli,data,torch]", TORCH)
    newest.check_command_line()
    newest.check_training()
    report("newest: command line, demo, a private step", newest.versions())

    newest.install(*TEST_LIBRARIES)
    subset = "not slow and not long and not alone"
    options = ("-q", "-n", "2", "-p", "no:cacheprovider", "-m", subset)
    tests = run(newest.python, "-m", "pytest", *options, *SUBSET, cwd=folder / "antiphase")
    report("newest: tests from the sdist, in a folder antiphase", tests.splitlines()[-1])


def check_lowest(folder, wheel, report):
    """The lowest versions; Flower's apart, as it needs a newer Rich than the command line."""
    constraints = folder / "lowest.txt"
    extras = ("cli", "data", "huggingface", "lightning", "plot", "torch")
    constraints.write_text(lowest_versions(*extras))
    lowest = Environment(folder / "lowest")
    lowest.install(f"{wheel}[{','.join(extras)}]", TORCH, constraints=constraints)
    report.digests.add(lowest.check_core())
    lowest.check_command_line()
    lowest.check_training()
    run(lowest.python, "-c", f"import {INTEGRATIONS}")
    report("lowest: command line, demo, a private step", lowest.versions())

    constraints.write_text(lowest_versions("federated"))
    flower = Environment(folder / "flower")
    flower.install(f"{wheel}[federated]", constraints=constraints)
    report.digests.add(flower.check_core())
    run(flower.python, "-c", "import antiphase.federated.flower")
    report("lowest: Flower", flower.versions("flwr", "numpy"))


def check_all(folder, wheel, report):
    """All extras at once."""
    whole = Environment(folder / "all")
    report("all: time and size of the install", whole.install(f"{wheel}[all]", TORCH), "shown")
    report.digests.add(whole.check_core())
    whole.check_command_line()
    run(whole.python, HERE / "private_step.py")
    run(whole.python, "-c", f"import ray, antiphase.federated.flower, {INTEGRATIONS}")
    report("all: command line, a private step", whole.versions("typer", "flwr", "transformers"))


def check_other_pythons(folder, wheel, report):
    """What needs no PyTorch, which has no small build for other Pythons."""
    for version in OTHER_PYTHONS:
        if (python := other_python(version)) is None:
            report(f"Python {version}", "not installed, so not tested", "where installed")
            continue
        other = Environment(folder / version, python)
        other.install(f"{wheel}[cli]")
        report.digests.add(other.check_core())
        other.check_command_line()
        report(f"Python {version}: core and command line", other.versions())


CHECKS = {
    "newest": check_newest,
    "lowest": check_lowest,
    "all": check_all,
    "pythons": check_other_pythons,
}


def main(*names):
    report = Report()
    with tempfile.TemporaryDirectory() as name, working_in(Path(name)) as folder:
        wheel = build(folder)
        report("wheel", f"{wheel.stat().st_size / 1e6:.1f} MB", "shown")
        for check in names or CHECKS:
            CHECKS[check](folder, wheel, report)
    assert len(report.digests) == 1, report.digests
    report("noise of one key", "the same in all environments", "the same")
    report("all of this", f"{report.seconds() / 60:.1f} minutes", f"≤ {MINUTES} minutes")
    report.print_table()


@contextmanager
def working_in(folder):
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)


if __name__ == "__main__":
    main(*sys.argv[1:])
