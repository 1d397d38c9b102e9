"""What makes drawing with Altair quick: data that it does not copy, and definitions that it does not check twice.

Beside that, encodings are given as what they are (`alt.Text("name:N")`, `alt.OpacityValue(**condition)`): for a string
or a dict Altair goes through all of its classes to find the one that is meant, 4 ms each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import altair as alt
from altair.utils.schemapi import debug_mode

_P = ParamSpec("_P")
_R = TypeVar("_R")


def inline(rows: Iterable[Mapping[str, Any]]) -> alt.InlineData:
    """Rows as the data of a chart. Altair copies lists, row by row, whenever charts are laid over one another; a tuple
    it leaves as it is."""
    return alt.InlineData(values=tuple(rows))


def unchecked(draw: Callable[_P, _R]) -> Callable[_P, _R]:
    """Altair checks every part of a definition against its schema when the part is made, which takes longer than the
    drawing. Tests check the whole."""

    @wraps(draw)
    def drawn(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with debug_mode(False):
            return draw(*args, **kwargs)

    return drawn
