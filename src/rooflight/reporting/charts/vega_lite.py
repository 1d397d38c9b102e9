"""The grammar that charts are written in: views with marks and encodings, over one another or side by side, as the
dicts that Vega-Lite reads.

These are the few words of Altair that the charts here use. Altair itself takes half a second to import, and copies all
of a definition whenever a part is added to it, which takes as long again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rooflight.formatting import printable

Spec = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.4.1.json"
_TYPES = {"Q": "quantitative", "N": "nominal"}


def field(shorthand: str, **options: Any) -> Spec:
    """What a channel shows: a field of the rows with its type, `"batch:Q"`; ends of spans, `x2` and `y2`, have none."""
    name, _, kind = shorthand.partition(":")
    return {"field": name, **({"type": _TYPES[kind]} if kind else {}), **options}


def tips(**titles: str) -> list[Spec]:
    """What a tooltip shows: fields of the rows, written out there, each with what it is called."""
    return [field(f"{name.rstrip('_')}:N", title=title) for name, title in titles.items()]


def by_word(shorthand: str, by_name: Mapping[str, Any], **options: Any) -> Spec:
    """What a channel shows of a word: a colour, a dash or a shape for each that there is."""
    scale = dict(domain=list(by_name), range=list(by_name.values()))
    return field(shorthand, **{"title": None, "scale": scale, **options})


def value(constant: Any) -> Spec:
    """The same for all rows."""
    return {"value": constant}


def expr(text: str) -> Spec:
    """What Vega works out where the chart is drawn."""
    return {"expr": text}


@dataclass(frozen=True)
class Param:
    """What a reader sets: by a switch below the chart, or by a click or drag in it."""

    definition: Spec
    empty: bool = True
    """Does everything count as picked while nothing is?"""

    @property
    def picks(self) -> bool:
        return "select" in self.definition

    @property
    def reference(self) -> Spec:
        return {"param": self.definition["name"], **({} if self.empty else {"empty": False})}


def switch(name: str, initial: Any, bind: Spec | None = None) -> Param:
    return Param({"name": name, **({} if bind is None else {"bind": bind}), "value": initial})


def picked(
    name: str,
    kind: Literal["point", "interval"] = "point",
    *,
    bind: str | None = None,
    empty: bool = True,
    **options: Any,
) -> Param:
    select = {"type": kind, **options}
    return Param({"name": name, "select": select, **({} if bind is None else {"bind": bind})}, empty)


def either(test: str | Param, then: Any, otherwise: Any) -> Spec:
    """One constant for rows that pass a test or are picked, another for the others."""
    asked = test.reference if isinstance(test, Param) else {"test": test}
    return {"condition": {**asked, "value": then}, "value": otherwise}


@dataclass(frozen=True)
class Drawing:
    """One view of rows, or several that are put together."""

    spec: Spec
    """All but data, parts and parameters."""
    rows: Rows = ()
    name: str = ""
    """Of its rows, where somebody looks for them."""
    how: Literal["", "layer", "concat", "vconcat"] = ""
    parts: tuple[Drawing, ...] = ()
    params: tuple[Param, ...] = ()

    def mark(self, kind: str, **look: Any) -> Drawing:
        return self.properties(mark={"type": kind, **look})

    def encode(self, **channels: Any) -> Drawing:
        return self.properties(encoding={**self.spec.get("encoding", {}), **channels})

    def filter(self, test: str | Param) -> Drawing:
        return self._then({"filter": test.reference if isinstance(test, Param) else test})

    def calculate(self, **texts: str) -> Drawing:
        """A new field each, by an expression."""
        return self._then(*({"calculate": text, "as": name} for name, text in texts.items()))

    def fold(self, fields: Sequence[str], *, key: str, amount: str) -> Drawing:
        """A row for each of the fields."""
        return self._then({"fold": list(fields), "as": [key, amount]})

    def properties(self, **given: Any) -> Drawing:
        return replace(self, spec={**self.spec, **given})

    def resolve_scale(self, **channels: str) -> Drawing:
        return self.properties(resolve={"scale": channels})

    def add_params(self, *params: Param) -> Drawing:
        return replace(self, params=(*self.params, *params))

    def to_dict(self) -> Spec:
        """The whole as Vega-Lite, its data by name. Texts are only read: Vega-Lite puts some, as those of a sorted
        axis, into expressions, which the end of a line would break."""
        writer = _Writer()
        written = writer.write(self)
        params = {"params": writer.params} if writer.params else {}
        spec: Spec = _printable({"$schema": SCHEMA, **written, **params, "datasets": writer.datasets})
        return spec

    def _then(self, *steps: Spec) -> Drawing:
        return self.properties(transform=[*self.spec.get("transform", ()), *steps])


def view(rows: Rows, name: str = "") -> Drawing:
    return Drawing({}, rows, name)


def mark(kind: str, rows: Rows, **look: Any) -> Drawing:
    """Rows as marks of one kind."""
    return view(rows).mark(kind, **look)


def layer(*parts: Drawing) -> Drawing:
    return Drawing({}, how="layer", parts=parts)


def concat(*parts: Drawing, columns: int, spacing: int) -> Drawing:
    return Drawing({"columns": columns, "spacing": spacing}, how="concat", parts=parts)


def vconcat(*parts: Drawing, spacing: int) -> Drawing:
    return Drawing({"spacing": spacing}, how="vconcat", parts=parts)


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {key: _printable(part) for key, part in value.items()}
    return [_printable(part) for part in value] if isinstance(value, (list, tuple)) else value


class _Writer:
    """Rows are there once, however many views show them; a selection stands on top and names the view it is made in."""

    def __init__(self) -> None:
        self.datasets: dict[str, Rows] = {}
        self.params: list[Spec] = []
        self._views = 0

    def write(self, drawing: Drawing) -> Spec:
        if drawing.parts:
            spec: Spec = {drawing.how: [self.write(part) for part in drawing.parts], **drawing.spec}
        else:
            spec = {"data": {"name": self._name_of(drawing.rows, drawing.name)}, **drawing.spec}
        if any(param.picks for param in drawing.params):
            spec["name"] = f"view_{self._views}"
            self._views += 1
        for param in drawing.params:
            self.params.append({**param.definition, "views": [spec["name"]]} if param.picks else param.definition)
        return spec

    def _name_of(self, rows: Rows, name: str) -> str:
        same = next((known for known, others in self.datasets.items() if others is rows or others == rows), "")
        name = same or name or f"data-{len(self.datasets)}"
        self.datasets[name] = rows
        return name
