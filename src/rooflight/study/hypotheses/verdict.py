"""What a claim was found to be, with the numbers it was judged by."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import msgspec

from rooflight.study.cell import SIDES

Outcome = Literal["held", "refuted", "undecided"]
"""Of one place."""
Verdict = Literal["held", "refuted", "undecided", "not measured"]
GapKind = Literal["impossible", "failed", "waiting", "arithmetic", "absent", "not asked"]


class ComparedValues(msgspec.Struct, frozen=True, kw_only=True):
    """Both sides of one comparison at one place of the grid."""

    text: str
    sign: str
    left: int | float | str
    right: int | float | str
    unit: str
    """`s`, `FLOP/s`, empty for plain numbers and words."""
    held: bool
    """By the values themselves."""
    undecided: bool = False
    """Inside the 90% intervals of predicted values it could be otherwise."""
    ratio_low: float | None = None
    """Of what is undecided: from where ..."""
    ratio_high: float | None = None
    """... to where left over right may be."""
    margin: float
    """How far it is on the wrong side, as a part of the larger of the two; below 0 on the right side."""
    sides: dict[str, str]
    """Of every quantity: which side its value is of."""

    @property
    def ratio(self) -> float | None:
        """Left over right."""
        if isinstance(self.left, str) or isinstance(self.right, str) or not self.right:
            return None
        return self.left / self.right

    @property
    def sides_said(self) -> str:
        """`measured`; where quantities differ `time measured, flops estimated`."""
        if len(set(self.sides.values())) <= 1:
            return next(iter(self.sides.values()), "")
        return ", ".join(f"{name} {side}" for name, side in self.sides.items() if f".{side}" not in name)


class JudgedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A place at which a claim could be judged."""

    at: dict[str, str | int | bool | None]
    """The axes that vary in the study and that the claim leaves free."""
    held: bool
    """And decidedly so."""
    undecided: bool = False
    """Predictions leave it open."""
    compared: tuple[ComparedValues, ...]

    @property
    def outcome(self) -> Outcome:
        return "undecided" if self.undecided else "held" if self.held else "refuted"

    @property
    def telling(self) -> ComparedValues:
        """The comparison that decided, or left it open; or came nearest to the other verdict."""
        alike = [values for values in self.compared if values.undecided == self.undecided]
        same = [values for values in alike if self.undecided or values.held == self.held] or list(self.compared)
        return max(same, key=lambda values: values.margin)


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """A place at which a claim could not be judged, and why."""

    at: dict[str, str | int | bool | None]
    cell: str
    """Its id; empty where it is no cell's fault."""
    why: str
    kind: GapKind


class JudgedHypothesis(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    """From 1, in the order of the study."""
    claim: str
    says: str = ""
    place: str = ""
    why: str = ""
    source: str = ""
    verdict: Verdict
    points: tuple[JudgedPoint, ...] = ()
    """Counter-examples first, the worst of them first; then what is undecided; then what held, the closest first."""
    missing: tuple[Gap, ...] = ()
    """Places that were asked for and have no value."""
    not_asked: tuple[Gap, ...] = ()
    """Places where nobody asked for the value: a device that is not here is not measured."""
    left_out: tuple[Gap, ...] = ()
    """Places that cannot be: a device without that precision."""
    reason: str = ""
    """Why nothing at all could be judged."""

    @property
    def held(self) -> int:
        """At so many places."""
        return sum(point.held for point in self.points)

    @property
    def undecided(self) -> int:
        """At so many places."""
        return sum(point.undecided for point in self.points)

    @property
    def counter_examples(self) -> tuple[JudgedPoint, ...]:
        return tuple(point for point in self.points if point.outcome == "refuted")

    @property
    def said_by(self) -> str:
        """The place where it is said; earlier plans put all of that into `source`."""
        return self.place or self.source

    @property
    def sides(self) -> dict[str, int]:
        """Which sides were used, and at how many places; measurements first."""
        counts = Counter(said for point in self.points for said in {values.sides_said for values in point.compared})
        order: dict[str, int] = {side: i for i, side in enumerate(reversed(SIDES))}
        return dict(sorted(counts.items(), key=lambda item: (order.get(item[0], len(order)), item[0])))
