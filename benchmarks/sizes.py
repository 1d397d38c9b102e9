"""Count the lines and tokens of every room, and fail where one is above its ceiling in budgets.toml.

usage: sizes.py [--base REV] [--lower]     (part of make lint; --lower writes every count that fell as the new ceiling)

A token is one of Python's. Comments and docstrings are free; another string costs a token per 8 characters, so that
nothing is gained by packing code into strings or fewer lines. "change" is the difference to the last commit of main, or
to the commit before it if the tree is that commit.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from itertools import groupby
from pathlib import Path

from patches import foreign_attributes, modes, private_symbols

ROOT = Path(__file__).parents[1]
BUDGETS = ROOT / "budgets.toml"
SUFFIXES = (".py", ".md", ".rst", ".toml", ".js", ".css", ".html", ".jinja", ".json", ".csv", ".txt", ".yaml")
LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip
CHARACTERS_PER_TOKEN = 8

Tree = Mapping[str, str]
"""The text of files, by path."""
Budget = Mapping[str, object]


@dataclass(frozen=True)
class Row:
    """One count of one room, now and at the commit compared with."""

    room: str
    unit: str
    now: int
    base: int
    ceiling: int

    @property
    def above(self) -> bool:
        return self.now > self.ceiling


@cache
def tokens(source: str) -> int:
    """Return how many tokens a Python file has."""
    docstrings = {
        (statement.lineno, statement.col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(body := getattr(node, "body", None), list)
        for statement in body
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    }
    count = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.STRING:
            count += 0 if token.start in docstrings else max(1, len(token.string) // CHARACTERS_PER_TOKEN)
        else:
            count += token.type not in LAYOUT
    return count


MEASURES: dict[str, Callable[[Tree], int]] = {
    "lines": lambda files: sum(text.count("\n") for text in files.values()),
    "tokens": lambda files: sum(map(tokens, files.values())),
    "files": len,
    "words": lambda files: sum(len(text.split()) for text in files.values()),
    "foreign_attributes": lambda files: len(foreign_attributes(files)),
    "modes": lambda files: len(modes(files)),
    "private_torch_symbols": lambda files: len(private_symbols(files)),
}


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def working_tree(budgets: Mapping[str, Budget]) -> dict[str, str]:
    """Return the files of all rooms, without those that git ignores."""
    paths = git("ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    return {path: (ROOT / path).read_text() for path in paths if _counts(path, budgets) and (ROOT / path).is_file()}


def tree_at(commit: str, budgets: Mapping[str, Budget], current: Tree) -> dict[str, str]:
    """Return the files of all rooms at a commit; only what has changed since is read from git."""
    changed = set(git("diff", "--name-only", "--no-renames", commit).splitlines())
    paths = [path for path in git("ls-tree", "-r", "--name-only", commit).splitlines() if _counts(path, budgets)]
    return {path: git("show", f"{commit}:{path}") if path in changed else current[path] for path in paths}


def _counts(path: str, budgets: Mapping[str, Budget]) -> bool:
    return path.endswith(SUFFIXES) and any(
        fnmatch(path, pattern) for budget in budgets.values() for pattern in _patterns(budget, "paths")
    )


def base_commit() -> str:
    """Return main's last commit, or the one before it if the tree is that commit; in a shallow clone, HEAD."""
    head = git("rev-parse", "HEAD").strip()
    for name in ("main", "origin/main"):
        commit = git("for-each-ref", "--format=%(objectname)", f"refs/heads/{name}", f"refs/remotes/{name}").strip()
        if commit:
            break
    else:
        commit = head
    if commit != head or git("status", "--porcelain").strip():
        return commit
    return git("rev-list", "--max-count=2", "HEAD").split()[-1]


def rooms(tree: Tree, budgets: Mapping[str, Budget]) -> dict[str, dict[str, str]]:
    """Return the files of every room; `rest_of` names the room of which one holds what no other does."""
    found = {
        room: {
            path: text
            for path, text in tree.items()
            if any(fnmatch(path, pattern) for pattern in _patterns(budget, "paths"))
            and not any(fnmatch(path, pattern) for pattern in _patterns(budget, "without"))
        }
        for room, budget in budgets.items()
    }
    for room, budget in budgets.items():
        if "rest_of" in budget:
            inner = [files for name, files in found.items() if name not in (room, budget["rest_of"])]
            found[room] = {
                path: text
                for path, text in found[str(budget["rest_of"])].items()
                if not any(path in files for files in inner)
            }
    return found


def _patterns(budget: Budget, key: str) -> list[str]:
    patterns = budget.get(key, [])
    assert isinstance(patterns, list), key
    return patterns


def rows(now: Tree, base: Tree, budgets: Mapping[str, Budget]) -> Iterator[Row]:
    """Count every room that has a ceiling."""
    files, files_before = rooms(now, budgets), rooms(base, budgets)
    for room, budget in budgets.items():
        for unit, measure in MEASURES.items():
            if isinstance(ceiling := budget.get(unit), int):
                yield Row(room, unit, measure(files[room]), measure(files_before[room]), ceiling)


def lowered(text: str, counted: list[Row]) -> str:
    """Return budgets.toml with the ceilings that may fall."""
    for row in counted:
        if row.now < row.ceiling:
            section = re.compile(rf'(^\["?{re.escape(row.room)}"?\]\n(?:(?!\[).*\n)*?{row.unit} = )\d+', re.MULTILINE)
            text, replaced = section.subn(rf"\g<1>{row.now}", text)
            assert replaced == 1, row
    return text


def _cell(row: Row) -> str:
    change = f"{row.now - row.base:+,}" if row.now != row.base else ""
    return f"{row.now:9,} {change:>7} of {row.ceiling:,} {row.unit.replace('_', ' ')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", help="the commit to compare with")
    parser.add_argument("--lower", action="store_true", help="write every count that fell as the new ceiling")
    arguments = parser.parse_args()
    text = BUDGETS.read_text()
    budgets = tomllib.loads(text)
    current = working_tree(budgets)
    base = arguments.base or base_commit()
    counted = list(rows(current, tree_at(base, budgets, current), budgets))
    print(f"sizes, with the change since {base[:8]}, of the ceilings in {BUDGETS.name}:")
    for room, group in groupby(counted, key=lambda row: row.room):
        print(f"{room:34} {' '.join(map(_cell, group))}")
    if arguments.lower:
        BUDGETS.write_text(lowered(text, counted))
    if above := [f"{row.room}: {row.now - row.ceiling:,} {row.unit}" for row in counted if row.above]:
        sys.exit(f"above the ceiling of budgets.toml: {'; '.join(above)}. Delete as much, or raise it by a decision")


if __name__ == "__main__":
    main()
