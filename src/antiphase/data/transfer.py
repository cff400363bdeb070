"""One download over HTTP, which goes on where an earlier one stopped."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from antiphase._util.progress import Progress, ProgressReport
from antiphase.data.unpack import MissedError

PATIENCE = 20.0  # seconds without a byte, after which a server counts as gone
ATTEMPTS = 5  # how often a transfer that gets further each time is taken up again
BLOCK = 1 << 16


class DroppedError(MissedError):
    """The transfer broke off. What was received is kept, and the next attempt goes on from there."""


def fetch(url: str, part: Path, limit: int, progress: Progress | None) -> None:
    """Bring ``url`` to the file ``part``, of at most ``limit`` bytes; what ``part`` has already is not asked for again.

    Raises `MissedError` if the server cannot be reached or says no, and `DroppedError` if it stops before the end. The
    content is not trusted: that it is the right one is for its hash to say.
    """
    for attempt in range(ATTEMPTS):
        had = _size(part)
        try:
            return _go_on(url, part, limit, progress)
        except DroppedError:
            if _size(part) <= had or attempt == ATTEMPTS - 1:
                raise
        finally:
            if part.exists() and _size(part) == 0:
                part.unlink()
    return None


def _go_on(url: str, part: Path, limit: int, progress: Progress | None) -> None:
    start = _size(part)
    with _answer(url, start) as answer:
        if answer.status == 206 and not (answer.headers["Content-Range"] or "").startswith(
            f"bytes {start}-"
        ):
            raise MissedError(
                f"it sent bytes {answer.headers['Content-Range']} when asked for those from {start}"
            )
        if answer.status == 200:  # the whole: the server cannot go on, or was not asked to
            start = 0
        length = answer.headers["Content-Length"] or ""
        total = start + int(length) if length.isdecimal() else None
        done = start
        with part.open("ab" if start else "wb") as file:
            while block := _block(answer):
                done += len(block)
                if done > limit:
                    break
                file.write(block)
                if progress:
                    progress(
                        ProgressReport(done, total, task=urlsplit(url).path.rpartition("/")[2])
                    )
    if done > limit:
        part.unlink()
        raise MissedError(f"it sent more than {limit} bytes, which is more than there are")
    if total is not None and done < total:
        raise DroppedError(f"the connection broke off after {done} of {total} bytes")


def _answer(url: str, start: int) -> http.client.HTTPResponse:
    headers = {"User-Agent": "antiphase", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        answer: http.client.HTTPResponse = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=PATIENCE
        )
        return answer
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:  # the partial file is not a beginning of theirs
            return _answer(url, 0)
        raise MissedError(f"HTTP {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise MissedError(_reason(error)) from error


def _block(answer: http.client.HTTPResponse) -> bytes:
    try:
        return answer.read1(BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise DroppedError(f"the connection broke off: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    cause = getattr(error, "reason", None) or error
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
