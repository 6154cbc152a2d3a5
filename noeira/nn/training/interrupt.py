"""Ctrl-C during training: finish the current step, then stop; a second one stops at once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Interrupt:
    """Whether the user asked to stop."""

    def __init__(self) -> None:
        self.requested = False

    def handle(self, signum: int, frame: object) -> None:
        """Signal handler."""
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        print("\nstopping after this step (Ctrl-C again to stop at once)", file=sys.stderr, flush=True)


@contextmanager
def catching_interrupt() -> Iterator[Interrupt]:
    """Turn SIGINT into a request inside the block; outside the main thread signals stay as they are."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    previous = signal.signal(signal.SIGINT, interrupt.handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, previous)
