"""Names of hardware counters: which exist, and which one a misspelt one was meant to be."""

from __future__ import annotations

import difflib
from functools import cache

from rooflight.claims.result import Candidate
from rooflight.counting import metrics


@cache
def known_metrics() -> frozenset[str]:
    """Base names of the counters that rooflight's tables have, of all chips."""
    chips = dict.fromkeys(metrics.CHIPS_BY_CAPABILITY.values())
    found = set()
    for chip in chips:
        for row in (*metrics.cuda_core_counters(chip), *metrics.tensor_counters(chip),
                    *metrics.byte_counters(("dram", "l2", "l1"), chip=chip)):  # fmt: skip
            found.add(row.metric.partition(".")[0])
    return frozenset(found)


def misspelt(name: str, own: frozenset[str]) -> Candidate | None:
    """The counter that was meant, where there is none by that name but one with a letter or two less or more."""
    base, dot, rest = name.partition(".")
    known = known_metrics() | {metric.partition(".")[0] for metric in own}
    if base in known or _exists(base):
        return None
    near = [other for other in difflib.get_close_matches(base, known, n=3, cutoff=0.9) if _letters(base, other) <= 2]
    if not near:
        return None
    meant = f"{near[0]}{dot}{rest}"
    return Candidate("metric-misspelt", f"there is no counter {name}: it is {meant}; Nsight Compute reports n/a", meant)


def _letters(one: str, other: str) -> int:
    """How many letters to put in, leave out or change, by the longest parts that are the same."""
    blocks = difflib.SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
    return max(len(one), len(other)) - sum(block.size for block in blocks)


def _exists(base: str) -> bool:
    """Does NVIDIA's own table have it, where that is installed?"""
    try:
        from rooflight.measurement.counters.cupti import Host

        with Host("GH100") as host:
            return host.is_known(f"{base}.sum")
    except Exception:  # no library, or one that wants a driver: the near names decide
        return False
