"""A report as one HTML file that needs nothing else: data, charts, style and scripts inside, no request to anywhere.

Names of models, modules and kernels are other people's. They come into the page in two ways only: as text that the
template escapes, and as JSON in which nothing can end the script that holds it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from rooflight import formatting
from rooflight._version import __version__
from rooflight.reporting.charts.chart import config
from rooflight.reporting.charts.pictures import NoPictures, vega_bundle
from rooflight.reporting.document import Document
from rooflight.reporting.report.tree import Tree, TreeColumn
from rooflight.reporting.writers.html import table_html
from rooflight.reporting.writers.json import escaped

_DIGITS = 7
"""Of floats in the data: more than anything measured has."""
_SHORT = {
    "Why estimate and measurement differ": "Why",
    "What bounds it, and what would help": "Verdict",
    "Shares by type of layer": "Shares",
    "The step over time": "Timeline",
    "Other batches": "Batches",
    "Other devices": "Devices",
    "Conventions, origins, and how to repeat it": "Origins",
}


def to_page(report: Document) -> str:
    """The whole document; without its pictures where the machine does not let them be drawn."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["drawn"] = lambda table, section: Markup(table_html(table, section=section))
    environment.filters["shortened"] = lambda title: _SHORT.get(title, title.partition(":")[0])
    environment.keep_trailing_newline = True
    vega = ""
    if any(report.charts):
        try:
            vega = _inside_script(vega_bundle())
        except NoPictures as error:
            report = _without_pictures(report, error.on_command_line)
    return environment.from_string(_asset("page.html")).render(
        report=report,
        version=__version__,
        css=Markup(_asset("page.css")),
        script=Markup(_asset("page.js")),
        vega=Markup(vega),
        data=Markup(safe_json(_data(report))),
    )


def _without_pictures(report: Document, why: str) -> Document:
    """Every chart as its numbers, and a line that says why."""
    sections = tuple(
        replace(section, charts=(), tables=(*section.charts_as_tables, *section.tables)) for section in report.sections
    )
    return replace(report, sections=sections, lines=(*report.lines, f"Charts are shown as tables: {why}."))


def safe_json(value: Any) -> str:
    """JSON that no content can break out of: `<`, `>`, `&` and the line ends of JavaScript are escaped, and what steers
    a terminal."""
    return escaped(msgspec.json.encode(value).decode(), "<>&")


def _inside_script(code: str) -> str:
    """The library's own code: it holds no such string today, and must not end the script should it ever."""
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")


@cache
def _asset(name: str) -> str:
    return (files("rooflight.reporting.writers") / "assets" / name).read_text(encoding="utf-8")


def _data(report: Document) -> dict[str, Any]:
    details = report.details
    if details is not None:  # texts of cells are only read
        details = replace(details, texts=tuple(map(formatting.printable, details.texts)))
    return {
        "charts": {chart.name: _rounded(chart.spec) for chart in report.charts},
        "trees": {section.name: _tree(section.tree) for section in report.sections if section.tree is not None},
        "details": details,
        "themes": {mode: config(mode) for mode in ("light", "dark")},
    }


def _tree(tree: Tree) -> dict[str, Any]:
    return {
        "names": tuple(map(formatting.printable, tree.names)),
        "paths": tuple(map(formatting.printable, tree.paths)),
        "kinds": tree.kinds,
        "parents": [-1 if parent is None else parent for parent in tree.parents],
        "ops": tree.ops,
        "columns": [_column(column) for column in tree.columns],
    }


def _column(shown: TreeColumn) -> dict[str, Any]:
    """What stands in its cells is there once, as text and in the order of the values; rows have its number. A page that
    sorts by these numbers needs no others."""
    column = shown.column
    values = sorted({value for value in shown.values if value is not None}, key=_place)
    numbers = {value: number for number, value in enumerate(values)}
    data = {
        "title": column.name,
        "about": column.about,
        "side": shown.side,
        "right": column.right,
        "texts": [column.text(value) for value in values],
        "rows": [numbers.get(value) for value in shown.values],
    }
    if any(exact := [_exact(value) for value in values]):
        data["exact"] = exact
    if column.raw == "share":
        data["bars"] = [value and max(round(100 * value), 1) for value in values]
    return data


def _place(value: Any) -> Any:
    """Numbers by size, words by letter."""
    return (value.casefold(), value) if isinstance(value, str) else value


def _exact(value: Any) -> str | None:
    """All digits of a number that has more of them than are shown."""
    return (
        formatting.exact(round(value))
        if isinstance(value, (int, float)) and value % 1 == 0 and value >= 10_000
        else None
    )


def _rounded(value: Any) -> Any:
    """Floats with the digits that mean something; whole numbers stay whole. Infinities and NaN are unknown."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if value - value == 0 else None
    if isinstance(value, dict):
        return {str(key): _rounded(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(part) for part in value]
    return value
