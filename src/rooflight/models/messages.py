"""Parts of the one-line messages of this room."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggest(name: str, known: Iterable[str], *, otherwise: str = "see `rooflight list models`") -> str:
    """The end of a message about an unknown name: the nearest known ones, or where to look."""
    near = difflib.get_close_matches(name.lower(), list(known), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else otherwise


def one_line(error: BaseException) -> str:
    """What an exception says, without line breaks and the full stop, at most 200 characters; its type if nothing."""
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."
