"""Ctrl-C and its like, while a command runs."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


@contextmanager
def answered_by(handler: Handler, *names: str) -> Iterator[None]:
    """These signals, as far as the system has them, go to `handler` while the block lasts."""
    if threading.current_thread() is not threading.main_thread():
        yield  # none comes here
        return
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def say_again(seconds: float) -> None:
    """SIGALRM after so long, 0: never. Windows has no such clock, and Ctrl-C is said once there."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


@contextmanager
def heard_once() -> Iterator[None]:
    """Ctrl-C is said again every second until somebody listens. Who listens writes down what was measured, which may
    take longer than that, and must not be interrupted by the same Ctrl-C.
    """
    usual = signal.getsignal(signal.SIGALRM) if hasattr(signal, "SIGALRM") else None
    if not callable(usual):
        yield
        return

    def handler(number: int, frame: FrameType | None) -> None:
        error = sys.exception()
        while error is not None and not isinstance(error, KeyboardInterrupt):
            error = error.__context__
        if error is None:
            usual(number, frame)

    with answered_by(handler, "SIGALRM"):
        yield
