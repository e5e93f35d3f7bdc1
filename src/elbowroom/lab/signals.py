"""Ctrl-C and SIGTERM as a wish that is asked for, so that what is going on ends cleanly."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C (or SIGTERM) into a wish to stop; the second stops at once.

    Yields a function that tells whether the wish was made. In other threads than the main one,
    which alone gets signals, nothing changes.
    """
    wished: list[int] = []

    def wish(number: int, _frame: object) -> None:
        if wished:
            raise KeyboardInterrupt
        wished.append(number)

    names = (signal.SIGINT, signal.SIGTERM)
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {name: signal.signal(name, wish) for name in names}
    try:
        yield lambda: bool(wished)
    finally:
        for name, handler in before.items():  # None: it was not set from Python
            signal.signal(name, signal.SIG_DFL if handler is None else handler)
