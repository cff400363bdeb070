"""Verified files of a named data set: from a folder, the cache or a download."""

from __future__ import annotations

import errno
import importlib.util
import os
from contextlib import suppress
from pathlib import Path

from antiphase._util import files
from antiphase._util.extras import missing
from antiphase._util.progress import Progress
from antiphase.data import cache
from antiphase.data.archives import Contents, UnavailableError
from antiphase.data.download import download
from antiphase.data.registry import Download, FileSet, max_size
from antiphase.errors import DataError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def fetch_files(
    dataset: FileSet, folder: Path | None = None, progress: Progress | None = None
) -> Contents:
    """Every file of a data set, uncompressed and verified, by name.

    Guarantee: files have the hashes of the registry. A call that fails leaves the cache as it was,
    except that an interrupted transfer is kept for the next call.

    Args:
        dataset: an entry of the registry.
        folder: look for the files here and nowhere else.
        progress: receives a report after each block of a download.

    Raises:
        DataError: with everything that was tried, and the remedy.
    """
    if folder is not None:
        try:
            return _from_folder(dataset, folder)
        except UnavailableError as error:
            raise DataError(
                f"data = {dataset.name!r} is not in folder = {str(folder)!r}: {error}. "
                f"{_remedy(dataset)}, or leave folder out to download it"
            ) from error
    failures: list[str] = []
    if setting := os.environ.get("ANTIPHASE_DATA"):
        try:
            return _from_folder(dataset, Path(setting))
        except UnavailableError as error:
            failures.append(f"ANTIPHASE_DATA = {setting!r} ({error})")
    for system_folder in dataset.system_folders:
        with suppress(UnavailableError):
            return _from_folder(dataset, Path(system_folder))
    directory = cache.directory(dataset.name)
    if directory is not None and len(contents := _cached(dataset, directory)) == len(dataset.files):
        return contents
    try:
        with cache.opened(dataset.name) as place:
            return _download_missing(dataset, place, failures, progress)
    except OSError as error:
        raise _storage_error(dataset, directory, error) from error


def _download_missing(
    dataset: FileSet, directory: Path, failures: list[str], progress: Progress | None
) -> Contents:
    contents = _cached(dataset, directory)  # another process may have downloaded them meanwhile
    before = set(contents)
    try:
        for source in dataset.sources():
            try:
                for item in source:
                    if not contents.keys() >= item.files:
                        limit = max_size(dataset.files)
                        contents |= _downloaded(item, directory, limit, progress)
                break
            except UnavailableError as error:
                failures.append(f"{source[0].address.label} ({error})")
        else:
            raise DataError(_failure(dataset, failures, directory))
    except BaseException as error:
        # After Ctrl-C, or with a transfer to resume, what was received is kept.
        resumable = bool(cache.parts(directory)) or not isinstance(error, Exception)
        if not resumable or (isinstance(error, OSError) and error.errno in DISK_FULL):
            cache.clear(directory, keep=before)
        raise
    cache.clear(directory, keep=contents)
    return contents


def _downloaded(item: Download, directory: Path, limit: int, progress: Progress | None) -> Contents:
    """The files of one download, which are then in the cache."""
    if item.needs_pillow and importlib.util.find_spec("PIL") is None:
        raise UnavailableError(missing("data", item.name, "Pillow"))
    part = directory / f"{item.name}{cache.PART}"
    url = item.address.locate(item.name)
    resumed = part.exists()
    while True:
        download(url, part, limit, progress)
        try:
            contents = item.read(part)
            break
        except UnavailableError:
            part.unlink()
            if not resumed:
                raise
            resumed = False  # the old partial file may have been of something else: start again
    for name, content in contents.items():
        files.write_bytes(directory / name, content)
    part.unlink()
    return contents


def _cached(dataset: FileSet, directory: Path) -> Contents:
    """The files in the cache that are complete and undamaged."""
    contents: Contents = {}
    for file in dataset.files:
        with suppress(OSError, UnavailableError):
            contents |= file.read(directory / file.name)
    return contents


def _from_folder(dataset: FileSet, folder: Path) -> Contents:
    """The files in a folder of the user's, in one of the usual layouts; writes nothing."""
    reasons = []
    for place in [folder, *(folder / layout for layout in dataset.layouts)]:
        try:
            if (contents := _in_place(dataset, place)) is not None:
                return contents
        except UnavailableError as error:
            reasons.append(str(error))
        except OSError as error:
            reasons.append(f"{place} cannot be read ({error.strerror or error})")
    if dataset.pickles and ((folder / dataset.pickles).is_dir() or folder.name == dataset.pickles):
        reasons.append(
            f"{dataset.pickles} holds pickles, which can run code when they are read, and is not "
            "read"
        )
    if not reasons:
        reasons = ["it has none of the files" if folder.is_dir() else "there is no such folder"]
    raise UnavailableError("; ".join(reasons))


def _in_place(dataset: FileSet, place: Path) -> Contents | None:
    """The files in this folder, or in an archive there; None if there are none at all."""
    contents: Contents = {}
    for file in dataset.files:
        for path in (place / file.name, place / f"{file.name}.gz"):
            if path.is_file() and file.name not in contents:
                contents |= file.read(path)
    if len(contents) == len(dataset.files):
        return contents
    for archive in dataset.archives:
        path = place / archive.name
        if path.is_file():
            return archive.read(dataset.files, path)
    if not contents:
        return None
    missing = ", ".join(file.name for file in dataset.files if file.name not in contents)
    raise UnavailableError(f"{missing} missing in {place}")


def _remedy(dataset: FileSet) -> str:
    names = ", ".join(file.name for file in dataset.files)
    archives = "".join(f", or {archive.name}," for archive in dataset.archives)
    return (
        f"Put {names} (each as it is or as .gz){archives} into a folder and pass folder=…, or set "
        "ANTIPHASE_DATA to it"
    )


def _failure(dataset: FileSet, failures: list[str], directory: Path) -> str:
    # Without a cache the folder is a temporary one.
    parts = cache.parts(directory) if cache.directory(dataset.name) else []
    kept = "Nothing was kept"
    if parts:
        sizes = (f"{path.stat().st_size} bytes of {path.stem}" for path in parts)
        kept = f"{', '.join(sizes)} are kept, and the next call resumes there"
    return (
        f"data = {dataset.name!r} could not be downloaded. Tried: {'; '.join(failures)}. {kept}. "
        f"{_remedy(dataset)}."
    )


def _storage_error(dataset: FileSet, directory: Path | None, error: OSError) -> DataError:
    place = directory or "the temporary folder"
    if error.errno in DISK_FULL:
        # Compressed and uncompressed files are both there for a moment.
        megabytes = 2 * sum(file.size for file in dataset.files) // 10**6 + 1
        reason = (
            f"the disk is full: {place} needs {megabytes} MB. Nothing was kept. Free some space"
        )
    else:
        reason = f"{place} cannot be written ({error.strerror or error})"
    return DataError(
        f"data = {dataset.name!r} could not be stored; {reason}, or set ANTIPHASE_CACHE to a "
        "folder elsewhere"
    )
