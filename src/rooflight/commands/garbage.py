"""How often Python looks for garbage while a command works, and when it ends."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (100_000, 50, 100)


@contextmanager
def rarely_collected() -> Iterator[None]:
    """For a command that makes hundreds of thousands of objects and keeps them to its end, and runs nobody's program.

    Looking through them for cycles again and again takes a sixth of the time of a report and finds nothing; taking them
    apart one by one when Python ends, a second more.
    """
    before = gc.get_threshold()
    gc.set_threshold(*_THRESHOLDS)
    atexit.register(gc.freeze)
    try:
        yield
    finally:
        gc.set_threshold(*before)
