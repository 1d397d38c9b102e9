"""A report as one HTML file that needs nothing else: data, charts, style and scripts inside, no request to anywhere.

Names of models, modules and kernels are other people's. They come into the page in two ways only: as text that the
template escapes, and as JSON in which nothing can end the script that holds it.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from rooflight._version import __version__
from rooflight.reporting.charts.theme import config
from rooflight.reporting.document import Document
from rooflight.reporting.report.tree import Tree, TreeColumn
from rooflight.reporting.report.vega import vega_bundle
from rooflight.reporting.writers.html import table_html

_DIGITS = 7
"""Of floats in the data: more than anything measured has."""
_SHORT = {
    "Why estimate and measurement differ": "Why", "What bounds it, and what would help": "Verdict",
    "Shares by type of layer": "Shares", "The step over time": "Timeline", "Other batches": "Batches",
    "Other devices": "Devices", "Conventions, origins, and how to repeat it": "Origins",
}  # fmt: skip


def to_page(report: Document) -> str:
    """The whole document."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["drawn"] = lambda table: Markup(table_html(table))
    environment.filters["shortened"] = lambda title: _SHORT.get(title, title.partition(":")[0])
    environment.keep_trailing_newline = True
    return environment.from_string(_asset("page.html")).render(
        report=report, version=__version__, css=Markup(_asset("page.css")), script=Markup(_asset("page.js")),
        vega=Markup(_inside_script(vega_bundle())) if any(report.charts) else Markup(""),
        data=Markup(safe_json(_data(report))),
    )  # fmt: skip


def safe_json(value: Any) -> str:
    """JSON that no content can break out of: `<`, `>`, `&` and the line ends of JavaScript are escaped."""
    written = msgspec.json.encode(value).decode()
    for sign in "<>&\u2028\u2029":
        written = written.replace(sign, f"\\u{ord(sign):04x}")
    return written


def _inside_script(code: str) -> str:
    """The library's own code: it holds no such string today, and must not end the script should it ever."""
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")


@cache
def _asset(name: str) -> str:
    return (files("rooflight.reporting.report") / "assets" / name).read_text(encoding="utf-8")


def _data(report: Document) -> dict[str, Any]:
    return {
        "charts": {chart.name: _rounded(chart.spec) for chart in report.charts},
        "trees": {section.name: _tree(section.tree) for section in report.sections if section.tree is not None},
        "details": None if report.details is None else _rounded(msgspec.to_builtins(report.details)),
        "themes": {mode: config(mode) for mode in ("light", "dark")},
    }


def _tree(tree: Tree) -> dict[str, Any]:
    return {
        "names": tree.names, "paths": tree.paths, "kinds": tree.kinds,
        "parents": [-1 if parent is None else parent for parent in tree.parents], "ops": tree.ops,
        "columns": [_column(column) for column in tree.columns],
    }  # fmt: skip


def _column(column: TreeColumn) -> dict[str, Any]:
    """Words are there once, and rows refer to them."""
    made: dict[str, Any] = {"key": column.key, "title": column.title, "kind": column.kind, "side": column.side,
                            "about": column.about}  # fmt: skip
    if column.kind not in ("text", "shape"):
        return {**made, "values": _rounded(column.values)}
    texts = {text: number for number, text in enumerate(dict.fromkeys(text for text in column.values if text))}
    return {**made, "texts": list(texts), "values": [texts.get(text) for text in column.values]}


def _rounded(value: Any) -> Any:
    """Floats with the digits that mean something; whole numbers stay whole. Infinities and NaN are unknown."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if value - value == 0 else None
    if isinstance(value, dict):
        return {str(key): _rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(one) for one in value]
    return value
