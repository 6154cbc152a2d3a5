"""The line a user sees while something compiles: what, and for how long."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("noeira.compile")

_REFRESH_SECONDS = 0.2


@contextmanager
def compiling(what: str) -> Iterator[None]:
    """Show "compiling <what>" with the elapsed time while the block runs.

    On a terminal it is one line that rewrites itself; elsewhere it is one plain line at the start and one at the
    end, on standard error. Both also go to the logger `noeira.compile` at DEBUG level.
    """
    live = sys.stderr.isatty()
    start = time.perf_counter()
    stop = threading.Event()

    def elapsed() -> str:
        return f"{time.perf_counter() - start:.1f} s"

    def tick() -> None:
        while not stop.wait(_REFRESH_SECONDS):
            print(f"\r\x1b[2Kcompiling {what} ... {elapsed()}", end="", file=sys.stderr, flush=True)

    log.debug("compiling %s", what)
    thread = threading.Thread(target=tick, daemon=True) if live else None
    if thread:
        thread.start()
    else:
        print(f"compiling {what} ...", file=sys.stderr, flush=True)
    outcome = "failed"
    try:
        yield
        outcome = "compiled"
    finally:
        stop.set()
        if thread:
            thread.join()
        log.debug("%s %s in %s", outcome, what, elapsed())
        clear = "\r\x1b[2K" if live else ""
        print(f"{clear}{outcome} {what} in {elapsed()}", file=sys.stderr, flush=True)
