"""A page as one HTML file: no scripts, nothing from elsewhere, readable without any network."""

from __future__ import annotations

import html

from rooflight.reporting.page import Page
from rooflight.reporting.table import Table

_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:80rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:1rem 0}
caption{text-align:left;font-weight:600;padding:.5rem 0}
th,td{padding:.2rem .8rem;text-align:left;white-space:pre}
td.r,th.r{text-align:right}
thead th{border-bottom:1px solid}
tbody tr:nth-child(even){background:rgba(128,128,128,.1)}
tr.total td{font-weight:600;border-top:1px solid}
.small{font-size:.85rem;opacity:.75}
""".strip()


def page_html(page: Page) -> str:
    """The whole document."""
    parts = [f"<h1>{html.escape(page.headline)}</h1>"]
    parts += [f"<p>{html.escape(line)}</p>" for line in page.summary]
    parts += [_table(table) for table in page.tables]
    if page.notes:
        parts.append("<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in page.notes) + "</ul>")
    parts += [f'<p class="small">{html.escape(line)}</p>' for line in page.small_print]
    body = "\n".join(parts)
    return (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta name="viewport" content="width=device-width">'
            f"<title>{html.escape(page.headline)}</title>\n<style>\n{_STYLE}\n</style></head>\n"
            f"<body>\n{body}\n</body></html>\n")  # fmt: skip


def _table(table: Table) -> str:
    sides = [' class="r"' if column.right else "" for column in table.columns]
    head = "".join(f"<th{side}>{html.escape(column.name)}</th>"
                   for side, column in zip(sides, table.columns, strict=True))  # fmt: skip
    lines = []
    for number, row in enumerate(table.written()):
        cells = "".join(f"<td{side}>{html.escape(cell)}</td>" for side, cell in zip(sides, row, strict=True))
        lines.append(f"<tr{' class=total' if number in table.emphasised else ''}>{cells}</tr>")
    caption = f"<caption>{html.escape(table.title)}</caption>" if table.title else ""
    return (f'<div class="wide"><table>{caption}<thead><tr>{head}</tr></thead>\n<tbody>'
            + "\n".join(lines) + "</tbody></table></div>")  # fmt: skip
