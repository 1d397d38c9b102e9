"""A chart as a file of its own: PNG, SVG or PDF, made from the one definition by vl-convert, without a network."""

from __future__ import annotations

import re
from typing import Any, Literal

from rooflight.reporting.charts.chart import Chart
from rooflight.reporting.charts.theme import Mode, config

Form = Literal["png", "svg", "pdf"]
_FONT = "DejaVu Sans, Liberation Sans, Arial, sans-serif"
"""vl-convert measures text with fonts that it finds: names that a browser resolves it does not."""
_CLIP = re.compile(r'(?:url\(#clip|id="clip)(\d+)')
_BACKGROUNDS: dict[Mode, str] = {"light": "#ffffff", "dark": "#16181c"}


def picture(chart: Chart, form: Form, *, mode: Mode = "light", scale: float = 2.0, titled: bool = True) -> bytes:
    """The chart on an opaque ground; `scale` is pixels for a point of a PNG. The same chart gives the same bytes."""
    import vl_convert

    spec = themed(chart, mode, titled=titled)
    if form == "svg":
        return _renumbered(vl_convert.vegalite_to_svg(spec, show_warnings=False)).encode()
    if form == "pdf":
        return bytes(vl_convert.vegalite_to_pdf(spec))
    return bytes(vl_convert.vegalite_to_png(spec, scale=scale, show_warnings=False))


def _renumbered(svg: str) -> str:
    """Vega counts its clip paths through the life of the process: here they begin with 0."""
    numbers = dict.fromkeys(_CLIP.findall(svg))
    new = {old: str(place) for place, old in enumerate(numbers)}
    return _CLIP.sub(lambda found: found[0].removesuffix(found[1]) + new[found[1]], svg)


def themed(chart: Chart, mode: Mode, *, titled: bool = True) -> dict[str, Any]:
    """Vega-Lite that stands alone: with colours, fonts, a ground and its title."""
    look = {**config(mode), "background": _BACKGROUNDS[mode], "font": _FONT, "padding": 12}
    spec = {key: value for key, value in chart.spec.items() if key != "background"}
    title = {"title": {"text": chart.title, "anchor": "start", "offset": 10}} if titled else {}
    return {**spec, **title, "config": look}


def mimebundle(chart: Chart) -> dict[str, Any]:
    """For a notebook: Vega-Lite for those that draw it themselves, SVG for all others, and its title."""
    spec = themed(chart, "light")
    version = str(spec["$schema"]).rpartition("/v")[2].partition(".")[0]
    return {
        f"application/vnd.vegalite.v{version}+json": spec, "image/svg+xml": picture(chart, "svg").decode(),
        "text/plain": chart.title,
    }  # fmt: skip
