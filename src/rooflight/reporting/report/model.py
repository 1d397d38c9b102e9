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
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Titled:
    """A table under a heading of its own."""

    title: str
    table: Table
    note: str = ""


@dataclass(frozen=True)
class Section:
    name: str
    """Its address in the page, and its key in JSON."""
    title: str
    lines: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[Titled, ...] = ()
    tree: Tree | None = None
    plain: Table | None = None
    """The tree as a table, for formats that cannot fold it."""
    small_print: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    missing: str = ""
    """Why there is nothing in it, where a reader would look for something."""


@dataclass(frozen=True)
class Report:
    title: str
    subtitle: str
    facts: tuple[Fact, ...]
    lines: tuple[str, ...]
    """The result in a few sentences."""
    sections: tuple[Section, ...]
    details: Details | None = None
    """What is behind the rows of its tree."""

    @property
    def charts(self) -> Iterator[Chart]:
        return (chart for section in self.sections for chart in section.charts)

    @property
    def trees(self) -> Iterator[Tree]:
        return (section.tree for section in self.sections if section.tree is not None)
