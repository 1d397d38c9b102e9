"""Markdown that the pages share: tables, and text that must not be taken for markup."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Container[int] = ()) -> str:
    """A table; `right` are the columns of numbers."""
    lines = [f"| {' | '.join(head)} |", "|" + "".join("---:|" if n in right else "---|" for n in range(len(head)))]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Text for one cell: on one line, with bars that do not end it."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;") if "`" not in text else _with_code(text)


def _with_code(text: str) -> str:
    """Outside of `code`, what looks like HTML is escaped; bars are escaped everywhere, as GitHub wants it."""
    parts = " ".join(text.split()).split("`")
    plain = [part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts)]
    return "`".join(plain).replace("|", "\\|")


def code(text: str) -> str:
    """Inline code for a cell."""
    return "`" + " ".join(text.split()).replace("|", "\\|") + "`" if text else ""
