"""What the environment says about regions: who runs the program, and which counters are wanted.

`rooflight run` sets the first three; the others come from the user. Which of several processes this is, `ranks` says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from rooflight.errors import BadInput
from rooflight.hardware.counter_tables import Level
from rooflight.measurement import ranks

RUN = "ROOFLIGHT_RUN"
"""The folder into which every process of the program writes its ledger."""
COUNTERS = "ROOFLIGHT_COUNTERS"
LEVEL = "ROOFLIGHT_LEVEL"
COUNTERS_RANK = "ROOFLIGHT_COUNTERS_RANK"
"""The rank that counts, or `all`."""

CounterChoice = Literal["auto", "cupti", "none"]
COUNTER_CHOICES: tuple[CounterChoice, ...] = ("auto", "cupti", "none")
LEVELS: tuple[Level, ...] = ("dram", "l2", "l1")


@dataclass(frozen=True)
class RegionSettings:
    folder: Path | None
    rank: int
    world: int
    levels: tuple[Level, ...]
    no_counters: str | None
    """Why no counters are wanted in this process; `None`: they are."""


def read(environment: Mapping[str, str] = os.environ) -> RegionSettings:
    """A word it does not know never stops somebody's program: it is told as the reason why there are no counters."""
    try:
        here, unplaced = ranks.process_rank(environment), None
    except BadInput as error:
        here, unplaced = ranks.ALONE, str(error)
    folder, level = environment.get(RUN), environment.get(LEVEL) or "dram"
    is_level = level in LEVELS
    return RegionSettings(
        folder=Path(folder) if folder else None,
        rank=here.rank,
        world=here.world,
        # DRAM always: the other levels are read beside it.
        levels=tuple(dict.fromkeys(("dram", cast(Level, level) if is_level else "dram"))),
        no_counters=unplaced
        or _why_not(environment, here.rank)
        or (None if is_level else _unknown(LEVEL, level, LEVELS)),
    )


def _why_not(environment: Mapping[str, str], rank: int) -> str | None:
    choice = environment.get(COUNTERS) or "auto"
    if choice not in COUNTER_CHOICES:
        return _unknown(COUNTERS, choice, COUNTER_CHOICES)
    if choice == "none":
        return "counters are switched off (--counters none)"
    wanted = environment.get(COUNTERS_RANK) or "0"
    if wanted != "all" and not wanted.isdecimal():
        return _unknown(COUNTERS_RANK, wanted, ("a rank", "all"))
    if wanted != "all" and rank != int(wanted):
        return f"only rank {wanted} counts (set {COUNTERS_RANK}={rank} to count here)"
    return None


def _unknown(name: str, value: str, choices: tuple[str, ...]) -> str:
    return f"{name}={value} is none of {', '.join(choices)}"
