"""The README shows what the commands really print.

Every console block that starts with `$ rooflight` is run and compared; a line `...` stands for what was left out there.
`python tests/test_readme.py` puts the output of today in.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"```console\n\$ rooflight (?P<arguments>.*)\n(?P<shown>(?:.*\n)*?)```\n")
WIDTH = "112"


def printed(arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "rooflight.commands.main", *arguments.split()],
        capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": WIDTH},
    )  # fmt: skip
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    return [line for line in lines if not line.startswith("one trace of")]  # names versions


def comparable(lines: list[str]) -> list[str]:
    return [line.rstrip() for line in lines if line.strip()]


BLOCKS = [(match["arguments"], match["shown"].splitlines()) for match in BLOCK.finditer(README.read_text())]


@pytest.mark.parametrize(("arguments", "shown"), BLOCKS, ids=[arguments for arguments, _ in BLOCKS])
def test_the_readme_shows_what_is_printed(arguments, shown):
    lines = comparable(printed(arguments))
    parts = "\n".join(comparable(shown)).split("\n...")
    text = "\n".join(lines)
    assert text.startswith(parts[0])
    for part in parts[1:]:
        assert part.strip("\n") in text


def test_there_are_blocks_to_compare():
    assert len(BLOCKS) >= 3


def overwrite() -> None:
    def fresh(match: re.Match[str]) -> str:
        lines, shown = printed(match["arguments"]), match["shown"].splitlines()
        if "..." in shown:
            lines = [*lines[: shown.index("...")], "..."]
        return "\n".join([f"```console\n$ rooflight {match['arguments']}", *lines, "```\n"])

    README.write_text(BLOCK.sub(fresh, README.read_text()))


if __name__ == "__main__":
    overwrite()
