"""A study as one HTML file: its page with charts. No scripts, nothing from elsewhere; light, dark and on paper."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rooflight.reporting.line_chart import COLOURS, Chart, Line, drawn
from rooflight.reporting.page import Page
from rooflight.reporting.study_page import study_page
from rooflight.reporting.study_trends import words
from rooflight.reporting.table import Label, Table
from rooflight.reporting.written import per_second, seconds, whole_bytes
from rooflight.study.cell import SIDES, Row
from rooflight.study.series import grouped, shown, value, varying

if TYPE_CHECKING:
    from rooflight.study.plan import Plan

_CHARTED: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("time", "time of a step", seconds), ("throughput", "samples a second", per_second),
    ("memory", "memory at the peak", whole_bytes),
)  # fmt: skip
_MOST_CHARTS = 12
_VERDICTS = {"held": "held", "refuted": "refuted", "not measured": "open"}
_STYLE = """
:root{color-scheme:light dark;--fg:#1c1e21;--soft:#5f6670;--line:#d9dce1;--back:#fff;--stripe:#f5f6f8;
--good:#0b6b3a;--good-back:#dff3e6;--bad:#9b1c1c;--bad-back:#fbe3e3;--open:#6b4e00;--open-back:#fbf0d0;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#b0478d;--c4:#3c9bd0;--c5:#a07800;--c6:#6a51a3;--c7:#6f6f6f}
@media screen and (prefers-color-scheme:dark){:root{
--fg:#e6e8eb;--soft:#a0a7b1;--line:#3a3f47;--back:#16181c;--stripe:#1d2025;
--good:#7fdca4;--good-back:#123622;--bad:#ff9d9d;--bad-back:#421a1a;--open:#f0cf7a;--open-back:#3a2f0e;
--c0:#56b4e9;--c1:#f08a4b;--c2:#3fcfa0;--c3:#e08cc4;--c4:#9ad1f2;--c5:#e6c14a;--c6:#b39ddb;--c7:#b5b5b5}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;color:var(--fg);background:var(--back);
max-width:88rem;margin:0 auto;padding:1.5rem 1.25rem 3rem}
h1{font-size:1.55rem;line-height:1.25;margin:0 0 .4rem}
h2{font-size:1.1rem;margin:2.2rem 0 .5rem}
p{margin:.3rem 0;max-width:70rem}
nav{margin:.9rem 0 0;font-size:.9rem}
nav a{color:inherit;margin-right:1rem;white-space:nowrap;text-underline-offset:3px}
.count{font-weight:600}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}
th,td{padding:.28rem .7rem;text-align:left;vertical-align:top}
th{border-bottom:1px solid var(--soft);font-weight:600;vertical-align:bottom}
td{border-bottom:1px solid var(--line)}
th.r,td.r{text-align:right}
td.r{white-space:nowrap}
td.n{white-space:nowrap}
tbody tr:nth-child(even){background:var(--stripe)}
tr.total td{font-weight:600}
td:has(code){min-width:19rem}
code{overflow-wrap:anywhere;font:.88em/1.4 ui-monospace,"DejaVu Sans Mono",Menlo,monospace}
.v{display:inline-block;border-radius:.3rem;padding:0 .5rem;font-weight:600;white-space:nowrap}
.v.held{color:var(--good);background:var(--good-back)}
.v.refuted{color:var(--bad);background:var(--bad-back)}
.v.open{color:var(--open);background:var(--open-back)}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(26rem,100%),1fr));gap:1.2rem 1.6rem}
figure{margin:0}
figcaption{font-weight:600;font-size:.92rem}
svg.chart{width:100%;height:auto;display:block}
svg text{fill:var(--soft);font:11px system-ui,sans-serif}
svg text.x{text-anchor:middle}svg text.y{text-anchor:end}
.grid{stroke:var(--line);fill:none}.axis,.tick{stroke:var(--soft);fill:none}
.line{fill:none;stroke:currentColor;stroke-width:2}.dashed{stroke-dasharray:5 4}
circle{fill:currentColor}
.keys{list-style:none;display:flex;flex-wrap:wrap;gap:.1rem .9rem;margin:.2rem 0 0;padding:0 0 0 .3rem;font-size:.82rem}
.keys svg{width:26px;height:10px;margin-right:.35rem;vertical-align:middle}
.notes{padding-left:1.1rem}
.small{font-size:.84rem;color:var(--soft)}td .small{font-size:.93em}
@media print{:root{color-scheme:light}
body{max-width:none;padding:0;font-size:10pt}nav{display:none}.wide{overflow:visible}table{font-size:7.5pt}
figure,tr{break-inside:avoid}h2{break-after:avoid}.charts{grid-template-columns:1fr 1fr}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
""".strip()
for _number in range(COLOURS):
    _STYLE += f"\n.c{_number}{{color:var(--c{_number})}}"
_STYLE += "\n.keys li{color:var(--fg)}" + "".join(f"\n.keys .c{i} svg{{color:var(--c{i})}}" for i in range(COLOURS))


def study_html(rows: Sequence[Row], plan: Plan, *, folder: str | None = None) -> str:
    """The whole document."""
    return page_with_charts(study_page(rows, plan, folder=folder, spell_out=False), charts(rows))


def page_with_charts(page: Page, pictures: Sequence[Chart]) -> str:
    """A page as HTML, its charts behind the claims: they are read first, each with the number that says most."""
    claimed = [table for table in page.tables if table.title == "claims"]
    others = [table for table in page.tables if not any(table is one for one in claimed)]
    sections = [(table.title, _table(_folded(table))) for table in claimed]
    if pictures:
        figures = "".join(map(drawn, pictures))
        legend = '<p class="small">Solid: measured. Dashed: predicted. Both axes are logarithmic.</p>'
        sections.append(("against the batch", f'{legend}<div class="charts">{figures}</div>'))
    sections += [(table.title, _table(table)) for table in others]
    if page.notes:
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in page.notes)
        sections.append(("notes", f'<ul class="notes">{lines}</ul>'))
    small = "".join(f'<p class="small">{html.escape(line)}</p>' for line in page.small_print)
    sections.append(("how to read it, and how to replicate it", small))
    first = Counter(title.partition(":")[0] for title, _ in sections)
    links = " ".join(f'<a href="#s{i}">{html.escape(short if first[short] == 1 else title)}</a>'
                     for i, (title, _) in enumerate(sections) for short in [title.partition(":")[0]])  # fmt: skip
    body = "\n".join(f'<section><h2 id="s{i}">{html.escape(title)}</h2>\n{content}</section>'
                     for i, (title, content) in enumerate(sections))  # fmt: skip
    summary = "".join(f"<p>{html.escape(line)}</p>" for line in page.summary)
    title = html.escape(page.headline)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title>\n<style>\n{_STYLE}\n</style></head>\n<body>\n"
        f"<header><h1>{title}</h1>{summary}<nav>{links}</nav></header>\n{body}\n</body></html>\n"
    )


def _table(table: Table) -> str:
    classes = [' class="r"' if column.right else ' class="n"' if column.whole else "" for column in table.columns]
    head = "".join(
        f"<th{of}>{html.escape(column.name)}</th>" for of, column in zip(classes, table.columns, strict=True)
    )
    lines = []
    for number, (row, texts) in enumerate(zip(table.rows, table.written(), strict=True)):
        cells = "".join(
            f"<td{of}>{_cell(column.name, cell, text)}</td>"
            for of, column, cell, text in zip(classes, table.columns, row, texts, strict=True)
        )
        lines.append(f"<tr{' class=total' if number in table.emphasised else ''}>{cells}</tr>")
    return (f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>' + "\n".join(lines)
            + "</tbody></table></div>")  # fmt: skip


@dataclass(frozen=True)
class _Lines:
    """A cell of several lines: the first stands out."""

    texts: tuple[str, ...]
    code: str = ""
    """Stands behind the first line."""


def _folded(table: Table) -> Table:
    """Claims with what is said of them below them, so that a line is not too wide to be read."""
    names = [column.name for column in table.columns]
    below = {"claim": "said by", "numbers": "at"}
    kept = [i for i, name in enumerate(names) if name not in below.values()]
    rows = []
    for row, texts in zip(table.rows, table.written(), strict=True):
        told = dict(zip(names, texts, strict=True))
        cells = list(row)
        for name, more in below.items():
            i = names.index(name)
            cell = row[i]
            full = cell.full if isinstance(cell, Label) else texts[i]
            if name == "claim":  # in words where it has them; as it was judged below
                words = texts[i] if texts[i] != full else ""
                cells[i] = _Lines((words, told.get(more, "")), code=full)
            else:
                cells[i] = _Lines((full, told.get(more, "")))
        rows.append(tuple(cells[i] for i in kept))
    columns = tuple(replace(table.columns[i], whole=table.columns[i].whole and names[i] not in below) for i in kept)
    return replace(table, columns=columns, rows=tuple(rows))


def _cell(column: str, cell: object, text: str) -> str:
    if isinstance(cell, _Lines):
        first, *more = map(html.escape, cell.texts)
        code = f"<div><code>{html.escape(cell.code)}</code></div>" if cell.code else ""
        return first + code + "".join(f'<div class="small">{line}</div>' for line in more if line)
    if column == "verdict" and text in _VERDICTS:
        return f'<span class="v {_VERDICTS[text]}">{html.escape(text)}</span>'
    return html.escape(text)


def charts(rows: Sequence[Row]) -> list[Chart]:
    """Time, throughput and memory against the batch; one picture for every model where there are several lines."""
    models = list(dict.fromkeys(row.cell.model for row in rows))
    found = []
    for model in models:
        of_model = [row for row in rows if row.cell.model == model]
        axes = [axis for axis in varying(of_model) if axis not in ("model", "batch")]
        for quantity, name, write in _CHARTED:
            lines = _lines(of_model, quantity, axes)
            title = f"{model}: {name}"
            drawn_ones = [line for line in lines if (line.colour or 0) < COLOURS]
            if len(lines) > len(drawn_ones):
                title += f" (the first {len(drawn_ones)} of {len(lines)} lines)"
            if lines:
                found.append(Chart(title, "batch", name, tuple(drawn_ones), write))
    return found[:_MOST_CHARTS]


def _lines(rows: Sequence[Row], quantity: str, axes: Sequence[str]) -> list[Line]:
    found = []
    colours: dict[str, int] = {}
    """One for a series: prediction and measurement of the same share it."""
    for side in reversed(SIDES):
        for where, group in grouped(rows, without=("batch",)).items():
            values = {
                row.cell.batch: one for row in group if (one := value(row, quantity, side)) is not None and one > 0
            }
            if len(values) > 1:
                name = words(shown(where, axes))
                said = side if name == "all cells" else f"{name}, {side}"
                colour = colours.setdefault(name, len(colours))
                found.append(Line(said, tuple(sorted(values.items())), dashed=side != "measured", colour=colour))
    return found
