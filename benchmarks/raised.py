"""Fail where a change raises a ceiling of budgets.toml or a bar of ratchet.toml, or drops one, without a decision.

usage: raised.py [REV]      (part of make lint; compares with the last commit of main, as sizes.py does)

A decision is a page of docs/decisions that the same change adds or edits.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping

from ratchet import BARS, groups_of
from sizes import BUDGETS, ROOT, base_commit, git

DECISIONS = "docs/decisions/"


def ceilings(text: str) -> dict[str, float]:
    """Return the ceilings of budgets.toml."""
    rooms = tomllib.loads(text).items()
    return {
        f"{room}: {unit}": value for room, budget in rooms for unit, value in budget.items() if isinstance(value, int)
    }


def bars(text: str) -> dict[str, float]:
    """Return the bars of ratchet.toml, as numbers that a worse bar makes larger."""
    groups = groups_of(text) if text else []
    return {
        f"{group.name}: {figure}": unit.badness(bar) for group in groups for figure, (unit, bar) in group.bars.items()
    }


def raised(before: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
    """Return the names whose number rose or is gone."""
    return [name for name, value in before.items() if name not in now or now[name] > value]


def main() -> None:
    base = sys.argv[1] if len(sys.argv) > 1 else base_commit()
    names = git("ls-tree", "-r", "--name-only", base).splitlines()
    found = []
    for file, read in ((BUDGETS, ceilings), (BARS, bars)):
        path = str(file.relative_to(ROOT))
        found += raised(read(git("show", f"{base}:{path}") if path in names else ""), read(file.read_text()))
    changed = git("diff", "--name-only", base).split() + git("ls-files", "--others", "--exclude-standard").split()
    if found and not any(path.startswith(DECISIONS) for path in changed):
        sys.exit(f"raised or dropped since {base[:8]}: {'; '.join(found)}. Say why in a page of {DECISIONS}")


if __name__ == "__main__":
    main()
