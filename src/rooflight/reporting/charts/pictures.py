"""All that vl-convert does, without a network: a chart as PNG, SVG or PDF, and the libraries that draw the charts of a
page.

vl-convert draws with V8, which reserves far more addresses than it uses and ends the process where it cannot: under a
limit of virtual memory, as login nodes set with `ulimit -v`, a process of its own tries it first.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from typing import Any, Literal

from rooflight import user_cache
from rooflight.errors import RooflightError
from rooflight.formatting import bytes_
from rooflight.reporting.charts.chart import Chart, Mode, config

PictureForm = Literal["png", "svg", "pdf"]
_FONT = "DejaVu Sans, Liberation Sans, Arial, sans-serif"
"""vl-convert measures text with fonts that it finds: names that a browser resolves it does not."""
_CLIP = re.compile(r'(?:url\(#clip|id="clip)(\d+)')
_BACKGROUNDS: dict[Mode, str] = {"light": "#ffffff", "dark": "#16181c"}
_TRY_TO_DRAW = """
import resource, sys
import vl_convert
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
vl_convert.vega_to_svg({"width": 1, "height": 1})
"""


class NoPictures(RooflightError):
    """The machine does not let vl-convert draw."""


def picture(chart: Chart, form: PictureForm, *, mode: Mode = "light", scale: float = 2.0) -> bytes:
    """The chart on an opaque ground; `scale` is pixels for a point of a PNG. The same chart gives the same bytes."""
    import vl_convert

    check_drawing()
    spec = themed(chart, mode)
    if form == "svg":
        return _renumbered(vl_convert.vegalite_to_svg(spec, show_warnings=False)).encode()
    if form == "pdf":
        return bytes(vl_convert.vegalite_to_pdf(spec))
    return bytes(vl_convert.vegalite_to_png(spec, scale=scale, show_warnings=False))


def check_drawing() -> None:
    """`NoPictures` where drawing would end this process."""
    limit = _address_limit()
    if limit is not None and not _can_draw(limit):
        raise NoPictures(
            "memory-limit",
            f"pictures cannot be drawn under a limit of {bytes_(limit)} of virtual memory: raise it with "
            "`ulimit -v unlimited`, or take the numbers, as with --to=md or --to=csv",
        )


def _address_limit() -> int | None:
    """Of the addresses of this process, in bytes; `None` where there is none, or none that the system can set."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


@cache
def _can_draw(limit: int) -> bool:
    """Does another process draw with the addresses that are left to this one?"""
    try:
        with open("/proc/self/statm") as pages:
            taken = int(pages.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        taken = 0
    line = [sys.executable, "-P", "-c", _TRY_TO_DRAW, str(max(limit - taken, 0))]
    return subprocess.run(line, capture_output=True, check=False).returncode == 0


def _renumbered(svg: str) -> str:
    """Vega counts its clip paths through the life of the process: here they begin with 0."""
    numbers = dict.fromkeys(_CLIP.findall(svg))
    new = {old: str(place) for place, old in enumerate(numbers)}
    return _CLIP.sub(lambda match: match[0].removesuffix(match[1]) + new[match[1]], svg)


def themed(chart: Chart, mode: Mode) -> dict[str, Any]:
    """Vega-Lite that stands alone: with colours, fonts, a ground and its title."""
    look = {**config(mode), "background": _BACKGROUNDS[mode], "font": _FONT, "padding": 12}
    title = {"text": chart.title, "anchor": "start", "offset": 10}
    return {**chart.spec, "title": title, "config": look}


def mimebundle(chart: Chart) -> dict[str, Any]:
    """For a notebook: Vega-Lite for those that draw it themselves, SVG for all others, and its title."""
    spec = themed(chart, "light")
    vega_lite = str(spec["$schema"]).rpartition("/v")[2].partition(".")[0]
    bundle = {f"application/vnd.vegalite.v{vega_lite}+json": spec, "text/plain": chart.title}
    try:
        return {**bundle, "image/svg+xml": picture(chart, "svg").decode()}
    except NoPictures:
        return bundle


@cache
def vega_bundle() -> str:
    """JavaScript that gives a page `vegaEmbed`, `vegaLite` and `vega`.

    Bundling takes longer than all else that a page needs, and gives the same text each time: it is kept in the user's
    cache folder, under the versions of what is in it. Nothing is lost with that folder.
    """
    name = _bundle_name()
    cached = user_cache.read(name)
    if cached is not None:
        return cached.decode()
    check_drawing()
    bundle = _bundled()
    user_cache.write(name, bundle.encode())
    return bundle


def _bundle_name() -> str:
    import vl_convert

    versions = (
        version("vl-convert-python"),
        vl_convert.get_vega_version(),
        vl_convert.get_vegalite_versions()[-1],
        vl_convert.get_vega_embed_version(),
    )
    return f"vega-{'-'.join(versions)}.kept"  # an older rooflight's, .js, has no check in front


def _bundled() -> str:
    import vl_convert

    bundle: str = vl_convert.javascript_bundle(None)  # type: ignore[arg-type]  # its stub forgets the default
    return bundle
