"""The libraries that draw the charts of a page, as vl-convert bundles them.

Bundling takes longer than all else that a page needs, and gives the same text each time: it is kept in the user's cache
folder, under the versions of what is in it, and is only made where it is not there. Nothing is lost with that folder.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import version
from pathlib import Path

from rooflight.errors import BadFile
from rooflight.files import write_atomically


@cache
def vega_bundle() -> str:
    """JavaScript that gives a page `vegaEmbed`, `vegaLite` and `vega`."""
    kept = _kept_at()
    try:
        return kept.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):  # not made yet, or spoilt: it is made anew
        bundle = _bundled()
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, bundle.encode(), force=True)
    except (OSError, BadFile):
        pass  # a home that cannot be written to: the next page takes as long as this one
    return bundle


def _kept_at() -> Path:
    import vl_convert

    versions = (version("vl-convert-python"), vl_convert.get_vega_version(), vl_convert.get_vegalite_versions()[-1],
                vl_convert.get_vega_embed_version())  # fmt: skip
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rooflight" / f"vega-{'-'.join(versions)}.js"


def _bundled() -> str:
    import vl_convert

    bundle: str = vl_convert.javascript_bundle(None)  # type: ignore[arg-type]  # its stub forgets the default
    return bundle
