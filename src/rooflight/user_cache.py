"""What takes long to make and can be made again, kept in the user's cache folder.

Nothing is lost with that folder: one that is not there, that cannot be written to, or that is damaged only makes things
take as long as they do the first time.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path

from rooflight.errors import RooflightError
from rooflight.files import write_atomically

_CHECK = 16
"""Bytes in front of the content, by which a damaged file is known."""


def read(name: str) -> bytes | None:
    """The content, as it was written, or `None`."""
    try:
        stored = (_folder() / name).read_bytes()
    except (OSError, RuntimeError):
        return None
    content = stored[_CHECK:]
    return content if stored[:_CHECK] == _check(content) else None


def write(name: str, content: bytes, *, most: int | None = None) -> None:
    """`most`: how many bytes files with the same beginning, up to the first dash, may take; the oldest go."""
    try:
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, _check(content) + content, force=True)
        if most is not None:
            alike = [(path.stat(), path) for path in folder.glob(f"{name.partition('-')[0]}-*")]
            alike.sort(key=lambda file: file[0].st_mtime_ns, reverse=True)
            taken = accumulate(about.st_size for about, _ in alike)
            for (_, old), together in zip(alike, taken, strict=True):
                if together > most:
                    old.unlink(missing_ok=True)
    except (OSError, RuntimeError, RooflightError):
        pass  # a home that cannot be written to, or none: the next time takes as long as this one


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rooflight"


def _check(content: bytes) -> bytes:
    return blake2b(content, digest_size=_CHECK).digest()
