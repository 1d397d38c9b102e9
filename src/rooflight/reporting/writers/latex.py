"""A report as LaTeX: its tables, with what is said around them as comments."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rooflight.reporting.document import Document

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "×": r"$\times$", "−": r"$-$", "–": "--", "·": r"$\cdot$",
    "µ": r"\textmu{}", "…": r"\ldots{}", "±": r"$\pm$", "²": r"\textsuperscript{2}", "→": r"$\rightarrow$",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "≤": r"$\leq$", "≥": r"$\geq$", "°": r"$^\circ$",
}  # fmt: skip
_LATEX_SIGN = re.compile("|".join(map(re.escape, _LATEX)))


def report_latex(report: Document) -> str:
    """Tables for a document that uses booktabs and longtable; what is said around them stands as comments."""
    parts = ["% \\usepackage{booktabs,longtable,textcomp}", f"% {_comment(report.title)}: {_comment(report.subtitle)}"]
    parts += [f"% {_comment(line)}" for line in report.lines]
    if report.facts:
        parts.append(_latex_table("headline", [False, True, False], ["", "", ""],
                                  [[fact.label, fact.value, fact.detail] for fact in report.facts]))  # fmt: skip
    for section in report.sections:
        said = [f"Not here: {section.missing}."] if section.missing else []
        said += [*section.lines, *section.small_print, *(f"$ {one}" for one in section.commands)]
        parts.append("\n".join([f"% --- {_comment(section.heading)} ---", *(f"% {_comment(line)}" for line in said)]))
        for title, table in section.titled_tables:
            caption = f"{section.heading}: {title}" if title else section.heading
            parts += [f"% {_comment(table.note)}"] if table.note else []
            parts.append(_latex_table(caption, [column.right for column in table.columns],
                                      [column.name for column in table.columns], table.written()))  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _latex_table(caption: str, right: Sequence[bool], names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    sides = "".join("r" if one else "l" for one in right)
    lines = [f"\\begin{{longtable}}{{{sides}}}", f"\\caption{{{_latex(caption)}}}\\\\", "\\toprule"]
    if any(names):
        lines += [" & ".join(map(_latex, names)) + r" \\", "\\midrule", "\\endhead"]
    # What stands behind \\ in brackets, or as a star, would be its argument.
    lines += ["{}" + " & ".join(_latex_cell(cell) for cell in row) + r" \\" for row in rows]
    return "\n".join([*lines, "\\bottomrule", "\\end{longtable}"])


def _latex_cell(text: str) -> str:
    """The indent of a tree stays."""
    depth = len(text) - len(text.lstrip(" "))
    return (f"\\hspace*{{{depth / 2:g}em}}" if depth else "") + _latex(text.strip())


def _latex(text: str) -> str:
    return _LATEX_SIGN.sub(lambda found: _LATEX[found[0]], text)


def _comment(text: str) -> str:
    return " ".join(text.split())
