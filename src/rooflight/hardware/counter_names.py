"""Names of hardware counters: which ones rooflight's tables have, and which one a misspelt name was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from functools import cache

from rooflight.hardware.counter_tables import CHIPS_BY_CAPABILITY, byte_counters, cuda_core_counters, tensor_counters

_FURTHER = ("gpu__time_duration",)
"""Those that are read beside the tables' own."""


@cache
def known_counters() -> frozenset[str]:
    """Base names, without `.sum`, of the counters of all chips."""
    counters = (
        counter
        for chip in dict.fromkeys(CHIPS_BY_CAPABILITY.values())
        for counter in (
            *cuda_core_counters(chip),
            *tensor_counters(chip),
            *byte_counters(("dram", "l2", "l1"), chip=chip),
        )
    )
    return frozenset((*(counter.metric.partition(".")[0] for counter in counters), *_FURTHER))


def meant_counter(name: str, also: Collection[str] = ()) -> str | None:
    """The counter with a letter or two less or more, where there is none by that name; `also`: others that exist."""
    base, dot, rest = name.partition(".")
    counters = known_counters() | {metric.partition(".")[0] for metric in also}
    if base in counters:
        return None
    alike = difflib.get_close_matches(base, counters, n=3, cutoff=0.9)
    near = [other for other in alike if _letters(base, other) <= 2]
    return f"{near[0]}{dot}{rest}" if near else None


def _letters(name: str, other: str) -> int:
    """How many letters to put in, leave out or change, by the longest parts that are the same."""
    blocks = difflib.SequenceMatcher(None, name, other, autojunk=False).get_matching_blocks()
    return max(len(name), len(other)) - sum(block.size for block in blocks)
