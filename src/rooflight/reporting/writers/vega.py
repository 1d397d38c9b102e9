"""The libraries that draw the charts of a page, as vl-convert bundles them.

Bundling takes longer than all else that a page needs, and gives the same text each time: it is kept in the user's cache
folder, under the versions of what is in it, and is only made where it is not there. Nothing is lost with that folder.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import version

from rooflight import kept


@cache
def vega_bundle() -> str:
    """JavaScript that gives a page `vegaEmbed`, `vegaLite` and `vega`."""
    name = _name()
    found = kept.read(name)
    if found is not None:
        return found.decode()
    bundle = _bundled()
    kept.write(name, bundle.encode())
    return bundle


def _name() -> str:
    import vl_convert

    versions = (version("vl-convert-python"), vl_convert.get_vega_version(), vl_convert.get_vegalite_versions()[-1],
                vl_convert.get_vega_embed_version())  # fmt: skip
    return f"vega-{'-'.join(versions)}.kept"  # an older rooflight's, .js, has no check in front


def _bundled() -> str:
    import vl_convert

    bundle: str = vl_convert.javascript_bundle(None)  # type: ignore[arg-type]  # its stub forgets the default
    return bundle
