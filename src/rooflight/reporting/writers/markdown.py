"""A document as Markdown, a chart as its numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rooflight.reporting.document import Document, Section, first_rows
from rooflight.reporting.table import Table


def document_markdown(document: Document) -> str:
    parts = [f"# {_plain(document.title)}\n", *_paragraphs(filter(None, [document.subtitle]))]
    if document.facts:
        rows = [
            f"| {_plain(fact.label)} | **{_plain(fact.value)}** | {_plain(fact.detail)} |" for fact in document.facts
        ]
        parts.append("\n".join(["| | | |", "| --- | --- | --- |", *rows]) + "\n")
    parts += _listed(document.lines)
    for section in document.sections:
        parts += _section(section)
    parts += ["## Notes\n"] if document.notes else []
    return "\n".join([*parts, *_listed(document.notes), *_paragraphs(document.small_print)])


def _section(section: Section) -> list[str]:
    parts = [f"## {_plain(section.heading)}\n"]
    parts += [f"Not here: {_plain(section.missing)}.\n"] if section.missing else []
    parts += _paragraphs(section.lines)
    for title, table in section.titled_tables:
        parts += [f"### {_plain(title)}\n"] if title else []
        shown = first_rows(table, table.telling, section.name)
        parts += [table_markdown(shown), *_paragraphs(filter(None, (shown.more, shown.note)))]
    parts += [_block([f"$ {command}" for command in section.commands])] if section.commands else []
    return parts + _paragraphs(section.small_print)


def table_markdown(table: Table) -> str:
    lines = ["| " + " | ".join(_cell(column.name) for column in table.columns) + " |"]
    lines.append("|" + "|".join(" ---: " if column.right else " --- " for column in table.columns) + "|")
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in table.written()]
    return "\n".join(lines) + "\n"


def _listed(lines: Sequence[str]) -> list[str]:
    return ["\n".join(f"- {_plain(line)}" for line in lines) + "\n"] if lines else []


def _paragraphs(lines: Iterable[str]) -> list[str]:
    """What would begin a list or a quotation does not."""
    return [re.sub(r"^(\d*)([-+>.)])", r"\1\\\2", _plain(line)) + "\n" for line in lines]


def _cell(text: str) -> str:
    """The indent of a tree stays."""
    depth = len(text) - len(text.lstrip(" "))
    return "&nbsp;" * depth + _plain(text)


def _block(lines: Sequence[str]) -> str:
    """Lines as they are; nothing in them ends the block."""
    longest = max((len(ticks) for line in lines for ticks in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}console", *lines, f"{fence}\n"])


def _plain(text: str) -> str:
    """One line in which nothing is Markdown or HTML, whatever a module is called."""
    line = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|#$~])", r"\\\1", line)
