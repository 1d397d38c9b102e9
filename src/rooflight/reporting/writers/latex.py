"""A document as LaTeX: tables that fit a page, each a longtable or several one below the other; small print and
commands as comments."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rooflight.errors import BadInput
from rooflight.reporting.document import Document, first_rows
from rooflight.reporting.table import Table
from rooflight.reporting.writers.latex_layout import FONTS, HANG, LatexGrid, PlacedColumn, TablePart, indent, laid_out
from rooflight.reporting.writers.latex_signs import BOLD, latex, lines

_CONTINUED_PT = 120.0
"""What the line over a table's next pages takes, at most."""

_CUT_PT = 0.1
"""By so much less than it was reckoned a width may have been written."""
_CAPTION_EM = 12
"""A word that is longer may be broken: a caption is set to both sides."""

_RULE = (
    r"\noalign{\nobreak\vskip\aboverulesep}\multispan{%d}\unskip\leaders\hrule height\lightrulewidth\hfill\cr"
    r"\noalign{\nobreak\vskip\belowrulesep}"
)
r"""As \midrule is, but no page ends behind it."""


def latex_table(grid: LatexGrid, caption: str, width_pt: float) -> str:
    """Its parts, each a longtable."""
    parts = laid_out(grid, width_pt)
    title = latex(caption, _CAPTION_EM)
    which = [f" ({number}~of~{len(parts)})" if len(parts) > 1 else "" for number in range(1, len(parts) + 1)]
    return "\n\n".join(_longtable(grid, part, title + of, width_pt) for part, of in zip(parts, which, strict=True))


def _longtable(grid: LatexGrid, part: TablePart, caption: str, width_pt: float) -> str:
    font, count = part.font, len(part.columns)
    head = _heading(grid, part)
    again = [
        f"\\multicolumn{{{count}}}{{@{{}}l@{{}}}}{{\\cellfont\\itshape\\tablename{{}} \\thetable{{}}, continued}}\\\\"
    ]
    return "\n".join(
        [
            f"\\begingroup % {font.name}",
            f"\\def\\cellfont{{\\fontsize{{{font.size_pt:g}}}{{{font.line_pt:g}}}\\selectfont\\frenchspacing}}",
            f"\\renewcommand{{\\arraystretch}}{{{font.line_pt / FONTS[0].line_pt:.2f}}}",
            f"\\setlength{{\\tabcolsep}}{{{font.sep_pt:g}pt}}\\setlength{{\\LTcapwidth}}{{{width_pt:.1f}pt}}",
            f"\\begin{{longtable}}{{@{{}}{''.join(_column(grid, column) for column in part.columns)}@{{}}}}",
            f"\\caption{{{caption}}}\\\\",
            "\\toprule",
            *head,
            "\\endfirsthead",
            *(again if part.width_pt > _CONTINUED_PT else []),
            "\\toprule",
            *head,
            "\\endhead",
            "\\bottomrule",
            "\\endfoot",
            *_rows(grid, part),
            "\\end{longtable}",
            "\\endgroup",
        ]
    )


def _column(grid: LatexGrid, column: PlacedColumn) -> str:
    """A paragraph whose lines hang below a name's first, or as wide as what is in it."""
    right = grid.right[column.number]
    if not column.wraps:
        return f">{{\\cellfont}}{'r' if right else 'l'}"
    hang = f"\\hangindent={HANG:g}em\\hangafter=1 " if column.number == 0 and not right else ""
    side = "\\raggedleft" if right else "\\raggedright"
    return f">{{\\cellfont{side}{hang}\\arraybackslash}}p{{{column.body_pt:.1f}pt}}"


def _heading(grid: LatexGrid, part: TablePart) -> list[str]:
    if not any(grid.names):
        return []
    heads = " & ".join(_head(grid, column, part.font.em_pt) for column in part.columns)
    return [f"{{}}{heads} \\\\", "\\midrule"]


