"""A table as HTML, its cells escaped: for the page, and for notebooks. What is said of a claim stands below it, so that
a line is not too wide to be read."""

from __future__ import annotations

import html
from dataclasses import dataclass, replace
from itertools import chain

from rooflight.formatting import printable
from rooflight.reporting.document import first_rows
from rooflight.reporting.table import Label, Table

_BELOW = {"claim": ("said by", "why"), "numbers": ("at",)}


@dataclass(frozen=True)
class CellLines:
    """A cell of several lines: the first stands out."""

    texts: tuple[str, ...]
    code: str = ""
    """Stands behind the first line."""

    def to_html(self) -> str:
        first, *more = (html.escape(printable(text)) for text in self.texts)
        code = f"<div><code>{html.escape(printable(self.code))}</code></div>" if self.code else ""
        return first + code + "".join(f'<div class="small">{line}</div>' for line in more if line)


def folded(table: Table) -> Table:
    """The claim in words, as it was judged below, where it is said and why; its numbers, and where they were found."""
    names = [column.name for column in table.columns]
    shown = [i for i, name in enumerate(names) if name not in chain(*_BELOW.values())]
    rows = []
    for row, texts in zip(table.rows, table.written(), strict=True):
        cells, by_name = list(row), dict(zip(names, texts, strict=True))
        for name, more in _BELOW.items():
            i, text, below = names.index(name), by_name[name], [by_name.get(one, "") for one in more]
            full = cell.full if isinstance(cell := row[i], Label) else text
            if name == "claim":
                cells[i] = CellLines((text if text != full else "", *below), code=full)
            else:
                cells[i] = CellLines((full, *below))
        rows.append(tuple(cells[i] for i in shown))
    return replace(table, columns=tuple(table.columns[i] for i in shown), rows=tuple(rows))


_MOST_ROWS = 400
"""Of a table that stands in a page as it is."""
_SHORT_TEXT = 28
"""Letters of a cell that stay on one line."""
_LONG_WORD = 60
"""Letters of a word that may be broken, or it alone would take the width of the page."""
_VERDICTS = {"held": "held", "refuted": "refuted", "undecided": "open", "not measured": "open"}
_INLINE = {
    "": "text-align:left;padding:1px 10px",
    "r": "text-align:right;padding:1px 10px;white-space:pre",
    "n": "text-align:left;padding:1px 10px;white-space:pre",
    "w": "text-align:left;padding:1px 10px;white-space:pre-wrap;word-break:break-all;min-width:24em",
    "total": "font-weight:bold;border-top:1px solid",
}
_INLINE_TABLE = "border-collapse:collapse;font-variant-numeric:tabular-nums;margin:4px 0"


def table_html(table: Table, *, section: str = "", inline: bool = False) -> str:
    """`inline`: styles stand in the cells, with the title: a notebook keeps no style sheets. `section`: where it is."""

    def styled(tag: str, kind: str, more: str = "") -> str:
        if inline:
            return f"<{tag} style='{_INLINE[kind]}{more}'>"
        return f"<{tag} class={kind}>" if kind else f"<{tag}>"

    if _BELOW.keys() <= {column.name for column in table.columns}:
        table = folded(table)
    head = "".join(
        f"{styled('th', 'r' if column.right else '')}{html.escape(column.name)}</th>" for column in table.columns
    )
    body = []
    table = first_rows(table, None if inline else _MOST_ROWS, section)
    for number, (row, texts) in enumerate(zip(table.rows, table.written(), strict=True)):
        total = number in table.emphasised
        cells = []
        for column, cell, text in zip(table.columns, row, texts, strict=True):
            kind = "r" if column.right else "n" if len(text) <= _SHORT_TEXT or isinstance(cell, Label) else ""
            kind = "w" if not column.right and any(len(word) > _LONG_WORD for word in text.split()) else kind
            kind = "" if isinstance(cell, CellLines) else kind
            opened = styled("td", kind, f";{_INLINE['total']}" if total and inline else "")
            cells.append(f"{opened}{_content(column.name, cell, text)}</td>")
        body.append(f"<tr{' class=total' if total else ''}>{''.join(cells)}</tr>")
    if table.more:
        body.append(f'<tr><td colspan="{len(table.columns)}">{html.escape(table.more)}</td></tr>')
    caption = "<caption style='text-align:left;font-weight:bold;padding-top:8px'>"
    title = f"{caption}{html.escape(table.title)}</caption>" if inline and table.title else ""
    drawn = f"{title}<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f"<table style='{_INLINE_TABLE}'>{drawn}" if inline else f'<div class="wide"><table>{drawn}</div>'


def _content(name: str, cell: object, text: str) -> str:
    if isinstance(cell, CellLines):
        return f'<div class="said">{cell.to_html()}</div>'
    shown = html.escape(text)
    if name == "verdict" and text in _VERDICTS:
        return f'<span class="v {_VERDICTS[text]}">{shown}</span>'
    if isinstance(cell, Label) and cell.full not in ("", None, text):
        return f'<span title="{html.escape(printable(str(cell.full)))}">{shown}</span>'
    return shown
