"""docs/benchmarks.md has two authors: benchmarks/estimate.py writes the page, benchmarks/memory.py one section of it."""

from __future__ import annotations

import re
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks.md"
MEMORY = "## Peak memory"
NEXT = "## Predicted time"
"""The heading that comes after it."""


def memory_section(page: str) -> str:
    """The section as it stands in the page; empty where it has none."""
    found = re.search(rf"^{MEMORY}\n.*?(?=\n+^{NEXT}$)", page, re.MULTILINE | re.DOTALL)
    return found[0] if found else ""


def with_section(page: str, section: str) -> str:
    """The page with this section in the place of the one it had."""
    known = memory_section(page)
    if known:
        page = page.replace(f"{known}\n\n", "")
    before, heading, after = page.partition(f"\n{NEXT}\n")
    return f"{before}\n{section}\n\n{heading.lstrip()}{after}"
