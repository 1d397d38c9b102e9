"""The documentation site builds without a warning, its links lead somewhere, and it loads nothing from elsewhere."""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.fixtures.paths import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once, whichever of the test processes comes first."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if shared.name.startswith("popen-") else shared
    folder, log = shared / "site", shared / "site.log"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not log.exists():
            asked = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", ROOT / "docs", folder]
            done = subprocess.run([*map(str, asked)], capture_output=True, text=True, cwd=ROOT)
            log.write_text(f"{done.returncode}\n{done.stderr}")
    return folder


class _Page(HTMLParser):
    """Links, what the page loads, and what can be linked to in it."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        held = {name: value for name, value in attrs if value is not None}
        if "id" in held:
            self.ids.add(held["id"])
        if tag == "a" and "href" in held:
            self.links.append(held["href"])
        elif tag == "link" and held.get("rel") not in ("next", "prev", "index", "search", "canonical"):
            self.loads.append(held.get("href", ""))
        self.loads += [held[name] for name in ("src", "srcset", "data", "poster") if name in held]


@cache
def read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text())
    return page


def pages(site: Path) -> Iterator[Path]:
    return (path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts)


def test_the_site_builds_without_a_warning(site: Path) -> None:
    code, _, said = (site.parent / "site.log").read_text().partition("\n")
    assert (code, said.strip()) == ("0", "")


def test_every_page_is_there(site: Path) -> None:
    sources = [path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts]
    missing = [path for path in sources if not (site / path.relative_to(ROOT / "docs")).with_suffix(".html").exists()]
    assert missing == []
    assert len(sources) >= 50


def test_links_of_the_site_lead_somewhere(site: Path) -> None:
    broken, checked = [], 0
    for page in pages(site):
        for link in read(page).links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            checked += 1
            is_page = target.suffix == ".html" and target.exists()
            if not target.exists() or (is_page and parts.fragment and unquote(parts.fragment) not in read(target).ids):
                broken.append(f"{page.name}: {link}")
    assert broken == []
    assert checked > 1000


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loads = {(page.name, asset) for page in pages(site) for asset in read(page).loads}
    assert loads
    assert [one for one in loads if urlsplit(one[1]).scheme not in ("", "data") or one[1].startswith("//")] == []
    for sheet in site.rglob("*.css"):
        urls = re.findall(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)", sheet.read_text())
        outside = [url for found in urls for url in found if re.match(r"(https?:)?//", url)]
        assert outside == [], sheet


def test_the_reference_is_in_the_site(site: Path) -> None:
    """By one word of each page that only the program knows."""
    for name, word in {"cli": "--max-batch", "api": "time_interval_s", "file-format": "recompute_flops",
                       "formulas": "cudnn_batch_norm", "devices": "titan-x-maxwell"}.items():  # fmt: skip
        assert word in (site / "reference" / f"{name}.html").read_text(), name
