"""A report as Markdown, CSV and JSON: the same sections, a chart as its numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rooflight.errors import BadInput
from rooflight.reporting.report.model import Report, Section, Titled
from rooflight.reporting.table import Column, Label, Table, to_csv, to_markdown


def only(report: Report, names: Sequence[str]) -> Report:
    """The report with these sections alone."""
    if not names:
        return report
    known = [section.name for section in report.sections]
    wrong = [name for name in names if name not in known]
    if wrong:
        raise BadInput(f"no section {wrong[0]!r} in this report: it has {', '.join(known)}")
    chosen = tuple(section for section in report.sections if section.name in names)
    empty = next((section for section in chosen if section.missing and not any(section.all_tables)), None)
    if empty is not None:
        raise BadInput(f"there is nothing in the section {empty.name!r} of this: {empty.missing}")
    return replace(report, sections=chosen)


def report_markdown(report: Report) -> str:
    parts = [f"# {_plain(report.title)}\n", f"{_plain(report.subtitle)}\n"]
    if report.facts:
        rows = [f"| {_plain(fact.label)} | **{_plain(fact.value)}** | {_plain(fact.detail)} |" for fact in report.facts]
        parts.append("\n".join(["| | | |", "| --- | --- | --- |", *rows]) + "\n")
    parts += ["\n".join(f"- {_plain(line)}" for line in report.lines) + "\n"] if report.lines else []
    for section in report.sections:
        parts.append(f"## {_plain(section.title)}\n")
        parts += [f"Not here: {_plain(section.missing)}.\n"] if section.missing else []
        parts += [f"{_plain(line)}\n" for line in section.lines]
        for titled in section.all_tables:
            parts += [f"### {_plain(titled.title)}\n"] if titled.title else []
            parts.append(to_markdown(titled.table))
            parts += [f"{_plain(titled.note)}\n"] if titled.note else []
        parts += [_block([f"$ {one}" for one in section.commands])] if section.commands else []
        parts += [f"{_plain(line)}\n" for line in section.small_print]
    return "\n".join(parts)


def _block(lines: Sequence[str]) -> str:
    """Lines as they are; nothing in them ends the block."""
    longest = max((len(found) for line in lines for found in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}console", *(" ".join(line.split("\n")) for line in lines), f"{fence}\n"])


def _plain(text: str) -> str:
    """One line in which nothing is Markdown or HTML, whatever a module is called."""
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", " ".join(text.split())).replace("<", "&lt;")


def report_csv(report: Report, *, sections: bool = False) -> str:
    """The main table alone, raw values; of chosen sections all tables, each below its title."""
    plain = [section.plain for section in report.sections if section.plain is not None]
    if plain and not sections:
        return to_csv(plain)
    named = [(section, titled) for section in report.sections for titled in section.all_tables]
    parts = [f"{_title_line(section, titled)}{to_csv([titled.table])}" for section, titled in named]
    return "\n".join(parts)


def _title_line(section: Section, titled: Titled) -> str:
    return to_csv([Table("", (Column(f"{section.title}: {titled.title}" if titled.title else section.title),), ())])


def report_document(report: Report) -> dict[str, Any]:
    """Raw values; unknown is null."""
    return {
        "title": report.title,
        "subtitle": report.subtitle,
        "headline": [{"label": fact.label, "value": fact.value, "detail": fact.detail} for fact in report.facts],
        "lines": list(report.lines),
        "sections": {section.name: _section(section) for section in report.sections},
    }


def _section(section: Section) -> dict[str, Any]:
    return {
        "title": section.title,
        "missing": section.missing or None,
        "lines": list(section.lines),
        "tables": [_table(titled) for titled in section.all_tables],
        "conventions": list(section.small_print),
        "commands": list(section.commands),
    }


def _table(titled: Titled) -> dict[str, Any]:
    names = [column.raw or column.name for column in titled.table.columns]
    rows = [dict(zip(names, map(_raw, row), strict=True)) for row in titled.table.rows]
    return {"title": titled.title, "rows": rows}


def _raw(cell: Any) -> Any:
    if isinstance(cell, Label):
        return cell.full
    if isinstance(cell, (tuple, list)):
        return [_raw(one) for one in cell]
    return cell if cell is None or isinstance(cell, (str, int, float, bool)) else str(cell)
