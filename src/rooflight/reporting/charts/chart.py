"""A chart as data: its definition, how to read it, and the same numbers as a table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rooflight.reporting.table import Table

WIDTH = 760
"""Of a picture, in pixels; in a page a chart takes the width that there is."""


@dataclass(frozen=True)
class Chart:
    """One picture. Colours of its own are those of `theme`; axes and text take theirs from the page, light or dark."""

    name: str
    """What `--chart` calls it, and the address of its place in a page."""
    title: str
    """What it shows."""
    caption: str
    """How to read it, and where its numbers are from: true on paper, too."""
    spec: dict[str, Any]
    """Its definition in Vega-Lite, with its data inside and without a theme; its width is `WIDTH`."""
    table: Table
    """The same numbers, for readers who cannot see it and for formats without pictures; its note is what of the caption
    they need."""
    hint: str = ""
    """What can be done with it, where it answers to clicks; nowhere else."""

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """In a notebook: interactive where that can be shown, else as a picture."""
        from rooflight.reporting.charts.pictures import mimebundle

        return mimebundle(self)


def renamed(chart: Chart, name: str, title: str) -> Chart:
    """The same under another name, where a page has it twice."""
    return replace(chart, name=name, title=title)
