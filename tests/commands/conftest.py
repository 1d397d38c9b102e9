"""Golden pages: what a user reads, word for word. After a change of wording: pytest tests/commands --golden"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

PAGES = Path(__file__).with_name("golden")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the page of that name, or write the page where `--golden` asks for it."""

    def golden(name: str, text: str) -> None:
        page = PAGES / f"{name}.txt"
        if request.config.getoption("--golden"):
            page.write_text(text)
        assert text.splitlines() == page.read_text().splitlines()

    return golden
