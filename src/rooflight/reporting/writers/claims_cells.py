"""Claims in a page: what is said of each stands below it, so that a line is not too wide to be read."""

from __future__ import annotations

import html
from dataclasses import dataclass, replace

from rooflight.reporting.table import Label, Table

_BELOW = {"claim": "said by", "numbers": "at"}


@dataclass(frozen=True)
class Lines:
    """A cell of several lines: the first stands out."""

    texts: tuple[str, ...]
    code: str = ""
    """Stands behind the first line."""

    def to_html(self) -> str:
        first, *more = map(html.escape, self.texts)
        code = f"<div><code>{html.escape(self.code)}</code></div>" if self.code else ""
        return first + code + "".join(f'<div class="small">{line}</div>' for line in more if line)


def has_claims(table: Table) -> bool:
    return {*_BELOW} <= {column.name for column in table.columns}


def folded(table: Table) -> Table:
    """The claim in words, as it was judged below, and who said so; its numbers, and where they were found."""
    names = [column.name for column in table.columns]
    kept = [i for i, name in enumerate(names) if name not in _BELOW.values()]
    rows = []
    for row, texts in zip(table.rows, table.written(), strict=True):
        told = dict(zip(names, texts, strict=True))
        cells = list(row)
        for name, more in _BELOW.items():
            i = names.index(name)
            cell = row[i]
            full = cell.full if isinstance(cell, Label) else texts[i]
            if name == "claim":
                words = texts[i] if texts[i] != full else ""
                cells[i] = Lines((words, told.get(more, "")), code=full)
            else:
                cells[i] = Lines((full, told.get(more, "")))
        rows.append(tuple(cells[i] for i in kept))
    return replace(table, columns=tuple(table.columns[i] for i in kept), rows=tuple(rows))
