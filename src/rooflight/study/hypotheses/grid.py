"""Which cells a claim is about: its filters on the rows of a study, and the rows of several terms put together."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rooflight.errors import BadInput
from rooflight.hardware.device import Device
from rooflight.study.cell import StudyRow, device_of
from rooflight.study.hypotheses.doubt import RowErrors
from rooflight.study.hypotheses.hypothesis import AxisFilter, Hypothesis, QuantityTerm

Value = str | int | bool | None
At = dict[str, Value]
"""A place in the grid; `None`: without that axis."""
MOST_PLACES = 100_000
_ABSENT = "none"
"""How a filter says that the axis is not given: `autocast=none`."""


@dataclass(frozen=True)
class Relation:
    """Where a term has rows, by the axes it leaves free; of a fold the places it is taken over."""

    axes: tuple[str, ...]
    rows: dict[tuple[Value, ...], StudyRow]
    inner: dict[tuple[Value, ...], list[At]]

    @property
    def keys(self) -> Iterable[tuple[Value, ...]]:
        return self.inner or self.rows

    def key(self, at: At) -> tuple[Value, ...]:
        return tuple(at.get(axis) for axis in self.axes)


class RowGrid:
    """The rows of a study, and what their axes are."""

    def __init__(self, rows: Sequence[StudyRow]) -> None:
        self.rows = rows
        self.errors = RowErrors()
        self.places: list[At] = [{**row.cell.coordinates} for row in rows]
        named = dict.fromkeys(axis for place in self.places for axis in place)
        self.values: dict[str, tuple[Value, ...]] = {
            axis: tuple(dict.fromkeys(place.get(axis) for place in self.places)) for axis in named
        }

    @property
    def varying(self) -> tuple[str, ...]:
        return tuple(axis for axis, values in self.values.items() if len(values) > 1)

    def relations(self, hypothesis: Hypothesis) -> dict[QuantityTerm | ast.Call, Relation]:
        """Of all quantities and folds of a claim, those in folds too."""
        related: dict[QuantityTerm | ast.Call, Relation] = {}

        def relate(node: ast.expr) -> list[Relation]:
            for part in hypothesis.valued(node):
                if isinstance(part, ast.Call):
                    related[part] = self._of_fold(hypothesis.axes(part), relate(part.args[0]))
                elif part not in related:
                    related[part] = self._of_term(part)
            return [related[part] for part in dict.fromkeys(hypothesis.valued(node))]

        relate(hypothesis.tree)
        return related

    def _of_term(self, term: QuantityTerm) -> Relation:
        fixed = self.fixed(term)
        chosen = [i for i, place in enumerate(self.places) if all(place.get(axis) == v for axis, v in fixed.items())]
        if not chosen:
            asked = ", ".join(f"{axis}={written(value)}" for axis, value in fixed.items())
            raise BadInput("unknown-cell", f"no cell is {asked}" if asked else "the study has no cells")
        # An axis that none of its cells has does not tell them apart from those of the other terms; nor does the batch
        # of one GPU, where it is a part of what all of them share.
        divided = {"batch"} if all("total_batch" in self.places[i] for i in chosen) else set()
        known = [axis for axis in self.values if axis not in fixed and axis not in divided]
        axes = tuple(axis for axis in known if any(axis in self.places[i] for i in chosen))
        rows: dict[tuple[Value, ...], StudyRow] = {}
        for i in chosen:
            rows.setdefault(tuple(self.places[i].get(axis) for axis in axes), self.rows[i])
        return Relation(axes, rows, {})

    def _of_fold(self, over: Sequence[str], relations: Sequence[Relation]) -> Relation:
        for axis in over:
            self._check_axis(axis)
        places = join(relations)
        axes = tuple(dict.fromkeys(axis for place in places for axis in place if axis not in over))
        inner: dict[tuple[Value, ...], list[At]] = {}
        for place in places:
            inner.setdefault(tuple(place.get(axis) for axis in axes), []).append(place)
        return Relation(axes, {}, inner)

    def fixed(self, term: QuantityTerm) -> At:
        """The axes that the filters of a term fix, and to what."""
        fixed: At = {}
        for chosen in term.filters:
            axis, value = self._resolved(chosen)
            if axis in fixed and fixed[axis] != value:
                asked = f"{term.name}({', '.join(map(str, term.filters))})"
                raise BadInput("duplicate-value", f"{asked} asks for two values of {axis}")
            fixed[axis] = value
        return fixed

    def _resolved(self, chosen: AxisFilter) -> tuple[str, Value]:
        if chosen.axis is not None:
            near = difflib.get_close_matches(chosen.axis, self.values, n=1)
            if chosen.value == _ABSENT and chosen.axis not in self.values and not near:
                return chosen.axis, None  # a study without the axis has nothing but cells without it
            self._check_axis(chosen.axis)
            return chosen.axis, self._matching(chosen.axis, chosen.value)
        if (model := _match("model", self.values.get("model", ()), chosen.value)) is not None:
            return "model", model
        axes = {
            axis: value
            for axis, values in self.values.items()
            if (value := _match(axis, values, chosen.value)) is not None
        }
        if not axes:
            raise BadInput(
                "unknown-model", f"no cell has {chosen.value!r}: models are {_listed(self.values.get('model', ()))}"
            )
        if len(axes) > 1:
            ways = " or ".join(f"{axis}={chosen.value}" for axis in axes)
            raise BadInput("ambiguous-model", f"{chosen.value!r} is ambiguous: write {ways}")
        return next(iter(axes.items()))

    def _matching(self, axis: str, text: str) -> Value:
        values = self.values[axis]
        if text == _ABSENT and None in values:
            return None
        value = _match(axis, values, text)
        if value is None:
            raise BadInput("unknown-cell", f"no cell has {axis}={text}: there {_listed(values, verb=True)}")
        return value

    def _check_axis(self, axis: str) -> None:
        if axis not in self.values:
            raise BadInput("unknown-axis", f"no cell has the axis {axis!r}: there {_listed(self.values, verb=True)}")


def join(relations: Sequence[Relation]) -> list[At]:
    """Every place at which all of them have a row: equal on the axes that they share."""
    places: list[At] = [{}]
    joined_axes: set[str] = set()
    for relation in relations:
        shared = [axis for axis in relation.axes if axis in joined_axes]
        index: dict[tuple[Value, ...], list[At]] = {}
        for key in relation.keys:
            place = dict(zip(relation.axes, key, strict=True))
            index.setdefault(tuple(place[axis] for axis in shared), []).append(place)
        joined: list[At] = []
        for place in places:
            joined += ({**place, **more} for more in index.get(tuple(place[axis] for axis in shared), ()))
            if len(joined) > MOST_PLACES:
                raise BadInput("too-many-places", f"more than {MOST_PLACES:,} places to judge: fix some axes")
        places = joined
        joined_axes.update(relation.axes)
    return places


def written(value: Value) -> str:
    """As a filter has it: `true`, `64`, `none`."""
    return _ABSENT if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _match(axis: str, values: Iterable[Value], text: str) -> Value:
    """The value that a text means: as it is written, else whatever the case, else another name of the same device."""
    there = {written(value): value for value in values if value is not None}
    if text in there:
        return there[text]
    folded = {name.casefold(): value for name, value in there.items()}
    if text.casefold() in folded:
        return folded[text.casefold()]
    if axis == "on" and (device := _device(text)) is not None:
        return next((value for name, value in there.items() if _device(name) == device), None)
    return None


def _device(text: str) -> Device | None:
    # A file is not opened to judge a claim.
    return None if any(letter in text for letter in "./\\") else device_of(text)


def _listed(values: Iterable[Value], *, verb: bool = False) -> str:
    names = [written(value) for value in values]
    shown = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    return f"{'is' if len(names) == 1 else 'are'} {shown}" if verb else shown
