"""One recording at a time in a process: torch has one place for whoever is told of ops, and one profiler.

Whoever records holds the slot. A second one is refused, unless the first gives way; so is a fork told to it, since a
child inherits all that watches its parent.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Protocol

from rooflight.errors import BadInput


class AlreadyRecording(BadInput):
    """Somebody else in this process records."""


class Holder(Protocol):
    """Whoever records. It is told of what happens in its own thread."""

    def another_begins(self) -> None:
        """It may leave the slot."""

    def forks(self) -> None:
        """The process is about to be forked."""

    def is_forked(self) -> None:
        """Told in the child."""


class RecordingSlot:
    """Who records now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: Holder | None = None
        self._thread = 0
        self._left_behind: list[Any] = []
        """What a child may not even throw away: that would end what the parent has begun."""

    def take(self, holder: Holder) -> None:
        if (other := self._here()) is not None:
            other.another_begins()
        with self._lock:
            if self._holder is not None:
                raise AlreadyRecording(
                    "already-recording",
                    "something is recorded already in this process: leave the first `with rooflight.record()` before "
                    "another",
                )
            self._holder, self._thread = holder, threading.get_ident()

    def leave(self, holder: Holder) -> None:
        with self._lock:
            if self._holder is holder:
                self._holder = None

    def keep(self, thing: Any) -> None:
        """Until the process ends."""
        self._left_behind.append(thing)

    def _here(self) -> Holder | None:
        """Whoever records in this thread."""
        with self._lock:
            return self._holder if self._thread == threading.get_ident() else None

    def before_fork(self) -> None:
        if (holder := self._here()) is not None:
            holder.forks()

    def in_child(self) -> None:
        self._lock = threading.Lock()
        holder, self._holder = self._holder, None
        if holder is None:
            return
        self.keep(holder)
        if self._thread == threading.get_ident():  # else what it has set is that of a thread which is not here
            holder.is_forked()


SLOT = RecordingSlot()
if hasattr(os, "register_at_fork"):  # not everywhere are there forks
    os.register_at_fork(before=SLOT.before_fork, after_in_child=SLOT.in_child)
