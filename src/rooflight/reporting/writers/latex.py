"""A document as LaTeX: tables that fit a page, with what is said of them; small print and commands as comments."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rooflight.errors import BadInput
from rooflight.reporting.document import Document, first_rows
from rooflight.reporting.table import Table
from rooflight.reporting.writers.latex_layout import Grid
from rooflight.reporting.writers.latex_signs import latex
from rooflight.reporting.writers.latex_table import latex_table

TEXT_WIDTH_PT = 345.0
r"""The width of the text in `\documentclass[a4paper,10pt]{article}`: 12.1 cm."""
_UNITS_PT = {"pt": 1.0, "mm": 72.27 / 25.4, "cm": 72.27 / 2.54, "in": 72.27}
_LEAST_PT, _MOST_PT = 5 * _UNITS_PT["cm"], 200 * _UNITS_PT["cm"]
_PROSE_EM = 15
"""A word that is longer may be broken."""


def width_in_pt(width: str | None) -> float:
    """`16cm`, `160mm`, `6.3in` or `455pt` in points of TeX; the text of an A4 article where nobody says."""
    if width is None:
        return TEXT_WIDTH_PT
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(pt|mm|cm|in)\s*", str(width), re.ASCII)
    if found is None:
        raise BadInput(f"--width={width}: a number with its unit (cm, mm, in or pt), such as --width=16cm")
    points = float(found[1]) * _UNITS_PT[found[2]]
    if not _LEAST_PT <= points <= _MOST_PT:
        raise BadInput(f"--width={width}: a table needs 5 cm at least, and 2 m are enough for any")
    return points


def document_latex(document: Document, width: str | None = None) -> str:
    """Tables for any document; none is wider than `width`. Everything in it is ASCII, but for comments."""
    width_pt = width_in_pt(width)
    room = f"{width_pt:.1f} pt ({width_pt / _UNITS_PT['cm']:.1f} cm)"
    parts = [
        "% \\usepackage{booktabs,longtable,array,textcomp}\n"
        f"% tables of at most {room}; run LaTeX until their widths settle",
        f"% {_comment(document.title)}: {_comment(document.subtitle)}",
    ]
    title, more = document.title, document.subtitle
    title = more if more.startswith(title) else f"{title}: {more}" if more else title
    if document.facts:
        facts = tuple((fact.label, fact.value, fact.detail) for fact in document.facts)
        parts.append(latex_table(Grid(("", "", ""), facts, (False, False, False)), title, width_pt))
    parts += _paragraphs("" if document.facts else title, document.lines)
    for section in document.sections:
        heading = section.heading
        parts.append(f"% --- {_comment(heading)} ---")
        missing = [f"Not here: {section.missing}."] if section.missing else []
        parts += _paragraphs(heading, [*missing, *section.lines])
        for title, table in section.titled_tables:
            shown = first_rows(table, table.telling, section.name)
            parts.append(latex_table(_grid(shown), _caption(heading, title), width_pt))
            parts += _paragraphs("", [shown.more, shown.note])
        parts += _comments([*section.small_print, *(f"$ {one}" for one in section.commands)])
    parts += _paragraphs("Notes", document.notes)
    parts += _comments(document.small_print)
    return "\n\n".join(parts) + "\n"


def _grid(table: Table) -> Grid:
    return Grid(
        tuple(column.name for column in table.columns),
        tuple(map(tuple, table.written())),
        tuple(column.right for column in table.columns),
        table.emphasised,
    )


def _caption(section: str, title: str) -> str:
    """Nothing is said twice."""
    return section if title in ("", section) else title if title.startswith(section) else f"{section}: {title}"


def _paragraphs(title: str, said: Sequence[str]) -> list[str]:
    """Sentences below a title, as small text in the document's own width."""
    kept = [latex(line, _PROSE_EM) for line in said if line]
    if not kept:
        return []
    first = f"\\textbf{{{latex(title, _PROSE_EM)}.}} " if title else ""
    text = "\\par\\smallskip\n\\noindent ".join(kept)
    return [f"{{\\footnotesize\\raggedright\\noindent {first}{text}\\par\\medskip}}"]


def _comments(lines: Sequence[str]) -> list[str]:
    written = "\n".join(f"% {_comment(line)}" for line in lines if line)
    return [written] if written else []


def _comment(text: str) -> str:
    return " ".join(text.split())
