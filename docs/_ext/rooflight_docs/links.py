"""Links that work on GitHub and on the site: what lies outside docs/ but has a page there is linked to that page."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = {
    ROOT / "README.md": DOCS / "project" / "readme.md",
    ROOT / "CONTRIBUTING.md": DOCS / "project" / "contributing.md",
    ROOT / "CHANGELOG.md": DOCS / "project" / "changelog.md",
    ROOT / "RELEASING.md": DOCS / "project" / "releasing.md",
    ROOT / "studies" / "README.md": DOCS / "project" / "studies.md",
    ROOT / "benchmarks" / "README.md": DOCS / "project" / "benchmarks.md",
    ROOT / "src" / "rooflight" / "recordings" / "README.md": DOCS / "project" / "recordings.md",
    ROOT / "src" / "rooflight" / "hardware" / "specs": DOCS / "reference" / "devices.md",
    ROOT / "studies": DOCS / "project" / "studies.md",
    ROOT / "examples": DOCS / "examples.md",
    DOCS: DOCS / "index.md",
    DOCS / "decisions": DOCS / "decisions" / "index.md",
    DOCS / "reference": DOCS / "reference" / "index.md",
}
"""Files and folders of the repository, and their pages. Only those that exist are used."""
_LINK = re.compile(r"(?P<before>!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\()(?P<target>[^)\s]+)(?P<after>\))")


def moved(text: str, old: Path, new: Path) -> str:
    """The text of the file `old` as it must read at `new`, so that its links lead to the same places."""

    def target(link: str) -> str:
        path, mark, anchor = link.partition("#")
        if not path or _is_elsewhere(link):
            return link
        found = Path(os.path.normpath(old.parent / path))
        page = PAGES.get(found)
        if page is not None and page.exists():
            found = page
        elif found.is_dir():
            found = next((found / name for name in ("README.md", "index.md") if (found / name).exists()), found)
        return os.path.relpath(found, new.parent) + mark + anchor

    return relinked(text, target)


def relinked(text: str, target: Callable[[str], str]) -> str:
    """Every link outside of code changed by `target`."""
    return _outside_code(text, lambda part: _LINK.sub(lambda m: m["before"] + target(m["target"]) + m["after"], part))


def links(text: str) -> list[str]:
    """The targets of all links outside of code, also of HTML's src and href."""
    found: list[str] = []

    def note(part: str) -> str:
        found.extend(match["target"] for match in _LINK.finditer(part))
        found.extend(re.findall(r"""<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)="([^"]+)\"""", part))
        return part

    _outside_code(text, note)
    return found


def _is_elsewhere(link: str) -> bool:
    return re.match(r"[a-z]+:", link) is not None or link.startswith("#")


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """Blocks and spans of code stay as they are."""
    parts = re.split(r"(^ *```.*?^ *```[^\n]*$|`[^`\n]+`(?!\]))", text, flags=re.MULTILINE | re.DOTALL)
    kept = [part if part.startswith("`") or part.lstrip().startswith("```") else change(part) for part in parts]
    return "".join(kept)
