"""Kernel names as people can read them."""

from __future__ import annotations

import re
from functools import lru_cache

_CASTS = r"\((?:unsigned |signed )?(?:int|long|short|char|bool|long long)\)"
_NOISE = re.compile(
    r"\(anonymous namespace\)::|<unnamed>::|\bvoid (?=\w)"
    r"|::(?:\[lambda[^\]]{0,1000}\]|\{lambda\([^{}]{0,1000}\)#\d{1,9}\}|operator ?\(\)\([^()]{0,1000}\)(?: const)?)"
    r"|, (?:std::|at::detail::)?[Aa]rray<char ?\*, (?:\(int\)|\(unsigned long\))?\d+u?l?>|" + _CASTS
)
_NAMESPACES = re.compile(r"\b(?:\w+::)+(?=[\w~])")
_WRAPPED = re.compile(r"Kernel2?<((?:cutlass|sm\d+)_\w+)>")
_TILE_IN_NAME = re.compile(r"tilesize\d{1,5}x\d{1,5}(?:x\d{1,5})?")


@lru_cache(maxsize=8192)  # a step launches the same few kernels thousands of times
def short_name(name: str, width: int | None = None) -> str:
    """`void at::native::copy<(int)4, at::Fill<float>>(int, float *)` is `copy<4, Fill<float>>`."""
    text = _NAMESPACES.sub("", _without_arguments(_NOISE.sub("", name.strip()))).strip() or name.strip()
    if (wrapped := _WRAPPED.fullmatch(text)) is not None:
        text = wrapped[1]
    if width is None or len(text) <= width:
        return text
    tile = _TILE_IN_NAME.search(text)
    if tile is not None and tile.start() > 8:  # what tells one of a library's kernels from the next
        return f"{text[: width - len(tile[0]) - 1]}…{tile[0]}"
    return f"{text[: width - 1]}…"


def _without_arguments(text: str) -> str:
    """Leave out argument lists, of the kernel and of functions inside its template's arguments.

    In `Memcpy HtoD (Pageable -> Device)` the parentheses belong to the name: a space stands before them.
    """
    characters: list[str] = []
    inside = 0
    for place, character in enumerate(text):
        if character == "(" and (inside or (place > 0 and text[place - 1] != " ")):
            inside += 1
        elif character == ")" and inside:
            inside -= 1
        elif not inside:
            characters.append(character)
    return "".join(characters)
