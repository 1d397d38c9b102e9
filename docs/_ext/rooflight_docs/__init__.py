"""Makes pages of the site out of the program and of files elsewhere in the repository, while Sphinx reads.

A page of docs/ that says `<!-- generated: cli -->` gets the reference in that place; one that says
`<!-- included: ../../CHANGELOG.md -->` gets that file, its links mended; `<!-- toctree ... -->` is the directive of
that name, which GitHub would show as code. The source tree is never written to, and on GitHub such a page says in its
own words where to look.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from rooflight_docs.links import moved

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

REFERENCE = {
    "cli": "rooflight_docs.cli_page",
    "api": "rooflight_docs.api_page",
    "file-format": "rooflight_docs.format_page",
    "formulas": "rooflight_docs.formulas_page",
    "devices": "rooflight_docs.devices_page",
    "metrics": "rooflight_docs.metrics_page",
}
"""Names of generated pages, and the modules that write them."""
_GENERATED = re.compile(r"<!-- generated: ([\w-]+) -->\n(?:.*\n)*?<!-- end -->\n")
_CONTENTS = re.compile(r"<!-- toctree\n(.*?)\n-->", re.DOTALL)
_INCLUDED = re.compile(r"^(?:.*\n)*?<!-- included: (\S+) -->\n(?:.*\n)*")


def generated(name: str) -> str:
    """The Markdown of one page of the reference."""
    text: str = import_module(REFERENCE[name]).page()
    return text


def assembled(text: str, path: Path) -> str:
    """What Sphinx is to read in place of the page at `path`."""
    if found := _INCLUDED.match(text):
        source = (path.parent / found[1]).resolve()
        return moved(source.read_text(), source, path)
    text = _GENERATED.sub(lambda match: generated(match[1]) + "\n", text)
    text = _CONTENTS.sub(lambda match: f"```{{toctree}}\n{_contents(match[1], path.parent)}\n```", text)
    return moved(text, path, path)


def _contents(entries: str, folder: Path) -> str:
    """The entries of a table of contents; one that ends in `?` only if its page has been written."""
    lines = entries.split("\n")
    kept = [line for line in lines if not line.endswith("?") or (folder / f"{line[:-1]}.md").exists()]
    return "\n".join(line.removesuffix("?") for line in kept)


def _on_read(app: Sphinx, name: str, source: list[str]) -> None:
    source[0] = assembled(source[0], Path(app.env.doc2path(name)))


def _outdated(app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Sphinx looks at files, and these pages change without theirs."""
    return [name for name in env.found_docs if name.startswith(("reference/", "project/"))]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _on_read)
    app.connect("env-get-outdated", _outdated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
