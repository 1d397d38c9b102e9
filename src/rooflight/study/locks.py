"""Who works on what: byte ranges of one file, which the kernel gives back when a process dies, however it dies.

Every piece of work has a byte of its own, far out in a file that stays empty: no space is needed, and none is left
behind. Locks belong to the open file, so that two of them exclude each other inside one process as well.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rooflight.errors import BadFile, RooflightError

try:
    import fcntl
except ImportError:  # Windows; what else rooflight does works there
    fcntl = None  # type: ignore[assignment]

_PRESENCE = "somebody is here"
_FLOCK = "hhqqi4x"
"""Linux's `struct flock` where files are addressed with 64 bits."""
_OFD = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")
"""Locks of an open file; elsewhere than on Linux they are those of a process."""


class Locks:
    """The locks of one study's folder, as one process holds them."""

    def __init__(self, path: Path) -> None:
        if fcntl is None:
            raise RooflightError("no-locks", "a study locks its files as Linux and macOS do: run it there, or in WSL")
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise BadFile(
                "write-failed", f"cannot open {path}: {error.strerror or error}; may you write into the folder?"
            ) from error

    def close(self) -> None:
        os.close(self._file)

    def take(self, name: str, *, wait: bool = False, shared: bool = False) -> bool:
        """Is it ours now? `wait`: until it is."""
        return self._set(fcntl.F_RDLCK if shared else fcntl.F_WRLCK, name, wait=wait)

    def give(self, name: str) -> None:
        self._set(fcntl.F_UNLCK, name, wait=False)

    @contextmanager
    def holding(self, name: str, *, wait: bool = True) -> Iterator[bool]:
        """Is it ours while the block lasts? `wait`: until it is."""
        is_ours = self.take(name, wait=wait)
        try:
            yield is_ours
        finally:
            if is_ours:
                self.give(name)

    def is_free(self, name: str) -> bool:
        """Has nobody else got it at this moment?"""
        if not _OFD:
            if not self.take(name):
                return False
            self.give(name)
            return True
        answer: int = struct.unpack(_FLOCK, self._asked(fcntl.F_OFD_GETLK, fcntl.F_WRLCK, name))[0]
        return answer == fcntl.F_UNLCK

    def be_present(self) -> None:
        """Tell the others that somebody works here."""
        self.take(_PRESENCE, wait=True, shared=True)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Is nobody else at work here? While the block lasts, nobody begins."""
        is_alone = self.take(_PRESENCE)
        try:
            yield is_alone
        finally:
            if is_alone:
                self.take(_PRESENCE, shared=True)

    def _set(self, kind: int, name: str, *, wait: bool) -> bool:
        try:
            if _OFD:
                self._asked(fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, kind, name)
            else:
                how = {fcntl.F_RDLCK: fcntl.LOCK_SH, fcntl.F_WRLCK: fcntl.LOCK_EX, fcntl.F_UNLCK: fcntl.LOCK_UN}[kind]
                fcntl.lockf(self._file, how if wait or kind == fcntl.F_UNLCK else how | fcntl.LOCK_NB, 1, _place(name))
        except OSError as error:
            if not wait and error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise BadFile(
                "no-locks",
                f"the folder's file system takes no locks: {error.strerror or error}; give a folder on another one",
            ) from error
        return True

    def _asked(self, command: int, kind: int, name: str) -> bytes:
        return fcntl.fcntl(self._file, command, struct.pack(_FLOCK, kind, os.SEEK_SET, _place(name), 1, 0))


def _place(name: str) -> int:
    """Its byte. Two names on one byte would only wait for each other."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
