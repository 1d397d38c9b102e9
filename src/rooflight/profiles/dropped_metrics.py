"""Metrics that stand in a log and not in its ledger, each by name, and why: nothing is left out in silence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from rooflight.hardware.counter_names import known_counters, meant_counter
from rooflight.ledger import Note

_GROUP = re.compile(r"(?P<group>[A-Za-z0-9]+(?:__|:)(?:attribute_)?)")
_ROLLUP = re.compile(r".+\.(?:avg|min|max)")
_FEW = 2
"""So many names stand there as they are, more under the beginning that they share."""


def without_value(printed: Mapping[str, int], empty: Mapping[str, int]) -> list[Note]:
    """Metrics that ncu printed as `n/a`: for how many launches each was printed, and in how many it had no value."""
    by_reason: dict[str, list[str]] = {}
    for name, count in empty.items():
        by_reason.setdefault(_why_empty(name, count, printed[name]), []).append(name)
    return [Note("dropped-metrics", f"dropped: {', '.join(names)} {reason}") for reason, names in by_reason.items()]


def _why_empty(name: str, count: int, printed: int) -> str:
    if count < printed:
        return f"has no value (n/a) in {count:,} of {printed:,} kernels, which are without it"
    everywhere = f"is n/a in {'all ' if count > 1 else ''}{count:,} kernel{'s' if count > 1 else ''}"
    if (meant := meant_counter(name)) is not None:
        return f"{everywhere}, because there is no counter of that name: it is {meant}; profile again with it"
    if name.partition(".")[0] in known_counters():
        return f"{everywhere}: this chip has no such counter, or ncu could not read it"
    return f"{everywhere}: no counter of this chip has that name (ncu --query-metrics lists them)"


def words(values: Mapping[str, str]) -> list[Note]:
    """Metrics whose value is no number, with one of their values."""
    if not values:
        return []
    listed = ", ".join(f"{name} ({value})" for name, value in values.items())
    return [Note("dropped-metrics", f"dropped: {listed}: a word is nothing to add up")]


def not_of_a_launch(names: Iterable[str]) -> list[Note]:
    """Attributes of the device, the launch and the profiler by their groups, and averages of counters whose sum is
    kept."""
    groups: dict[str, list[str]] = {}
    averages = 0
    for name in names:
        if _ROLLUP.fullmatch(name) is not None:
            averages += 1
        else:
            match = _GROUP.match(name)
            groups.setdefault(f"{match['group']}*" if match is not None else name, []).append(name)
    parts = []
    if groups:
        listed = (
            ", ".join(members) if len(members) <= _FEW else f"{len(members):,} {group}"
            for group, members in groups.items()
        )
        parts.append(f"columns about device, launch and profiler ({', '.join(listed)})")
    if averages:
        parts.append(f"{averages:,} .avg, .min and .max of counters whose .sum is kept")
    return [Note("left-out-columns", f"left out: {', and '.join(parts)}")] if parts else []


def unknown_to_ncu(errors: Sequence[str]) -> list[Note]:
    """The right names of metrics that ncu's own errors call unknown."""
    names = dict.fromkeys(word.strip("'\".,:") for text in errors for word in re.findall(r"\b\w+__\w+(?:\.\w+)*", text))
    meant = {name: meant_counter(name) for name in names}
    return [
        Note("unknown-counter", f"there is no counter {name}: it is {other}")
        for name, other in meant.items()
        if other is not None
    ]
