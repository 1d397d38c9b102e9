"""A report as data: a headline, sections of tables and charts, and the tree of layers. Every format reads this."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rooflight.reporting.charts.chart import Chart
from rooflight.reporting.report.details import Details
from rooflight.reporting.report.tree import Tree
from rooflight.reporting.table import Table


@dataclass(frozen=True)
class Fact:
    """One of the few figures that a reader wants first."""

    label: str
    """What it is."""
    value: str
    """With its unit, as it is shown."""
    detail: str = ""
    """A few words beside it."""


@dataclass(frozen=True)
class Titled:
    """A table under a heading of its own."""

    title: str
    """The heading."""
    table: Table
    """Its rows."""
    note: str = ""
    """A sentence below it."""


@dataclass(frozen=True)
class Section:
    """A part of a report under a heading."""

    name: str = ""
    """Its address in the page, and its key in JSON."""
    title: str = ""
    """Its heading."""
    lines: tuple[str, ...] = ()
    """Sentences above everything else in it."""
    charts: tuple[Chart, ...] = ()
    """In the order in which they are shown."""
    tables: tuple[Titled, ...] = ()
    """In the order in which they are shown."""
    tree: Tree | None = None
    """Of layers and ops, where it has one."""
    plain: Table | None = None
    """The tree as a table, for formats that cannot fold it."""
    small_print: tuple[str, ...] = ()
    """Conventions and origins, below everything else in it."""
    commands: tuple[str, ...] = ()
    """That make it again."""
    missing: str = ""
    """Why there is nothing in it, where a reader would look for something."""

    @property
    def all_tables(self) -> Iterator[Titled]:
        """The tree's, the charts' numbers, its own: what a form without charts and folding shows."""
        if self.plain is not None and self.plain.rows:
            yield Titled("", self.plain)
        for chart in self.charts:
            if chart.table.rows:
                yield Titled(chart.title, chart.table, chart.caption)
        yield from self.tables


@dataclass(frozen=True)
class Report:
    """All of it: what every format is made from."""

    title: str
    """The model, or the title of a study."""
    subtitle: str
    """The step, and where it ran."""
    facts: tuple[Fact, ...]
    """The few figures that a reader wants first."""
    lines: tuple[str, ...]
    """The result in a few sentences."""
    sections: tuple[Section, ...]
    """In the order in which they are shown."""
    details: Details | None = None
    """What is behind the rows of its tree."""

    @property
    def charts(self) -> Iterator[Chart]:
        """Of all sections."""
        return (chart for section in self.sections for chart in section.charts)

    @property
    def trees(self) -> Iterator[Tree]:
        """Of all sections."""
        return (section.tree for section in self.sections if section.tree is not None)
