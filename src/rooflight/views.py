"""How results look, for Python and notebooks: asked of `reporting/views.py`, by name, when somebody looks.

Results stand early in the flow and `reporting` last, so that none of them imports it. This base class and
`errors.py`, whose lines name options as `spec` knows them, are the only two places that look ahead.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Shown:
    """A result that Python, a notebook and pandas can show."""

    __slots__ = ()

    def __repr__(self) -> str:
        text: str = _views().text(self)
        return text

    def _repr_html_(self) -> str:
        return notebook(self)

    def to_pandas(self) -> Any:
        """A data frame (needs pandas): one row for every op of a ledger, device and batch of a prediction, cell of a
        study."""
        return frame(self)


def notebook(result: object) -> str:
    """As HTML without scripts."""
    page: str = _views().notebook(result)
    return page


def mimebundle(chart: object) -> dict[str, Any]:
    """A chart for a notebook, in every form that it may show."""
    forms: dict[str, Any] = _views().mimebundle(chart)
    return forms


def markdown(document: object) -> str:
    text: str = _views().document_markdown(document)
    return text


def frame(result: Shown, *which: Any) -> Any:
    return _views().frame(result, *which)


def roofline(result: Shown, on: str | None) -> Any:
    """The roofline of a ledger as a chart."""
    return _views().roofline(result, on)


def document(result: Shown) -> Any:
    """All that is known of a result, in sections."""
    return _views().document(result)


def _views() -> Any:
    return import_module("rooflight.reporting.views")
