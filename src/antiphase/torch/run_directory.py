"""The folder of a training: what the run is, its key and how it fared; the checkpoint itself is the engine's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from antiphase._util import files
from antiphase.errors import FileFormatError
from antiphase.factorizations.base import MALFORMED
from antiphase.noise.key import Key


def refuse_another_run(folder: Path, resume: bool, identity: dict[str, Any]) -> None:
    """Raise unless the folder is empty, or with ``resume`` holds this very run."""
    if not resume:
        if folder.exists() and any(folder.iterdir()):
            raise FileExistsError(
                f"{folder}: is not empty. Go on with its run: resume=True; or give another folder"
            )
        return
    if not (folder / "run.json").exists():
        raise FileNotFoundError(
            f"{folder}: there is no run to go on with; leave resume out to begin one"
        )
    found = _kept(folder / "run.json", "Put it back as it was")
    names = [*identity, *(found.keys() - identity.keys())]
    other = [
        f"{n} was {found.get(n)!r}, is {identity.get(n)!r}"
        for n in names
        if found.get(n) != identity.get(n)
    ]
    if other:
        raise ValueError(f"{folder}: holds another run: {'; '.join(other)}. Nothing was changed")


def _kept(path: Path, remedy: str) -> dict[str, Any]:
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
        raise ValueError(f"a {type(found).__name__}")
    except (ValueError, RecursionError) as error:
        raise FileFormatError(
            f"{path}: is damaged ({error}). Nothing was changed. {remedy}"
        ) from error


def curve(path: Path) -> tuple[list[tuple[int, float, float]], float]:
    """The accuracies seen so far, and the seconds taken; none if they were deleted, for no step needs them."""
    if not path.exists():
        return [], 0.0
    remedy = "Delete it to go on without the accuracies seen so far"
    kept = _kept(path, remedy)
    try:
        points = [
            (int(step), float(accuracy), float(loss)) for step, accuracy, loss in kept["curve"]
        ]
        return points, float(kept["seconds"])
    except MALFORMED as error:
        raise FileFormatError(
            f"{path}: is damaged ({error}). Nothing was changed. {remedy}"
        ) from error


def begin(folder: Path, secret: Key, identity: dict[str, Any]) -> None:
    """Write down what the run is, and its key, where that is not done yet."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "run.json").exists():
        files.write_bytes(folder / "run.json", json.dumps(identity, indent=2).encode())
    if secret.path is None and not secret.is_insecure:
        secret.save(folder / "key")


def key(folder: Path | None, insecure_noise: int | None) -> Key:
    """That of a guessable seed, of the folder, or a new one."""
    if insecure_noise is not None:
        return Key.insecure(insecure_noise)
    if folder is not None and (folder / "key").exists():
        return Key.load(folder / "key")
    return Key.generate()
