"""A chart as data: its definition, how to read it, the same numbers as a table; and how all charts look, in colours
that colour-blind readers tell apart (after Okabe and Ito), light and dark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rooflight import views
from rooflight.reporting.table import Table, Worded

Mode = Literal["light", "dark"]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#b8860b", "#6a51a3", "#7f7f7f")
"""In this order. All have a contrast of 3 or so on white and on the dark page; never the only sign: shapes, dashes or
names say the same."""
FONT = 'system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif'

_INKS: dict[Mode, tuple[str, str, str]] = {
    "light": ("#1c1e21", "#5f6670", "#e3e6ea"),
    "dark": ("#e6e8eb", "#a0a7b1", "#33383f"),
}
"""Of titles, of labels, of grids."""


def config(mode: Mode) -> dict[str, Any]:
    """Vega-Lite's configuration, the same for every chart."""
    ink, soft, grid = _INKS[mode]
    return {
        "background": "transparent" if mode == "dark" else "#ffffff00",
        "font": FONT,
        "view": {"stroke": None},
        "axis": {
            "labelColor": soft,
            "titleColor": soft,
            "titleFontWeight": "normal",
            "gridColor": grid,
            "domainColor": soft,
            "tickColor": soft,
            "labelFontSize": 11,
            "titleFontSize": 12,
        },
        "legend": {
            "labelColor": ink,
            "titleColor": soft,
            "titleFontWeight": "normal",
            "labelLimit": 260,
            "symbolStrokeWidth": 2,
        },
        "header": {"labelColor": ink, "titleColor": soft},
        "title": {"color": ink, "subtitleColor": soft, "anchor": "start", "fontSize": 14},
        "range": {"category": list(COLOURS)},
        "text": {"color": ink},
        "rule": {"color": soft},
        "style": {"ink": {"color": ink}, "soft": {"color": soft}},
    }


WIDTH = 760
"""Of a picture, in pixels; in a page a chart takes the width that there is."""


@dataclass(frozen=True)
class Chart(Worded):
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
        return views.mimebundle(self)
