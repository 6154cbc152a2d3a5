"""Downloading one file over HTTP, within bounds of time and size, all of it or nothing."""

from __future__ import annotations

import contextlib
import http.client
import os
import queue
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from noeira.nn.datasets.idx import DatasetError
from noeira.runtime.cache import atomic_write

_CHUNK = 1 << 16


def download(
    url: str,
    path: str | os.PathLike[str],
    *,
    max_bytes: int,
    timeout: float = 5.0,
    total_timeout: float = 600.0,
) -> Path:
    """Download `url` to `path`, which appears only when all of it has arrived.

    Args:
        url: What to fetch; http or https.
        path: The final name.
        max_bytes: More than this is refused.
        timeout: The most seconds until the answer begins, and between two pieces of it.
        total_timeout: The most seconds in all.

    Returns:
        `path`.

    Raises:
        DatasetError: There was no answer in time, the server refused, or sent less than it stated
            or more than `max_bytes`. The message names the URL.
        OSError: `path` cannot be written.

    Example:
        >>> download("https://example.org/a.gz", "a.gz", max_bytes=10**6)  # doctest: +SKIP
    """
    deadline = time.monotonic() + total_timeout
    with _open(url, timeout) as response, atomic_write(path) as file:
        received = 0
        while chunk := _read(url, response):
            received += len(chunk)
            if received > max_bytes:
                raise DatasetError(url, f"at most {max_bytes} bytes", "more")
            if time.monotonic() > deadline:
                raise DatasetError(url, f"all within {total_timeout:g} s", f"{received} bytes by then")
            file.write(chunk)
        # http.client ends a short body quietly when it is read in pieces.
        stated = response.headers.get("Content-Length")
        if stated is not None and received != int(stated):
            raise DatasetError(url, f"{stated} bytes as the server stated", f"{received} bytes")
    return Path(path)


def _read(url: str, response: Any) -> bytes:
    try:
        return response.read(_CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise DatasetError(url, "the rest of the file", _reason(error)) from error


def _open(url: str, timeout: float) -> Any:
    """Open `url`, or fail after `timeout` seconds in all.

    The socket's own time-out holds for each address of a host and not for the look-up of its name,
    so behind a closed network it adds up to minutes. Hence a thread, which is abandoned when late.
    """
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    late = threading.Event()

    def work() -> None:
        try:
            request = urllib.request.Request(url, headers={"User-Agent": "noeira"})
            answer = urllib.request.urlopen(request, timeout=timeout)
        except Exception as error:
            answer = error
        answers.put(answer)
        if late.is_set():
            _close(answer)

    threading.Thread(target=work, name="noeira-download", daemon=True).start()
    try:
        answer = answers.get(timeout=timeout)
    except queue.Empty:
        late.set()
        raise DatasetError(url, f"an answer within {timeout:g} s", "none") from None
    if isinstance(answer, Exception):
        _close(answer)
        raise DatasetError(url, "the file", _reason(answer)) from answer
    return answer


def _close(answer: Any) -> None:
    """Close a response; an HTTPError holds one too."""
    if hasattr(answer, "close"):
        with contextlib.suppress(Exception):
            answer.close()


def _reason(error: BaseException) -> str:
    """Say in a few words what went wrong, without the wrapping of urllib."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP status {error.code} ({error.reason})"
    if isinstance(error, urllib.error.URLError):
        error = error.reason if isinstance(error.reason, BaseException) else error
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
