"""A result as a document: a headline, sections of tables and charts, notes. Every form is written from this, by the
writers in `rooflight.reporting.writers`: the terminal, a page, a notebook, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from rooflight import views
from rooflight.errors import BadInput
from rooflight.reporting.table import Table, Worded

if TYPE_CHECKING:
    from rooflight.reporting.charts.chart import Chart
    from rooflight.reporting.report.tree import Details, Tree

DEPTH = 3
"""Levels of the tree of modules that people are shown where they ask for none."""


@dataclass(frozen=True)
class Fact(Worded):
    """One of the few figures that a reader wants first."""

    label: str
    """What it is."""
    value: str
    """With its unit, as it is shown."""
    detail: str = ""
    """A few words beside it."""


@dataclass(frozen=True)
class Section(Worded):
    """A part of a document."""

    name: str = ""
    """Its address in the page, and its key in JSON."""
    title: str = ""
    """Its heading; "" where the title of its only table is enough."""
    lines: tuple[str, ...] = ()
    """Sentences above everything else in it."""
    charts: tuple[Chart, ...] = ()
    """In the order in which they are shown."""
    tables: tuple[Table, ...] = ()
    """In the order in which they are shown."""
    tree: Tree | None = None
    """Of layers and ops, where it has one."""
    plain: Table | None = None
    """The tree as a table, for forms that cannot fold it."""
    small_print: tuple[str, ...] = ()
    """Conventions and origins, below everything else in it."""
    commands: tuple[str, ...] = ()
    """That make it again."""
    missing: str = ""
    """Why there is nothing in it, where a reader would look for something."""

    @property
    def heading(self) -> str:
        """As it stands above the section: never nothing."""
        text = self.title or next((table.title or table.columns[0].name for table in self.all_tables), self.name)
        return _capital(text)

    @property
    def all_tables(self) -> Iterator[Table]:
        """The tree's, the charts' numbers, its own: what a form without charts and folding shows."""
        if self.plain is not None and self.plain.rows:
            yield replace(self.plain, title="")
        yield from self.charts_as_tables
        yield from self.tables

    @property
    def charts_as_tables(self) -> Iterator[Table]:
        """The numbers of its charts, each under the chart's title."""
        return (replace(chart.table, title=chart.title) for chart in self.charts if chart.table.rows)

    @property
    def titled_tables(self) -> Iterator[tuple[str, Table]]:
        """All of them, each under its title."""
        return self._titled(self.all_tables)

    @property
    def own_tables(self) -> Iterator[tuple[str, Table]]:
        """What a form shows that draws charts and folds trees."""
        return self._titled(self.tables)

    def _titled(self, tables: Iterable[Table]) -> Iterator[tuple[str, Table]]:
        """The first table may give the section its heading, and needs no title then; nor does one that is called so."""
        for number, table in enumerate(tables):
            title = _capital(table.title) if number or self.title else ""
            yield "" if title == self.heading else title, table


@dataclass(frozen=True, repr=False)
class Document(Worded):
    """All of it: what every form is made from."""

    title: str
    """The step; or the model, or the title of a study."""
    subtitle: str = ""
    """The step, and where it ran."""
    facts: tuple[Fact, ...] = ()
    """The few figures that a reader wants first."""
    lines: tuple[str, ...] = ()
    """The result in a few sentences."""
    sections: tuple[Section, ...] = ()
    """In the order in which they are shown."""
    notes: tuple[str, ...] = ()
    """What a reader must know before believing the tables."""
    small_print: tuple[str, ...] = ()
    """Conventions and origins."""
    details: Details | None = None
    """What is behind the rows of its tree."""
    rows: Callable[[], Table] | None = None
    """The result as one table of raw values, unfolded: what a CSV file holds."""
    data: Callable[[], Any] | None = None
    """The result for programs, raw values under their names: what JSON holds."""

    @property
    def charts(self) -> Iterator[Chart]:
        """Of all sections."""
        return (chart for section in self.sections for chart in section.charts)

    @property
    def trees(self) -> Iterator[Tree]:
        """Of all sections."""
        return (section.tree for section in self.sections if section.tree is not None)

    @property
    def tables(self) -> list[Table]:
        """Of all sections."""
        return [table for section in self.sections for table in section.all_tables]

    def __repr__(self) -> str:
        return f"Document({self.title!r}, sections: {', '.join(section.name for section in self.sections)})"

    def _repr_html_(self) -> str:
        return views.notebook(self)

    def to_markdown(self) -> str:
        """All of it, as Markdown."""
        return views.markdown(self)

    def only(self, names: Sequence[str]) -> Document:
        """The document with these sections alone."""
        if not names:
            return self
        names_here = [section.name for section in self.sections]
        wrong = [name for name in names if name not in names_here]
        if wrong:
            raise BadInput("unknown-section", f"no section {wrong[0]!r} in this report: it has {', '.join(names_here)}")
        chosen = tuple(section for section in self.sections if section.name in names)
        empty = next((section for section in chosen if section.missing and not any(section.all_tables)), None)
        if empty is not None:
            raise BadInput("empty-section", f"there is nothing in the section {empty.name!r} of this: {empty.missing}")
        return replace(self, sections=chosen, rows=None, data=None)


def first_rows(table: Table, most: int | None, section: str) -> Table:
    """No more rows than these, and how to get the others, which stand in this section of a report."""
    if most is None or len(table.rows) <= most:
        return table
    more = f"{len(table.rows) - most:,} more rows: all are in this report with --to csv --section {section or 'NAME'}"
    return replace(table, rows=table.rows[:most], more=more)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def table_sections(tables: Iterable[Table]) -> tuple[Section, ...]:
    """A section for each table that has rows, under the table's own title."""
    sections: dict[str, Section] = {}
    for table in tables:
        if table.rows:
            words = (table.title or table.columns[0].name).partition(":")[0].lower()
            plain = re.sub(r"\W+", "-", words).strip("-") or "table"
            name = next(key for n in count(1) if (key := plain if n == 1 else f"{plain}-{n}") not in sections)
            sections[name] = Section(name, tables=(table,))
    return tuple(sections.values())


def filled(*tables: Table) -> tuple[Table, ...]:
    """Those that have rows."""
    return tuple(table for table in tables if table.rows)
