"""A chart as a file of its own: PNG, SVG or PDF, made from the one definition by vl-convert, without a network."""

from __future__ import annotations

from typing import Any, Literal

from rooflight.reporting.charts.chart import Chart
from rooflight.reporting.charts.theme import Mode, config

Form = Literal["png", "svg", "pdf"]
_FONT = "DejaVu Sans, Liberation Sans, Arial, sans-serif"
"""vl-convert measures text with fonts that it finds: names that a browser resolves it does not."""
_BACKGROUNDS: dict[Mode, str] = {"light": "#ffffff", "dark": "#16181c"}


def picture(chart: Chart, form: Form, *, mode: Mode = "light", scale: float = 2.0, titled: bool = True) -> bytes:
    """The chart on an opaque ground; `scale` is pixels for a point of a PNG. The same chart gives the same bytes."""
    import vl_convert

    spec = themed(chart, mode, titled=titled)
    if form == "svg":
        return vl_convert.vegalite_to_svg(spec, show_warnings=False).encode()
    if form == "pdf":
        return bytes(vl_convert.vegalite_to_pdf(spec))
    return bytes(vl_convert.vegalite_to_png(spec, scale=scale, show_warnings=False))


def themed(chart: Chart, mode: Mode, *, titled: bool = True) -> dict[str, Any]:
    """Vega-Lite that stands alone: with colours, fonts, a ground and its title."""
    look = {**config(mode), "background": _BACKGROUNDS[mode], "font": _FONT, "padding": 12}
    spec = {key: value for key, value in chart.spec.items() if key != "background"}
    title = {"title": {"text": chart.title, "anchor": "start", "offset": 10}} if titled else {}
    return {**spec, **title, "config": look}
