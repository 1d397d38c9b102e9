"""Every link in the repository's pages leads somewhere: to a file, to a heading in it, or to a well-formed address."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.fixtures.paths import ROOT

sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from rooflight_docs import assembled
from rooflight_docs.links import PAGES, links, moved


def _pages() -> list[Path]:
    """The Markdown that git knows, or would: what a build or an environment holds is not ours."""
    asked = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
    found = done.stdout.split("\n") if done.returncode == 0 else []
    paths = [ROOT / line for line in found if line] or [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(path for path in paths if path.exists() and "tests" not in path.relative_to(ROOT).parts)


MARKDOWN = _pages()


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def anchors(page: Path) -> frozenset[str]:
    """What may follow `#`: the headings as GitHub spells them, twice the same with a number, and ids in HTML."""
    text = assembled(page.read_text(), page) if page.is_relative_to(ROOT / "docs") else page.read_text()
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    found: list[str] = []
    for title in re.findall(r"^#+ (.*?)\s*#*$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w -]", "", words.lower()).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return frozenset([*found, *re.findall(r"""<a (?:id|name)="([^"]+)\"""", text)])


@pytest.mark.parametrize("page", MARKDOWN, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, heading = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        assert found.exists(), f"{name_of(page)}: {target}"
        assert found.is_relative_to(ROOT), f"{name_of(page)}: {target} leads out of the repository"
        if heading and found.suffix == ".md":
            assert heading in anchors(found), f"{name_of(page)}: no heading #{heading} in {found.name}"


@pytest.mark.parametrize("page", MARKDOWN, ids=name_of)
def test_addresses_are_well_formed(page: Path) -> None:
    """There may be no network here to ask whether anybody answers."""
    for target in links(page.read_text()):
        if not re.match(r"[a-z]+:", target):
            continue
        parts = urlsplit(target)
        assert parts.scheme in ("https", "mailto"), f"{name_of(page)}: {target}"
        assert parts.scheme == "mailto" or re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", parts.netloc), target


def test_there_are_links_to_check() -> None:
    assert sum(len(links(page.read_text())) for page in MARKDOWN) >= 150
    assert {ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"} <= set(MARKDOWN)
    assert any(target.startswith("https:") for page in MARKDOWN for target in links(page.read_text()))


def test_links_in_code_are_none() -> None:
    text = '[a](b.md) `[c](d.md)`\n```text\n[e](f.md)\n```\n[`g`](h.md) <img src="i.png">'
    assert links(text) == ["b.md", "h.md", "i.png"]


def test_a_page_that_moves_keeps_its_links() -> None:
    """README.md says docs/why.md; the same text as docs/project/readme.md has to say ../why.md."""
    old, new = ROOT / "README.md", ROOT / "docs" / "project" / "readme.md"
    assert moved("[w](docs/why.md#evidence)", old, new) == "[w](../why.md#evidence)"
    assert moved("[c](CONTRIBUTING.md)", old, new) == "[c](contributing.md)"
    assert moved("[x](https://example.org/a) [y](#here)", old, new) == "[x](https://example.org/a) [y](#here)"


def test_pages_of_the_site_for_files_elsewhere_exist() -> None:
    assert [str(source) for source in PAGES if not source.exists()] == []
    assert [str(page) for page in PAGES.values() if not page.exists()] == []


if __name__ == "__main__":  # the addresses outside, for somebody with a network
    found = {target: name_of(page) for page in MARKDOWN for target in links(page.read_text()) if "://" in target}
    sys.stdout.writelines(f"{target}  ({page})\n" for target, page in sorted(found.items()))