def _head(grid: LatexGrid, column: PlacedColumn, em_pt: float) -> str:
    broken = lines(grid.names[column.number], (column.head_pt + _CUT_PT) / em_pt)
    if len(broken) < 2:
        return "".join(broken)
    side = "\\raggedleft" if grid.right[column.number] else "\\raggedright"
    text = "\\\\{}".join(broken)
    return f"\\parbox[b]{{{column.head_pt:.1f}pt}}{{{side} {text}}}"


def _rows(grid: LatexGrid, part: TablePart) -> list[str]:
    """Totals are bold, below a rule."""
    written = []
    apart = r"\noalign{\vskip2pt}" if any(column.wraps for column in part.columns) else ""
    for at, row in enumerate(grid.rows):
        bold = at in grid.bold
        if bold and at and at - 1 not in grid.bold:
            written.append(_RULE % len(part.columns))
        # No page has the first rows alone, nor a total.
        star = "*" if at < 2 or at + 1 in grid.bold or at + 2 == len(grid.rows) else ""
        # What stands behind \\ in brackets, or as a star, would be its argument.
        cells = " & ".join(_cell(row[column.number], column, part, bold=bold) for column in part.columns)
        written.append(f"{{}}{cells} \\\\{star}{apart}")
    return written


def _cell(text: str, column: PlacedColumn, part: TablePart, *, bold: bool) -> str:
    """The indent of a tree stays, also before the lines that follow the first."""
    font = part.font
    before = indent(text)
    weight = "\\bfseries " if bold and text.strip() else ""
    if not column.wraps:
        return (f"\\hspace*{{{before * font.size_pt:.1f}pt}}" if before else "") + weight + latex(text)
    room = (column.body_pt + _CUT_PT) / font.em_pt
    before = min(before, room / 3)
    left = f"\\leftskip={before * font.size_pt:.1f}pt " if before else ""
    hang = HANG if column.number == 0 else 0
    return left + weight + latex(text, (room - before - hang) / (BOLD if bold else 1))


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
    length = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(pt|mm|cm|in)\s*", str(width), re.ASCII)
    if length is None:
        raise BadInput(
            "bad-quantity", f"--width={width}: a number with its unit (cm, mm, in or pt), such as --width=16cm"
        )
    points = float(length[1]) * _UNITS_PT[length[2]]
    if not _LEAST_PT <= points <= _MOST_PT:
        raise BadInput("out-of-range", f"--width={width}: a table needs 5 cm at least, and 2 m are enough for any")
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
        parts.append(latex_table(LatexGrid(("", "", ""), facts, (False, False, False)), title, width_pt))
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
        parts += _comments([*section.small_print, *(f"$ {command}" for command in section.commands)])
    parts += _paragraphs("Notes", document.notes)
    parts += _comments(document.small_print)
    return "\n\n".join(parts) + "\n"


def _grid(table: Table) -> LatexGrid:
    return LatexGrid(
        tuple(column.name for column in table.columns),
        tuple(map(tuple, table.written())),
        tuple(column.right for column in table.columns),
        table.emphasised,
    )


def _caption(section: str, title: str) -> str:
    """Nothing is said twice."""
    return section if title in ("", section) else title if title.startswith(section) else f"{section}: {title}"


def _paragraphs(title: str, sentences: Sequence[str]) -> list[str]:
    """Sentences below a title, as small text in the document's own width."""
    written = [latex(sentence, _PROSE_EM) for sentence in sentences if sentence]
    if not written:
        return []
    first = f"\\textbf{{{latex(title, _PROSE_EM)}.}} " if title else ""
    text = "\\par\\smallskip\n\\noindent ".join(written)
    return [f"{{\\footnotesize\\raggedright\\noindent {first}{text}\\par\\medskip}}"]


def _comments(lines: Sequence[str]) -> list[str]:
    written = "\n".join(f"% {_comment(line)}" for line in lines if line)
    return [written] if written else []


def _comment(text: str) -> str:
    return " ".join(text.split())
