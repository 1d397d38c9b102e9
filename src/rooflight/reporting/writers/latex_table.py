"""One table as LaTeX: a longtable, or several one below the other, that is not wider than it may be."""

from __future__ import annotations

from rooflight.reporting.writers.latex_layout import FONTS, HANG, Grid, Part, Placed, indent, laid_out
from rooflight.reporting.writers.latex_signs import BOLD, latex, lines

_CONTINUED_PT = 120.0
"""What the line over a table's next pages takes, at most."""

_CUT_PT = 0.1
"""By so much less than it was reckoned a width may have been written."""
_CAPTION_EM = 12
"""A word that is longer may be broken: a caption is set to both sides."""

_RULE = (r"\noalign{\nobreak\vskip\aboverulesep}\multispan{%d}\unskip\leaders\hrule height\lightrulewidth\hfill\cr"
         r"\noalign{\nobreak\vskip\belowrulesep}")  # fmt: skip
r"""As \midrule is, but no page ends behind it."""


def latex_table(grid: Grid, caption: str, width_pt: float) -> str:
    """Its parts, each a longtable."""
    parts = laid_out(grid, width_pt)
    title = latex(caption, _CAPTION_EM)
    which = [f" ({number}~of~{len(parts)})" if len(parts) > 1 else "" for number in range(1, len(parts) + 1)]
    return "\n\n".join(_longtable(grid, part, title + of, width_pt) for part, of in zip(parts, which, strict=True))


def _longtable(grid: Grid, part: Part, caption: str, width_pt: float) -> str:
    font, count = part.font, len(part.columns)
    head = _heading(grid, part)
    again = [
        f"\\multicolumn{{{count}}}{{@{{}}l@{{}}}}{{\\cellfont\\itshape\\tablename{{}} \\thetable{{}}, continued}}\\\\"
    ]
    return "\n".join([
        f"\\begingroup % {font.name}",
        f"\\def\\cellfont{{\\fontsize{{{font.size_pt:g}}}{{{font.line_pt:g}}}\\selectfont\\frenchspacing}}",
        f"\\renewcommand{{\\arraystretch}}{{{font.line_pt / FONTS[0].line_pt:.2f}}}",
        f"\\setlength{{\\tabcolsep}}{{{font.sep_pt:g}pt}}\\setlength{{\\LTcapwidth}}{{{width_pt:.1f}pt}}",
        f"\\begin{{longtable}}{{@{{}}{''.join(_column(grid, one) for one in part.columns)}@{{}}}}",
        f"\\caption{{{caption}}}\\\\",
        "\\toprule", *head, "\\endfirsthead",
        *(again if part.width_pt > _CONTINUED_PT else []), "\\toprule", *head, "\\endhead",
        "\\bottomrule", "\\endfoot",
        *_rows(grid, part),
        "\\end{longtable}",
        "\\endgroup",
    ])  # fmt: skip


def _column(grid: Grid, column: Placed) -> str:
    """A paragraph whose lines hang below a name's first, or as wide as what is in it."""
    right = grid.right[column.number]
    if not column.wraps:
        return f">{{\\cellfont}}{'r' if right else 'l'}"
    hang = f"\\hangindent={HANG:g}em\\hangafter=1 " if column.number == 0 and not right else ""
    side = "\\raggedleft" if right else "\\raggedright"
    return f">{{\\cellfont{side}{hang}\\arraybackslash}}p{{{column.body_pt:.1f}pt}}"


def _heading(grid: Grid, part: Part) -> list[str]:
    if not any(grid.names):
        return []
    return ["{}" + " & ".join(_head(grid, one, part.font.em_pt) for one in part.columns) + r" \\", "\\midrule"]


def _head(grid: Grid, column: Placed, em_pt: float) -> str:
    found = lines(grid.names[column.number], (column.head_pt + _CUT_PT) / em_pt)
    if len(found) < 2:
        return "".join(found)
    side = "\\raggedleft" if grid.right[column.number] else "\\raggedright"
    broken = "\\\\{}".join(found)
    return f"\\parbox[b]{{{column.head_pt:.1f}pt}}{{{side} {broken}}}"


def _rows(grid: Grid, part: Part) -> list[str]:
    """Totals are bold, below a rule."""
    found = []
    apart = r"\noalign{\vskip2pt}" if any(one.wraps for one in part.columns) else ""
    for at, row in enumerate(grid.rows):
        bold = at in grid.bold
        if bold and at and at - 1 not in grid.bold:
            found.append(_RULE % len(part.columns))
        # No page has the first rows alone, nor a total.
        star = "*" if at < 2 or at + 1 in grid.bold or at + 2 == len(grid.rows) else ""
        # What stands behind \\ in brackets, or as a star, would be its argument.
        found.append("{}" + " & ".join(_cell(row[one.number], one, part, bold=bold) for one in part.columns)
                     + f" \\\\{star}{apart}")  # fmt: skip
    return found


def _cell(text: str, column: Placed, part: Part, *, bold: bool) -> str:
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
