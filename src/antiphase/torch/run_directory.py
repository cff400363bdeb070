"""The directory of a training: identity, key, accuracies so far."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from antiphase._util import files
from antiphase.errors import FileFormatError
from antiphase.factorizations.base import MALFORMED
from antiphase.noise.key import Key


def refuse_another_run(directory: Path, resume: bool, identity: dict[str, Any]) -> None:
    """Refuse a directory that is not empty, or with ``resume`` one of another run.

    Args:
        directory: of the run.
        resume: whether to go on with the run in it.
        identity: choices, data and seeds of this run.

    Raises:
        FileExistsError: if the directory is not empty.
        FileNotFoundError: if there is no run to resume.
        FileFormatError: if the description of the run is damaged.
        ValueError: if the run is another one.
    """
    if not resume:
        if directory.exists() and any(directory.iterdir()):
            raise FileExistsError(
                f"{directory}: is not empty. Go on with its run: resume=True; or give another "
                "folder"
            )
        return
    path = directory / "run.json"
    if not path.exists():
        raise FileNotFoundError(
            f"{directory}: there is no run to go on with; leave resume out to begin one"
        )
    stored = _read_json(path, "Put it back as it was")
    differences = [
        f"{name} was {stored.get(name)!r}, is {identity.get(name)!r}"
        for name in identity | stored
        if stored.get(name) != identity.get(name)
    ]
    if differences:
        raise ValueError(
            f"{directory}: holds another run: {'; '.join(differences)}. Nothing was changed"
        )


def create(directory: Path, key: Key, identity: dict[str, Any]) -> None:
    """Write the identity of a run and its key, unless they are there."""
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / "run.json").exists():
        files.write_bytes(directory / "run.json", json.dumps(identity, indent=2).encode())
    if key.path is None and not key.is_insecure:
        key.save(directory / "key")


def load_or_generate_key(directory: Path | None, insecure_noise: int | None) -> Key:
    """The key of a guessable seed, that of the directory, or a new one."""
    if insecure_noise is not None:
        return Key.insecure(insecure_noise)
    if directory is not None and (directory / "key").exists():
        return Key.load(directory / "key")
    return Key.generate()


def read_curve(path: Path) -> tuple[list[tuple[int, float, float]], float]:
    """(step, accuracy, loss) so far, and the seconds taken; empty if the file was deleted.

    Raises:
        FileFormatError: if the file is damaged.
    """
    if not path.exists():
        return [], 0.0
    remedy = "Delete it to go on without the accuracies seen so far"
    stored = _read_json(path, remedy)
    try:
        points = [
            (int(step), float(accuracy), float(loss)) for step, accuracy, loss in stored["curve"]
        ]
        return points, float(stored["seconds"])
    except MALFORMED as error:
        raise _damaged(path, error, remedy) from error


def _read_json(path: Path, remedy: str) -> dict[str, Any]:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
        raise ValueError(f"a {type(content).__name__}")
    except (ValueError, RecursionError) as error:
        raise _damaged(path, error, remedy) from error


def _damaged(path: Path, error: Exception, remedy: str) -> FileFormatError:
    return FileFormatError(f"{path}: is damaged ({error}). Nothing was changed. {remedy}")
