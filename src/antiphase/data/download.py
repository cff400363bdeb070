"""HTTP download that resumes where an earlier one stopped."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from antiphase._util.progress import Progress, ProgressReport
from antiphase.data.archives import UnavailableError

TIMEOUT = 20.0  # seconds without a byte
MAX_RESUMES = 5  # attempts, as long as each receives something
BLOCK = 1 << 16  # bytes


class InterruptedTransferError(UnavailableError):
    """The transfer broke off. What was received is kept, and the next attempt resumes there."""


def download(url: str, part: Path, max_size: int, progress: Progress | None) -> None:
    """Download ``url`` to ``part``, from the end of what ``part`` already holds.

    The content is not verified here; its hash is checked by the caller.

    Args:
        url: what to download.
        part: the partial file, which is complete on return.
        max_size: limit in bytes.
        progress: receives a report after each block.

    Raises:
        UnavailableError: the server cannot be reached or refuses.
        InterruptedTransferError: the transfer broke off; ``part`` is kept.
    """
    for attempt in range(MAX_RESUMES):
        before = _size(part)
        try:
            return _resume(url, part, max_size, progress)
        except InterruptedTransferError:
            if _size(part) <= before or attempt == MAX_RESUMES - 1:
                raise
        finally:
            if part.exists() and _size(part) == 0:
                part.unlink()
    return None


def _resume(url: str, part: Path, max_size: int, progress: Progress | None) -> None:
    start = _size(part)
    with _response(url, start) as response:
        content_range = response.headers["Content-Range"] or ""
        if response.status == 206 and not content_range.startswith(f"bytes {start}-"):
            raise UnavailableError(
                f"it sent bytes {content_range} when asked for those from {start}"
            )
        if response.status == 200:  # all of it: the server has no ranges, or was asked for none
            start = 0
        length = response.headers["Content-Length"] or ""
        total = start + int(length) if length.isdecimal() else None
        done = start
        with part.open("ab" if start else "wb") as file:
            while block := _block(response):
                done += len(block)
                if done > max_size:
                    break
                file.write(block)
                if progress:
                    name = urlsplit(url).path.rpartition("/")[2]
                    progress(ProgressReport(done, total, task=name))
    if done > max_size:
        part.unlink()
        raise UnavailableError(f"it sent more than {max_size} bytes, the limit for this data set")
    if total is not None and done < total:
        raise InterruptedTransferError(f"the connection broke off after {done} of {total} bytes")


def _response(url: str, start: int) -> http.client.HTTPResponse:
    headers = {"User-Agent": "antiphase", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    request = urllib.request.Request(url, headers=headers)
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
        return response
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:  # the partial file is longer than theirs
            return _response(url, 0)
        raise UnavailableError(f"HTTP {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(_reason(error)) from error


def _block(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise InterruptedTransferError(f"the connection broke off: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    cause = getattr(error, "reason", None) or error
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
