"""Which rooflight this is: what the build found in the tags of git, or the fallback where nothing was built.

A module of its own, since asking `importlib.metadata` at every start would take longer than the rest of `--version`.
"""

from __future__ import annotations

UNBUILT = "0.1.0.dev0"
"""Of a source tree that was never built or installed; pyproject.toml's fallback-version says the same."""


def _built() -> str:
    try:
        from rooflight._built import version  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return UNBUILT
    return str(version)


__version__ = _built()
